"""`atcl list`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from atcl.cli.names import check_kind, listed


@dataclass(frozen=True)
class List:
    """List recipes, losses, datasets and the like by name, each with a line of description."""

    what: Annotated[str, tyro.conf.Positional]
    """recipes, losses, datasets, models, labels, attacks, rules, exports, engines, experiments, weights,
    observations, figures, augmentations, loggers or launchers"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        check_kind(self.what)
        names = listed(self.what)
        width = max(map(len, names))
        for name, about in names.items():
            print(f"{name:{width}}  {about}".rstrip())
