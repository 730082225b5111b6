"""The journal of a run as event files for TensorBoard.

They are written from the journal, so that a resumed run repeats no step.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from atcl.core import journal
from atcl.core.errors import AtclError
from atcl.loggers.base import Logger
from atcl.runs import layout
from atcl.runs.run import Run
from atcl.runs.watcher import Watcher

PLACE = ("stage", "epoch")


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a record by name, with `/` in place of dots: TensorBoard groups by it.

    Args:
        record: a line of the journal or of the analyses.

    Examples:
        >>> scalars({"stage": 0, "epoch": 1, "loss": 2.3, "gradient.first_norm": 0.5})
        {'loss': 2.3, 'gradient/first_norm': 0.5}
    """
    numbers = {
        key: value
        for key, value in record.items()
        if key not in PLACE and isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {key.replace(".", "/"): float(value) for key, value in numbers.items() if math.isfinite(value)}


class EventFile:
    """The event file of a run; opening it replaces older ones by the whole journal.

    Args:
        run: the run, in whose folder the file is.
    """

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.run, self.folder = run, run.folder / layout.TENSORBOARD
        for old in self.folder.glob("events.out.tfevents.*"):
            old.unlink()
        self.writer: SummaryWriter = SummaryWriter(str(self.folder))
        self.logged = 0  # how many records of observers are in the file
        for record, when in _timed(run.journal, run.folder / layout.JOURNAL):
            self.add(record, when)
        self.writer.flush()

    def add(self, record: journal.Record, when: float | None = None) -> None:
        """Log an epoch, and the records of observers up to it.

        Args:
            record: the line of the epoch in the journal.
            when: the time at which it was written; None: now.
        """
        self._put(record, when)
        analyses = journal.read(self.run.folder / layout.ANALYSIS)
        for analysis in analyses[self.logged :]:
            if _at(analysis) <= _at(record):
                self._put(analysis, when)
                self.logged += 1

    def _put(self, record: journal.Record, when: float | None) -> None:
        step = sum(stage.epochs for stage in self.run.recipe.stages[: record["stage"]]) + record["epoch"]
        for name, value in scalars(record).items():
            self.writer.add_scalar(name, value, step, walltime=when)

    def close(self) -> None:
        """Write what is buffered, and close the file."""
        self.writer.close()


class TensorBoardLogger(Logger):
    """Event files for TensorBoard, in `tensorboard/`.

    Args:
        inner: the watcher that receives everything too.
    """

    writes = "the log for TensorBoard"

    def __init__(self, inner: Watcher) -> None:
        super().__init__(inner)
        self.file: EventFile | None = None

    @staticmethod
    def check() -> None:
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError:
            raise AtclError(
                "TensorBoard is not installed: pip install 'atcl[tensorboard]', or leave out --tensorboard"
            ) from None

    def log_begin(self, run: Run) -> None:
        self.file = EventFile(run)

    def log_epoch(self, record: journal.Record) -> None:
        if self.file:
            self.file.add(record)
            self.file.writer.flush()

    def log_end(self, run: Run) -> None:
        (self.file or EventFile(run)).close()


def _at(record: journal.Record) -> tuple[int, int]:
    return record["stage"], record["epoch"]


def _timed(records: list[journal.Record], path: Path) -> Iterator[tuple[journal.Record, float]]:
    """Return records with the time at which each was written.

    That of the last is the time of the file; the others follow from the seconds that the epochs took.
    """
    when = path.stat().st_mtime - sum(record.get("seconds", 0.0) for record in records) if records else 0.0
    for record in records:
        when += record.get("seconds", 0.0)
        yield record, when
