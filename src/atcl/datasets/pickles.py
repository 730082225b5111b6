"""Pickles read as data: their operations are walked one by one, and nothing that they name is imported or called.

Lists, dicts, tuples, text, bytes, numbers and numeric arrays are rebuilt, as the releases of CIFAR and CLImage hold them (written by Python 2 or 3,
protocols 0 to 5); all else is refused. What is rebuilt is never larger than a few times the file, however the file is made.
"""

import codecs
import gc
import io
import pickletools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from atcl.datasets.pickled_arrays import (
    FUNCTIONS,
    Blank,
    Function,
    Kind,
    Refused,
    filled,
    filling,
    order_of,
    refuse,
    short,
)

# The largest release, 50,000 pictures with the labels of three people, has 150 MiB and 1.3 million operations;
# where its labels are numbers of NumPy in protocol 2, it has 235 MiB, 4 million operations, 600,000 lists and tuples
# and 500,000 calls. A small file is allowed little, so that it cannot take long: a part for each file, and a share
# that grows with its bytes.
SIZE = 384 * 2**20
OPERATIONS, FOR_OPERATION = 1_500_000, 64  # so many, and one more for each of so many bytes
STEPS, FOR_STEP = (
    400_000,
    192,
)  # likewise those that cost most: new lists, tuples and dicts, additions to them, calls
MEMORY, FOR_MEMORY = 48 * 2**20, 2  # bytes that the values take, and so many more for each byte
UNFOLDED = 16 * 2**20  # likewise with FOR_MEMORY, where a part counts as often as it is referred to
DEPTH = 16
OBJECT = 50  # bytes that an object takes beside its content, about
ARRAY = 250  # the same of an array
LINE = 100  # bytes of a number that is written out


def load(content: bytes) -> Any:
    """Return what a pickle holds; a ValueError of one line says what is refused.

    Text of Python 2 comes out as bytes, and so does a bytearray. What follows the end of the pickle is not looked at.
    """
    if len(content) > SIZE:
        refuse(f"it is larger than {SIZE:,} bytes")
    stream, walk, name = io.BytesIO(content), _Walk(len(content)), "its start"
    limit, code, operation_of = OPERATIONS + len(content) // FOR_OPERATION, stream.read, _OPERATIONS.get
    try:
        with _no_garbage_collection():
            for _ in range(limit):
                # Not pickletools.genops: its reader of protocol 0's byte strings takes ASCII alone.
                found = operation_of(code(1))
                if found is None:
                    refuse(_no_operation(content, stream.tell()))
                name, read, step = found
                if step is not None:
                    step(walk, read(stream) if read else None)
                elif name == "STOP":
                    return walk.result(stream.tell())
                else:
                    refuse(f"it has the operation {name}")
    except Refused:
        raise
    except (ValueError, OverflowError) as error:  # of the readers of arguments
        refuse(f"its operation {name} cannot be read ({short(error)})")
    return refuse(f"it has more than {limit:,} operations, too many for its size")


def _no_operation(content: bytes, place: int) -> str:
    return (
        "it ends before its pickle does"
        if place >= len(content)
        else f"byte {place - 1} is no operation of a pickle"
    )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Leave out the search for cycles, two thirds of the time where there are many lists: no value here can lie in itself."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@dataclass(slots=True)
class _Container:
    """A list, tuple or dict, and the size of all that is in it, unfolded."""

    value: Any
    depth: int = 1
    weight: int = OBJECT
    plain: bool = True  # whether all of it is values, with no function or dtype among them
    open: bool = False  # a list or dict that lies in no other one yet: only these may grow


