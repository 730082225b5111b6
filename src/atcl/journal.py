"""The journal of a run: one JSON line an epoch."""

import json
import os
from pathlib import Path
from typing import Any

from atcl.files import write_whole

Record = dict[str, Any]


def append(path: Path, record: Record) -> None:
    """Add one line, or leave the file as it was."""
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
    """Return the whole lines of a journal; a last line that was cut off is passed over."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def cut_back(path: Path, stage: int, epoch: int) -> None:
    """Drop the lines after an epoch of a stage: training goes on from there and writes them again."""
    kept = [record for record in read(path) if (record["stage"], record["epoch"]) <= (stage, epoch)]
    write_whole(path, b"".join((json.dumps(record) + "\n").encode() for record in kept))
