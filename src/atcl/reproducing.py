"""`atcl reproduce`: the runs that a table lacks, several at a time where cores are free, and the table."""

import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

from atcl.console import Judging, Live, Together, clock
from atcl.environment import hardware, resolve
from atcl.errors import AtclError, pick
from atcl.estimates import measured, seconds
from atcl.evaluation import ATTACKS
from atcl.experiments import EXPERIMENTS, narrowed
from atcl.files import write_whole
from atcl.headline import keep
from atcl.journal import Record
from atcl.ledger import Job, jobs_of, store
from atcl.reports import FORMATS, check_place, grids, rewritten
from atcl.running import train
from atcl.runs import Run, open_run
from atcl.stages import Watcher
from atcl.verdicts import Watch


@dataclass(frozen=True)
class Reproduce:
    """Run what an experiment still lacks, and print its table: ours, the published, and the difference."""

    experiment: Annotated[str, tyro.conf.Positional]
    """a name from `atcl list experiments`"""
    datasets: tuple[str, ...] = ()
    """only these datasets of it; `table1` also takes digits, which need no download"""
    rows: tuple[str, ...] = ()
    """only these rows, by the names of their methods"""
    seeds: tuple[int, ...] = ()
    """by default 1 2 3"""
    format: str = "markdown"
    """markdown, latex or json"""
    attacks: tuple[str, ...] = ()
    """measure by these too, such as autoattack, which a table that has it gets without asking on a GPU alone"""
    results: Path = Path("results")
    """the ledger: one result.json for each run"""
    runs: Path = Path("runs")
    """where new runs go; a run that was stopped goes on there"""
    write: Path | None = None
    """also make all tables of this Markdown page anew"""
    weights: Path | None = None
    """also keep the model of the first seed of each row there, for `atcl.load`"""
    device: str = "auto"
    data_dir: Path | None = None
    workers: int = 0
    """runs at a time; by default one for each CPU core, one on a GPU"""
    fill: bool = True
    """--no-fill runs nothing, and shows what the ledger holds"""
    dry_run: bool = False
    """only list the runs that are missing, with the time that they will take"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        experiment = narrowed(pick(EXPERIMENTS, self.experiment, "experiment"), self.datasets, self.rows, self.seeds)
        shown = pick(FORMATS, self.format, "format")
        for name in self.attacks:
            pick(ATTACKS, name, "attack")
        if self.workers < 0:
            raise AtclError(f"at least one run goes at a time, not {self.workers}")
        target = resolve(self.device)
        console = console if shown is FORMATS["markdown"] else Console(stderr=True)  # what a program reads stands alone
        if self.write:  # is there a place for the table? better asked before the runs than after
            if not self.write.is_file():
                raise AtclError(f"there is no page {self.write} to write the table into")
            check_place(self.write.read_text(), self.experiment)
        strong = target.type == "cuda"
        jobs = jobs_of(experiment, self.results, self.runs, strong=strong, attacks=self.attacks, device=self.device, data_dir=self.data_dir)
        missing = [job for job in jobs if job.lacks]
        workers = self.workers or (1 if strong else len(os.sched_getaffinity(0)))
        if self.dry_run:
            print("\n".join(planned(missing, self.results, hardware(target)["device"], workers)))
            return
        if self.fill:
            fill(missing, console, workers)
        console.print(f"{experiment.about}\n", highlight=False, soft_wrap=True)
        print(shown(grids(experiment, self.results)))
        if self.write:
            write_whole(self.write, rewritten(self.write.read_text(), self.results).encode())
            console.print(f"every table of {self.write} is made anew", highlight=False)
        if self.weights:
            for job in [job for job in jobs if job.seed == experiment.seeds[0]]:
                console.print(f"{keep(open_run(job.folder), self.weights)} is kept", highlight=False)
        console.print(f"results lie in {self.results}", highlight=False)


def planned(jobs: Sequence[Job], results: Path, device: str, workers: int = 1) -> list[str]:
    """Return a line for each job: the command, and its time where anything like it was measured on such a device."""
    known, lines, total, vague = measured(results, device), [], 0.0, 0
    for job in jobs:
        if not job.possible:
            lines.append(_stuck(job))
            continue
        told, unknown = seconds(job, known)
        total, vague = total + told, vague + bool(unknown)
        work = f"atcl train {job.what.words} --seed {job.seed}" if job.new else f"atcl evaluate {job.folder} --attacks {' '.join(job.attacks)}"
        lines.append(f"{work}  # {_lasting(told, unknown)}")
    if not jobs:
        return ["nothing is missing"]
    several = min(workers, len(jobs))
    how = f"{several} at a time" if several > 1 else "one after another"
    runs = f"{len(jobs)} run{'s' * (len(jobs) > 1)}, {how} on {device}"
    return [*lines, f"{runs}: {_lasting(total / several, [f'{vague} of them'] if vague else [])}"]


def fill(jobs: Sequence[Job], console: Console, workers: int = 1) -> None:
    """Carry jobs out, each result into the ledger as it comes; what cannot be done is told."""
    for job in jobs:
        if not job.possible:
            console.print(_stuck(job), highlight=False, soft_wrap=True)
    able = [job for job in jobs if job.possible]
    if workers > 1 and len(able) > 1:
        _side_by_side(able, console, workers)
        return
    for number, job in enumerate(able, 1):
        console.print(f"{job} ({number} of {len(able)})", highlight=False, soft_wrap=True)
        with Live(console) as live:
            done = _trained(job, live)
        with Judging(console) as judging:
            _measured(job, done, judging)


def carry_out(job: Job, watcher: Watcher | None = None) -> None:
    """Train and measure a run, or go on with one that was stopped, and put it into the ledger."""
    _measured(job, _trained(job, watcher))


def _trained(job: Job, watcher: Watcher | None = None) -> Run:
    what = job.what
    return train(what.recipe, name=what.name, seed=job.seed, out=job.folder, device=job.device, data_dir=job.data_dir, watcher=watcher)


def _measured(job: Job, done: Run, watch: Watch | None = None) -> None:
    done.evaluate(job.attacks, device=job.device, data_dir=job.data_dir, watch=watch)  # it also looks for signs of false robustness
    store(done, job.path)


def _side_by_side(jobs: Sequence[Job], console: Console, workers: int) -> None:
    """Carry jobs out in processes of their own; the first that fails ends the others, which go on where they were the next time."""
    context, left, running = multiprocessing.get_context("spawn"), list(jobs), dict[SpawnProcess, tuple[Job, Connection, float]]()
    threads = max(1, min(torch.get_num_threads(), len(os.sched_getaffinity(0)) // workers))
    try:
        with Together(console, jobs) as bar:
            while left or running:
                while left and len(running) < workers:
                    job, (ours, theirs) = left.pop(0), context.Pipe(duplex=False)
                    process = context.Process(target=_work, args=(job, threads, theirs), daemon=True)
                    process.start()
                    theirs.close()
                    running[process] = job, ours, time.perf_counter()
                wait([process.sentinel for process in running], timeout=1)
                bar.look()
                for process in [process for process in running if not process.is_alive()]:
                    job, said, began = running.pop(process)
                    if process.exitcode != 0:
                        raise AtclError(f"{job}: {_last_words(said, process.exitcode)}")
                    bar.say(f"{job}: done after {clock(time.perf_counter() - began)}")
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.join()


class Attached(Watcher):
    """Lets no process outlive the one that started it: the run would hold its folder."""

    def epoch(self, record: Record) -> None:
        """End the process where its parent is gone; the checkpoint is written."""
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            raise SystemExit(1)


def _work(job: Job, threads: int, tell: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent says what there is to say
    torch.set_num_threads(threads)
    try:
        carry_out(job, Attached())
    except AtclError as error:
        tell.send(str(error))
        raise SystemExit(1) from None


def _lasting(known: float, unknown: Sequence[str]) -> str:
    parts = [f"about {clock(known)}"] if known else []
    return ", ".join([*parts, *([f"unknown for {', '.join(unknown)}"] if unknown else [])])


def _last_words(said: Connection, code: int | None) -> str:
    try:
        return str(said.recv())
    except EOFError:
        return f"its process ended with code {code}; the same command goes on where it was"


def _stuck(job: Job) -> str:
    return f"{job}: the ledger lacks {', '.join(job.lacks)}, and its model is not in {job.folder}: remove {job.path} to run it again"
