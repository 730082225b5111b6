"""What a worker does with a job, in whatever process of whatever machine, and what it says in the end."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import torch

from atcl.core.errors import AtclError
from atcl.core.files import Held
from atcl.evaluation.evaluate import Watch
from atcl.reproduce.ledger import Job, store
from atcl.runs.run import Run
from atcl.runs.spec import Execution
from atcl.runs.start import train
from atcl.runs.watcher import Watcher


@dataclass(frozen=True)
class Done:
    """The run is in the ledger."""

    seconds: float


@dataclass(frozen=True)
class Failed:
    """The run cannot be made: trying again would not help."""

    why: str
    trace: str = ""  # of what is no mistake of the user's


@dataclass(frozen=True)
class Taken:
    """Another process has the run's folder."""


@dataclass(frozen=True)
class Cancelled:
    """Someone took the job away on purpose: its run is left as it is, whatever the others do."""

    why: str


@dataclass(frozen=True)
class Died:
    """The worker ended without a word: another can go on."""

    why: str


Outcome = Done | Failed | Taken | Cancelled | Died

WHY, TRACE = (
    8_000,
    24_000,
)  # bytes of an error that are told: all fits into a pipe of 64 KiB that no one reads yet


def run_job(job: Job, watcher: Watcher | None = None) -> None:
    """Train and measure a run, or go on with one that was stopped, and put it into the ledger."""
    evaluate_job(job, train_job(job, watcher))


def train_job(job: Job, watcher: Watcher | None = None) -> Run:
    """Return the run of a job, trained to its end."""
    what = job.what
    execution = Execution(device=job.device, data_dir=job.data_dir)
    return train(
        what.recipe, name=what.name, seed=job.seed, out=job.folder, watcher=watcher, execution=execution
    )


def evaluate_job(job: Job, done: Run, watch: Watch | None = None) -> None:
    """Measure a trained run by what its job asks for, and put it into the ledger."""
    done.evaluate(
        job.attacks, device=job.device, data_dir=job.data_dir, watch=watch
    )  # it also looks for signs of false robustness
    store(done, job.path)


def work(job: Job, threads: int, watcher: Watcher | None = None) -> Outcome:
    """Carry a job out in a process of its own; whatever happens is told as data, since an exception may not survive the way back."""
    torch.set_num_threads(threads)  # numbers on a CPU follow from the seed and from this
    # it may have waited long, and another machine may have made it
    return outcome_of(lambda: run_job(job, watcher) if job.lacks else None)


def outcome_of(carry: Callable[[], None]) -> Outcome:
    """Carry something out, and tell whatever happens as data."""
    began = time.perf_counter()
    try:
        carry()
    except Held:
        return Taken()
    except AtclError as error:
        return Failed(_begin(str(error), WHY))
    except torch.OutOfMemoryError:
        return Died("the GPU had no memory left")
    except Exception as error:
        return Failed(
            _begin(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", WHY),
            _end(traceback.format_exc(), TRACE),
        )
    return Done(time.perf_counter() - began)


def _begin(text: str, size: int) -> str:
    """Return as much of the beginning of a text as so many bytes hold."""
    return text.encode(errors="replace")[:size].decode(errors="ignore")


def _end(text: str, size: int) -> str:
    """Return as much of the end of a text as so many bytes hold."""
    return text.encode(errors="replace")[-size:].decode(errors="ignore")
