"""The commands of `atcl`, by name in `COMMANDS`: each is a dataclass of options with a method `run`.

To be quick to import, a command imports PyTorch and other slow packages only when it runs.
"""

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console

from atcl.cli.commands.evaluate import Evaluate
from atcl.cli.commands.export import Export
from atcl.cli.commands.figure import Figure
from atcl.cli.commands.listing import List
from atcl.cli.commands.observe import Observe
from atcl.cli.commands.predict import Predict
from atcl.cli.commands.report import Report
from atcl.cli.commands.reproduce import Reproduce
from atcl.cli.commands.show import Show
from atcl.cli.commands.train import Train


class Command(Protocol):
    """The interface of a command, whose fields are its options."""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        """Run the command.

        Args:
            console: where it prints.
            overrides: changed settings of a recipe, given beside its options.
        """


COMMANDS: dict[str, type[Command]] = {
    "train": Train,
    "evaluate": Evaluate,
    "predict": Predict,
    "export": Export,
    "list": List,
    "show": Show,
    "reproduce": Reproduce,
    "observe": Observe,
    "figure": Figure,
    "report": Report,
}

TAKES_OVERRIDES = (Train, Show)  # accept settings of a recipe as options
