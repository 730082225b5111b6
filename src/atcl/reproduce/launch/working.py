"""What a worker does with a job, in any process of any machine, and the outcome that it returns."""

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
    """The run cannot be made; trying again would not help."""

    why: str
    trace: str = ""  # the traceback of an error that is not the user's


@dataclass(frozen=True)
class Taken:
    """Another process uses the run's folder."""


@dataclass(frozen=True)
class Cancelled:
    """Someone cancelled the job; its run is left as it is."""

    why: str


@dataclass(frozen=True)
class Died:
    """The worker ended without an outcome; another one can continue the run."""

    why: str


Outcome = Done | Failed | Taken | Cancelled | Died

# bytes of an error that are kept: together they fit into a pipe of 64 KiB that no one reads yet
WHY, TRACE = 8_000, 24_000


def run_job(job: Job, watcher: Watcher | None = None) -> None:
    """Train and evaluate a run, or continue one that was stopped, and put it into the ledger."""
    evaluate_job(job, train_job(job, watcher))


def train_job(job: Job, watcher: Watcher | None = None) -> Run:
    """Train the run of a job to its end, and return it."""
    what = job.what
    execution = Execution(device=job.device, data_dir=job.data_dir)
    return train(
        what.recipe, name=what.name, seed=job.seed, out=job.folder, watcher=watcher, execution=execution
    )


def evaluate_job(job: Job, done: Run, watch: Watch | None = None) -> None:
    """Evaluate a trained run with the attacks of its job, and put it into the ledger.

    It is also checked for signs of false robustness.
    """
    done.evaluate(job.attacks, device=job.device, data_dir=job.data_dir, watch=watch)
    store(done, job.path)


def work(job: Job, threads: int, watcher: Watcher | None = None) -> Outcome:
    """Do a job in a process of its own.

    Every error becomes an outcome, since an exception may not survive the way between processes.
    """
    torch.set_num_threads(threads)  # numbers on a CPU depend on the seed and on this
    # the job may have waited so long that another machine has done it
    return outcome_of(lambda: run_job(job, watcher) if job.lacks else None)


def outcome_of(carry: Callable[[], None]) -> Outcome:
    """Call a function, and return its outcome, whatever happens."""
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
    """Return the beginning of a text, as much as so many bytes hold."""
    return text.encode(errors="replace")[:size].decode(errors="ignore")


def _end(text: str, size: int) -> str:
    """Return the end of a text, as much as so many bytes hold."""
    return text.encode(errors="replace")[-size:].decode(errors="ignore")
