"""The journal of a run: a file with one line of JSON for each epoch."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atcl.core.files import write_whole

Record = dict[str, Any]


def append(path: Path, record: Record) -> None:
    """Add one line; where that fails, leave the file as it was."""
    with open(path, "ab") as file:
        before = file.tell()
        try:
            file.write((json.dumps(record) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            os.truncate(path, before)
            raise


def read(path: Path) -> list[Record]:
    """Return the lines of a journal up to the first that is not whole, as a cut-off last line is."""
    records: list[Record] = []
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError):  # RecursionError: nested deeper than any journal is
            break
    return records


def cut_back(path: Path, stage: int, epoch: int) -> int:
    """Drop the lines after an epoch of a stage, since training writes them again.

    Returns:
        how many lines are left
    """
    kept = [record for record in read(path) if (record["stage"], record["epoch"]) <= (stage, epoch)]
    write_whole(path, to_lines(kept))
    return len(kept)


def to_lines(records: Sequence[Record]) -> bytes:
    """Return records as the lines of a journal."""
    return b"".join((json.dumps(record) + "\n").encode() for record in records)
