"""Several runs take turns on one device: while the host prepares one, the GPU works on the others."""

import traceback
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from atcl.core.errors import AtclError
from atcl.core.seeds import OwnRandom
from atcl.engine.engines import own_stream

_T = TypeVar("_T")
LANES = 16  # PyTorch hands out 32 streams of a priority in turn, and no two lanes may get the same
Steps = Generator[None, None, _T]  # pauses after each piece of work, and returns the outcome


@dataclass
class Lane(Generic[_T]):
    """One task, with a stream and a global random state of its own."""

    task: Steps[_T]
    stream: torch.cuda.Stream | None
    random: OwnRandom = field(default_factory=OwnRandom)
    outcome: _T | None = None

    def advance(self) -> bool:
        """Do the next piece of work, and return whether more is left."""
        stream: AbstractContextManager[object] = (
            nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
        )
        with stream, self.random():
            try:
                next(self.task)
            except StopIteration as end:
                self.outcome = end.value
                return False
        return True


def interleave(tasks: Sequence[Steps[_T]], device: torch.device) -> list[_T]:
    """Run all tasks, in turn on a GPU, one after another on a CPU.

    Each task draws the random numbers that it would draw alone. All have their first turn before any has its
    second: an error in a first turn, before anything is trained, stops all tasks. A later error stops its own
    task alone, and is raised when the others have ended.

    Args:
        tasks: generators that pause after each piece of work.
        device: where they run.

    Returns:
        The outcome of each task.

    Raises:
        AtclError: for more tasks than a GPU can interleave, and where tasks fail with it.
    """
    several = device.type == "cuda" and len(tasks) > 1
    if several and len(tasks) > LANES:
        raise AtclError(
            f"at most {LANES} runs share one GPU at a time, not {len(tasks)}: give fewer seeds at once"
        )
    lanes = [Lane(task, own_stream(device) if several else None) for task in tasks]
    errors: list[Exception] = []
    try:
        active = [lane for lane in lanes if lane.advance()]
        while active:
            for lane in list(active) if device.type == "cuda" else active[:1]:
                try:
                    if not lane.advance():
                        active.remove(lane)
                except Exception as error:
                    active.remove(lane)
                    # the traceback would keep the memory of the failed task until the others end
                    traceback.clear_frames(error.__traceback__)
                    errors.append(error)
    finally:
        for task in tasks:
            task.close()
    if len(errors) > 1 and all(isinstance(error, AtclError) for error in errors):
        raise AtclError("; ".join(map(str, errors)))
    if errors:
        raise errors[0]
    return [lane.outcome for lane in lanes]  # type: ignore[misc]
