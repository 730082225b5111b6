"""What all places share: the terms of a crew, and `spread`, which hands jobs out until all are done."""

import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from rich.console import Console

from atcl.core.device import hardware
from atcl.core.errors import AtclError
from atcl.core.files import is_held
from atcl.core.journal import read
from atcl.datasets.sources import data_folder
from atcl.loggers.progress import clock
from atcl.reproduce.launch.progress import JobsProgress
from atcl.reproduce.launch.working import Cancelled, Died, Done, Failed, Outcome, Taken
from atcl.reproduce.ledger import Job
from atcl.runs import layout

RETRIES = 2  # times that a run goes on after its worker died
PAUSE = 1.0  # seconds between two looks at what is running
LATE = 60.0  # seconds that a file of another machine may take to be seen here

_T = TypeVar("_T", bound=Hashable)


@dataclass(frozen=True)
class LaunchOptions:
    """What is asked of any place."""

    device: str = "auto"
    workers: int = 0  # runs at a time; 0: as many as the place has room for
    threads: int = 0  # of the CPU for each run; 0: what the place thinks right
    runs: Path = Path("runs")
    dry: bool = False  # whether nothing will be carried out: what only that takes need not be there

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise AtclError(f"at least one run goes at a time, not {self.workers}")
        if self.threads < 0:
            raise AtclError(f"a run takes at least one thread, not {self.threads}")


@dataclass(frozen=True)
class WorkerPool:
    """Workers that are ready to take jobs."""

    device: str  # what each is told to use
    strong: bool  # whether that is a GPU
    hardware: str | None  # its name as results tell it; None where it cannot be known from here
    workers: int  # runs at a time
    fill: Callable[[Sequence[Job], Console], None]  # carries jobs out


class Launcher(Protocol):
    """Somewhere that runs can be carried out; its fields are its own options."""

    def open(self, options: LaunchOptions) -> AbstractContextManager[WorkerPool]:
        """Get hold of a crew, for a while."""


class Executor(Protocol[_T]):
    """How `spread` deals with the workers of a place."""

    room: int  # jobs that it takes at a time

    def start(self, jobs: Sequence[Job]) -> list[_T]:
        """Hand jobs out, at once: a Ctrl-C is put off meanwhile."""

    def wait(self, tasks: Sequence[_T], seconds: float) -> None:
        """Return when one of them ends, or after a while."""

    def outcome(self, task: _T) -> Outcome | None:
        """Return how one ended; None while it goes on."""

    def stop(self, tasks: Sequence[_T]) -> None:
        """End them."""


def run_jobs(jobs: Sequence[Job], executor: Executor[_T], bar: JobsProgress) -> None:
    """Carry all jobs out, each once, and tell of each.

    A worker that dies loses nothing but time: its run goes on in another, `RETRIES` times at most. An error before anything is trained ends all,
    as it would end the others; a later one, or someone who cancels a job, ends its own run, and is raised when the others are done.
    """
    waiting, aside, running = deque(dict.fromkeys(jobs)), list[Job](), dict[_T, Job]()
    deaths, errors = Counter[Job](), list[str]()
    looked = time.perf_counter()
    try:
        while waiting or aside or running:
            if aside and time.perf_counter() - looked > 5 * PAUSE:
                looked, free = time.perf_counter(), [job for job in aside if not is_held(job.folder)]
                waiting.extend(free)
                aside = [job for job in aside if job not in free]
            if ready := _next(waiting, executor.room - len(running), bar):
                with interrupts_delayed():  # what is handed out and not yet noted would not be stopped
                    running.update(zip(executor.start(ready), ready, strict=True))
            if running:
                executor.wait(list(running), PAUSE)
            elif aside:
                time.sleep(PAUSE)
            bar.look()
            for task in list(running):
                match executor.outcome(task):
                    case None:
                        continue
                    case Done(seconds):
                        _await(running[task])
                        bar.notify(f"{running[task]}: done after {clock(seconds)}")
                    case Taken():
                        aside.append(running[task])
                        bar.note(f"{running[task]}: another process is at it, and is waited for")
                    case Died(why):
                        deaths[running[task]] += 1
                        if (tries := deaths[running[task]]) <= RETRIES:
                            bar.note(
                                f"{running[task]}: {why}; it goes on where it was ({tries} of {RETRIES} times)"
                            )
                            waiting.append(running[task])
                        else:
                            errors.append(
                                f"{running[task]}: {why}, {tries} times; the same command goes on where it was"
                            )
                            bar.note(errors[-1])
                    case Cancelled(why):
                        errors.append(f"{running[task]}: {why}")
                        bar.note(errors[-1])
                    case Failed(why, trace):
                        job = running.pop(task)
                        if trace:
                            print(trace, file=sys.stderr)
                        if not read(job.folder / layout.JOURNAL):
                            raise AtclError(f"{job}: {why}")
                        errors.append(f"{job}: {why}")
                        bar.note(errors[-1])
                running.pop(task, None)
    finally:
        executor.stop(list(running))
    if errors:
        raise AtclError("; ".join(errors))


@contextmanager
def interrupts_delayed() -> Iterator[None]:
    """Put a Ctrl-C off until the block is done; a handler does it, since a blocked signal would reach another thread."""
    if threading.current_thread() is not threading.main_thread():  # no other is ever interrupted
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)  # SIG_DFL where it is no handler of Python's
        if pressed:
            signal.raise_signal(signal.SIGINT)


def _next(waiting: deque[Job], room: int, bar: JobsProgress) -> list[Job]:
    """Take as many jobs as there is room for, leaving out what another machine has done meanwhile."""
    ready: list[Job] = []
    while waiting and len(ready) < room:
        job = waiting.popleft()
        if job.lacks:
            ready.append(job)
        else:
            bar.notify(f"{job}: done by another process")
    return ready


def _await(job: Job) -> None:
    """Wait until a result that was written elsewhere is seen here: a network file system may be late."""
    end = time.perf_counter() + LATE
    while job.lacks:
        if time.perf_counter() > end:
            raise AtclError(
                f"{job} is done, but {job.path} is not here: results and runs must lie in folders that all machines share"
            )
        if job.path.parent.is_dir():
            os.listdir(job.path.parent)  # asks the server anew
        time.sleep(0.1)


def portable_job(job: Job, device: str) -> Job:
    """Return the job as any machine with the same files understands it."""
    named = job.data_dir or os.environ.get("ATCL_DATA")
    data_dir = data_folder(job.data_dir).absolute() if named else None
    return replace(
        job, path=job.path.absolute(), folder=job.folder.absolute(), data_dir=data_dir, device=device
    )


def remote_device(device: str, otherwise: str) -> str:
    """Return what workers of a cluster are told to use, which this machine need not have: cpu or cuda."""
    if device not in ("auto", "cpu", "cuda"):
        raise AtclError(f"a cluster picks the GPU itself: give --device cuda, cpu or auto, not {device}")
    return otherwise if device == "auto" else device


def remote_hardware(device: str) -> str | None:
    """Return the name of such a device of this machine, for want of a better guess; None where it has none."""
    return (
        str(hardware(torch.device(device))["device"])
        if device == "cpu" or torch.cuda.is_available()
        else None
    )
