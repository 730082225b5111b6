"""A folder of pictures with a CSV file of their classes; one error lists all problems with their lines."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from torch import Tensor

from atcl.core.errors import AtclError, nearest
from atcl.data.picture_files import Shape, read_pictures
from atcl.data.weak import WeakData, rule_out

SHOWN = 50  # problems in a message

Problems = list[tuple[int, str]]  # line in the file (0: the file as a whole), what is wrong


@dataclass(frozen=True)
class CsvColumn:
    """A column that names classes.

    Args:
        name: its title.
        separator: what separates several classes in a cell; None where each cell names one.
    """

    name: str
    separator: str | None = None

    def split(self, cell: str) -> list[str]:
        """Return the names in a cell.

        Raises:
            AtclError: one of them is empty.
        """
        names = [name.strip() for name in cell.split(self.separator)] if self.separator else [cell]
        if not all(names):
            what = f"{cell!r} has an empty name" if cell else f"the column {self.name!r} is empty"
            several = f", or several as a{self.separator}b" if self.separator else ""
            raise AtclError(f"{what}: name a class{several}")
        return names


NOT = CsvColumn("not", "|")


@dataclass(frozen=True)
class CsvRow:
    """A row of the file, with its line number."""

    line: int
    file: str
    names: frozenset[str]


@dataclass(frozen=True)
class LabelTable:
    """Pictures with the classes that the file names for each."""

    x: Tensor  # (n, C, H, W) uint8
    marked: tuple[tuple[int, ...], ...]  # for each picture the positions of its classes in `names`
    names: tuple[str, ...]  # K
    files: tuple[str, ...]  # n, relative to the folder of pictures


@dataclass(frozen=True)
class FolderData:
    """A training set from a folder, with the names of its classes and files."""

    data: WeakData
    names: tuple[str, ...]  # of the classes, in their order
    files: tuple[str, ...]  # of the pictures, in their order, relative to the folder


def read_folder(
    images: Path | str, labels: Path | str, shape: Shape, classes: Sequence[str] | None = None
) -> FolderData:
    """Read a training set from a folder of pictures and a CSV file of complementary labels.

    Args:
        images: the folder of pictures.
        labels: the CSV file: the column `file` has paths inside the folder, the column `not` the class that
            the picture does not show, or several as `a|b`.
        shape: (C, H, W) of the images; pictures are resized to it.
        classes: the names of all classes, in their order; by default all names in the column `not`, sorted.

    Raises:
        AtclError: a file cannot be read, or the table has problems; the message lists them by line.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("a.png", "b.png"):
        ...         Image.new("L", (4, 4)).save(Path(folder, name))
        ...     _ = Path(folder, "labels.csv").write_text("file,not\\na.png,cat\\nb.png,dog\\n")
        ...     read_folder(folder, Path(folder, "labels.csv"), (1, 4, 4)).names
        ('cat', 'dog')
    """
    table = read_table(Path(images), Path(labels), shape, NOT, classes)
    candidates = rule_out(len(table.files), len(table.names), table.marked)
    ruled_out = (~candidates).any(0).tolist()  # K
    never = [name for name, some in zip(table.names, ruled_out, strict=True) if not some]
    if never:
        raise AtclError(
            f"{labels}: no picture is said not to be {never[0]!r}, "
            f"so a model that always answers {never[0]!r} would contradict nothing: "
            "rule it out for some pictures, or leave it out of the classes"
        )
    return FolderData(WeakData(table.x, candidates), table.names, table.files)


def read_table(
    images: Path, labels: Path, shape: Shape, column: CsvColumn, classes: Sequence[str] | None
) -> LabelTable:
    """Read the pictures that a CSV file lists in the column `file`, with the classes in another column.

    Args:
        images: the folder of pictures.
        labels: the CSV file.
        shape: (C, H, W) of the images.
        column: the column of the classes.
        classes: the names of all classes, in their order; None for all names in the column, sorted.

    Raises:
        AtclError: a file cannot be read, or the table has problems; the message lists them by line.
    """
    if classes is not None:
        _check_classes(classes)
    if not images.is_dir():
        raise AtclError(f"{images} is not a folder: give the one that the column 'file' starts from")
    rows, problems = _rows(labels, column)
    names = tuple(sorted({name for row in rows for name in row.names}) if classes is None else classes)
    if len(names) == 1:
        only = f"{names[0]!r} is the only class in the column {column.name!r}"
        problems.append((0, f"{only}: name all classes, at least two"))
    kept, contradictions = _distinct(rows, column)
    x, unreadable = read_pictures([images / row.file for row in kept], shape)
    problems += [*contradictions, *((kept[position].line, text) for position, text in unreadable.items())]
    problems += [problem for row in rows for problem in _wrong_names(row, names)]
    if problems:
        raise AtclError(_message(labels, problems))
    position = {name: number for number, name in enumerate(names)}
    marked = tuple(tuple(sorted(position[name] for name in row.names)) for row in kept)
    return LabelTable(x, marked, names, tuple(row.file for row in kept))


def _rows(path: Path, column: CsvColumn) -> tuple[list[CsvRow], Problems]:
    """Return the usable rows of a CSV file, and what is wrong with the others; empty lines are skipped."""
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
    """Return the normalised path of a picture, or refuse one that leads out of the folder."""
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


def _message(path: Path, problems: Problems) -> str:
    """Return the message: how many problems there are, then a line for each, in the order of the file."""
    shown = [f"line {line}: {text}" if line else text for line, text in sorted(problems)[:SHOWN]]
    rest = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return "\n".join([f"{path} has {count}; nothing was read:", *shown, *rest])


def _lines(path: Path) -> list[str]:
    try:
        # with or without a byte order mark; the line ends of every system become \n
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise AtclError(f"{path} is not UTF-8 (byte {error.start}): save it as CSV in UTF-8") from None
    except OSError as error:
        raise AtclError(f"{path} cannot be read: {error.strerror}") from None
    if not text.strip():
        raise AtclError(f"{path} is empty: its first line names the columns, the others list the pictures")
    return text.split("\n")


def _fields(line: str) -> list[str]:
    """Return the fields of one line."""
    # each line is parsed alone, so that an open quotation mark does not swallow the lines after it
    try:
        return [field.strip() for field in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error as error:
        raise AtclError(f"it cannot be read as CSV: {error}") from None


def _place(header: Sequence[str], wanted: str, path: Path) -> int:
    if header.count(wanted) != 1:
        found = "no column" if wanted not in header else "more than one column"
        raise AtclError(
            f"{path} has {found} {wanted!r}: its first line names the columns, separated by commas; "
            f"it has {', '.join(map(repr, header))}"
        )
    return header.index(wanted)


def _check_classes(classes: Sequence[str]) -> None:
    good = (isinstance(name, str) and name.strip() == name != "" for name in classes)
    if isinstance(classes, str) or not all(good):
        raise AtclError(f"classes are a list of names without blanks around them; got {classes!r}")
    if len(classes) < 2:
        raise AtclError(f"there must be at least two classes; got {', '.join(classes) or 'none'}")
    if twice := sorted({name for name in classes if list(classes).count(name) > 1}):
        raise AtclError(f"class {twice[0]!r} is named twice")
