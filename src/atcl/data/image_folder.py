"""A folder of pictures and a CSV file that speaks of their classes; all problems are told at once, each with its line."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from torch import Tensor

from atcl.core.errors import AtclError, nearest
from atcl.data.picture_files import Shape, read_pictures
from atcl.data.weak import WeakData, rule_out

SHOWN = 50

Problems = list[tuple[int, str]]  # line in the file (0: the whole of it), what is wrong


@dataclass(frozen=True)
class CsvColumn:
    """The column that names classes, and what stands between several of them (None: there is one)."""

    name: str
    separator: str | None = None

    def split(self, cell: str) -> list[str]:
        """Return the names in a cell, none of them empty."""
        names = [name.strip() for name in cell.split(self.separator)] if self.separator else [cell]
        if not all(names):
            what = f"{cell!r} has an empty name" if cell else f"the column {self.name!r} is empty"
            raise AtclError(
                f"{what}: name a class{f', or several as a{self.separator}b' if self.separator else ''}"
            )
        return names


NOT = CsvColumn("not", "|")


@dataclass(frozen=True)
class CsvRow:
    """A line of the file that has a value in each column."""

    line: int
    file: str
    names: frozenset[str]


@dataclass(frozen=True)
class Table:
    """Pictures with the classes that were named for each."""

    x: Tensor  # (n, C, H, W) uint8
    marked: tuple[tuple[int, ...], ...]  # n times the positions of the named classes
    names: tuple[str, ...]  # K
    files: tuple[str, ...]  # n, relative to the folder of pictures


@dataclass(frozen=True)
class FolderData:
    """A training set from a folder, with what its numbers stand for."""

    data: WeakData
    names: tuple[str, ...]  # of the classes, in their order
    files: tuple[str, ...]  # of the pictures, in their order, relative to the folder


def read_folder(
    images: Path | str, labels: Path | str, shape: Shape, classes: Sequence[str] | None = None
) -> FolderData:
    """Read pictures and the classes that the column `not` rules out; without `classes` they are all names in that column, sorted."""
    table = read_table(Path(images), Path(labels), shape, NOT, classes)
    candidates = rule_out(len(table.files), len(table.names), table.marked)
    never = [
        name
        for name, ruled_out in zip(table.names, (~candidates).any(0).tolist(), strict=True)
        if not ruled_out
    ]
    if never:
        raise AtclError(
            f"{labels}: no picture is said not to be {never[0]!r}, so a model that always answers {never[0]!r} would contradict nothing: "
            "rule it out for some pictures, or leave it out of the classes"
        )
    return FolderData(WeakData(table.x, candidates), table.names, table.files)


def read_table(
    images: Path, labels: Path, shape: Shape, column: CsvColumn, classes: Sequence[str] | None
) -> Table:
    """Read the pictures that a CSV file lists in the column `file`, with the classes in another; refuse it with all its problems."""
    if classes is not None:
        _check_classes(classes)
    if not images.is_dir():
        raise AtclError(f"{images} is not a folder: give the one that the column 'file' starts from")
    rows, problems = _rows(labels, column)
    names = tuple(sorted({name for row in rows for name in row.names}) if classes is None else classes)
    if len(names) == 1:
        problems.append(
            (
                0,
                f"{names[0]!r} is the only class in the column {column.name!r}: name all classes, at least two",
            )
        )
    kept, contradictions = _distinct(rows, column)
    x, unreadable = read_pictures([images / row.file for row in kept], shape)
    problems += [*contradictions, *((kept[position].line, text) for position, text in unreadable.items())]
    problems += [problem for row in rows for problem in _wrong_names(row, names)]
    if problems:
        raise AtclError(_told(labels, problems))
    position = {name: number for number, name in enumerate(names)}
    marked = tuple(tuple(sorted(position[name] for name in row.names)) for row in kept)
    return Table(x, marked, names, tuple(row.file for row in kept))


def _rows(path: Path, column: CsvColumn) -> tuple[list[CsvRow], Problems]:
    """Return the usable rows of a CSV file, and what is wrong with the others; lines without any value are passed over."""
    first, *others = _lines(path)
    header = _fields(first)
    file, names = (_place(header, wanted, path) for wanted in ("file", column.name))
    rows: list[CsvRow] = []
    problems: Problems = []
    for number, line in enumerate(others, start=2):
        try:
            if any(fields := _fields(line)):
                _check_line(line, len(fields), len(header))
                rows.append(CsvRow(number, _inside(fields[file]), frozenset(column.split(fields[names]))))
        except AtclError as error:
            problems.append((number, str(error)))
    if not rows and not problems:
        raise AtclError(f"{path} has no rows below its first line: list the pictures, one in each")
    return rows, problems


def _check_line(line: str, fields: int, columns: int) -> None:
    if line.count('"') % 2:
        raise AtclError("a quotation mark is not closed")
    if fields != columns:
        count = f"{fields} field{'s' if fields > 1 else ''}"
        raise AtclError(
            f"there are {columns} columns, but {count}: put quotation marks around a field with a comma"
        )


def _inside(file: str) -> str:
    """Return the path of a picture inside the folder, in one spelling."""
    if not file:
        raise AtclError("the column 'file' is empty: name a picture")
    path = PurePath(file)
    if path.is_absolute() or ".." in path.parts:
        raise AtclError(f"{file!r} leads out of the folder: name pictures by their path inside it")
    return path.as_posix()


def _distinct(rows: Sequence[CsvRow], column: CsvColumn) -> tuple[list[CsvRow], Problems]:
    """Return the first row of each picture, and the later ones that contradict it."""
    first: dict[str, CsvRow] = {}
    problems: Problems = []
    for row in rows:
        known = first.setdefault(row.file, row)
        if known.names != row.names:
            both = column.separator and column.separator.join(sorted(known.names | row.names))
            advice = f"write {both} in one row" if both else "keep the right one"
            problems.append((row.line, f"{row.file!r} has other labels than on line {known.line}: {advice}"))
    return list(first.values()), problems


def _wrong_names(row: CsvRow, names: Sequence[str]) -> Problems:
    unknown = sorted(row.names - set(names))
    problems = [(row.line, f"unknown class {name!r}{nearest(name, names)}") for name in unknown]
    if len(row.names) == len(names) > 1 and not unknown:
        problems.append((row.line, f"{row.file!r} has every class ruled out: leave at least one"))
    return problems


def _told(path: Path, problems: Problems) -> str:
    """Return the message: a first line that counts, then one for each problem in the order of the file."""
    shown = [f"line {line}: {text}" if line else text for line, text in sorted(problems)[:SHOWN]]
    rest = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return "\n".join([f"{path} has {count}; nothing was read:", *shown, *rest])


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(
            encoding="utf-8-sig"
        )  # with or without a byte order mark; line ends of any system become \n
    except UnicodeDecodeError as error:
        raise AtclError(f"{path} is not UTF-8 (byte {error.start}): save it as CSV in UTF-8") from None
    except OSError as error:
        raise AtclError(f"{path} cannot be read: {error.strerror}") from None
    if not text.strip():
        raise AtclError(f"{path} is empty: its first line names the columns, the others list the pictures")
    return text.split("\n")


def _fields(line: str) -> list[str]:
    """Return the fields of one line; each line is read alone, so that a forgotten quotation mark spoils no other."""
    try:
        return [field.strip() for field in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error as error:
        raise AtclError(f"it cannot be read as CSV: {error}") from None


def _place(header: Sequence[str], wanted: str, path: Path) -> int:
    if header.count(wanted) != 1:
        found = "no column" if wanted not in header else "more than one column"
        raise AtclError(
            f"{path} has {found} {wanted!r}: its first line names the columns, separated by commas; it has {', '.join(map(repr, header))}"
        )
    return header.index(wanted)


def _check_classes(classes: Sequence[str]) -> None:
    if isinstance(classes, str) or not all(
        isinstance(name, str) and name.strip() == name != "" for name in classes
    ):
        raise AtclError(f"classes are a list of names without blanks around them; got {classes!r}")
    if len(classes) < 2:
        raise AtclError(f"there must be at least two classes; got {', '.join(classes) or 'none'}")
    if twice := sorted({name for name in classes if list(classes).count(name) > 1}):
        raise AtclError(f"class {twice[0]!r} is named twice")
