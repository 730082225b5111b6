"""The functions that a pickle may name, rewritten for plain values: dtypes, arrays, numbers and bytes.

A dtype is a kind of number, without fields or objects; an array uses exactly the bytes given for it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from atcl.core.errors import one_line
from atcl.datasets.archives import AXES, NumpyArray

NUMERIC_DTYPES = frozenset(
    {"b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8"}
)
ORDERS = frozenset("<>|=")
REMEDY = "where you trust the file, open it in Python and store the arrays as .npz, or the labels as .csv"


class Function(NamedTuple):
    """A function or type that a pickle may name; one without `call` may be an argument alone."""

    name: str
    call: Callable[[tuple[Any, ...]], Any] | None


@dataclass(slots=True)
class Kind:
    """A dtype: a kind of number, and its byte order, which a later BUILD sets."""

    code: str
    order: str = ""

    def dtype(self) -> np.dtype[Any]:
        if not self.order:
            refuse("it has a dtype without a byte order")
        return np.dtype(self.order + self.code)


@dataclass(slots=True)
class Blank:
    """An array whose content a later BUILD sets."""

    array: NumpyArray | None = None


def _dtype(arguments: tuple[Any, ...]) -> Kind:
    code = _text(arguments[0]) if arguments else ""
    if (
        code not in NUMERIC_DTYPES
        or any(type(flag) not in (bool, int) for flag in arguments[1:])
        or len(arguments) > 3
    ):
        refuse(
            f"it asks for numpy.dtype({short(repr(code[:40]))}), and arrays of plain numbers alone are read"
        )
    return Kind(code)


def order_of(state: tuple[Any, ...]) -> str:
    """Return the byte order in the state of a dtype; for a number there is nothing else in it."""
    # (version, byte order, sub-array, names, fields, item size, alignment, flags)
    if any(type(part) not in (int, str, bytes, type(None)) for part in state):
        refuse("it has a dtype with parts, and arrays of plain numbers alone are read")
    if (
        len(state) != 8
        or state[0] != 3
        or state[2:] != (None, None, None, -1, -1, 0)
        or (order := _text(state[1])) not in ORDERS
    ):
        refuse("it has a dtype with fields, parts or objects, and arrays of plain numbers alone are read")
    return order


def _blank(arguments: tuple[Any, ...]) -> Blank:
    if (
        len(arguments) != 3
        or arguments[0] is not FUNCTIONS["numpy.ndarray"]
        or type(arguments[1]) is not tuple
        or _text(arguments[2]) != "b"
    ):
        refuse("it makes an array in an unknown way")
    return Blank()


def filling(state: tuple[Any, ...]) -> NumpyArray:
    """Return the array that a state describes."""
    # (version, shape, dtype, whether in Fortran's order, bytes)
    if len(state) != 5 or any(type(state[place]) not in (bool, int) for place in (0, 3)) or state[0] != 1:
        refuse("it has an array in an unknown form")
    return _array(state[4], state[2], state[1], "F" if state[3] else "C")


def _from_buffer(arguments: tuple[Any, ...]) -> NumpyArray:
    if len(arguments) not in (4, 5):
        refuse("it makes an array in an unknown way")
    content, kind, shape, order, *axes = arguments
    if type(order) is not str:
        refuse("it makes an array in an unknown way")
    if order == "K" and axes and axes[0] is not None:
        return _transposed(_array(content, kind, shape, "C"), axes[0])
    if order not in ("C", "F"):
        refuse("it makes an array in an unknown order")
    return _array(content, kind, shape, order)


def _transposed(array: NumpyArray, axes: Any) -> NumpyArray:
    if (
        type(axes) is not tuple
        or any(type(axis) is not int for axis in axes)
        or sorted(axes) != list(range(array.ndim))
    ):
        refuse("it makes an array with its axes in an impossible order")
    return array.transpose(axes)


def _scalar(arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 2:
        refuse("it makes a number in an unknown way")
    kind, content = arguments
    return _array(content, kind, (), "C")[()]


def _encode(arguments: tuple[Any, ...]) -> bytes:
    """Return bytes, which Python 3 writes as encoded text in protocols 0 to 2."""
    if (
        len(arguments) != 2
        or type(arguments[0]) is not str
        or _text(arguments[1]) not in ("latin1", "latin-1")
    ):
        refuse("it encodes something else than text, or in another way than latin1")
    return arguments[0].encode("latin1")


def _empty_bytes(arguments: tuple[Any, ...]) -> bytes:
    if arguments:
        refuse("it calls bytes with arguments")
    return b""


def _array(content: Any, kind: Any, shape: Any, order: Any) -> NumpyArray:
    """Return an array that uses all of the given bytes."""
    if type(content) is not bytes or type(kind) is not Kind:
        refuse("it has an array that is not made of bytes and a dtype")
    dtype = kind.dtype()
    if (
        type(shape) is not tuple
        or len(shape) > AXES
        or any(type(side) is not int or side < 0 for side in shape)
    ):
        refuse("it has an array of an impossible shape")
    if math.prod(shape) * dtype.itemsize != len(content):
        refuse(f"it has an array of shape {short(shape)} and {dtype} in {len(content):,} bytes")
    return np.frombuffer(content, dtype).reshape(shape, order=order)


FUNCTIONS: dict[str, Function] = {
    name: Function(name, call)
    for name, call in {
        "numpy.ndarray": None,
        "numpy.dtype": _dtype,
        "numpy._core.multiarray._reconstruct": _blank,
        "numpy._core.multiarray.scalar": _scalar,
        "numpy._core.numeric._frombuffer": _from_buffer,
        "_codecs.encode": _encode,
        "builtins.bytes": _empty_bytes,
        "__builtin__.bytes": _empty_bytes,
    }.items()
}


def filled(blank: Blank) -> NumpyArray:
    """Return the array of a blank, or refuse one without content."""
    if blank.array is None:
        refuse("it has an array without content")
    return blank.array


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value if isinstance(value, str) else ""


def short(text: object) -> str:
    """Return the beginning of a text from the file, as one printable line."""
    return one_line(text, most=60)


class Refused(ValueError):
    """A pickle is refused; the message is one line with the reason and what to do instead."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; {REMEDY}")
        self.what = what

    def at(self, operation: str) -> "Refused":
        """Return the same line with the name of the operation, where it lacks that."""
        return self if operation in self.what else Refused(f"{self.what} (operation {operation})")


def refuse(what: str) -> NoReturn:
    """Raise `Refused` with the reason and the remedy."""
    raise Refused(what)
