"""Pickles read as data: genuine files come out as `pickle` reads them.

What is hostile or damaged is refused, and runs nothing.
"""

import contextlib
import io
import os
import pickle
import pickletools
import struct
from collections import OrderedDict
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atcl.cli.entry import main
from atcl.datasets import pickle_walk, pickles
from atcl.datasets.pickled_arrays import REMEDY, Refused
from tests.measured import MEMORY, SECONDS, measured

PROTOCOLS = range(6)
GRID = np.arange(24).reshape(2, 3, 4)
ARRAYS = {
    **{kind: GRID[0].astype(kind) for kind in ("b1", "i1", "u1", "<i2", ">i4", "<u8", "f2", ">f4", "f8")},
    "Fortran's order": np.asfortranarray(GRID),
    "an order of its own": GRID.transpose(1, 0, 2),
    "a part": GRID[:, 1:, ::2],
    "no axis": np.array(3.5),
    "no number": np.zeros((0, 3), np.uint8),
}
VALUES: dict[str, Any] = {
    "numbers": [
        0,
        1,
        -1,
        255,
        256,
        65536,
        -(2**31),
        2**31,
        2**63 - 1,
        -(2**63),
        2**64 - 1,
        0.0,
        -1.5,
        float("inf"),
        True,
        False,
        None,
    ],
    "text": ["", "a", "ä€𝄞\n'\"\\", b"", b"a", bytes(range(256)), "x" * 300, b"y" * 300, "z" * 70_000],
    "lists": [
        [],
        [[]],
        [1, [2, [3, ()]]],
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 3, 4),
        {},
        {"a": {b"b": [1]}},
        list(range(2500)),
        {str(i): i for i in range(1500)},
    ],
    "the same list twice": [[1, 2, 2]] * 6,
    "numbers of NumPy": [
        np.int64(3),
        np.uint8(255),
        np.float32(0.1),
        np.bool_(True),
        np.dtype(">i4").type(7),
    ],
}


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        # `pickle` swaps the bytes of a foreign order, we leave them: the numbers are the same
        return (
            one.dtype.newbyteorder("=") == other.dtype.newbyteorder("=")
            and one.shape == other.shape
            and bool((one == other).all())
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return (
        list(one) == list(other) and all(same(one[key], other[key]) for key in one)
        if isinstance(one, dict)
        else bool(one == other)
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", [*ARRAYS, *VALUES])
def test_genuine_values_come_out_as_pickle_reads_them(name: str, protocol: int) -> None:
    value = {**ARRAYS, **VALUES}[name]
    content = pickle.dumps({"cl_labels": value, "again": [value]}, protocol=protocol)
    assert same(pickles.plain_data(content), pickle.loads(content, encoding="bytes"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_files_of_older_numpy_are_read_too(protocol: int) -> None:
    content = pickle.dumps([ARRAYS["u1"], ARRAYS[">i4"], np.int64(3)], protocol=protocol)
    for part in (b"multiarray", b"numeric"):
        new, old = b"numpy._core." + part, b"numpy.core." + part
        content = content.replace(
            bytes([len(new)]) + new, bytes([len(old)]) + old
        )  # from protocol 4 on a name has its length before it
        content = content.replace(new, old)
    assert b"_core" not in content
    assert same(pickles.plain_data(content), [ARRAYS["u1"], ARRAYS[">i4"], np.int64(3)])


# What Python 2.7 writes for {"data": numpy.arange(3, dtype="uint8"), "labels": [1, 2L], u"ä": "\xff\n'"}.
PYTHON_2 = {
    0: b"(dp0\nS'data'\np1\ncnumpy.core.multiarray\n_reconstruct\np2\n(cnumpy\nndarray\np3\n(I0\ntp4\n"
    b"S'b'\np5\ntp6\nRp7\n(I1\n(I3\ntp8\ncnumpy\ndtype\np9\n(S'u1'\np10\nI0\nI1\ntp11\nRp12\n(I3\nS'|'\np13\n"
    b"NNNI-1\nI-1\nI0\ntp14\nbI00\nS'\\x00\\x01\\x02'\np15\ntp16\nbs"
    b"S'labels'\np17\n(lp18\nI1\naL2L\nasV\xe4\np19\nS\"\\xff\\n'\"\np20\ns.",
    2: b"\x80\x02}q\x00(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03"
    b"K\x00\x85U\x01b\x87Rq\x04(K\x01K\x03\x85cnumpy\ndtype\nq\x05U\x02u1K\x00K\x01\x87Rq\x06"
    b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x03\x00\x00\x00\x00\x01\x02tb"
    b"U\x06labels]q\x07(K\x01\x8a\x01\x02eX\x02\x00\x00\x00\xc3\xa4U\x03\xff\n'u.",
}


@pytest.mark.parametrize("protocol", PYTHON_2)
def test_files_that_python_2_wrote_have_bytes_for_text(protocol: int) -> None:
    found = pickles.plain_data(PYTHON_2[protocol])
    assert same(found, {b"data": np.arange(3, dtype=np.uint8), b"labels": [1, 2], "ä": b"\xff\n'"})
    assert same(found, pickle.loads(PYTHON_2[protocol], encoding="bytes"))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_the_limits_admit_the_largest_release(protocol: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """50,000 images with three labels each, as NumPy numbers, the longest form; measured on 200 of them."""
    walks = list[pickle_walk.Walk]()

    def noted(size: int) -> pickle_walk.Walk:
        walks.append(pickle_walk.Walk(size))
        return walks[0]

    monkeypatch.setattr(pickles, "Walk", noted)
    images = list(np.random.default_rng(0).integers(0, 256, (200, 32, 32, 3), np.uint8))
    release = {
        "names": [f"{i}.png" for i in range(200)],
        "images": images,
        "ord_labels": [1] * 200,
        "cl_labels": [list(np.arange(3)) for _ in images],
    }
    content = pickle.dumps(release, protocol=protocol)
    assert same(pickles.plain_data(content), release)
    size, before, after = 250 * len(content), pickle_walk.Walk(len(content)), walks[0]
    operations = sum(1 for _ in pickletools.genops(content))
    assert 250 * operations < pickle_walk.OPERATIONS + size // pickle_walk.FOR_OPERATION
    assert 250 * (before.steps - after.steps) < pickle_walk.STEPS + size // pickle_walk.FOR_STEP
    assert 250 * (before.memory - after.memory) < pickle_walk.MEMORY + size * pickle_walk.FOR_MEMORY
    assert size < pickle_walk.SIZE


@pytest.mark.filterwarnings("error")
def test_an_unknown_escape_in_text_of_python_2_gives_no_warning() -> None:
    assert pickles.plain_data(b"S'\\d'\n.") == b"\\d"


class Made:
    """What an attacker would put into a pickle."""

    def __init__(self, *made: Any) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return self.made


def attacked(value: Any, protocol: int = 2) -> bytes:
    return pickle.dumps({"images": [], "ord_labels": [], "cl_labels": value}, protocol=protocol)


RECONSTRUCT = b"cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
FAR = b"\xde\xad\xbe\xef" * 2  # where an object would lie


def kind(
    code: str, state: bytes = b"(K\x03X\x01\x00\x00\x00<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
) -> bytes:
    return b"cnumpy\ndtype\n" + b"X" + struct.pack("<I", len(code)) + code.encode() + b"\x89\x88\x87R" + state


def array(dtype: bytes, content: bytes, shape: bytes = b"K\x01\x85") -> bytes:
    return (
        b"\x80\x04"
        + RECONSTRUCT
        + b"(K\x01"
        + shape
        + dtype
        + b"\x89C"
        + bytes([len(content)])
        + content
        + b"tb."
    )


FIELDS = (
    b"(K\x03X\x01\x00\x00\x00|NX\x01\x00\x00\x00a\x85}X\x01\x00\x00\x00a"
    + kind("i8")
    + b"M\x00\x40\x86sK\x08K\x01K\x00tb"
)  # at 16 KiB of 8 bytes
OBJECTS = b"(K\x03X\x01\x00\x00\x00|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb"
HOSTILE: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "objects over raw bytes": (lambda _: array(kind("O8"), FAR), "numpy.dtype('O8')"),
    "objects from a buffer": (
        lambda _: (
            b"\x80\x05cnumpy._core.numeric\n_frombuffer\n(C\x08"
            + FAR
            + kind("O8")
            + b"K\x01\x85X\x01\x00\x00\x00CtR."
        ),
        "dtype('O8')",
    ),
    "a number that is an object": (
        lambda _: b"\x80\x04cnumpy._core.multiarray\nscalar\n" + kind("O8") + b"C\x08" + FAR + b"\x86R.",
        "dtype('O8')",
    ),
    "an object dtype given late": (lambda _: array(kind("u8", OBJECTS), FAR), "fields, parts or objects"),
    "a byte order given twice": (lambda _: array(kind("u8") + OBJECTS, FAR), "BUILD"),
    "fields far outside": (lambda _: array(kind("V8", FIELDS), FAR), "numpy.dtype('V8')"),
    "fields of a number": (lambda _: array(kind("u8", FIELDS), FAR), "where a value belongs"),
    "a sub-array": (
        lambda _: array(kind("u8", OBJECTS.replace(b"NNN", kind("u1") + b"K\x08\x85\x86NN")), FAR),
        "a dtype with parts",
    ),
    "strides beyond the bytes": (
        lambda _: (
            b"\x80\x04cnumpy\nndarray\n(K\x64\x85"
            + kind("u1")
            + b"C\x08"
            + FAR
            + b"K\x00J\x00\x00\x00\x10\x85tR."
        ),
        "calls numpy.ndarray",
    ),
    "as_strided": (
        lambda _: b"\x80\x04cnumpy.lib.stride_tricks\nas_strided\n)R.",
        "numpy.lib.stride_tricks.as_strided",
    ),
    "a huge shape": (
        lambda _: array(kind("u1"), FAR, b"\x8a\x08" + struct.pack("<q", 2**45) + b"\x85"),
        "in 8 bytes",
    ),
    "a shape that wraps around": (
        lambda _: array(kind("u1"), b"", (b"\x8a\x05" + struct.pack("<q", 2**32)[:5]) * 2 + b"\x86"),
        "in 0 bytes",
    ),
    "a negative shape": (lambda _: array(kind("u1"), FAR, b"J\xff\xff\xff\xff\x85"), "an impossible shape"),
    "an array that no one fills": (lambda _: b"\x80\x04" + RECONSTRUCT + b".", "without content"),
    "os.system": (
        lambda mark: attacked(Made(os.system, (f"touch {mark}",))),
        f"it asks for {os.system.__module__}.system",
    ),
    "eval": (lambda mark: attacked(Made(eval, (f"open({str(mark)!r}, 'w')",))), "eval"),
    "numpy.load": (lambda mark: attacked(Made(np.load, (str(mark),)), 4), "it asks for numpy.load"),
    "getattr": (lambda _: attacked(Made(getattr, ("", "join")), 4), "it asks for builtins.getattr"),
    "a class": (lambda _: attacked(date(2026, 1, 1)), "it asks for datetime.date"),
    "an OrderedDict": (lambda _: attacked(OrderedDict()), "it asks for collections.OrderedDict"),
    "a set": (lambda _: attacked({1}, 4), "the operation EMPTY_SET"),
    "a function for a value": (lambda _: b"\x80\x04cnumpy\ndtype\n.", "and no value"),
    "a function in a list": (lambda _: b"\x80\x04]cnumpy\ndtype\na.", "where a value belongs"),
    "a persistent id": (lambda _: b"Pabc\n.", "the operation PERSID"),
    "a binary persistent id": (lambda _: b"\x80\x02K\x01Q.", "the operation BINPERSID"),
    "an extension": (lambda _: b"\x80\x02\x82\x01.", "the operation EXT1"),
    "a buffer from elsewhere": (lambda _: b"\x80\x05\x97.", "the operation NEXT_BUFFER"),
    "a buffer made readonly": (lambda _: b"\x80\x05\x98.", "the operation READONLY_BUFFER"),
    "an instance": (lambda _: b"(ios\nsystem\n.", "the operation INST"),
    "a new object": (lambda _: b"\x80\x02cnumpy\nndarray\n)\x81.", "the operation NEWOBJ"),
    "a list in itself": (lambda _: b"\x80\x02]q\x00h\x00a.", "or in itself"),
    "a list in a tuple in itself": (lambda _: b"\x80\x02]q\x00h\x00\x85a.", "or in itself"),
    "a dict in itself": (lambda _: b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.", "or in itself"),
    "a list changed later": (lambda _: b"\x80\x02]q\x00]q\x01h\x00ah\x00K\x01ah\x01.", "or in itself"),
    "ten million tuples in each other": (
        lambda _: b"\x80\x02)" + b"\x85" * 10_000_000 + b".",
        "nested more than 16 deep",
    ),
    "ten million marks": (lambda _: b"\x80\x02" + b"(" * 10_000_000, "operations"),
    "two million lists": (lambda _: b"\x80\x02(" + b"]" * 2_000_000 + b"t.", "more memory than the file"),
    "two million lists in a list": (
        lambda _: b"\x80\x02](" + b"]" * 2_000_000 + b"e.",
        "more memory than the file",
    ),
    "two million lists noted": (
        lambda _: b"\x80\x04" + b"]\x94" * 2_000_000 + b".",
        "more memory than the file",
    ),
    "two million places": (lambda _: b"\x80\x04N" + b"\x94" * 2_000_000 + b".", "operations"),
    "a place far away": (lambda _: b"\x80\x02Nr" + b"\xff\xff\xff\x7f" + b".", "at place 2147483647"),
    "a list of lists of lists": (
        lambda _: (
            b"\x80\x02(K\x00l" + b"".join(b"q%c(" % i + b"h%c" % i * 99 + b"l" for i in range(9)) + b"."
        ),
        "unfolded",
    ),
    "a megabyte ten thousand times": (
        lambda _: (
            b"\x80\x03B" + struct.pack("<I", 2**20) + bytes(2**20) + b"q\x00(" + b"h\x00" * 10_000 + b"l."
        ),
        "unfolded",
    ),
    "text encoded again and again": (
        lambda _: (
            b"\x80\x02c_codecs\nencode\nq\x00X"
            + struct.pack("<I", 2**20)
            + b"a" * 2**20
            + b"X\x06\x00\x00\x00latin1\x86q\x01("
            + b"h\x00h\x01R" * 10_000
            + b"l."
        ),
        "more memory than the file",
    ),
    "a number without end": (
        lambda _: b"\x80\x02\x8b" + struct.pack("<I", 2**20) + b"\x01" * 2**20 + b".",
        "more than 64 bits",
    ),
    "keys that are numbers": (lambda _: attacked({1: 2}), "a key that is a int"),
    "more bytes than there are": (lambda _: b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"abc", "bytes"),
    "values that are not there": (lambda _: b"\x80\x02K\x01(\x87.", "a value where there is none"),
    "a place that is not there": (lambda _: b"\x80\x02h\x07.", "a value that is not there"),
    "a mark that is not there": (lambda _: b"\x80\x02t.", "a mark that is not there"),
    "a protocol to come": (lambda _: b"\x80\x06N.", "protocol 6"),
    "no pickle": (lambda _: b"\xff\xd8\xff\xe0JFIF", "no operation of a pickle"),
    "nothing": (lambda _: b"", "it ends before its pickle does"),
    "half a file": (
        lambda _: pickle.dumps({"images": list(GRID.astype(np.uint8)), "ord_labels": [1, 2]})[:-40],
        "cannot be read",
    ),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_what_is_hostile_or_damaged_is_refused_in_a_line_and_runs_nothing(how: str, tmp_path: Path) -> None:
    made, message = HOSTILE[how]
    with pytest.raises(Refused) as caught:
        pickles.plain_data(made(tmp_path / "ran"))
    said = str(caught.value)
    assert message in said
    assert said.endswith(REMEDY)
    assert len(said.splitlines()) == 1
    assert len(said) < 300
    assert not list(tmp_path.iterdir())


def test_a_refusal_names_the_operation_where_it_names_no_class() -> None:
    with pytest.raises(Refused, match=r"in 8 bytes \(operation BUILD\); "):
        pickles.plain_data(array(kind("u1"), FAR, b"K\x63\x85"))
    with pytest.raises(Refused, match=r"the operation PERSID; "):
        pickles.plain_data(b"Pabc\n.")


def test_a_file_cut_anywhere_is_refused() -> None:
    whole = pickle.dumps({"cl_labels": [1, [2.5, "a"]], "images": [np.arange(3), np.int64(2)]})
    for end in range(len(whole)):
        with pytest.raises(ValueError, match=r"\w"):
            pickles.plain_data(whole[:end])


def test_a_file_with_any_byte_changed_is_read_as_data_or_refused() -> None:
    """Whatever the bytes are, the result has only values of the types that are allowed."""
    plain = (list, tuple, dict, str, bytes, int, float, bool, type(None), np.ndarray, np.generic)

    def check(value: Any) -> None:
        assert isinstance(value, plain)
        for part in (
            value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        ):
            check(part)

    for protocol in (0, 2, 5):
        whole = bytearray(
            pickle.dumps(
                {"cl_labels": [1, (2.5, "a")], "images": [np.arange(3), np.int64(2)]}, protocol=protocol
            )
        )
        for place, before in enumerate(whole):
            for change in (before ^ 1, before ^ 0x80, 0x2E, 0x28, 0x62):
                whole[place] = change
                with contextlib.suppress(ValueError):
                    check(pickles.plain_data(bytes(whole)))
            whole[place] = before


NAMED = [
    "objects over raw bytes",
    "an object dtype given late",
    "fields far outside",
    "strides beyond the bytes",
    "a huge shape",
    "os.system",
    "eval",
    "numpy.load",
    "a persistent id",
    "a list in itself",
    "ten million tuples in each other",
    "two million lists",
    "two million lists noted",
    "two million places",
    "a megabyte ten thousand times",
    "half a file",
]


def trained(folder: Path) -> tuple[int, str]:
    """Train on a release from a stranger; return the exit code, and what the command said."""
    os.chdir(folder)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(["train", "cifar10/warmup-pla", "--dataset", "clcifar10", "--data-dir", "data"])
    return code, said.getvalue()


@pytest.mark.parametrize("how", NAMED)
def test_the_command_line_refuses_a_hostile_release(how: str, tmp_path: Path) -> None:
    made, message = HOSTILE[how]
    for name in ("empty", "full"):
        (tmp_path / name / "data").mkdir(parents=True)
    (tmp_path / "full" / "data" / "clcifar10.pkl").write_bytes(made(tmp_path / "ran"))
    (code, said), seconds, memory = measured(trained, tmp_path / "full", first=(tmp_path / "empty",))
    assert code == 2
    assert said.startswith("atcl: ")
    assert "clcifar10.pkl is not a release of CLImage: " in said
    assert message in said
    assert REMEDY in said
    assert len(said.splitlines()) == 1
    assert seconds < SECONDS
    assert memory < MEMORY
    # Nothing ran, and no run was begun.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["data"]
