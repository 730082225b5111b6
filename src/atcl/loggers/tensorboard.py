"""The journal of a run as TensorBoard reads it: event files that follow from the journal, so that a resumed run repeats no step."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from atcl.core import journal
from atcl.core.errors import AtclError
from atcl.runs import layout
from atcl.runs.run import Run
from atcl.runs.watcher import Watcher

PLACE = ("stage", "epoch")


def check_installed() -> None:
    """Refuse to log where TensorBoard is not installed, before anything is trained."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise AtclError(
            "TensorBoard is not installed: pip install 'atcl[tensorboard]', or leave out --tensorboard"
        ) from None


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a record under their names, with `/` in the place of dots, by which TensorBoard groups them."""
    numbers = {
        key: value
        for key, value in record.items()
        if key not in PLACE and isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {key.replace(".", "/"): float(value) for key, value in numbers.items() if math.isfinite(value)}


class EventFile:
    """The event file of a run, written anew from its journal when opened."""

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.run, self.folder = run, run.folder / layout.TENSORBOARD
        for old in self.folder.glob("events.out.tfevents.*"):
            old.unlink()
        self.writer: SummaryWriter = SummaryWriter(str(self.folder))
        self.looks = 0  # records of onlookers that are logged
        for record, when in _timed(run.journal, run.folder / layout.JOURNAL):
            self.add(record, when)
        self.writer.flush()

    def add(self, record: journal.Record, when: float | None = None) -> None:
        """Log an epoch, with what onlookers saw up to then."""
        self._put(record, when)
        seen = journal.read(self.run.folder / layout.ANALYSIS)
        for look in seen[self.looks :]:
            if _at(look) <= _at(record):
                self._put(look, when)
                self.looks += 1

    def _put(self, record: journal.Record, when: float | None) -> None:
        step = sum(stage.epochs for stage in self.run.recipe.stages[: record["stage"]]) + record["epoch"]
        for name, value in scalars(record).items():
            self.writer.add_scalar(name, value, step, walltime=when)

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()


class TensorBoardLogger(Watcher):
    """A watcher that also logs each epoch, and passes on all that it is told; a log that fails ends, and training goes on."""

    def __init__(self, inner: Watcher) -> None:
        self.inner = inner
        self.log: EventFile | None = None
        self.failed = False

    def engine(self, about: str) -> None:
        self.inner.engine(about)

    def begin(self, run: Run, stage: int, epoch: int) -> None:
        def opened() -> None:
            self.log = EventFile(run)

        self._try(opened)
        self.inner.begin(run, stage, epoch)

    def epoch(self, record: journal.Record) -> None:
        def added() -> None:
            if self.log:
                self.log.add(record)
                self.log.writer.flush()

        self._try(added)
        self.inner.epoch(record)

    def notify(self, text: str) -> None:
        self.inner.notify(text)

    def close(self, run: Run) -> None:
        """End the log; of a run that had nothing left to train, all of it is written now."""

        def ended() -> None:
            (self.log or EventFile(run)).close()

        self._try(ended)

    def _try(self, log: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            log()
        except OSError as error:
            self.log, self.failed = None, True
            self.inner.notify(f"nothing more is logged for TensorBoard: {error.strerror or error}")


def _at(record: journal.Record) -> tuple[int, int]:
    return record["stage"], record["epoch"]


def _timed(records: list[journal.Record], path: Path) -> Iterator[tuple[journal.Record, float]]:
    """Return records with the time at which each was written, reckoned back from the last."""
    when = path.stat().st_mtime - sum(record.get("seconds", 0.0) for record in records) if records else 0.0
    for record in records:
        when += record.get("seconds", 0.0)
        yield record, when
