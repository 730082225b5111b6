"""A function called in a process of its own, and the time and memory that it takes beyond the imports."""

import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import pytest

from tests.children import CONTEXT, FORKS

SECONDS, MEMORY = 2, 100 * 2**20  # that a refused file may take
PATIENCE = 120  # seconds until a process counts as one that never ends


class Measured(NamedTuple):
    result: Any
    seconds: float  # of the processor: those of the clock depend on what else the machine does
    memory: int  # bytes, at most, above those that the process had before


def measured(call: Callable[..., Any], *arguments: Any, first: tuple[Any, ...] | None = None) -> Measured:
    """Return what a function returns and takes, after a first call that imports what it needs."""
    if not FORKS:
        pytest.skip("this system has no fork server for child processes")
    receiver, sender = CONTEXT.Pipe(duplex=False)
    child = CONTEXT.Process(target=_measure, args=(call, arguments, first, sender))
    child.start()
    sender.close()
    try:
        assert receiver.poll(PATIENCE), "it does not end"
        found: Measured = receiver.recv()  # EOFError: the process has crashed
    finally:
        child.kill()
        child.join()
        receiver.close()
    return found


def _measure(
    call: Callable[..., Any], arguments: tuple[Any, ...], first: tuple[Any, ...] | None, sender: Connection
) -> None:
    if first is not None:
        call(*first)
    before, started = _peak(), time.process_time()
    result = call(*arguments)
    sender.send(Measured(result, time.process_time() - started, _peak() - before))


def _peak() -> int:
    """Return the most memory that this process had so far, in bytes."""
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)