class _Walk:
    """The stack and the memo of a pickle."""

    def __init__(self, size: int) -> None:
        self.memory = MEMORY + FOR_MEMORY * size  # what is left of it
        self.steps = STEPS + size // FOR_STEP
        self.places = OPERATIONS + size // FOR_OPERATION
        self.stack: list[Any] = []
        self.marks: list[int] = []
        # By place, not a dict: a file of nothing but places would fill that with a hundred bytes for each.
        self.memo: list[Any] = []
        self.kept = 0

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def make_value(self, value: Any) -> None:
        """Push a number, text or bytes that the file just told."""
        self.memory -= sys.getsizeof(value) + 16  # and its place on the stack and in a list
        if self.memory < 0:
            refuse(_TOO_LARGE)
        self.stack.append(value)

    def take(self, memory: int) -> None:
        """Count what a new value takes."""
        self.memory -= memory
        if self.memory < 0:
            refuse(_TOO_LARGE)

    def step(self) -> None:
        """Count an operation of those that cost most."""
        self.steps -= 1
        if self.steps < 0:
            refuse("it has more lists, tuples, dicts and calls than its size allows")

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            refuse("it takes a value where there is none")
        return self.stack.pop()

    def top(self) -> Any:
        value = self.pop()
        self.stack.append(value)
        return value

    def popped(self, number: int) -> list[Any]:
        """Return the uppermost values, the top one last."""
        if len(self.stack) - number < (self.marks[-1] if self.marks else 0):
            refuse("it takes a value where there is none")
        items = self.stack[-number:]
        del self.stack[-number:]
        return items

    def marked(self) -> list[Any]:
        if not self.marks:
            refuse("it takes values up to a mark that is not there")
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def result(self, size: int) -> Any:
        """Return the value of a pickle of so many bytes."""
        found = self.gathered([self.pop()])
        if not found.plain:
            refuse("it holds a function or a dtype, and no value")
        limit = UNFOLDED + FOR_MEMORY * size
        if found.weight > limit:
            refuse(f"unfolded it has more than {limit:,} bytes, far more than the file")
        return found.value[0]

    def gathered(self, items: Sequence[Any]) -> _Container:
        """Return items as values that cannot change any more, with the size of what holds them."""
        self.step()
        values: list[Any] = []
        depth, weight, plain = 1, OBJECT, True
        for value in items:
            kind = type(value)
            if kind is _Container:
                value.open = False
                depth, weight, plain = (
                    max(depth, value.depth + 1),
                    weight + value.weight,
                    plain and value.plain,
                )
                values.append(value.value)
            elif kind is Function or kind is Kind:
                plain = False
                values.append(value)
            else:
                values.append(filled(value) if kind is Blank else value)
                weight += _weight(values[-1])
        if depth > DEPTH:
            refuse(f"it is nested more than {DEPTH} deep")
        return _Container(values, depth, weight, plain)

    def hold(self, container: _Container) -> None:
        self.take(3 * OBJECT)  # the list itself, what we note of it, its place in another
        self.push(container)

    def make_tuple(self, items: Sequence[Any]) -> None:
        found = self.gathered(items)
        self.hold(replace(found, value=tuple(found.value)))

    def make(self, kind: type, items: Sequence[Any] = ()) -> None:
        """Push a new list or dict, which may grow until it is put into another one."""
        self.step()
        self.hold(_Container(kind(), open=True))
        if items:
            self.grow(kind, items)

    def grow(self, kind: type, items: Sequence[Any]) -> None:
        """Put items into the list or dict on top of the stack."""
        target, added = self.top(), self.gathered(items)
        grown = target.value if isinstance(target, _Container) else None
        if type(grown) is not kind:
            refuse(f"it adds to what is no {kind.__name__}")
        if not target.open:  # a value that contains itself has just been closed by `gathered`
            refuse("it changes a value that lies in another one, or in itself")
        if not added.plain:
            refuse("it has a function or a dtype where a value belongs")
        if isinstance(grown, list):
            grown += added.value
        elif isinstance(grown, dict):
            keys = added.value[::2]
            if 2 * len(keys) != len(added.value):
                refuse("it has a key without a value")
            for key in keys:
                if type(key) is not str and type(key) is not bytes:
                    refuse(f"it has a dict with a key that is a {type(key).__name__}, and no text")
            grown.update(zip(keys, added.value[1::2], strict=True))
        target.depth, target.weight = max(target.depth, added.depth), target.weight + added.weight - OBJECT

    def name(self, module: Any, name: Any) -> None:
        """Push one of the few functions that are known; what a pickle names is never looked up anywhere."""
        if not isinstance(module, str) or not isinstance(name, str):
            refuse("it names a function by something that is no text")
        self.step()
        found = FUNCTIONS.get(f"{module}.{name}".replace("numpy.core.", "numpy._core.", 1))
        if found is None:
            refuse(f"it asks for {short(f'{module[:60]}.{name[:60]}')}")
        self.push(found)

    def call(self) -> None:
        function, arguments = self.popped(2)
        if type(function) is not Function or function.call is None:
            refuse(f"it calls {function.name if type(function) is Function else 'what is no function'}")
        self.step()
        made = function.call(_tuple(arguments))
        # An array lies in bytes that are there; bytes are new.
        self.take(ARRAY if isinstance(made, np.ndarray | Blank) else sys.getsizeof(made))
        self.push(made)

    def build(self) -> None:
        """Give a dtype its byte order, or an array its content."""
        self.step()
        state, target = _tuple(self.pop()), self.top()
        if type(target) is Kind and not target.order:
            target.order = order_of(state)
        elif type(target) is Blank and target.array is None:
            target.array = filling(state)
        else:
            refuse("it sets a state (BUILD) where there is none to set")

    def keep(self, place: int | None) -> None:
        """Note the top value at a place of the memo, by default the next one."""
        place, value = self.kept if place is None else place, self.top()
        if not 0 <= place < self.places:
            refuse(f"it notes a value at place {place}")
        self.memo += [_NOTHING] * (place + 1 - len(self.memo))
        self.kept += self.memo[place] is _NOTHING
        self.memo[place] = value

    def recall(self, place: int) -> None:
        value = self.memo[place] if 0 <= place < len(self.memo) else _NOTHING
        if value is _NOTHING:
            refuse("it refers to a value that is not there")
        self.push(value)


