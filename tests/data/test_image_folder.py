"""A folder with a CSV file of complementary labels: it is read, or all of its problems are named at once."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from atcl.core.errors import AtclError
from atcl.data.image_folder import SHOWN, FolderData, read_folder
from atcl.datasets.labelled_folder import read_truth
from atcl.datasets.truth import Split

SHAPE = (1, 8, 8)
CLASSES = ("cat", "dog", "horse")
X = np.random.default_rng(0).integers(0, 256, (4, 8, 8), np.uint8)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Four pictures, one of them in a subfolder."""
    folder = tmp_path / "pictures"
    (folder / "sub").mkdir(parents=True)
    for name, pixels in zip(("a.png", "b.png", "sub/c.png", "d, or not.png"), X, strict=True):
        Image.fromarray(pixels).save(folder / name)
    return folder


def read(images: Path, text: str | bytes, classes: tuple[str, ...] | None = CLASSES) -> FolderData:
    labels = images.parent / "labels.csv"
    labels.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_folder(images, labels, SHAPE, classes)


def ruled_out(found: FolderData) -> list[list[str]]:
    return [
        [name for name, candidate in zip(found.names, row, strict=True) if not candidate]
        for row in found.data.candidates.tolist()
    ]


def problems(images: Path, text: str, classes: tuple[str, ...] | None = CLASSES) -> list[str]:
    """The lines of the message below the first."""
    with pytest.raises(AtclError) as error:
        read(images, text, classes)
    first, *others = str(error.value).splitlines()
    count = f"{len(others)} problem{'s' if len(others) > 1 else ''}"
    assert first == f"{images.parent / 'labels.csv'} has {count}; nothing was read:"
    return others


def refusal(images: Path, text: str | bytes, classes: tuple[str, ...] | None = CLASSES) -> str:
    """A message of one line."""
    with pytest.raises(AtclError) as error:
        read(images, text, classes)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_pictures_and_candidates_come_in_the_order_of_the_file(images: Path) -> None:
    found = read(images, 'file,not\nsub/c.png,dog\na.png,cat|horse\n"d, or not.png",horse\n')
    assert found.files == ("sub/c.png", "a.png", "d, or not.png")
    assert found.names == CLASSES
    assert torch.equal(found.data.x[:, 0], torch.from_numpy(X[[2, 0, 3]]))
    assert ruled_out(found) == [["dog"], ["cat", "horse"], ["horse"]]


def test_without_classes_they_are_the_sorted_names_of_the_file(images: Path) -> None:
    found = read(images, "file,not\na.png,horse|cat\nb.png,dog\n", None)
    assert found.names == ("cat", "dog", "horse")
    assert ruled_out(found) == [["cat", "horse"], ["dog"]]


@pytest.mark.parametrize(
    "text",
    [
        "file,not\na.png,cat\nb.png,dog|horse\n",
        "file,not\na.png,cat\nb.png,dog|horse",
        b"\xef\xbb\xbffile,not\r\na.png,cat\r\nb.png,dog|horse\r\n",
        "file,not\ra.png,cat\rb.png,dog|horse\r",
        ' file , not \n a.png , cat \n "b.png" , "dog | horse" \n',
        "who,not,file,when\nme,cat,a.png,now\nyou,horse|dog,b.png,\n",
        "file,not\n\na.png,cat\n,\n  \nb.png,dog|horse\n\n",
        "file,not\na.png,cat\na.png,cat\n./a.png,cat|cat\nb.png,dog|horse\nb.png,horse|dog\n",
    ],
    ids=[
        "plain",
        "no last line end",
        "excel",
        "old mac",
        "blanks",
        "other columns",
        "empty lines",
        "repeated rows",
    ],
)
def test_spellings_of_the_same_file_are_read_alike(text: str | bytes, images: Path) -> None:
    found = read(images, text)
    assert found.files == ("a.png", "b.png")
    assert ruled_out(found) == [["cat"], ["dog", "horse"]]


def test_names_beyond_ascii_are_kept(images: Path) -> None:
    Image.fromarray(X[0]).save(images / "猫.png")
    found = read(images, "file,not\n猫.png,Äpfel\na.png,Öl\n", None)
    assert found.files == ("猫.png", "a.png")
    assert found.names == ("Äpfel", "Öl")


def test_paths_may_be_texts(images: Path) -> None:
    (images.parent / "labels.csv").write_text("file,not\na.png,cat\nb.png,dog|horse\n", encoding="utf-8")
    assert len(read_folder(str(images), str(images.parent / "labels.csv"), SHAPE, CLASSES).data) == 2


