"""The runs that a table lacks: a list of them with estimated times, or making them."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from atcl.loggers.progress import clock
from atcl.reproduce.estimates import measured_on, seconds
from atcl.reproduce.launch.workers import WorkerPool
from atcl.reproduce.ledger import Job


def plan_lines(
    jobs: Sequence[Job], results: Path, device: str, workers: int = 1, *, known: bool = True
) -> list[str]:
    """Return a line for each job, with its command and its estimated time, and a last line for all of them.

    Args:
        jobs: what is missing.
        results: the ledger, whose measured times are used.
        device: the name of the device.
        workers: how many runs go at a time.
        known: whether the device is known, or only the most frequent one of the ledger.
    """
    before, lines, total, longest, vague = measured_on(results, device), [], 0.0, 0.0, 0
    for job in jobs:
        if not job.possible:
            lines.append(_stuck(job))
            continue
        time, unknown = seconds(job, before)
        total, longest, vague = total + time, max(longest, time), vague + bool(unknown)
        work = (
            f"atcl train {job.what.words} --seed {job.seed}"
            if job.new
            else f"atcl evaluate {job.folder} --attacks {' '.join(job.attacks)}"
        )
        lines.append(f"{work}  # {_duration(time, unknown)}")
    if not jobs:
        return ["nothing is missing"]
    able = sum(job.possible for job in jobs)
    if not able:
        return lines
    several = min(workers, able)
    how = f"{several} at a time" if several > 1 else "one after another"
    guessed = f"{device}, as most GPU runs of the ledger" if before else "a GPU"
    runs = f"{able} run{'s' * (able > 1)}, {how} on {device if known else guessed}"
    vaguely = [f"{vague} of them"] if vague else []
    return [*lines, f"{runs}: {_duration(max(total / several, longest), vaguely)}"]


def fill(jobs: Sequence[Job], console: Console, pool: WorkerPool) -> None:
    """Run jobs, and put each result into the ledger when it is there; jobs that cannot be run are named."""
    for job in jobs:
        if not job.possible:
            console.print(_stuck(job), highlight=False, soft_wrap=True, markup=False)
    if able := [job for job in jobs if job.possible]:
        pool.fill(able, console)


def _duration(known: float, unknown: Sequence[str]) -> str:
    parts = [f"about {clock(known)}"] if known else []
    return ", ".join([*parts, *([f"unknown for {', '.join(unknown)}"] if unknown else [])])


def _stuck(job: Job) -> str:
    lacking = f"the ledger lacks {', '.join(job.lacks)}, and its model is not in {job.folder}"
    return f"{job}: {lacking}: remove {job.path} to run it again"