_NOTHING = object()
_TOO_LARGE = "it makes values that take far more memory than the file"


def _tuple(found: Any) -> tuple[Any, ...]:
    if type(found) is not _Container or type(found.value) is not tuple:
        refuse("it gives a function or a state something else than a tuple")
    return found.value


def _weight(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes) + ARRAY
    return len(value) + OBJECT if isinstance(value, str | bytes) else 8


def _number(walk: _Walk, value: Any) -> None:
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
    return bytes(codecs.escape_decode(quoted[1:-1])[0]) if b"\\" in quoted else quoted[1:-1]


def _line(stream: io.BytesIO) -> bytes:
    """Read a number that is written out: a line, and not a long one."""
    line = stream.readline(LINE)
    if line[-1:] != b"\n":
        refuse("it has a number without its end")
    return line[:-1]


def _whole(stream: io.BytesIO) -> int:
    line = _line(stream)
    return line == b"01" if line in (b"00", b"01") else int(line)  # so protocol 0 writes False and True


def _latin(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Byte strings that pickletools takes for text."""
    return lambda stream: read(stream).encode("latin1")


class _Operation(NamedTuple):
    name: str
    read: Callable[[Any], Any] | None  # its argument from the stream
    step: Callable[[_Walk, Any], None] | None  # None: refused


_STEPS: dict[str, Callable[[_Walk, Any], None]] = {
    "PROTO": lambda walk, number: (
        None if number <= 5 else refuse(f"it is of protocol {number}, and 0 to 5 are read")
    ),
    "FRAME": lambda walk, size: None,
    "MARK": lambda walk, _: walk.marks.append(len(walk.stack)),
    "NONE": lambda walk, _: walk.push(None),
    "NEWTRUE": lambda walk, _: walk.push(True),
    "NEWFALSE": lambda walk, _: walk.push(False),
    "BININT1": _Walk.push,  # Python has these numbers once and for all
    **dict.fromkeys(("INT", "BININT", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"), _number),
    **dict.fromkeys(("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"), _Walk.make_value),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), _Walk.make_value),
    **dict.fromkeys(("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"), _Walk.make_value),
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
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Walk.keep),
    "MEMOIZE": _Walk.keep,
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Walk.recall),
}

_READERS: dict[str, Callable[[Any], Any]] = {
    "STRING": _quoted,
    "BINSTRING": _latin(pickletools.read_string4),
    "SHORT_BINSTRING": _latin(pickletools.read_string1),
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
