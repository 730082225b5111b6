"""The stack and the memo of a pickle that is read as data, with limits on memory and operations."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atcl.datasets.pickled_arrays import (
    FUNCTIONS,
    Blank,
    Function,
    Kind,
    filled,
    filling,
    order_of,
    refuse,
    short,
)

# The largest release, 50,000 images with the labels of three people, has 150 MiB and 1.3 million operations;
# where its labels are numbers of NumPy in protocol 2, it has 235 MiB, 4 million operations, 600,000 lists and
# tuples, and 500,000 calls. The limits of a small file are low, so that it cannot take long.
SIZE = 384 * 2**20
# Limits for a file of any size, and after how many bytes of the file each grows by one.
OPERATIONS, FOR_OPERATION = 1_500_000, 64
STEPS, FOR_STEP = 400_000, 192  # operations that cost most: new lists, tuples, dicts, additions, calls
# Limits in bytes for a file of any size, and by how much they grow with each byte of the file.
MEMORY, FOR_MEMORY = 48 * 2**20, 2  # of all values
UNFOLDED = 16 * 2**20  # of the result, where a part counts as often as it is referred to
DEPTH = 16
OBJECT = 50  # bytes of an object besides its content, roughly
ARRAY_BYTES = 250  # the same for an array


def allowed_operations(size: int) -> int:
    """Return how many operations a file of so many bytes may have."""
    return OPERATIONS + size // FOR_OPERATION


@dataclass(slots=True)
class Container:
    """A list, tuple or dict, with the size of its content, unfolded."""

    value: Any
    depth: int = 1
    weight: int = OBJECT
    plain: bool = True  # whether it holds values alone, and no function or dtype
    open: bool = False  # whether it is a list or dict that is not in another one yet: only these may grow


class Walk:
    """The stack and the memo of a pickle."""

    def __init__(self, size: int) -> None:
        self.memory = MEMORY + FOR_MEMORY * size  # bytes that are left
        self.steps = STEPS + size // FOR_STEP
        self.places = allowed_operations(size)
        self.stack: list[Any] = []
        self.marks: list[int] = []
        # A list by place, not a dict, in which each place would take a hundred bytes.
        self.memo: list[Any] = []
        self.kept = 0

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def make_value(self, value: Any) -> None:
        """Push a number, text or bytes from the file."""
        self.memory -= sys.getsizeof(value) + 16  # for its place on the stack and in a list
        if self.memory < 0:
            refuse(_TOO_LARGE)
        self.stack.append(value)

    def take(self, memory: int) -> None:
        """Count the memory of a new value."""
        self.memory -= memory
        if self.memory < 0:
            refuse(_TOO_LARGE)

    def step(self) -> None:
        """Count one of the operations that cost most."""
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

    def gathered(self, items: Sequence[Any]) -> Container:
        """Return items as a list of values that cannot change any more."""
        self.step()
        values: list[Any] = []
        depth, weight, plain = 1, OBJECT, True
        for value in items:
            kind = type(value)
            if kind is Container:
                value.open = False
                depth, weight = max(depth, value.depth + 1), weight + value.weight
                plain = plain and value.plain
                values.append(value.value)
            elif kind is Function or kind is Kind:
                plain = False
                values.append(value)
            else:
                values.append(filled(value) if kind is Blank else value)
                weight += _weight(values[-1])
        if depth > DEPTH:
            refuse(f"it is nested more than {DEPTH} deep")
        return Container(values, depth, weight, plain)

    def hold(self, container: Container) -> None:
        self.take(3 * OBJECT)  # the list itself, its `Container`, its place in another list
        self.push(container)

    def make_tuple(self, items: Sequence[Any]) -> None:
        found = self.gathered(items)
        self.hold(replace(found, value=tuple(found.value)))

    def make(self, kind: type, items: Sequence[Any] = ()) -> None:
        """Push a new list or dict, which may grow until it is put into another one."""
        self.step()
        self.hold(Container(kind(), open=True))
        if items:
            self.grow(kind, items)

    def grow(self, kind: type, items: Sequence[Any]) -> None:
        """Put items into the list or dict on top of the stack."""
        target, added = self.top(), self.gathered(items)
        grown = target.value if isinstance(target, Container) else None
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
        """Push one of `FUNCTIONS`; what a pickle names is never looked up anywhere else."""
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
        # An array uses bytes that have been counted; other values are new.
        self.take(ARRAY_BYTES if isinstance(made, np.ndarray | Blank) else sys.getsizeof(made))
        self.push(made)

    def build(self) -> None:
        """Set the byte order of a dtype, or the content of an array."""
        self.step()
        state, target = _tuple(self.pop()), self.top()
        if type(target) is Kind and not target.order:
            target.order = order_of(state)
        elif type(target) is Blank and target.array is None:
            target.array = filling(state)
        else:
            refuse("it sets a state (BUILD) where there is none to set")

    def keep(self, place: int | None) -> None:
        """Store the top value at a place of the memo, by default the next one."""
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
    if type(found) is not Container or type(found.value) is not tuple:
        refuse("it gives a function or a state something else than a tuple")
    return found.value


def _weight(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes) + ARRAY_BYTES
    return len(value) + OBJECT if isinstance(value, str | bytes) else 8
