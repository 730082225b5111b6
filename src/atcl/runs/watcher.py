"""The interface of progress bars and loggers."""

from atcl.core.journal import Record
from atcl.runs.run import Run


class Watcher:
    """Receives what happens in a run, and ignores it; progress bars and loggers are subclasses.

    Examples:
        >>> class Printer(Watcher):
        ...     def epoch(self, record):
        ...         print(f"epoch {record['epoch']}: loss {record['loss']:.2f}")
        >>> Printer().epoch({"epoch": 1, "loss": 2.3})
        epoch 1: loss 2.30
    """

    def engine(self, about: str) -> None:
        """Receive a description of the engine that was chosen."""

    def begin(self, run: Run, stage: int, epoch: int) -> None:
        """Receive the run before it trains.

        Args:
            run: the run.
            stage: the number of the stage that it begins or resumes.
            epoch: how many epochs of that stage are done.
        """

    def epoch(self, record: Record) -> None:
        """Receive the line of the journal of an epoch that has ended."""

    def end(self, run: Run) -> None:
        """Receive the finished run, also if it was finished before."""

    def notify(self, text: str) -> None:
        """Receive a message for the user."""
