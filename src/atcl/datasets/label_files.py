"""Numbers from the files that people have: .npy, .npz, .csv, .txt, .json, and the releases of CLImage; nothing in them is executed."""

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from atcl.core.errors import AtclError
from atcl.datasets import readers
from atcl.datasets.readers import NumpyArray

Reader = Callable[[Path, Sequence[str]], Any]  # a file, and the names under which the table may lie in it


def numbers(path: Path, names: Sequence[str], formats: Mapping[str, Reader]) -> NumpyArray:
    """Return a table (n, m) of float64 from a file in one of the formats, NaN where a cell is empty."""
    read = formats.get(path.suffix.lower())
    if read is None:
        raise AtclError(f"{path} ends in none of {', '.join(formats)}: store it as one of them")
    if not path.is_file():
        raise AtclError(f"{path} is not there, or no file: give the path of one, from the folder you are in or from the root")
    try:
        table = np.asarray(read(path, names))
    except AtclError:
        raise
    except Exception as error:  # each format fails in its own ways on a damaged file
        raise AtclError(f"{path} cannot be read as a table of numbers: {' '.join(str(error).split()) or type(error).__name__}") from None
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or table.size == 0 or table.dtype.kind not in "iuf":
        raise AtclError(f"{path} holds {table.dtype} of shape {table.shape}, where a table of numbers is needed")
    return table.astype(np.float64)


def _array(path: Path, names: Sequence[str]) -> Any:
    return readers.array(path, lambda found: _name(found, names))


def _json(path: Path, names: Sequence[str]) -> Any:
    found = json.loads(path.read_text())
    return _padded(found[_name(list(found), names)] if isinstance(found, dict) else found)


def _text(path: Path, names: Sequence[str]) -> Any:
    lines = path.read_text().splitlines()
    rows = list(csv.reader(lines)) if any("," in line for line in lines) else [line.split() for line in lines]
    if rows and not all(_is_number(cell) for cell in rows[0]):
        # other columns may hold the truth, so a heading says which are meant
        chosen = [column for column, title in enumerate(rows[0]) if any(title.strip().startswith(name.rstrip("s")) for name in names)]
        if not chosen:
            raise ValueError(f"it has a heading, but none of its columns is called {names[0]}")
        rows = [[row[column] if column < len(row) else "" for column in chosen] for row in rows[1:]]
    return _padded([[float(cell) if cell.strip() else None for cell in row] for row in rows])


def _release(path: Path, names: Sequence[str]) -> Any:
    return _padded(readers.climage_labels(path, names))


def _name(found: Sequence[str], names: Sequence[str]) -> str:
    """Return which of the names is there, or the only one that is, unless that is known to be the truth."""
    known = [name for name in names if name in found] or [name for name in found if len(found) == 1 and name != "ord_labels"]
    if not known:
        raise ValueError(f"it holds {', '.join(found) or 'nothing'}, but no {names[0]}")
    return known[0]


def _padded(rows: Any) -> NumpyArray:
    """Return rows of different lengths, or single numbers, as one table, NaN where a row has ended."""
    cells = [list(row) if isinstance(row, Iterable) and not isinstance(row, str) else [row] for row in rows]
    table = np.full((len(cells), max(map(len, cells), default=0)), np.nan)
    for place, row in enumerate(cells):
        for column, cell in enumerate(row):
            if cell is not None and (isinstance(cell, bool) or not isinstance(cell, Real)):
                raise ValueError(f"row {place} has {cell!r}, which is no number")
            table[place, column] = np.nan if cell is None else float(cell)
    return table


def _is_number(cell: str) -> bool:
    try:
        return not cell.strip() or bool(np.isfinite(float(cell)))
    except ValueError:
        return False


MATRIX_FORMATS: dict[str, Reader] = {".npy": _array, ".json": _json, ".csv": _text, ".txt": _text}
LABEL_FORMATS: dict[str, Reader] = {**MATRIX_FORMATS, ".npz": _array, ".pkl": _release}
