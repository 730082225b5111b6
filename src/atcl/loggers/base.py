"""The base class of loggers."""

from collections.abc import Callable
from typing import ClassVar

from atcl.core.journal import Record
from atcl.runs.run import Run
from atcl.runs.watcher import Watcher


class Logger(Watcher):
    """A watcher that logs a run, and passes everything on to another watcher.

    A subclass overrides `log_begin`, `log_epoch` and `log_end`. If one of them raises an OSError, such as on
    a full disk, the user is notified, nothing more is logged, and training goes on.

    Args:
        inner: the watcher that receives everything.

    Examples:
        >>> class LossLogger(Logger):
        ...     def log_epoch(self, record):
        ...         print(record["loss"])
        >>> LossLogger(Watcher()).epoch({"epoch": 1, "loss": 2.3})
        2.3
    """

    writes: ClassVar[str] = "the log"
    """what it writes, as messages name it"""

    def __init__(self, inner: Watcher) -> None:
        self.inner = inner
        self.failed = False

    @staticmethod
    def check() -> None:
        """Raise an AtclError if a package that it needs is missing; this is called before the run starts."""

    def log_begin(self, run: Run) -> None:
        """Prepare to log a run that starts or goes on."""

    def log_epoch(self, record: Record) -> None:
        """Log an epoch, which has this line in the journal."""

    def log_end(self, run: Run) -> None:
        """Finish the log of a run; of one that had nothing left to train, the whole journal is logged now."""

    def engine(self, about: str) -> None:
        self.inner.engine(about)

    def begin(self, run: Run, stage: int, epoch: int) -> None:
        self._try(lambda: self.log_begin(run))
        self.inner.begin(run, stage, epoch)

    def epoch(self, record: Record) -> None:
        self._try(lambda: self.log_epoch(record))
        self.inner.epoch(record)

    def notify(self, text: str) -> None:
        self.inner.notify(text)

    def end(self, run: Run) -> None:
        self._try(lambda: self.log_end(run))
        self.inner.end(run)

    def _try(self, log: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            log()
        except OSError as error:
            self.failed = True
            self.inner.notify(f"{self.writes} is no longer written: {error.strerror or error}")
