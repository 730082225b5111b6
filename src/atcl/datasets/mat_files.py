"""Numeric arrays from MATLAB's .mat files of level 5; everything else in them is skipped."""

# Not scipy.io.loadmat: it trusts the types in a file, and an invalid one crashes the process.

import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from atcl.datasets.archives import AXES, NumpyArray, allowance

HEAD = 128
MATRIX, COMPRESSED = 14, 15
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
NUMERIC_CLASSES = range(6, 16)  # classes of arrays: double, single, and whole numbers of 8 to 64 bits
COMPLEX = 0x08


class _Element(NamedTuple):
    kind: int
    content: memoryview


def arrays(path: Path, names: Sequence[str]) -> dict[str, NumpyArray]:
    """Return the arrays of these names, with their axes as in the file.

    Raises:
        ValueError: an array is missing or is no array of numbers, or the file is damaged.
    """
    content = memoryview(path.read_bytes())
    if len(content) < HEAD or content[126:128].tobytes() not in (b"IM", b"MI"):
        raise ValueError("it has no head of MATLAB's level 5")
    order = "<" if content[126:128].tobytes() == b"IM" else ">"
    found: dict[str, NumpyArray] = {}
    left = allowance(path)
    for element in _elements(content[HEAD:], order):
        if element.kind == COMPRESSED:
            unpacked = _unpacked(element.content, left)
            left -= len(unpacked)
            element = next(_elements(memoryview(unpacked), order), element)
        if element.kind != MATRIX:
            raise ValueError(f"it has an element of kind {element.kind} where an array belongs")
        name, array = _array(element.content, order, names)
        if array is not None:
            found[name] = array
    lacking = [name for name in names if name not in found]
    if lacking:
        raise ValueError(f"it has no {lacking[0]}")
    return found


def _unpacked(content: memoryview, most: int) -> bytes:
    stream = zlib.decompressobj()
    found = stream.decompress(content, most + 1)
    if len(found) > most:
        raise ValueError("it unpacks to far more than its size")
    return found


def _elements(content: memoryview, order: str) -> Iterator[_Element]:
    """Yield the elements; each begins with a tag, which holds its kind and its size."""
    place = 0
    while place < len(content):
        if len(content) - place < 8:
            raise ValueError("it ends inside a tag")
        kind, size = (int(part) for part in np.frombuffer(content[place : place + 8], f"{order}u4"))
        start, step = place + 8, size
        if kind >> 16:  # the short form: up to four bytes within the tag
            kind, size, start, step = kind & 0xFFFF, kind >> 16, place + 4, 0
            if size > 4:
                raise ValueError("it has a short element of more than four bytes")
        elif kind != COMPRESSED:
            step += -size % 8
        if start + size > len(content):
            raise ValueError("it ends inside an element")
        yield _Element(kind, content[start : start + size])
        place += 8 + step


def _array(content: memoryview, order: str, names: Sequence[str]) -> tuple[str, NumpyArray | None]:
    """Return the name of an array, and its numbers if the name is one of `names`."""
    parts = _elements(content, order)
    flags, sides, called = (_numbers(next(parts, _Element(0, content[:0])), order) for _ in range(3))
    if flags.dtype.kind != "u" or len(flags) != 2 or sides.dtype.kind != "i" or called.dtype.itemsize != 1:
        raise ValueError("it has an array without flags, shape and name")
    name, shape = called.tobytes().decode("latin1"), tuple(map(int, sides))
    if name not in names:
        return name, None
    if int(flags[0]) & 0xFF not in NUMERIC_CLASSES or int(flags[0]) >> 8 & COMPLEX:
        raise ValueError(f"{name} is no array of real numbers")
    numbers = _numbers(next(parts, _Element(0, content[:0])), order)
    if not 1 <= len(shape) <= AXES or min(shape) < 0 or math.prod(shape) != len(numbers):
        raise ValueError(f"{name} does not hold the numbers that its shape promises")
    return name, numbers.reshape(shape, order="F")


def _numbers(element: _Element, order: str) -> NumpyArray:
    code = STORED.get(element.kind)
    if code is None:
        raise ValueError(f"it has an element of kind {element.kind} where numbers belong")
    dtype = np.dtype(order + code)
    if len(element.content) % dtype.itemsize:
        raise ValueError("it has a number that is cut off")
    return np.frombuffer(element.content, dtype)
