"""Runs on this machine: one after another, or several in processes of their own."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import torch
from rich.console import Console

from atcl.core.device import available_cores, free_memory, hardware, resolve
from atcl.core.errors import AtclError
from atcl.core.files import is_held
from atcl.core.journal import Record
from atcl.loggers.progress import EvaluationProgress, RunProgress, progress_bars
from atcl.reproduce.launch.options import LaunchOptions
from atcl.reproduce.launch.progress import JobsProgress
from atcl.reproduce.launch.workers import WorkerPool, run_jobs
from atcl.reproduce.launch.working import Died, Outcome, evaluate_job, outcome_of, train_job, work
from atcl.reproduce.ledger import Job
from atcl.runs import layout
from atcl.runs.spec import Execution, RunSpec
from atcl.runs.start import train_together
from atcl.runs.watcher import Watcher

PACK = 4  # models that train together on one GPU


@dataclass(frozen=True)
class Local:
    """This machine."""

    @contextmanager
    def open(self, options: LaunchOptions) -> Iterator[WorkerPool]:
        """Prepare the CPU's cores, or the GPU."""
        target, cores = resolve(options.device), available_cores()
        strong = target.type == "cuda"
        workers = options.workers or (1 if strong else cores)
        packing = strong and not options.workers

        def fill(jobs: Sequence[Job], console: Console) -> None:
            if workers == 1 or len(jobs) < 2:
                with _threads(options.threads or torch.get_num_threads()):
                    # An attack makes GPU and host wait for each other: several processes on one GPU would
                    # wait for one another, too.
                    packs = packs_of(jobs) if packing and len(jobs) > 1 else []
                    executor = SerialExecutor(console, len(jobs), packs)
                    run_jobs(jobs, executor, JobsProgress(console, jobs))
                return
            threads = options.threads or max(1, min(torch.get_num_threads(), cores // workers))
            with JobsProgress(console, jobs) as bar:
                run_jobs(jobs, ProcessExecutor(workers, threads), bar)

        yield WorkerPool(options.device, strong, hardware(target)["device"], workers, fill)


def train_packed(jobs: Sequence[Job], console: Console) -> None:
    """Train the runs of jobs on one GPU, up to `PACK` together."""
    packs = deque(packs_of(jobs))
    while packs:
        pack = packs.popleft()
        console.print(" + ".join(map(str, pack)), highlight=False, markup=False, soft_wrap=True)
        try:
            with progress_bars(console, [str(job) for job in pack]) as watchers:
                specs = [RunSpec(job.what.recipe, job.what.name, job.seed, job.folder) for job in pack]
                train_together(specs, Execution(device=pack[0].device, data_dir=pack[0].data_dir), watchers)
        except torch.OutOfMemoryError:
            if len(pack) > 1:
                half = f"{len(pack)} at once do not fit into the GPU's memory: half as many go on"
                console.print(half, highlight=False)
                packs.extendleft(reversed([pack[: len(pack) // 2], pack[len(pack) // 2 :]]))
        except Exception as error:  # each run is tried again alone, where its error is reported
            odd = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            console.print(
                str(error) if isinstance(error, AtclError) else odd,
                style="yellow",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        free_memory()


def packs_of(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return the jobs that are not trained yet in groups of one dataset and at most `PACK`."""
    groups: dict[tuple[object, ...], list[Job]] = {}
    for job in dict.fromkeys(jobs):
        there = (job.folder / layout.RESULT).exists()
        if job.new and not there and not is_held(job.folder):  # a held folder would stop the whole pack
            groups.setdefault((job.what.recipe.dataset, job.device, job.data_dir), []).append(job)
    return [group[first : first + PACK] for group in groups.values() for first in range(0, len(group), PACK)]


@dataclass
class SerialExecutor:
    """Runs jobs in this process, each with its own progress bars.

    The jobs of a pack are trained together when the first of them is due.
    """

    console: Console
    number: int
    packs: list[list[Job]] = field(default_factory=list)
    room: int = 1
    begun: int = 0
    noted: dict[int, Job] = field(default_factory=dict)
    ended: dict[int, Outcome] = field(default_factory=dict)

    def start(self, jobs: Sequence[Job]) -> list[int]:
        """Note the jobs, which `wait` will do."""
        numbers = range(self.begun + 1, self.begun + len(jobs) + 1)
        self.noted.update(zip(numbers, jobs, strict=True))
        self.begun += len(jobs)
        return list(numbers)

    def _carry_out(self, job: Job) -> None:
        with RunProgress(self.console) as live:
            done = train_job(job, live)
        with EvaluationProgress(self.console) as watch:
            evaluate_job(job, done, watch)

    def wait(self, tasks: Sequence[int], seconds: float) -> None:
        """Do the jobs."""
        for task in tasks:
            job = self.noted.pop(task)
            # The runs of a pack are evaluated right after their training: stopping leaves whole rows, and not
            # models without results.
            for pack in [pack for pack in self.packs if job in pack]:
                self.packs.remove(pack)
                train_packed(pack, self.console)
            self.console.print(
                f"{job} ({min(task, self.number)} of {self.number})",
                highlight=False,
                soft_wrap=True,
                markup=False,
            )
            self.ended[task] = outcome_of(partial(self._carry_out, job))
            free_memory()

    def outcome(self, task: int) -> Outcome | None:
        """Return how a job ended."""
        return self.ended.pop(task)

    def stop(self, tasks: Sequence[int]) -> None:
        """Do nothing: whatever ended `wait` has ended the job."""


@dataclass
class ProcessExecutor:
    """Runs jobs in processes of their own."""

    room: int
    threads: int
    said: dict[SpawnProcess, Connection] = field(default_factory=dict)
    heard: dict[SpawnProcess, Outcome | None] = field(default_factory=dict)

    def start(self, jobs: Sequence[Job]) -> list[SpawnProcess]:
        """Start a process for each job."""
        return [self._started(job) for job in jobs]

    def _started(self, job: Job) -> SpawnProcess:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(job, self.threads, theirs), daemon=True)
        process.start()
        theirs.close()
        self.said[process] = ours
        return process

    def wait(self, tasks: Sequence[SpawnProcess], seconds: float) -> None:
        """Wait until a process ends."""
        wait([process.sentinel for process in tasks], timeout=seconds)

    def outcome(self, task: SpawnProcess) -> Outcome | None:
        """Return the outcome of a process that has ended.

        It is read before the end, since a process cannot end while its pipe is full.
        """
        ended = not task.is_alive()  # checked first: after that nothing more is sent
        if task not in self.heard and self._has_sent(task):
            self.heard[task] = self._received(task)
        if not ended:
            return None
        self.said.pop(task).close()
        return self.heard.pop(task, None) or Died(f"its process ended with code {task.exitcode}")

    def _has_sent(self, task: SpawnProcess) -> bool:
        try:
            return self.said[task].poll()
        except BrokenPipeError:  # Windows: it was killed before it sent anything
            return False

    def _received(self, task: SpawnProcess) -> Outcome | None:
        try:
            outcome: Outcome = self.said[task].recv()
        except (EOFError, OSError):  # killed before or while it sent
            return None
        return outcome

    def stop(self, tasks: Sequence[SpawnProcess]) -> None:
        """Stop the processes, and wait until they have released their folders."""
        for process in tasks:
            process.terminate()
        for process in tasks:
            process.join()


class ParentWatcher(Watcher):
    """Ends a process whose parent has ended, so that it does not keep its run's folder."""

    def epoch(self, record: Record) -> None:
        """End the process if its parent is gone; the checkpoint is written on the way out."""
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            raise SystemExit(1)


def _work(job: Job, threads: int, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports a Ctrl-C
    pipe.send(work(job, threads, ParentWatcher()))


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
