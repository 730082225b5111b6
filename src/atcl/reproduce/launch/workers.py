"""What all launchers share: a pool of workers, and `run_jobs`, which gives them jobs until all are done."""

import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from rich.console import Console

from atcl.core.device import hardware
from atcl.core.errors import AtclError
from atcl.core.files import is_held
from atcl.core.journal import read
from atcl.datasets.sources import data_folder
from atcl.loggers.progress import clock
from atcl.reproduce.launch.options import LaunchOptions
from atcl.reproduce.launch.progress import JobsProgress
from atcl.reproduce.launch.working import Cancelled, Died, Done, Failed, Outcome, Taken
from atcl.reproduce.ledger import Job
from atcl.runs import layout

RETRIES = 2  # times that a run is continued after its worker died
PAUSE = 1.0  # seconds between two checks of the running jobs
LATE = 60.0  # seconds that a file written on another machine may take to appear here

_T = TypeVar("_T", bound=Hashable)


@dataclass(frozen=True)
class WorkerPool:
    """Workers that can do jobs.

    Args:
        device: the device that each worker uses.
        strong: whether that is a GPU.
        hardware: its name as in results; None where this machine cannot know it.
        workers: runs at a time.
        fill: does jobs, and puts their results into the ledger.
    """

    device: str
    strong: bool
    hardware: str | None
    workers: int
    fill: Callable[[Sequence[Job], Console], None]


class Launcher(Protocol):
    """A way to run jobs somewhere; its fields are its own options."""

    def open(self, options: LaunchOptions) -> AbstractContextManager[WorkerPool]:
        """Prepare the workers, and release them at the end of the block."""


class Executor(Protocol[_T]):
    """How `spread` deals with the workers of a place."""

    room: int  # jobs at a time

    def start(self, jobs: Sequence[Job]) -> list[_T]:
        """Start jobs, and return at once, since Ctrl-C is delayed meanwhile."""

    def wait(self, tasks: Sequence[_T], seconds: float) -> None:
        """Wait until one of the tasks ends, or so many seconds."""

    def outcome(self, task: _T) -> Outcome | None:
        """Return the outcome of a task; None while it runs."""

    def stop(self, tasks: Sequence[_T]) -> None:
        """Stop the tasks."""


def run_jobs(jobs: Sequence[Job], executor: Executor[_T], bar: JobsProgress) -> None:
    """Do all jobs, each once, and report each in the progress bar.

    If a worker dies, another one continues its run, up to `RETRIES` times. An error before anything is
    trained stops all jobs, since the others would meet it too. A later error, or a cancelled job, ends that
    run alone, and is raised when the other jobs are done.

    Args:
        jobs: what to do; a job that is given twice is done once.
        executor: starts and watches the jobs.
        bar: shows how much is done.

    Raises:
        AtclError: a run could not be made.
    """
    waiting, aside, running = deque(dict.fromkeys(jobs)), list[Job](), dict[_T, Job]()
    deaths, errors = Counter[Job](), list[str]()
    checked = time.perf_counter()
    try:
        while waiting or aside or running:
            if aside and time.perf_counter() - checked > 5 * PAUSE:
                checked, free = time.perf_counter(), [job for job in aside if not is_held(job.folder)]
                waiting.extend(free)
                aside = [job for job in aside if job not in free]
            if ready := _next(waiting, executor.room - len(running), bar):
                with interrupts_delayed():  # a job that is started and not noted would never be stopped
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
                            times = f"{tries} of {RETRIES} times"
                            bar.note(f"{running[task]}: {why}; it goes on where it was ({times})")
                            waiting.append(running[task])
                        else:
                            times = f"{tries} times; the same command goes on where it was"
                            errors.append(f"{running[task]}: {why}, {times}")
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
    """Delay Ctrl-C until the end of the block.

    A signal handler does it, since a blocked signal would reach another thread.
    """
    if threading.current_thread() is not threading.main_thread():  # no other thread is interrupted
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        # `before` is None if no handler of Python's was set
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
        if pressed:
            signal.raise_signal(signal.SIGINT)


def _next(waiting: deque[Job], room: int, bar: JobsProgress) -> list[Job]:
    """Return the next jobs, as many as there is room for, without those that another machine has done."""
    ready: list[Job] = []
    while waiting and len(ready) < room:
        job = waiting.popleft()
        if job.lacks:
            ready.append(job)
        else:
            bar.notify(f"{job}: done by another process")
    return ready


def _await(job: Job) -> None:
    """Wait until a result that was written elsewhere appears here: a network file system may be late."""
    end = time.perf_counter() + LATE
    while job.lacks:
        if time.perf_counter() > end:
            raise AtclError(
                f"{job} is done, but {job.path} is not here: "
                "results and runs must lie in folders that all machines share"
            )
        if job.path.parent.is_dir():
            os.listdir(job.path.parent)  # makes the file system ask its server again
        time.sleep(0.1)


def portable_job(job: Job, device: str) -> Job:
    """Return a job with absolute paths, which any machine with the same files can do."""
    named = job.data_dir or os.environ.get("ATCL_DATA")
    data_dir = data_folder(job.data_dir).absolute() if named else None
    return replace(
        job, path=job.path.absolute(), folder=job.folder.absolute(), data_dir=data_dir, device=device
    )


def remote_device(device: str, otherwise: str) -> str:
    """Return the device of a cluster's workers, cpu or cuda, which this machine need not have.

    Raises:
        AtclError: the device is another one, such as cuda:1.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise AtclError(f"a cluster picks the GPU itself: give --device cuda, cpu or auto, not {device}")
    return otherwise if device == "auto" else device


def remote_hardware(device: str) -> str | None:
    """Return the name of this machine's device as a guess of a cluster's; None if it has none."""
    return (
        str(hardware(torch.device(device))["device"])
        if device == "cpu" or torch.cuda.is_available()
        else None
    )