def test_a_class_that_is_never_a_complementary_label_is_refused(images: Path) -> None:
    (images.parent / "labels.csv").write_text("file,not\na.png,cat\nb.png,dog\n", encoding="utf-8")
    with pytest.raises(AtclError, match="no picture is said not to be 'horse'"):
        read_folder(images, images.parent / "labels.csv", SHAPE, CLASSES)


def test_all_problems_are_named_at_once(images: Path) -> None:
    (images / "text.png").write_text("not a picture", encoding="utf-8")
    text = """file,not,who
a.png,cat,me
gone.png,cat,me
text.png,dog,me
b.png,hores,me
sub/c.png,,me
"d, or not.png",cat|dog|horse,me
a.png,dog,you
,cat,me
b.png,cat
d, or not.png,cat,me
a.png,Cat|,me
../a.png,cat,me
a.png,"cat,me
gone.png,camel|cta,me
"""
    with pytest.raises(AtclError) as error:
        read(images, text)
    assert str(error.value) == "\n".join(
        [
            f"{images.parent}/labels.csv has 15 problems; nothing was read:",
            f"line 3: {images}/gone.png does not exist",
            f"line 4: {images}/text.png is not a picture, or of a format that is not read: "
            "save it as PNG or JPEG",
            "line 5: unknown class 'hores'; did you mean 'horse'?",
            "line 6: the column 'not' is empty: name a class, or several as a|b",
            "line 7: 'd, or not.png' has every class ruled out: leave at least one",
            "line 8: 'a.png' has other labels than on line 2: write cat|dog in one row",
            "line 9: the column 'file' is empty: name a picture",
            "line 10: there are 3 columns, but 2 fields: put quotation marks around a field with a comma",
            "line 11: there are 3 columns, but 4 fields: put quotation marks around a field with a comma",
            "line 12: 'Cat|' has an empty name: name a class, or several as a|b",
            "line 13: '../a.png' leads out of the folder: name pictures by their path inside it",
            "line 14: a quotation mark is not closed",
            "line 15: 'gone.png' has other labels than on line 3: write camel|cat|cta in one row",
            "line 15: unknown class 'camel'; there are cat, dog, horse",
            "line 15: unknown class 'cta'; did you mean 'cat'?",
        ]
    )


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("gone.png,cat", "line 3: {images}/gone.png does not exist"),
        ("sub,cat", "line 3: {images}/sub is a folder, not a picture"),
        ("b.png,Dog", "line 3: unknown class 'Dog'; did you mean 'dog'?"),
        ("b.png,xyzzy", "line 3: unknown class 'xyzzy'; there are cat, dog, horse"),
        ("b.png,", "line 3: the column 'not' is empty: name a class, or several as a|b"),
        ("b.png,cat||dog", "line 3: 'cat||dog' has an empty name: name a class, or several as a|b"),
        ("b.png,dog|cat|horse", "line 3: 'b.png' has every class ruled out: leave at least one"),
        ("a.png,horse", "line 3: 'a.png' has other labels than on line 2: write cat|horse in one row"),
        (" ,cat", "line 3: the column 'file' is empty: name a picture"),
        (
            "b.png",
            "line 3: there are 2 columns, but 1 field: put quotation marks around a field with a comma",
        ),
        (
            "b.png,cat,dog",
            "line 3: there are 2 columns, but 3 fields: put quotation marks around a field with a comma",
        ),
        ('b.png,"cat', "line 3: a quotation mark is not closed"),
        (
            f"b.png,{'x' * 200_000}",
            "line 3: it cannot be read as CSV: field larger than field limit (131072)",
        ),
        (
            "/etc/b.png,cat",
            "line 3: '/etc/b.png' leads out of the folder: name pictures by their path inside it",
        ),
    ],
)
def test_each_kind_of_problem_is_named_with_its_line(row: str, problem: str, images: Path) -> None:
    assert problems(images, f"file,not\na.png,cat\n{row}\n") == [problem.format(images=images)]


def test_a_missing_picture_that_is_named_twice_is_one_problem(images: Path) -> None:
    assert problems(images, "file,not\ngone.png,cat\ngone.png,cat\n") == [
        f"line 2: {images}/gone.png does not exist"
    ]


def test_a_single_class_in_the_file_is_one_problem(images: Path) -> None:
    found = problems(images, "file,not\na.png,cat\nb.png,cat\n", None)
    assert found == ["'cat' is the only class in the column 'not': name all classes, at least two"]


