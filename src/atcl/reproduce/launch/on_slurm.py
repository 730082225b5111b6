"""Runs as arrays of a SLURM cluster, by submitit."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from atcl.core.device import available_cores, resolve
from atcl.core.errors import AtclError, pick
from atcl.reproduce.launch.options import LaunchOptions, SlurmOptions
from atcl.reproduce.launch.progress import JobsProgress
from atcl.reproduce.launch.workers import (
    WorkerPool,
    portable_job,
    remote_device,
    remote_hardware,
    run_jobs,
)
from atcl.reproduce.launch.working import Cancelled, Died, Failed, Outcome, work
from atcl.reproduce.ledger import Job

ARRAY_LIMIT = 1000  # jobs of an array: SLURM's own limit, unless its administrator has set another
TIMEOUTS = 100  # times that a run may reach its time limit and be continued
EXECUTORS = {"slurm": "the cluster", "local": "processes of this machine, to try things out"}


@dataclass(frozen=True)
class Slurm(SlurmOptions):
    """Runs as arrays of a SLURM cluster."""

    @contextmanager
    def open(self, options: LaunchOptions) -> Iterator[WorkerPool]:
        """Prepare the array; nothing is queued yet."""
        submitit = None if options.dry else _imported()
        pick(EXECUTORS, self.executor, "executor")
        if self.minutes < 1 or self.cpus < 0 or self.memory < 0:
            raise AtclError("a run needs at least one minute, and no negative number of CPUs or GB")
        here = self.executor == "local"
        device = remote_device(options.device, resolve("auto").type if here else "cuda")
        threads = options.threads or 1
        fits = 1 if device == "cuda" else max(1, available_cores() // threads)
        # No more are queued at a time: a run that is continued becomes an array of its own, with a limit of
        # its own.
        room = options.workers or (fits if here else ARRAY_LIMIT)
        if not (here or options.dry) and shutil.which("srun") is None:
            missing = "there is no SLURM on this machine (no srun)"
            raise AtclError(f"{missing}: run this where sbatch works, or give --slurm.executor local")

        def fill(jobs: Sequence[Job], console: Console) -> None:
            executor = self._executor(submitit, device, threads, options)
            console.print(
                f"what the jobs print lies in {executor.folder}",
                highlight=False,
                soft_wrap=True,
                markup=False,
            )
            with JobsProgress(console, jobs) as bar:
                run_jobs(
                    [portable_job(job, device) for job in jobs],
                    SlurmExecutor(submitit, executor, room, threads, here),
                    bar,
                )

        yield WorkerPool(device, device == "cuda", remote_hardware(device), room, fill)

    def _executor(self, submitit: Any, device: str, threads: int, options: LaunchOptions) -> Any:
        folder = options.runs.absolute() / "slurm"
        cpus = self.cpus or threads
        more = {
            key: value if equals else True
            for key, equals, value in (word.partition("=") for word in self.more)
        }
        try:
            executor = submitit.AutoExecutor(
                folder, cluster=self.executor, slurm_max_num_timeout=TIMEOUTS, local_max_num_timeout=TIMEOUTS
            )
            executor.update_parameters(
                name="atcl",
                timeout_min=self.minutes,
                cpus_per_task=cpus,
                mem_gb=self.memory or None,
                gpus_per_node=1 if device == "cuda" and not self.gres else None,
                slurm_partition=self.partition,
                slurm_account=self.account,
                slurm_qos=self.qos,
                slurm_constraint=self.constraint,
                slurm_gres=self.gres,
                slurm_setup=list(self.setup) or None,
                slurm_array_parallelism=options.workers or ARRAY_LIMIT,
                slurm_additional_parameters=more or None,
                slurm_srun_args=[f"--cpus-per-task={cpus}"],  # which srun no longer takes over from sbatch
            )
        except OSError as error:
            raise AtclError(f"cannot write to {folder}: {error.strerror}; choose another --runs") from None
        return executor


@dataclass
class SlurmExecutor:
    """Runs as jobs of an array."""

    submitit: Any
    executor: Any
    room: int
    threads: int
    here: bool  # whether the jobs are processes of this machine

    def start(self, jobs: Sequence[Job]) -> list[Any]:
        """Queue the jobs as one array."""
        try:
            with nullcontext() if self.here else _sheltered():  # local processes must receive the signal
                tasks: list[Any] = self.executor.map_array(Resumed(), jobs, [self.threads] * len(jobs))
        except (
            self.submitit.core.utils.FailedJobError,
            self.submitit.core.utils.FailedSubmissionError,
        ) as error:
            raise AtclError(f"SLURM did not take the jobs: {' '.join(str(error).split())}") from None
        for task in tasks if self.here else []:
            task._results_timeout_s = 0  # a local process has written its result, or never will
        return tasks

    def wait(self, tasks: Sequence[Any], seconds: float) -> None:
        """Wait so many seconds, since SLURM sends no notice."""
        time.sleep(seconds)

    def outcome(self, task: Any) -> Outcome | None:
        """Return how a job ended."""
        if not task.done():
            return None
        if cancelled := task.get_info(mode="cache").get("State", "").startswith("CANCELLED"):
            task._results_timeout_s = 0  # no result will be written any more
        try:
            outcome: Outcome = task.result()
        except self.submitit.core.utils.FailedJobError as error:
            return Failed(f"its job {task.job_id} failed; see {task.paths.stderr}", str(error))
        except self.submitit.core.utils.UncompletedJobError:
            if cancelled:
                return Cancelled(f"its job {task.job_id} was cancelled")
            return Died(f"its job {task.job_id} ended without a result ({task.state})")
        return outcome

    def stop(self, tasks: Sequence[Any]) -> None:
        """Cancel the jobs, running and waiting; wait for processes of this machine."""
        if tasks and not self.here:
            # one call, since each waits for the controller
            subprocess.call(["scancel", *(task.job_id for task in tasks)])
            return
        for task in tasks:
            task.cancel(check=False)
        while not all(task.done() for task in tasks):
            time.sleep(0.05)


@contextmanager
def _sheltered() -> Iterator[None]:
    """Keep Ctrl-C from commands that are started: an interrupted sbatch may have queued unknown jobs."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the commands inherit it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Resumed:
    """A job that submitit may interrupt at its time limit or for other jobs.

    It is queued again, and continues from its checkpoint.
    """

    def __call__(self, job: Job, threads: int) -> Outcome:
        """Do the job."""
        return work(job, threads)

    def checkpoint(self, job: Job, threads: int) -> Any:
        """Return what is queued again; the run has written its own checkpoint."""
        return _imported().helpers.DelayedSubmission(self, job, threads)


def _imported() -> Any:
    if sys.platform == "win32":  # submitit needs signals that Windows does not have
        raise AtclError("--on slurm does not work on Windows: run this on the cluster, or give --on local")
    try:
        import submitit
    except ImportError:
        raise AtclError("--on slurm needs submitit: pip install 'atcl[slurm]'") from None
    return submitit
