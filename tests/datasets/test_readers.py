"""Official formats, on files that the tests write; a damaged or hostile file gives one line, runs nothing."""

import gzip
import io
import os
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from atcl.core.errors import AtclError
from atcl.datasets import readers
from atcl.datasets.downloads import Remote
from atcl.datasets.sources import DATASETS, IDX, RELEASES, SOURCES, Dataset, Source

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 28, 28), np.uint8)
COLOUR = RNG.integers(0, 256, (6, 32, 32, 3), np.uint8)
LABELS = np.array([0, 1, 2, 3, 9, 5])


def idx_bytes(array: np.ndarray[Any, Any]) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim])
        + b"".join(side.to_bytes(4, "big") for side in array.shape)
        + array.astype(np.uint8).tobytes()
    )


def cifar_bytes(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], key: bytes = b"labels") -> bytes:
    """As Python 2 wrote them: protocol 2, keys of bytes."""
    return pickle.dumps(
        {b"data": x.transpose(0, 3, 1, 2).reshape(len(x), -1), key: y.tolist(), b"batch_label": b"x"},
        protocol=2,
    )


def write_idx(place: Path, source: Source, packed: bool) -> None:
    (place / source.name).mkdir()
    for name, array in zip(IDX, (GREY, LABELS, GREY[:2], LABELS[:2]), strict=True):
        content = idx_bytes(array)
        (place / source.name / (f"{name}.gz" if packed else name)).write_bytes(
            gzip.compress(content) if packed else content
        )


def cifar_members(source: Source) -> dict[str, bytes]:
    if source.name == "cifar10":
        batches = {f"data_batch_{i}": cifar_bytes(COLOUR[i : i + 1], LABELS[i : i + 1]) for i in range(1, 6)}
        return {**batches, "test_batch": cifar_bytes(COLOUR[:2], LABELS[:2])}
    return {
        "train": cifar_bytes(COLOUR[1:], LABELS[1:], b"fine_labels"),
        "test": cifar_bytes(COLOUR[:2], LABELS[:2], b"fine_labels"),
    }


def write_cifar(place: Path, source: Source, packed: bool) -> None:
    if not packed:
        (place / source.remotes[0].unpacked).mkdir()
        for name, content in cifar_members(source).items():
            (place / source.remotes[0].unpacked / name).write_bytes(content)
        return
    with tarfile.open(place / source.remotes[0].name, "w:gz") as archive:
        for name, content in cifar_members(source).items():
            entry = tarfile.TarInfo(f"{source.remotes[0].unpacked}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def write_svhn(place: Path, source: Source, packed: bool) -> None:
    folder = place / "svhn"
    folder.mkdir()
    tens = np.where(LABELS == 0, 10, LABELS).astype(np.uint8)[:, None]
    savemat(folder / "train_32x32.mat", {"X": COLOUR.transpose(1, 2, 3, 0), "y": tens})
    savemat(folder / "test_32x32.mat", {"X": COLOUR[:2].transpose(1, 2, 3, 0), "y": tens[:2]})


WRITERS: dict[str, Callable[[Path, Source, bool], None]] = {
    **dict.fromkeys(("mnist", "kuzushiji", "fashion"), write_idx),
    **dict.fromkeys(("cifar10", "cifar100"), write_cifar),
    "svhn": write_svhn,
}


def small(name: str, place: Path) -> Source:
    """A source whose sizes and digests are those of the files just written."""
    source = SOURCES[name]

    def official(remote: Remote) -> Remote:
        path = remote.find(place)
        assert path is not None
        if path.is_dir():
            return remote
        inside = md5(readers.unzipped(path)).hexdigest() if remote.content else ""
        return replace(remote, md5=md5(path.read_bytes()).hexdigest(), content=inside)

    remotes = tuple(official(remote) for remote in source.remotes)
    return replace(source, sizes=(5 if name.startswith("cifar") else 6, 2), remotes=remotes)


def check(name: str, found: Dataset) -> None:
    grey = name in ("mnist", "kuzushiji", "fashion")
    start = 1 if name.startswith("cifar") else 0
    x = found.train.x.numpy()
    assert np.array_equal(x[:, 0] if grey else x.transpose(0, 2, 3, 1), (GREY if grey else COLOUR)[start:])
    assert np.array_equal(found.train.truth.labels.numpy(), LABELS[start:])
    assert len(found.test) == 2
    assert found.classes == (100 if name == "cifar100" else 10)


@pytest.mark.parametrize(
    ("name", "packed"),
    [(name, packed) for name in WRITERS for packed in (True, False) if packed or name != "svhn"],
)
def test_official_files_are_read(name: str, packed: bool, tmp_path: Path) -> None:
    WRITERS[name](tmp_path, SOURCES[name], packed)
    check(name, small(name, tmp_path)(tmp_path))


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_with_another_digest_is_refused(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path, SOURCES[name], True)
    with pytest.raises(AtclError, match=r"not the official file .*remove it"):
        SOURCES[name](tmp_path)


@pytest.mark.parametrize("name", WRITERS)
def test_files_of_another_size_are_refused(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path, SOURCES[name], False)
    with pytest.raises(AtclError, match="the official files have"):
        replace(small(name, tmp_path), sizes=SOURCES[name].sizes)(tmp_path)


def test_a_file_that_someone_else_packed_is_as_good(tmp_path: Path) -> None:
    WRITERS["mnist"](tmp_path, SOURCES["mnist"], True)
    source = small("mnist", tmp_path)
    for remote in source.remotes:
        path = remote.path(tmp_path)
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), compresslevel=1, mtime=1))
    check("mnist", source(tmp_path))


