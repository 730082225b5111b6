"""`atcl reproduce`: the runs that a table lacks, carried out at a place of one's choice, and the table."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from atcl.core.errors import AtclError, pick
from atcl.core.files import check_readable, check_writable, write_whole
from atcl.evaluation.attacks import ATTACKS
from atcl.loggers.progress import clock
from atcl.reproduce.estimates import likely, measured_on, seconds
from atcl.reproduce.experiments import EXPERIMENTS, narrowed
from atcl.reproduce.launch import LAUNCHERS
from atcl.reproduce.launch.crews import Launcher, LaunchOptions, WorkerPool
from atcl.reproduce.launch.on_ray import Ray
from atcl.reproduce.launch.on_slurm import Slurm
from atcl.reproduce.ledger import Job, jobs_of
from atcl.reproduce.tables import TABLE_FORMATS, check_place, grids, rewritten
from atcl.runs.pretrained import keep
from atcl.runs.run import open_run


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
    on: str = "local"
    """where the runs are carried out: local, ray or slurm (docs/clusters.md)"""
    workers: int = 0
    """runs at a time; by default one for each CPU core, on a GPU a few train together; of a cluster as many as it has room for"""
    threads: int = 0
    """CPU threads of each run, which its numbers on a CPU depend on; by default the cores shared out, and 1 on a cluster"""
    ray: Ray = Ray()
    slurm: Slurm = Slurm()
    fill: bool = True
    """--no-fill runs nothing, and shows what the ledger holds"""
    dry_run: bool = False
    """only list the runs that are missing, with the time that they will take"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        experiment = narrowed(
            pick(EXPERIMENTS, self.experiment, "experiment"), self.datasets, self.rows, self.seeds
        )
        shown = pick(TABLE_FORMATS, self.format, "format")
        if self.rows and not experiment.makes:
            raise AtclError(f"{self.experiment} takes no --rows: its lines are of several rows each")
        for name in self.attacks:
            pick(ATTACKS, name, "attack")
        place: Launcher = pick(LAUNCHERS, self.on, "place")
        place = (
            getattr(self, self.on, place) if self.fill or self.dry_run else LAUNCHERS["local"]
        )  # its options stand under its name
        self._check_options()
        options = LaunchOptions(self.device, self.workers, self.threads, self.runs, self.dry_run)
        console = (
            console if shown is TABLE_FORMATS["markdown"] else Console(stderr=True)
        )  # what a program reads stands alone
        if self.write:  # is there a place for the table? better asked before the runs than after
            if not self.write.is_file():
                raise AtclError(f"there is no page {self.write} to write the table into")
            check_place(self.write.read_text(), self.experiment)
            check_writable(self.write.absolute().parent, "open it, or give --write a page elsewhere")
        check_readable(self.results, "--results")
        with place.open(options) as pool:
            jobs = jobs_of(
                experiment,
                self.results,
                self.runs,
                strong=pool.strong,
                attacks=self.attacks,
                device=pool.device,
                data_dir=self.data_dir,
            )
            missing = [job for job in jobs if job.lacks] if experiment.makes else []
            if self.dry_run and not experiment.makes:
                print(f"{self.experiment} only tells of runs that other tables make")
                return
            if self.dry_run:
                print(
                    "\n".join(
                        plan_lines(
                            missing,
                            self.results,
                            pool.hardware or likely(self.results),
                            pool.workers,
                            known=pool.hardware is not None,
                        )
                    )
                )
                return
            if self.fill and any(job.possible for job in missing):
                check_writable(self.results, "give --results a folder")
                check_writable(self.runs, "give --runs a folder")
            if self.fill:
                fill(missing, console, pool)
        console.print(f"{experiment.about}\n", highlight=False, soft_wrap=True)
        print(shown(grids(experiment, self.results)))
        if self.write:
            write_whole(self.write, rewritten(self.write.read_text(), self.results).encode())
            console.print(f"every table of {self.write} is made anew", highlight=False, markup=False)
        if self.weights:
            for job in [job for job in jobs if job.seed == experiment.seeds[0]]:
                console.print(
                    f"{keep(open_run(job.folder), self.weights)} is kept", highlight=False, markup=False
                )
        there = (
            f"results lie in {self.results}"
            if self.results.is_dir()
            else f"there is no folder {self.results}: --results names another"
        )
        console.print(there, highlight=False, markup=False, soft_wrap=True)

    def _check_options(self) -> None:
        """Refuse options of a place where the runs do not go."""
        for name in [name for name in LAUNCHERS if name != self.on and hasattr(self, name)]:
            chosen, plain = getattr(self, name), LAUNCHERS[name]
            given = [
                field.name
                for field in fields(chosen)
                if getattr(chosen, field.name) != getattr(plain, field.name)
            ]
            if given:
                raise AtclError(
                    f"--{name}.{given[0]} is for runs on {name}: add --on {name}, or leave it out"
                )


def plan_lines(
    jobs: Sequence[Job], results: Path, device: str, workers: int = 1, *, known: bool = True
) -> list[str]:
    """Return a line for each job: the command, and its time where anything like it was measured on such a device."""
    before, lines, total, longest, vague = measured_on(results, device), [], 0.0, 0.0, 0
    for job in jobs:
        if not job.possible:
            lines.append(_stuck(job))
            continue
        told, unknown = seconds(job, before)
        total, longest, vague = total + told, max(longest, told), vague + bool(unknown)
        work = (
            f"atcl train {job.what.words} --seed {job.seed}"
            if job.new
            else f"atcl evaluate {job.folder} --attacks {' '.join(job.attacks)}"
        )
        lines.append(f"{work}  # {_lasting(told, unknown)}")
    if not jobs:
        return ["nothing is missing"]
    able = sum(job.possible for job in jobs)
    if not able:
        return lines
    several = min(workers, able)
    how = f"{several} at a time" if several > 1 else "one after another"
    runs = f"{able} run{'s' * (able > 1)}, {how} on {device if known else f'{device}, as most GPU runs of the ledger' if before else 'a GPU'}"
    return [
        *lines,
        f"{runs}: {_lasting(max(total / several, longest), [f'{vague} of them'] if vague else [])}",
    ]


def fill(jobs: Sequence[Job], console: Console, pool: WorkerPool) -> None:
    """Carry jobs out, each result into the ledger as it comes; what cannot be done is told."""
    for job in jobs:
        if not job.possible:
            console.print(_stuck(job), highlight=False, soft_wrap=True, markup=False)
    if able := [job for job in jobs if job.possible]:
        pool.fill(able, console)


def _lasting(known: float, unknown: Sequence[str]) -> str:
    parts = [f"about {clock(known)}"] if known else []
    return ", ".join([*parts, *([f"unknown for {', '.join(unknown)}"] if unknown else [])])


def _stuck(job: Job) -> str:
    return f"{job}: the ledger lacks {', '.join(job.lacks)}, and its model is not in {job.folder}: remove {job.path} to run it again"
