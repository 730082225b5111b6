"""Files made to crash, to fill the memory or to mislead: refused in a line, soon, and in little memory."""

import contextlib
import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from atcl.core import checkpoints, journal
from atcl.core.errors import LONGEST, AtclError, one_line
from atcl.core.files import read_json
from atcl.datasets import downloads, pickles, readers
from atcl.datasets.label_files import LABEL_FORMATS, numbers
from atcl.datasets.sources import SOURCES
from tests.measured import MEMORY, SECONDS, measured

ESCAPE = "\x1b[2J\n"


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def head(descr: str, shape: str) -> bytes:
    """The beginning of an .npy file, whatever follows."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x02\0" + struct.pack("<I", len(text)) + text


def npz(path: Path, method: int = zipfile.ZIP_DEFLATED, /, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


PICTURES = {
    "x_train": npy(np.zeros((2, 8, 8), np.uint8)),
    "y_train": npy(np.array([0, 1])),
    "x_test": npy(np.zeros((2, 8, 8), np.uint8)),
    "y_test": npy(np.array([0, 1])),
}


def mnist(path: Path, **changed: bytes) -> None:
    npz(path.with_name("mnist.npz"), **{**PICTURES, **changed})


def mat(path: Path, **changed: Any) -> bytearray:
    stream = io.BytesIO()
    arrays = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [10]], np.uint8), **changed}
    savemat(stream, arrays)
    content = bytearray(stream.getvalue())
    path.write_bytes(content)
    return content


def mat_of_kind(path: Path, kind: int) -> None:
    content = mat(path)
    place = content.index(struct.pack("<II", 2, 32 * 32 * 3 * 2))
    content[place : place + 4] = struct.pack("<I", kind)
    path.write_bytes(content)


def written(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def dumped(value: Any, protocol: int = 4, end: bytes = b"") -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(pickle.dumps(value, protocol) + end)


def text(words: str) -> bytes:
    return b"X" + struct.pack("<I", len(words.encode())) + words.encode()


U1 = (
    b"cnumpy\ndtype\n"
    + text("u1")
    + b"\x89\x88\x87R(K\x03"
    + text("|")
    + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)
ARRAYS = (
    b"\x80\x05(cnumpy._core.numeric\n_frombuffer\nq\x00(C\x01a"
    + U1
    + b"K\x01\x85"
    + text("C")
    + b"tq\x01R"
    + b"h\x00h\x01R" * 1_600_000
    + b"l."
)
PIXEL = np.zeros((1, 1, 3), np.uint8)


def labels(path: Path) -> Any:
    return numbers(path, ("cl_labels",), LABEL_FORMATS)


def batch(path: Path) -> Any:
    return readers.cifar(path.parent, path.name, "labels")


def pictures(path: Path) -> Any:
    return SOURCES["mnist"](path.parent)


def verified(path: Path) -> Any:
    return SOURCES["mnist"].remotes[0].verify(path)


def tensors(path: Path) -> Any:
    return checkpoints.from_bytes(path.read_bytes(), path)


def archived(path: Path) -> Any:
    return readers.cifar(path, "test_batch", "labels")


def tar(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> None:
    with gzip.open(path, "wb", 1) as stream:
        for entry, content in entries:
            stream.write(entry.tobuf(tarfile.USTAR_FORMAT) + content)
        stream.write(bytes(1024))


def entry(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.size, made.linkname = kind, size, link
    return made


def tensor_file(**described: Any) -> bytes:
    top = json.dumps({"a": described}).encode()
    return struct.pack("<Q", len(top)) + top


RAGGED = 100_000
UNPACKED = head("'|u1'", "(1024,1024,128)") + bytes(2**27)
# What takes long or much memory where no limit holds: the file, how it is written and read, what is said.
LARGE: dict[str, tuple[str, Callable[[Path], Any], Callable[[Path], Any], str]] = {
    "a table with one long row, csv": (
        "a.csv",
        written(b"1" + b",1" * RAGGED + b"\n" + b"1\n" * 4000),
        labels,
        "have 104001 cells together",
    ),
    "a table with one long row, json": (
        "a.json",
        written(b"[[" + b"1," * RAGGED + b"1]" + b",1" * 4000 + b"]"),
        labels,
        "cells together",
    ),
    "a table with one long row, pickled": (
        "a.pkl",
        dumped({"cl_labels": [[1] * RAGGED] + [1] * 4000}),
        labels,
        "cells",
    ),
    "the same list again and again": (
        "a.pkl",
        dumped({"cl_labels": [list(range(1000))] * 40_000}, end=bytes(5_000_000)),
        labels,
        "unfolded",
    ),
    "one line of five megabytes": ("a.txt", written(b"1 " * 2_500_000), labels, "a line of more than"),
    "labels that are texts": (
        "a.pkl",
        dumped({"images": [PIXEL], "ord_labels": ["a" * 10**6] + [""] * 500}),
        readers.climage,
        "whole numbers",
    ),
    "an image that is texts": (
        "a.pkl",
        dumped({"images": [["a" * 10**6] + [""] * 1000], "ord_labels": [1]}),
        readers.climage,
        "a list",
    ),
    "labels of CIFAR that are texts": (
        "test",
        dumped({b"data": np.zeros((1, 3072), np.uint8), b"labels": [b"a" * 10**6] + [b""] * 3000}),
        batch,
        "whole",
    ),
    "a million and a half images that are none": (
        "a.pkl",
        dumped({"images": [None] * 1_400_000, "ord_labels": [1]}),
        readers.climage,
        "1 images belong",
    ),
    "five million nothings": (
        "a.pkl",
        written(b"\x80\x04(" + b"N" * 4_990_000 + b"l."),
        readers.climage,
        "operations",
    ),
    "a million short texts": (
        "a.pkl",
        written(b"\x80\x04(" + b"\x8c\x02\xd0\x90" * 1_400_000 + b"l."),
        readers.climage,
        "memory",
    ),
    "a million functions": (
        "a.pkl",
        written(b"\x80\x04(" + b"cnumpy\ndtype\n" * 1_400_000 + b"l."),
        readers.climage,
        "calls",
    ),
    "a million additions": (
        "a.pkl",
        written(b"\x80\x04]" + b"Na" * 700_000 + b"."),
        readers.climage,
        "its size allows",
    ),
    "a million arrays from one note": ("a.pkl", written(ARRAYS), readers.climage, "memory"),
    "a number of twenty megabytes": (
        "a.pkl",
        written(b"F" + b"\xff" * 20_000_000 + b"\n."),
        readers.climage,
        "its end",
    ),
    "pictures that unpack to far more": (
        "mnist.npz",
        lambda path: mnist(path, x_train=UNPACKED),
        pictures,
        "unpacks to",
    ),
    "labels that unpack to far more": (
        "a.npz",
        lambda path: npz(path, cl_labels=UNPACKED),
        labels,
        "unpacks to",
    ),
    "labels packed in another way": (
        "a.npz",
        lambda path: npz(path, zipfile.ZIP_LZMA, cl_labels=npy(np.zeros(2**24, np.uint8))),
        labels,
        "does not use",
    ),
    "many labels in few bytes": (
        "a.npz",
        lambda path: npz(path, cl_labels=npy(np.zeros((2**24, 1), np.uint8))),
        labels,
        "far more than its size",
    ),
    "a gzip file that unpacks to far more": (
        "t.gz",
        lambda path: path.write_bytes(gzip.compress(bytes(2**27), 1)),
        verified,
        "unpacks to",
    ),
    "a gzip file of many parts": (
        "t.gz",
        written(gzip.compress(b"") * 500_000),
        verified,
        "something follows",
    ),
    "a head of 128 MiB in an archive": (
        "c.tar.gz",
        lambda path: tar(path, (entry("x", tarfile.XHDTYPE, 2**27), bytes(2**27))),
        archived,
        "unpacks to",
    ),
    "a .mat file that unpacks to far more": (
        "a.mat",
        lambda path: savemat(
            path, {"X": np.zeros((32, 32, 3, 45_000), np.uint8), "y": 1}, do_compression=True
        ),
        readers.svhn,
        "unpacks to",
    ),
}
# What crashed, left with a traceback, or said what a terminal would obey.
SMALL: dict[str, tuple[str, Callable[[Path], Any], Callable[[Path], Any], str]] = {
    "a made-up kind of numbers in .mat": (
        "a.mat",
        lambda path: mat_of_kind(path, 100),
        readers.svhn,
        "element of kind 100",
    ),
    "an array for numbers in .mat": (
        "a.mat",
        lambda path: mat_of_kind(path, 14),
        readers.svhn,
        "element of kind 14",
    ),
    ".mat labels that are no numbers": (
        "a.mat",
        lambda path: mat(path, y=np.array([[np.nan], [1]])),
        readers.svhn,
        "0 to 10",
    ),
    ".mat labels that are complex": (
        "a.mat",
        lambda path: mat(path, y=np.array([[1j], [1]])),
        readers.svhn,
        "real numbers",
    ),
    "a name with line breaks": (
        "a.pkl",
        written(b"\x80\x04" + text("os" + ESCAPE) + text("x\ny") + b"\x93."),
        readers.climage,
        "asks for",
    ),
    "a name with escapes": (
        "a.pkl",
        written(b"cos\x1b[31mabc\nsystem\n."),
        readers.climage,
        "asks for os\\x1b[31mabc.system",
    ),
    "keys with escapes": ("a.json", written(b'{"a\\nb\\u001b[2J": 1, "c": 2}'), labels, "a b"),
    "a cell of megabytes": ("a.json", written(b'[["' + b"x" * 5_000_000 + b'"]]'), labels, "no number"),
    "another cell of megabytes": (
        "a.txt",
        written(b"1\n" + b"x" * 1_000_000 + b"\n"),
        labels,
        "could not convert",
    ),
    "JSON that is too deep": ("a.json", written(b"[" * 200_000), labels, "recursion"),
    "a settings file that is too deep": ("recipe.json", written(b"[" * 100_000), read_json, "cannot be read"),
    "an array without its mark": (
        "m",
        lambda path: mnist(path, x_train=b"hello"),
        pictures,
        "Python objects, or no array",
    ),
    "labels without their mark": (
        "a.npz",
        lambda path: npz(path, cl_labels=b"hello"),
        labels,
        "Python objects, or no array",
    ),
    "objects in an array": (
        "m",
        lambda path: mnist(path, x_train=head("'|O'", "(2,)") + bytes(16)),
        pictures,
        "Python objects",
    ),
    "an archive in an archive": (
        "a.npz",
        lambda path: npz(path, cl_labels=npz(path, a=npy(1)).read_bytes()),
        labels,
        "archive",
    ),
    "dates for labels": (
        "m",
        lambda path: mnist(path, y_train=head("'<m8[s]'", "(2,)") + bytes(16)),
        pictures,
        "whole number",
    ),
    "images of nothing": (
        "m",
        lambda path: mnist(path, x_train=head("'|u1'", "(2,0,1099511627776)")),
        pictures,
        "is empty",
    ),
    "too many axes": (
        "i",
        written(b"\0\0\x08\x40" + b"\0\0\0\1" * 64 + b"a"),
        readers.idx,
        "not an IDX file",
    ),
    "sides that wrap around": ("i", written(b"\0\0\x08\x04" + b"\0\1\0\0" * 4), readers.idx, "does not hold"),
    "a link to itself": (
        "c.tar.gz",
        lambda path: tar(path, (entry("c/test_batch", tarfile.SYMTYPE, link="test_batch"), b"")),
        archived,
        "no plain file",
    ),
    "a type of tensor that PyTorch lacks": (
        "m",
        written(tensor_file(dtype="F8_E8M0", shape=[1], data_offsets=[0, 1]) + b"\0"),
        tensors,
        "F8_E8M0",
    ),
    "a side beyond 64 bits": (
        "m",
        written(tensor_file(dtype="U8", shape=[0, 2**63], data_offsets=[0, 0])),
        tensors,
        "not a whole",
    ),
    "a type with line breaks": (
        "m",
        written(tensor_file(dtype=f"A{ESCAPE}B", shape=[1], data_offsets=[0, 1]) + b"\0"),
        tensors,
        "not a whole",
    ),
}
COMMANDS = {
    "pictures that unpack to far more": ["mnist/warmup-pla"],
    "an array without its mark": ["mnist/warmup-pla"],
}


def message_of(read: Callable[[Path], Any], path: Path) -> str:
    with pytest.raises(AtclError) as caught:
        read(path)
    return str(caught.value)


def check_said(said: str, message: str) -> None:
    assert message in said
    assert said.isprintable()
    assert len(said) < 700


@pytest.mark.parametrize("how", SMALL)
def test_it_is_refused_in_a_printable_line(how: str, tmp_path: Path) -> None:
    name, write, read, message = SMALL[how]
    write(tmp_path / name)
    check_said(message_of(read, tmp_path / name), message)


def refused(how: str, path: Path) -> str:
    try:
        LARGE[how][2](path)
    except AtclError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("how", LARGE)
def test_it_is_refused_soon_and_in_little_memory(how: str, tmp_path: Path) -> None:
    name, write, _, message = LARGE[how]
    write(tmp_path / name)
    said, seconds, memory = measured(refused, how, tmp_path / name)
    check_said(said, message)
    assert seconds < SECONDS
    assert memory < MEMORY


@pytest.mark.parametrize("how", COMMANDS)
def test_the_command_line_says_so_and_ends_with_2(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from atcl.cli.entry import main

    name, write, _, message = {**LARGE, **SMALL}[how]
    write(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert main(["train", *COMMANDS[how], "--data-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("atcl: ")
    check_said(said.removesuffix("\n"), message)


def test_what_follows_a_pickle_is_not_read() -> None:
    assert pickles.plain_data(pickle.dumps([1]) + b"anything") == [1]


@pytest.mark.parametrize("protocol", range(6))
def test_labels_without_images_are_read_up_to_a_million_and_a_half_operations(protocol: int) -> None:
    rows = np.random.default_rng(0).integers(0, 10, (10_000, 3)).tolist()
    content = pickle.dumps({"names": [f"{i}.png" for i in range(10_000)], "cl_labels": rows}, protocol)
    assert pickles.plain_data(content)["cl_labels"] == rows


@pytest.mark.parametrize("kind", [">u1", ">u2", ">f4", ">i8"])
def test_arrays_of_another_order_of_bytes_are_read(kind: str, tmp_path: Path) -> None:
    x = (np.arange(128).reshape(2, 8, 8) % 2).astype(kind)
    mnist(tmp_path / "m", x_train=npy(x), x_test=npy(x), y_train=npy(np.array([3, 4], ">i4")))
    found = readers.npz(tmp_path / "mnist.npz")
    assert np.array_equal(found["x_train"], x)
    assert found["x_train"].dtype.isnative
    assert found["y_train"].tolist() == [3, 4]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.float64, np.int16])
def test_mat_files_are_read_as_scipy_writes_them(packed: bool, kind: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), np.uint8)
    y = np.array([[10], [1], [2], [9]], kind)
    savemat(
        tmp_path / "a.mat",
        {"note": "text", "cells": np.array([1, "a"], object), "X": x, "y": y},
        do_compression=packed,
    )
    images, true = readers.svhn(tmp_path / "a.mat")
    assert np.array_equal(images, x.transpose(3, 0, 1, 2))
    assert true.tolist() == [0, 1, 2, 9]


def test_a_mat_file_cut_or_changed_anywhere_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    whole = mat(path)
    places = [*range(120, 420), *range(len(whole) - 80, len(whole))]
    for place in places:
        for content in (
            whole[:place],
            whole[:place] + b"\xff" + whole[place + 1 :],
            whole[:place] + b"\x0f" + whole[place + 1 :],
        ):
            path.write_bytes(content)
            with contextlib.suppress(AtclError):
                readers.svhn(path)


def test_a_journal_ends_at_a_line_that_is_too_deep(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b'{"epoch": 1}\n' + b"[" * 100_000 + b"\n")
    assert journal.read(tmp_path / "j") == [{"epoch": 1}]


def test_a_checkpoint_is_still_read(tmp_path: Path) -> None:
    given = {"a": torch.arange(3), "b": torch.zeros(0, 2)}
    found = checkpoints.from_bytes(checkpoints.to_bytes(given), tmp_path)
    assert all(torch.equal(found[name], given[name]) for name in given)


def test_a_packed_file_has_the_digest_of_its_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(300_000))
    (tmp_path / "a.gz").write_bytes(gzip.compress((tmp_path / "a").read_bytes()))
    plain = downloads.md5_of(tmp_path / "a", unpacked=False)
    assert (
        plain
        == downloads.md5_of(tmp_path / "a", unpacked=True)
        == downloads.md5_of(tmp_path / "a.gz", unpacked=True)
    )
    assert plain != downloads.md5_of(tmp_path / "a.gz", unpacked=False)


def test_a_message_is_printable_and_not_endless() -> None:
    assert str(AtclError(f"a{ESCAPE}b\u202ec\ud800")) == "a\\x1b[2J\nb\\u202ec\\ud800"
    assert len(str(AtclError("x" * 10**6))) == LONGEST
    assert one_line("a\r\n b\x1b\tc") == "a b\\x1b c"
    assert len(one_line("x" * 10**7)) == 240
