"""`atcl show`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from atcl.cli.names import check_recipe
from atcl.recipes.names import DEFAULT


@dataclass(frozen=True)
class Show:
    """Print all settings of a recipe and its schedules. Settings can be changed as in `atcl train`"""

    recipe: Annotated[str, tyro.conf.Positional] = DEFAULT
    """dataset/method, from `atcl list recipes`"""
    own: bool = False
    """show the recipe as `atcl train --images` uses it, for pictures of your own"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        check_recipe(self.recipe)
        from atcl.cli.overrides import overridden_recipe
        from atcl.cli.views import schedule_table
        from atcl.core.settings import options
        from atcl.loggers.progress import print_line

        wanted = overridden_recipe(self.recipe, overrides, Show, self.own)
        print("\n".join(options(wanted)))
        for number, stage in enumerate(wanted.stages, 1):
            taken = f", takes {' and '.join(stage.takes)} from the previous one" if stage.takes else ""
            print_line(console, f"\nstage {number} of {len(wanted.stages)}{taken}")
            console.print(schedule_table(stage))
