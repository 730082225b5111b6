"""Labels from a file: every format, on files that the tests write; the true labels are never read."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atcl.core.errors import AtclError
from atcl.datasets import readers
from atcl.datasets.labels import FromFile, weaken
from atcl.datasets.sources import RELEASES, Release
from atcl.datasets.truth import Split, Truth
from tests.datasets.test_readers import COLOUR, LABELS, Hostile, cifar_bytes

ROUNDS = [[0, 1, 1], [3, 3, 3], [2, 0, 4], [4, 1, 0]]  # of 4 images, 5 classes
RAGGED = [[0, 1], [3], [2, 0, 4], [4]]


def images(n: int = 4, shift: int = 0) -> Split:
    return Split(torch.zeros(n, 1, 2, 2), Truth((torch.arange(n) + shift) % 5, 5))


def ruled_out(source: FromFile, shift: int = 0) -> list[list[int]]:
    candidates = weaken(images(shift=shift), source, seed=0).candidates
    return [torch.nonzero(~row)[:, 0].tolist() for row in candidates]


def written(name: str, folder: Path, rounds: list[list[int]] = ROUNDS) -> str:
    """The same labels in each format, beside true labels that must not be taken for them."""
    path = folder / name
    truth = [1, 2, 3, 2]
    if name == "alone.npz":
        np.savez(path, something=np.array(rounds, np.uint8))
    elif name.endswith(".npz"):
        np.savez(path, ord_labels=np.array(truth), cl_labels=np.array(rounds, np.uint8))
    elif name.endswith(".npy"):
        np.save(path, np.array(rounds))
    elif name == "named.json":
        path.write_text(json.dumps({"ord_labels": truth, "cl_labels": rounds}), encoding="utf-8")
    elif name.endswith(".json"):
        path.write_text(json.dumps(rounds), encoding="utf-8")
    elif name == "heading.csv":
        lines = [
            f"{i}.png,{true},{','.join(map(str, labels))}"
            for i, (true, labels) in enumerate(zip(truth, rounds, strict=True))
        ]
        path.write_text(
            "\n".join(["image,ord_label,cl_label_1,cl_label_2,cl_label_3", *lines]) + "\n", encoding="utf-8"
        )
    elif name == "array.pkl":
        path.write_bytes(pickle.dumps({"ord_labels": np.array(truth), "cl_labels": np.array(rounds, ">i4")}))
    elif name == "early.pkl":
        path.write_bytes(pickle.dumps({"ord_labels": truth, "com_labels": rounds}))
    elif name.endswith(".pkl"):
        path.write_bytes(
            pickle.dumps(
                {
                    "names": ["a"] * 4,
                    "ord_labels": truth,
                    "cl_labels": [[np.int64(label) for label in row] for row in rounds],
                }
            )
        )
    else:
        path.write_text(
            "\n".join(("," if name.endswith(".csv") else " ").join(map(str, row)) for row in rounds),
            encoding="utf-8",
        )
    return str(path)


FILES = [
    "a.npz",
    "alone.npz",
    "a.npy",
    "a.json",
    "named.json",
    "a.csv",
    "heading.csv",
    "a.txt",
    "a.pkl",
    "array.pkl",
    "early.pkl",
]


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_labels_and_rounds_choose_among_them(name: str, tmp_path: Path) -> None:
    path = written(name, tmp_path)
    assert ruled_out(FromFile(path)) == [[0], [3], [2], [4]]
    assert ruled_out(FromFile(path, rounds=2)) == [[0, 1], [3], [0, 2], [1, 4]]
    assert ruled_out(FromFile(path, rounds=0)) == [[0, 1], [3], [0, 2, 4], [0, 1, 4]]
    with pytest.raises(AtclError, match="has 3 labels for an image, not 4"):
        ruled_out(FromFile(path, rounds=4))


@pytest.mark.parametrize("name", FILES)
def test_the_true_labels_are_not_read(name: str, tmp_path: Path) -> None:
    source = FromFile(written(name, tmp_path), rounds=2)
    assert ruled_out(source, shift=0) == ruled_out(source, shift=1)


@pytest.mark.parametrize("name", ["a.json", "named.json", "a.csv", "a.pkl"])
def test_images_may_have_different_numbers_of_labels(name: str, tmp_path: Path) -> None:
    path = written(name, tmp_path, RAGGED)
    assert ruled_out(FromFile(path, rounds=0)) == [[0, 1], [3], [0, 2, 4], [4]]
    assert weaken(images(), FromFile(path), 0).single


def test_one_label_for_each_image_may_stand_in_a_plain_list(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([0, 3, 2, 4]))
    (tmp_path / "a.json").write_text("[0, 3, 2, 4]", encoding="utf-8")
    (tmp_path / "a.txt").write_text("0\n3\n2\n4\n", encoding="utf-8")
    for name in ("a.npy", "a.json", "a.txt"):
        assert ruled_out(FromFile(str(tmp_path / name))) == [[0], [3], [2], [4]]


def test_a_million_labels_of_a_file_arrive_as_they_are(tmp_path: Path) -> None:
    given = np.random.default_rng(0).integers(0, 10, (250_000, 4), np.uint8)
    np.savez(tmp_path / "a.npz", cl_labels=given)
    candidates = FromFile(str(tmp_path / "a.npz"), rounds=0).read(250_000, 10)
    expected = np.ones((250_000, 10), bool)
    np.put_along_axis(expected, given.astype(int), False, 1)
    assert np.array_equal(candidates.numpy(), expected)


def test_a_named_matrix_is_carried_for_forward(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("\n".join(",".join(["0.2"] * 5) for _ in range(5)), encoding="utf-8")
    path = written("a.npy", tmp_path)
    assert weaken(images(), FromFile(path), 0).transition is None
    transition = weaken(images(), FromFile(path, matrix=str(tmp_path / "m.csv")), 0).transition
    assert transition is not None
    assert torch.allclose(transition, torch.full((5, 5), 0.2))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "0\n1\n2\n", "has labels for 3 images, but there are 4"),
        ("a.csv", "0\n1\n5\n2\n", "image 2 has label 5, but the classes are the numbers 0 to 4"),
        ("a.csv", "0\n-1\n2\n2\n", "image 1 has label -1"),
        ("a.csv", "0\n1.5\n2\n2\n", "image 1 has label 1.5"),
        ("a.csv", "0,\n,1\n,2\n2,2\n", "images with no label: 2, the first is number 1"),
        ("a.csv", "0\n\n2\n2\n", "images with no label: 1, the first is number 1"),
        ("a.csv", "cat,dog\n1,2\n1,2\n1,2\n1,2\n", "none of its columns is called cl_labels"),
        ("a.csv", "0\ncat\n2\n2\n", "could not convert string to float: 'cat'"),
        ("a.json", "[0, true, 1, 2]", "row 1 has True, which is no number"),
        ("a.json", '{"ord_labels": [0, 1, 2, 3]}', "it holds ord_labels, but no cl_labels"),
        ("a.npz", "no archive", "cannot be read as a table of numbers"),
        ("a.pkl", "no pickle", "is not a release of CLImage"),
        ("a.xlsx", "", "ends in none of"),
        ("a.npy", None, "does not exist, or is not a file"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(
    name: str, content: str | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(AtclError, match=message) as caught:
        ruled_out(FromFile(str(tmp_path / name)))
    assert "\n" not in str(caught.value)


def test_images_with_every_class_ruled_out_are_counted(tmp_path: Path) -> None:
    np.save(
        tmp_path / "a.npy", np.array([[0, 1, 2, 3, 0], [0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 1, 1, 1, 1]])
    )
    with pytest.raises(
        AtclError, match=r"images with every class ruled out: 2, the first is number 1; use fewer rounds"
    ):
        ruled_out(FromFile(str(tmp_path / "a.npy"), rounds=0))
    assert ruled_out(FromFile(str(tmp_path / "a.npy"), rounds=4))[2] == [1, 2, 3, 4]


def test_a_negative_number_of_rounds_is_refused() -> None:
    with pytest.raises(AtclError, match="0 means all"):
        FromFile("a.npy", rounds=-1)


def release(path: Path, **changed: Any) -> None:
    """Write a release as its authors describe it: four lists of one length, the images in another order."""
    whole = {
        "names": [f"{i}.png" for i in range(6)],
        "images": list(COLOUR[::-1]),
        "ord_labels": LABELS[::-1].tolist(),
        "cl_labels": [[1, 2, 2]] * 6,
    }
    path.write_bytes(pickle.dumps({**whole, **changed}))


def write_tests(folder: Path) -> None:
    (folder / "cifar-10-batches-py").mkdir()
    (folder / "cifar-10-batches-py" / "test_batch").write_bytes(cifar_bytes(COLOUR[:2], LABELS[:2]))
    (folder / "cifar-100-python").mkdir()
    (folder / "cifar-100-python" / "test").write_bytes(cifar_bytes(COLOUR[:2], LABELS[:2], b"coarse_labels"))
    for classes in (10, 20):
        release(
            folder / f"clmicro_imagenet{classes}_test.pkl",
            images=list(COLOUR[:2]),
            ord_labels=LABELS[:2].tolist(),
        )


def small(name: str) -> Release:
    return replace(RELEASES[name], images=6)


@pytest.mark.parametrize("name", RELEASES)
def test_released_images_come_with_the_labels_of_the_same_file(name: str, tmp_path: Path) -> None:
    write_tests(tmp_path)
    file = tmp_path / RELEASES[name].file
    release(file, cl_labels=[[i, i, 9] for i in range(6)])
    found = small(name)(tmp_path)
    assert np.array_equal(found.train.x.numpy().transpose(0, 2, 3, 1), COLOUR[::-1])
    assert found.train.truth.labels.tolist() == LABELS[::-1].tolist()
    assert np.array_equal(found.test.x.numpy().transpose(0, 2, 3, 1), COLOUR[:2])
    assert found.test.truth.labels.tolist() == LABELS[:2].tolist()
    assert found.classes == (20 if name.endswith("20") else 10)
    data = weaken(found.train, FromFile(str(file)), seed=0)
    assert data.candidates.int().argmin(1).tolist() == list(range(6))


@pytest.mark.parametrize("kind", ["u1", ">i4", "i8"])
def test_a_release_may_hold_arrays_where_others_have_lists(kind: str, tmp_path: Path) -> None:
    write_tests(tmp_path)
    file = tmp_path / "clcifar10.pkl"
    labels = np.arange(18).reshape(6, 3) % 10
    release(file, images=COLOUR[::-1], ord_labels=LABELS[::-1].astype(kind), cl_labels=labels.astype(kind))
    found = small("clcifar10")(tmp_path)
    assert np.array_equal(found.train.x.numpy().transpose(0, 2, 3, 1), COLOUR[::-1])
    assert found.train.truth.labels.tolist() == LABELS[::-1].tolist()
    data = weaken(found.train, FromFile(str(file), rounds=0), seed=0)
    assert [set(torch.nonzero(~row)[:, 0].tolist()) for row in data.candidates] == [
        set(row) for row in labels.tolist()
    ]


def test_an_early_release_with_flat_images_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "clcifar10.pkl"
    flat = COLOUR.transpose(0, 3, 1, 2).reshape(6, 3072)
    path.write_bytes(
        pickle.dumps(
            {
                "filenames": ["a"] * 6,
                "data": list(flat),
                "ord_labels": LABELS.tolist(),
                "com_labels": [[1]] * 6,
            }
        )
    )
    assert np.array_equal(readers.climage(path)[0], COLOUR)


def test_what_a_release_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(AtclError, match=r"clcifar10.pkl is not there: get clcifar10.pkl from its authors"):
        small("clcifar10")(tmp_path)
    release(tmp_path / "clcifar10.pkl")
    with pytest.raises(AtclError, match=r"cifar-10-python.tar.gz is missing, whose test images"):
        small("clcifar10")(tmp_path)
    write_tests(tmp_path)
    with pytest.raises(AtclError, match="has 6 images; the released file has 50000"):
        RELEASES["clcifar10"](tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"images": [1, 2]},
        {"images": list(COLOUR[:5])},
        {"images": list(COLOUR / 255)},
        {"ord_labels": ["a"] * 6},
        {"images": [COLOUR[0], COLOUR[1, :3]]},
    ],
)
def test_a_release_of_another_content_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    release(tmp_path / "a.pkl", **changed)
    with pytest.raises(AtclError, match="is not a release of CLImage"):
        readers.climage(tmp_path / "a.pkl")


def test_a_hostile_release_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    release(tmp_path / "a.pkl", cl_labels=Hostile((os.system, (f"touch {mark}",))))
    with pytest.raises(AtclError, match="is not a release of CLImage: it asks for"):
        readers.climage_labels(tmp_path / "a.pkl", ("cl_labels",))
    assert not mark.exists()


def test_a_scalar_in_a_pickle_is_a_number_and_nothing_else(tmp_path: Path) -> None:
    scalar = np.int64(3).__reduce__()[0]
    for kind, content in (
        (np.dtype("O"), b"12345678"),
        (np.dtype("S3"), b"abc"),
        (np.dtype([("a", "O")]), b"12345678"),
    ):
        release(tmp_path / "a.pkl", cl_labels=[[Hostile((scalar, (kind, content)))]])
        with pytest.raises(AtclError, match=r"it asks for numpy\.dtype"):
            readers.climage_labels(tmp_path / "a.pkl", ("cl_labels",))
