"""What is told about a run while it goes on."""

from atcl.core.journal import Record
from atcl.runs.run import Run


class Watcher:
    """Hears what a run does; this one ignores it. Progress bars and loggers are watchers."""

    def engine(self, about: str) -> None:
        """An engine was chosen, described in a few words."""

    def begin(self, run: Run, stage: int, epoch: int) -> None:
        """Training goes on after an epoch of a stage; (0, 0) is the start."""

    def epoch(self, record: Record) -> None:
        """An epoch has ended, with this line in the journal."""

    def notify(self, text: str) -> None:
        """Something that the user should know."""
