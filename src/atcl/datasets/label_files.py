"""Tables of numbers from files: .npy, .npz, .csv, .txt, .json, and the releases of CLImage.

Nothing in a file is executed, and no file can request a table that is far larger than itself.
"""

import csv
import json
import math
from array import array as compact
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from atcl.core.errors import AtclError, one_line
from atcl.datasets import readers
from atcl.datasets.readers import NumpyArray

# The most cells of a table: enough for a million images with four labels, and more for each byte of the file.
CELLS, CELLS_FOR_BYTE = 4 * 2**20, 4
# The same for a table whose rows have different lengths, and more for each cell that is given.
PADDED, PADDED_FOR_CELL = 2**21, 2
LINE_LENGTH = 2**20  # the most characters of a line of text

Reader = Callable[[Path, Sequence[str]], Any]  # a file, the names that the table may have in it -> the table


def numbers(path: Path, names: Sequence[str], formats: Mapping[str, Reader]) -> NumpyArray:
    """Return a table (n, m) of float64 from a file, NaN where a cell is empty.

    Args:
        path: the file.
        names: the names that the table may have in a file with several; the first is in messages.
        formats: readers by the suffix of the file.

    Raises:
        AtclError: the file does not exist, has another format, or is not a table of numbers.
    """
    read = formats.get(path.suffix.lower())
    if read is None:
        raise AtclError(f"{path} ends in none of {', '.join(formats)}: store it as one of them")
    if not path.is_file():
        raise AtclError(
            f"{path} does not exist, or is not a file: give a path, absolute or from the current folder"
        )
    try:
        return _checked(read(path, names), path.stat().st_size)
    except AtclError:
        raise
    except Exception as error:  # each format fails in its own ways on a damaged file
        said = one_line(error) or type(error).__name__
        raise AtclError(f"{path} cannot be read as a table of numbers: {said}") from None


def _checked(table: NumpyArray, size: int) -> NumpyArray:
    """Return a table (n, m) of float64 from a file of so many bytes."""
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or table.size == 0 or table.dtype.kind not in "iuf":
        raise ValueError(f"it holds {table.dtype} of shape {table.shape}, where a table of numbers is needed")
    if table.size > CELLS + CELLS_FOR_BYTE * size:
        raise ValueError(f"it holds a table of shape {table.shape}, far more than its size")
    return table.astype(np.float64, copy=False)


def _array(path: Path, names: Sequence[str]) -> Any:
    return readers.array(path, lambda found: _name(found, names))


def _json(path: Path, names: Sequence[str]) -> Any:
    found = json.loads(path.read_text(encoding="utf-8"))
    return _padded(found[_name(list(found), names)] if isinstance(found, dict) else found)


def _text(path: Path, names: Sequence[str]) -> NumpyArray:
    with path.open(encoding="utf-8") as stream:
        commas = any("," in line for line in stream)
    with path.open(encoding="utf-8", newline="") as stream:
        lines = map(_of_a_table, stream)
        rows = csv.reader(lines) if commas else (line.split() for line in lines)
        first = next(rows, [])
        if all(_is_number(cell) for cell in first):
            return _padded(_numbers(row) for row in chain([first], rows))
        # other columns may hold true labels, so columns are chosen by their titles
        starts = tuple(name.rstrip("s") for name in names)
        chosen = [column for column, title in enumerate(first) if title.strip().startswith(starts)]
        if not chosen:
            raise ValueError(f"it has a heading, but none of its columns is called {names[0]}")
        kept = ([row[column] if column < len(row) else "" for column in chosen] for row in rows)
        return _padded(_numbers(row) for row in kept)


def _of_a_table(line: str) -> str:
    if len(line) > LINE_LENGTH:
        raise ValueError(f"it has a line of more than {LINE_LENGTH:,} characters")
    return line


def _numbers(row: Sequence[str]) -> list[float | None]:
    return [float(cell) if cell.strip() else None for cell in row]


def _release(path: Path, names: Sequence[str]) -> Any:
    return _padded(readers.climage_labels(path, names))


def _name(found: Sequence[str], names: Sequence[str]) -> str:
    """Return the first of the names in the file, or the only array in it, unless this holds true labels."""
    known = [name for name in names if name in found] or [
        name for name in found if len(found) == 1 and name != "ord_labels"
    ]
    if not known:
        raise ValueError(f"it holds {one_line(', '.join(found[:20]), 100) or 'nothing'}, but no {names[0]}")
    return known[0]


def _padded(rows: Any) -> NumpyArray:
    """Return rows of different lengths, or single numbers, as a table, NaN where a row is shorter."""
    if isinstance(rows, np.ndarray):
        return rows
    if isinstance(rows, str | bytes | dict):
        raise ValueError(f"it has a {type(rows).__name__} where rows of numbers belong")
    cells, lengths = compact("d"), compact("q")
    for place, row in enumerate(rows):
        before = len(cells)
        several = isinstance(row, list | tuple | np.ndarray)
        cells.extend(_cell(cell, place) for cell in (row if several else (row,)))
        lengths.append(len(cells) - before)
    width = max(lengths, default=0)
    if width * len(lengths) > PADDED + PADDED_FOR_CELL * len(cells):
        raise ValueError(f"its {len(lengths)} rows have {len(cells)} cells together, and one of them {width}")
    given = np.arange(width) < np.frombuffer(lengths, np.int64)[:, None]
    table = np.full(given.shape, np.nan)
    table[given] = np.frombuffer(cells)
    return table


def _cell(cell: Any, place: int) -> float:
    if cell is None:
        return math.nan
    if isinstance(cell, bool) or not isinstance(cell, int | float | np.integer | np.floating):
        raise ValueError(f"row {place} has {_shown(cell)}, which is no number")
    return float(cell)


def _shown(cell: Any) -> str:
    """Return a cell, however large, as a short text for a message."""
    if isinstance(cell, str | bytes):
        return one_line(repr(cell[:60]), 60)
    return repr(cell) if isinstance(cell, bool) else f"a {type(cell).__name__}"


def _is_number(cell: str) -> bool:
    try:
        return not cell.strip() or bool(np.isfinite(float(cell)))
    except ValueError:
        return False


MATRIX_FORMATS: dict[str, Reader] = {".npy": _array, ".json": _json, ".csv": _text, ".txt": _text}
LABEL_FORMATS: dict[str, Reader] = {**MATRIX_FORMATS, ".npz": _array, ".pkl": _release}
