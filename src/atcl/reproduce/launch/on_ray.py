"""Runs on the machines of a Ray cluster, a GPU for each where there are any."""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from atcl.core.device import resolve
from atcl.core.errors import AtclError
from atcl.reproduce.launch.options import LaunchOptions, RayOptions
from atcl.reproduce.launch.progress import JobsProgress
from atcl.reproduce.launch.workers import (
    WorkerPool,
    portable_job,
    remote_device,
    remote_hardware,
    run_jobs,
)
from atcl.reproduce.launch.working import Died, Failed, Outcome, work
from atcl.reproduce.ledger import Job

ANY = 10_000  # jobs that Ray may queue
TIMEOUT = 10  # seconds for an answer from the cluster's head
# the type of the first HTTP/2 frame, which Ray sends; a length precedes it, and here nothing follows
SETTINGS = b"\4"
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + SETTINGS + b"\0" * 5


@dataclass(frozen=True)
class Ray(RayOptions):
    """Runs on the machines of a Ray cluster."""

    @contextmanager
    def open(self, options: LaunchOptions) -> Iterator[WorkerPool]:
        """Join the cluster, or start one on this machine that ends with the command."""
        ray = _imported()
        remote_device(options.device, "cpu")  # refuses a wrong one before anything is started
        if joined := not ray.is_initialized():
            _join(ray, self.address)
        try:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            device = remote_device(
                options.device, "cuda" if any(node.get("GPU", 0) >= 1 for node in nodes) else "cpu"
            )
            strong, threads = device == "cuda", options.threads or 1
            fits = room_for(nodes, threads, strong)
            if strong and not fits and len(nodes) == 1:
                resolve(device)  # refuses: a single machine without a GPU will not get one
            workers = (
                min(options.workers, fits) if options.workers and fits else options.workers or max(fits, 1)
            )

            def fill(jobs: Sequence[Job], console: Console) -> None:
                nodes = len([node for node in ray.nodes() if node["Alive"]])
                console.print(
                    f"{len(jobs)} runs, {workers} at a time, "
                    f"on a Ray cluster of {nodes} machine{'s' * (nodes > 1)}",
                    highlight=False,
                )
                if not fits:
                    needs = "a GPU and " * strong + f"{threads} CPU{'s' * (threads > 1)}"
                    console.print(
                        f"no machine of it has {needs} for a run now: the runs wait until one joins",
                        highlight=False,
                    )
                with JobsProgress(console, jobs) as bar:
                    run_jobs(
                        [portable_job(job, device) for job in jobs],
                        RayExecutor(ray, options.workers or ANY, threads, strong),
                        bar,
                    )

            yield WorkerPool(device, strong, remote_hardware(device), workers, fill)
        finally:
            if joined:
                ray.shutdown()


def room_for(nodes: Sequence[Mapping[str, float]], threads: int, strong: bool) -> int:
    """Return how many runs fit on the machines at a time; a run uses one machine."""
    each = (
        min(int(node.get("CPU", 0)) // threads, int(node.get("GPU", 0)) if strong else ANY) for node in nodes
    )
    return sum(each)


class RayExecutor:
    """Runs jobs as tasks of Ray, which finds a machine with a free GPU, or enough free CPUs, for each."""

    def __init__(self, ray: Any, room: int, threads: int, strong: bool) -> None:
        self.ray, self.room, self.threads = ray, room, threads
        # a process for each run, as elsewhere; `run_jobs` counts and reports deaths, and Ray does not retry
        self.work = ray.remote(num_cpus=threads, num_gpus=int(strong), max_calls=1, max_retries=0)(work)

    def start(self, jobs: Sequence[Job]) -> list[Any]:
        """Queue the jobs."""
        return [self.work.remote(job, self.threads) for job in jobs]

    def wait(self, tasks: Sequence[Any], seconds: float) -> None:
        """Wait until a task ends."""
        self.ray.wait(list(tasks), timeout=seconds)

    def outcome(self, task: Any) -> Outcome | None:
        """Return how a task ended."""
        if not self.ray.wait([task], timeout=0)[0]:
            return None
        dead = (
            self.ray.exceptions.WorkerCrashedError,
            self.ray.exceptions.NodeDiedError,
            self.ray.exceptions.OutOfMemoryError,
        )
        try:
            outcome: Outcome = self.ray.get(task)
        except dead as error:
            return Died(f"its worker died ({type(error).__name__})")
        except self.ray.exceptions.RayError as error:  # it did not start: another version, a missing package
            return Failed(f"Ray could not run it: {str(error).strip().splitlines()[-1]}")
        return outcome

    def stop(self, tasks: Sequence[Any]) -> None:
        """Stop the tasks, running and waiting."""
        for task in tasks:
            self.ray.cancel(task, force=True)


def _imported() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise AtclError("--on ray needs Ray: pip install 'atcl[ray]'") from None
    return ray


def _join(ray: Any, address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster started here sends no statistics
    try:
        _check_address(address or os.environ.get("RAY_ADDRESS", ""))
        ray.init(address=address or None, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        where = address or os.environ.get("RAY_ADDRESS") or "this machine"
        said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        hint = (
            "" if "RAY_AUTH_MODE" in os.environ else " (one that asks for a token needs RAY_AUTH_MODE=token)"
        )
        advice = "give another --ray.address, or `local` to start one here"
        raise AtclError(f"no Ray cluster at {where}: {said}{hint}; {advice}") from None


def _check_address(address: str) -> None:
    """Raise if nothing answers at an address as Ray does; Ray itself would try for minutes, and print."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    with socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT) as line:
        if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):  # without a certificate there is no answer
            return
        line.sendall(HELLO)
        if line.recv(9)[3:4] != SETTINGS:
            raise OSError("what answers there is not Ray")
