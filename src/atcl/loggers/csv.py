"""The journal of a run as a CSV file, for spreadsheets."""

import csv
import io

from atcl.core.files import write_whole
from atcl.core.journal import Record
from atcl.loggers.base import Logger
from atcl.runs import layout
from atcl.runs.run import Run
from atcl.runs.watcher import Watcher


class CsvLogger(Logger):
    """The journal as a table for spreadsheets, in `journal.csv`.

    It is written anew after each epoch, so that a resumed run repeats no row.

    Args:
        inner: the watcher that receives everything too.
    """

    writes = layout.JOURNAL_TABLE

    def __init__(self, inner: Watcher) -> None:
        super().__init__(inner)
        self.run: Run | None = None

    def log_begin(self, run: Run) -> None:
        self.run = run

    def log_epoch(self, record: Record) -> None:
        if self.run is not None:
            self.log_end(self.run)

    def log_end(self, run: Run) -> None:
        write_whole(run.folder / layout.JOURNAL_TABLE, as_table(run.journal).encode())


def as_table(records: list[Record]) -> str:
    """Return records as CSV, with a column for each key, in order of first appearance.

    Args:
        records: lines of a journal; a record without a key leaves the cell empty.

    Examples:
        >>> print(as_table([{"epoch": 1, "loss": 2.3}, {"epoch": 2, "loss": 1.9, "test_pgd20": 40.0}]))
        epoch,loss,test_pgd20
        1,2.3,
        2,1.9,40.0
        <BLANKLINE>
    """
    columns = list(dict.fromkeys(key for record in records for key in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