@pytest.mark.parametrize("name", ["mnist", "svhn"])
def test_a_missing_part_is_named(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path, SOURCES[name], True)
    source = small(name, tmp_path)
    source.remotes[-1].path(tmp_path).unlink()
    with pytest.raises(AtclError, match=f"{source.remotes[-1].name} is missing"):
        source(tmp_path)


def test_the_environment_names_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WRITERS["svhn"](tmp_path, SOURCES["svhn"], True)
    monkeypatch.setenv("ATCL_DATA", str(tmp_path))
    check("svhn", small("svhn", tmp_path)(None))


def test_every_dataset_is_tested_here() -> None:
    assert set(DATASETS) == {
        "digits",
        *WRITERS,
        *RELEASES,
    }  # tests/datasets/test_label_files.py has the releases


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file"),
        (b"\0\0\x0d\1\0\0\0\1\0\0\0\0", "not an IDX file"),
        (b"\0\0\x08\3\0\0", "does not hold"),
        (idx_bytes(GREY)[:-1], "does not hold the 6 x 28 x 28 bytes"),
        (idx_bytes(GREY) + b"x", "does not hold"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "does not hold"),
    ],
)
def test_a_damaged_idx_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    for name, stored in (("file", content), ("file.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(stored)
        with pytest.raises(AtclError, match=message):
            readers.idx(tmp_path / name)


def test_a_truncated_gzip_file_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(idx_bytes(GREY))
    for cut in (0, 5, len(whole) // 2, len(whole) - 3):
        (tmp_path / "file.gz").write_bytes(whole[:cut])
        with pytest.raises(AtclError, match=r"not a whole gzip file|not an IDX file"):
            readers.idx(tmp_path / "file.gz")


class Hostile:
    """What an attacker would put into a pickle."""

    def __init__(self, command: tuple[Any, ...]) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return self.command


@pytest.mark.parametrize("how", ["system", "eval", "getattr", "open", "load"])
def test_a_hostile_pickle_runs_nothing(how: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    commands: dict[str, tuple[Any, ...]] = {
        "system": (os.system, (f"touch {mark}",)),
        "eval": (eval, (f"open({str(mark)!r}, 'w')",)),
        "getattr": (getattr, ("", "join")),
        "open": (open, (str(mark), "w")),
        "load": (np.load, (str(mark),)),
    }
    (tmp_path / "batch").write_bytes(
        pickle.dumps({b"data": Hostile(commands[how]), b"labels": []}, protocol=2)
    )
    with pytest.raises(AtclError, match=r"not a batch of CIFAR: it asks for"):
        readers.cifar(tmp_path, "batch", "labels")
    assert not mark.exists()


@pytest.mark.parametrize(
    "found",
    [
        {},
        [],
        {b"data": np.zeros((2, 3072), np.float32), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3071), np.uint8), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0.5, 1]},
    ],
)
def test_a_pickle_of_another_content_is_refused(found: Any, tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(pickle.dumps(found, protocol=2))
    with pytest.raises(AtclError, match="not a batch of CIFAR"):
        readers.cifar(tmp_path, "batch", "labels")


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    write_cifar(tmp_path, SOURCES["cifar10"], True)
    path = tmp_path / "cifar-10-python.tar.gz"
    whole = path.read_bytes()
    with pytest.raises(AtclError, match="no whole meta"):
        readers.cifar(path, "meta", "labels")
    for content in (whole[: len(whole) // 2], b"no archive", b""):
        path.write_bytes(content)
        with pytest.raises(AtclError, match="no whole test_batch"):
            readers.cifar(path, "test_batch", "labels")


@pytest.mark.parametrize(
    "arrays",
    [
        {"X": np.zeros((32, 32, 3, 2), np.uint8)},
        {"X": np.zeros((32, 32, 3, 2), np.float64), "y": np.zeros((2, 1))},
        {"X": np.zeros((2, 32, 32, 3), np.uint8), "y": np.zeros((2, 1))},
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.zeros((3, 1))},
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[{"a": 1}], [2]], dtype=object)},
        {"X": np.array([[np.zeros((32, 32, 3, 2), np.uint8)]], dtype=object), "y": np.zeros((2, 1))},
        None,
    ],
)
def test_mat_files_of_another_shape_are_refused(arrays: dict[str, Any] | None, tmp_path: Path) -> None:
    path = tmp_path / "train_32x32.mat"
    if arrays is None:
        path.write_bytes(b"no mat file at all, but long enough to have a head" * 9)
    else:
        savemat(path, arrays)
    with pytest.raises(AtclError, match=r"not a .mat file of SVHN"):
        readers.svhn(path)