def test_a_flood_of_problems_is_cut_and_counted(images: Path) -> None:
    with pytest.raises(AtclError) as error:
        read(images, "file,not\n" + "".join(f"{number}.png,cat\n" for number in range(SHOWN + 7)))
    first, *others = str(error.value).splitlines()
    assert f"has {SHOWN + 7} problems" in first
    assert len(others) == SHOWN + 1
    assert others[0].startswith("line 2: ")
    assert others[-1] == "and 7 more"


NO_FILE = "has no column 'file': its first line names the columns, separated by commas; it has "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: its first line names the columns"),
        ("\n \n", "is empty: its first line names the columns"),
        ("file,not\n", "has no rows below its first line"),
        ("file,not\n\n,\n", "has no rows below its first line"),
        ("a.png,cat\n", NO_FILE + "'a.png', 'cat'"),
        ("file;not\na.png;cat\n", NO_FILE + "'file;not'"),
        ("file,class\na.png,cat\n", "has no column 'not'"),
        ("file,not,not\na.png,cat,dog\n", "has more than one column 'not'"),
        ("file,not\na.png,Äpfel\n".encode("latin-1"), "is not UTF-8 (byte 15): save it as CSV in UTF-8"),
        ("file,not\na.png,cat\n".encode("utf-16"), "is not UTF-8 (byte 0)"),
    ],
)
def test_a_file_that_is_no_such_table_gives_one_line(text: str | bytes, message: str, images: Path) -> None:
    assert refusal(images, text).startswith(f"{images.parent / 'labels.csv'} {message}")


def test_missing_files_and_folders_give_one_line(images: Path) -> None:
    with pytest.raises(AtclError, match=r"none\.csv cannot be read: No such file"):
        read_folder(images, images.parent / "none.csv", SHAPE, CLASSES)
    message = r"nowhere is not a folder: give the one that the column 'file' starts from"
    with pytest.raises(AtclError, match=message):
        read_folder(images / "nowhere", images.parent / "labels.csv", SHAPE, CLASSES)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (("cat",), "at least two classes; got cat"),
        ((), "at least two classes; got none"),
        (("cat", "dog", "cat"), "class 'cat' is named twice"),
        (("cat", " dog"), "names without blanks"),
        ("catdog", "a list of names"),
    ],
)
def test_classes_that_are_none_give_one_line(classes: tuple[str, ...], message: str, images: Path) -> None:
    assert message in refusal(images, "file,not\na.png,cat\n", classes)


def test_a_shape_that_pictures_do_not_have_is_refused(images: Path) -> None:
    (images.parent / "labels.csv").write_text("file,not\na.png,cat\n", encoding="utf-8")
    with pytest.raises(AtclError, match="colour; not as"):
        read_folder(images, images.parent / "labels.csv", (2, 8, 8), CLASSES)


def truth(images: Path, text: str) -> Split:
    (images.parent / "truth.csv").write_text(text, encoding="utf-8")
    return read_truth(images, images.parent / "truth.csv", SHAPE, CLASSES)


def test_true_classes_are_read_in_the_order_of_the_run(images: Path) -> None:
    found = truth(images, "class,file\nhorse,b.png\ncat,a.png\n")
    assert torch.equal(found.x[:, 0], torch.from_numpy(X[[1, 0]]))
    assert found.truth.labels.tolist() == [2, 0]
    assert found.truth.classes == 3


def test_problems_of_true_classes_are_named_at_once_too(images: Path) -> None:
    with pytest.raises(AtclError) as error:
        truth(images, "class,file\nhorse,b.png\ncat|dog,a.png\n,a.png\ncat,b.png\n")
    assert str(error.value).splitlines()[1:] == [
        "line 3: unknown class 'cat|dog'; did you mean 'dog'?",
        "line 4: the column 'class' is empty: name a class",
        "line 5: 'b.png' has other labels than on line 2: keep the right one",
    ]


def test_the_page_about_own_data_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs/own-data.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```csv\n(.*?)```", page, re.S):
        name = {"not": "labels.csv", "class": "truth.csv"}[block.split("\n")[0].split(",")[1]]
        Path(name).write_text(block, encoding="utf-8")
        for file in [line.split(",")[0] for line in block.splitlines()[1:]]:
            (tmp_path / "pictures" / file).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(X[0]).save(tmp_path / "pictures" / file)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(block, names)
    assert sorted(path.name for path in tmp_path.glob("model.*")) == ["model.safetensors"]
    assert "cat" in capsys.readouterr().out
