"""Pickles read as data, operation by operation; nothing that they name is imported or called.

Lists, dicts, tuples, text, bytes, numbers and numeric arrays are rebuilt, as in the releases of CIFAR and
CLImage (by Python 2 or 3, protocols 0 to 5); all else is refused. The result of any file is limited to some
megabytes plus a small multiple of its size.
"""

import codecs
import gc
import io
import pickletools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from atcl.datasets.pickle_walk import SIZE, Walk, allowed_operations
from atcl.datasets.pickled_arrays import Refused, refuse, short

NUMBER_BYTES = 100  # the most bytes of a number in decimal digits
NAME = 500  # the most bytes of the name of a module, or of what is in it


def plain_data(content: bytes) -> Any:
    """Return the value of a pickle.

    Text of Python 2 and a bytearray become bytes. What follows the pickle is not read.

    Raises:
        ValueError: the pickle is refused; the message is one line that says why.

    Examples:
        >>> plain_data(b"\\x80\\x04]\\x94(K\\x01K\\x02e.")
        [1, 2]
    """
    if len(content) > SIZE:
        refuse(f"it is larger than {SIZE:,} bytes")
    stream, walk, name = io.BytesIO(content), Walk(len(content)), ""
    limit, code, operation_of = allowed_operations(len(content)), stream.read, _OPERATIONS.get
    try:
        with _no_garbage_collection():
            for _ in range(limit):
                # Not pickletools.genops: its reader of protocol 0's byte strings takes ASCII alone.
                found = operation_of(code(1))
                name, read, step = found or ("", None, None)
                if step is not None:
                    step(walk, read(stream) if read else None)
                elif name == "STOP":
                    return walk.result(stream.tell())
                elif not name:
                    refuse(_no_operation(content, stream.tell()))
                else:
                    refuse(f"it has the operation {name}")
    except Refused as error:
        raise error.at(name) from None
    except (ValueError, OverflowError) as error:  # of the readers of arguments
        refuse(f"its operation {name} cannot be read ({short(error)})")
    return refuse(f"it has more than {limit:,} operations, too many for its size")


def _no_operation(content: bytes, place: int) -> str:
    if place >= len(content):
        return "it ends before its pickle does"
    return f"byte {place - 1} is no operation of a pickle"


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Turn off the garbage collector, which takes two thirds of the time with many lists.

    It is not needed, since no value can contain itself.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _number(walk: Walk, value: Any) -> None:
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        refuse("it has a whole number of more than 64 bits")
    walk.make_value(value)


def _quoted(stream: io.BytesIO) -> bytes:
    """Read a byte string of protocol 0: quoted, with escapes, to the end of the line."""
    line = stream.readline()
    quoted = line[:-1]
    if (
        not line.endswith(b"\n")
        or len(quoted) < 2
        or quoted[:1] not in (b"'", b'"')
        or quoted[-1:] != quoted[:1]
    ):
        refuse("it has a byte string without its quotes")
    if b"\\" not in quoted:
        return quoted[1:-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes that Python does not know, and leaves as they are
        return bytes(codecs.escape_decode(quoted[1:-1])[0])


def _names(stream: io.BytesIO) -> str:
    """Read a module and a name, which stand in two lines."""
    module, name = stream.readline(NAME), stream.readline(NAME)
    if not module.endswith(b"\n") or not name.endswith(b"\n"):
        refuse("it has a name without its end")
    return f"{module[:-1].decode()} {name[:-1].decode()}"


def _line(stream: io.BytesIO) -> bytes:
    """Read a number in decimal digits: one line of limited length."""
    line = stream.readline(NUMBER_BYTES)
    if line[-1:] != b"\n":
        refuse("it has a number without its end")
    return line[:-1]


def _whole(stream: io.BytesIO) -> int:
    line = _line(stream)
    return line == b"01" if line in (b"00", b"01") else int(line)  # so protocol 0 writes False and True


def _latin(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a reader of byte strings from one of pickletools, which returns them as text."""
    return lambda stream: read(stream).encode("latin1")


class _Operation(NamedTuple):
    name: str
    read: Callable[[Any], Any] | None  # its argument from the stream
    step: Callable[[Walk, Any], None] | None  # None: refused


_STEPS: dict[str, Callable[[Walk, Any], None]] = {
    "PROTO": lambda walk, number: (
        None if number <= 5 else refuse(f"it is of protocol {number}, and 0 to 5 are read")
    ),
    "FRAME": lambda walk, size: None,
    "MARK": lambda walk, _: walk.marks.append(len(walk.stack)),
    "NONE": lambda walk, _: walk.push(None),
    "NEWTRUE": lambda walk, _: walk.push(True),
    "NEWFALSE": lambda walk, _: walk.push(False),
    "BININT1": Walk.push,  # Python keeps these numbers anyway, so they take no memory
    **dict.fromkeys(("INT", "BININT", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"), _number),
    **dict.fromkeys(("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"), Walk.make_value),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), Walk.make_value),
    **dict.fromkeys(("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"), Walk.make_value),
    "EMPTY_TUPLE": lambda walk, _: walk.make_tuple([]),
    "TUPLE1": lambda walk, _: walk.make_tuple(walk.popped(1)),
    "TUPLE2": lambda walk, _: walk.make_tuple(walk.popped(2)),
    "TUPLE3": lambda walk, _: walk.make_tuple(walk.popped(3)),
    "TUPLE": lambda walk, _: walk.make_tuple(walk.marked()),
    "EMPTY_LIST": lambda walk, _: walk.make(list),
    "EMPTY_DICT": lambda walk, _: walk.make(dict),
    "LIST": lambda walk, _: walk.make(list, walk.marked()),
    "DICT": lambda walk, _: walk.make(dict, walk.marked()),
    "APPEND": lambda walk, _: walk.grow(list, walk.popped(1)),
    "APPENDS": lambda walk, _: walk.grow(list, walk.marked()),
    "SETITEM": lambda walk, _: walk.grow(dict, walk.popped(2)),
    "SETITEMS": lambda walk, _: walk.grow(dict, walk.marked()),
    "GLOBAL": lambda walk, words: walk.name(*words.split(" ", 1)),
    "STACK_GLOBAL": lambda walk, _: walk.name(*walk.popped(2)),
    "REDUCE": lambda walk, _: walk.call(),
    "BUILD": lambda walk, _: walk.build(),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), Walk.keep),
    "MEMOIZE": Walk.keep,
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), Walk.recall),
}

_READERS: dict[str, Callable[[Any], Any]] = {
    "STRING": _quoted,
    "BINSTRING": _latin(pickletools.read_string4),
    "SHORT_BINSTRING": _latin(pickletools.read_string1),
    "GLOBAL": _names,  # pickletools would obey escapes in names, which pickle does not
    "BYTEARRAY8": pickletools.read_bytes8,  # of an array's buffer
    "INT": _whole,
    "LONG": lambda stream: int(_line(stream).removesuffix(b"L")),
    "FLOAT": lambda stream: float(_line(stream)),
    **dict.fromkeys(("PUT", "GET"), lambda stream: int(_line(stream))),
}

_OPERATIONS: dict[bytes, _Operation] = {
    one.code.encode("latin1"): _Operation(
        one.name, _READERS.get(one.name, one.arg.reader if one.arg else None), _STEPS.get(one.name)
    )
    for one in pickletools.opcodes
}
