"""`atcl reproduce`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from atcl.cli.names import check_name
from atcl.core.errors import AtclError, pick
from atcl.reproduce.launch.options import LaunchOptions, RayOptions, SlurmOptions

if TYPE_CHECKING:
    from atcl.reproduce.experiments import Experiment
    from atcl.reproduce.launch.workers import Launcher, WorkerPool
    from atcl.reproduce.ledger import Job

MARKDOWN = "markdown"
OPTIONS = {"ray": RayOptions, "slurm": SlurmOptions}  # of those launchers that have options


@dataclass(frozen=True)
class Reproduce:
    """Train the runs that an experiment lacks, and print its table beside the numbers of the paper."""

    experiment: Annotated[str, tyro.conf.Positional]
    """a name from `atcl list experiments`"""
    datasets: tuple[str, ...] = ()
    """only these of its datasets; `table1` also takes digits, which need no download"""
    rows: tuple[str, ...] = ()
    """only these rows, by the names of their methods"""
    seeds: tuple[int, ...] = ()
    """seeds of the runs; by default 1 2 3"""
    format: str = MARKDOWN
    """markdown, latex or json"""
    attacks: tuple[str, ...] = ()
    """also evaluate under these; on a CPU, autoattack runs only if it is named here"""
    results: Path = Path("results")
    """the ledger: one result.json for each run"""
    runs: Path = Path("runs")
    """the folder of new runs, and of runs to resume"""
    write: Path | None = None
    """also write all tables of this Markdown page again"""
    weights: Path | None = None
    """also store the model of the first seed of each row in this folder, for `atcl.load`"""
    device: str = "auto"
    """auto, cpu or cuda"""
    data_dir: Path | None = None
    """folder of the dataset's files; not needed for digits"""
    on: str = "local"
    """where to train: local, ray or slurm (docs/clusters.md)"""
    workers: int = 0
    """runs at a time; by default one for each CPU core, a few together on a GPU, on a cluster all that fit"""
    threads: int = 0
    """CPU threads of each run, on which its numbers on a CPU depend; by default all cores divided by the
    runs at a time, on a cluster 1"""
    ray: RayOptions = field(default_factory=RayOptions)
    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    fill: bool = True
    """train the runs that are missing; --no-fill only shows those in the ledger"""
    dry_run: bool = False
    """only list the runs that are missing, with the time that they need"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        check_name("experiments", self.experiment, "experiment")
        from atcl.core.files import check_readable
        from atcl.evaluation.attacks import ATTACKS
        from atcl.reproduce.experiments import EXPERIMENTS, narrowed
        from atcl.reproduce.ledger import jobs_of
        from atcl.reproduce.tables import TABLE_FORMATS

        experiment = narrowed(EXPERIMENTS[self.experiment], self.datasets, self.rows, self.seeds)
        pick(TABLE_FORMATS, self.format, "format")
        if self.rows and not experiment.makes:
            raise AtclError(f"{self.experiment} takes no --rows, since it combines several: leave it out")
        for name in self.attacks:
            pick(ATTACKS, name, "attack")
        launcher = self._launcher()
        options = LaunchOptions(self.device, self.workers, self.threads, self.runs, self.dry_run)
        if self.format != MARKDOWN:  # standard output is for a program: only the table
            console = Console(stderr=True)
        self._check_page()
        check_readable(self.results, "--results")
        with launcher.open(options) as pool:
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
            if self.dry_run:
                self._plan(experiment, missing, pool)
                return
            if self.fill:
                self._fill(console, missing, pool)
        self._show(console, experiment, jobs)

    def _launcher(self) -> "Launcher":
        from atcl.reproduce.launch.launchers import LAUNCHERS

        make = pick(LAUNCHERS, self.on, "launcher")
        for name, kind in OPTIONS.items():
            given = [
                one.name for one in fields(kind) if getattr(getattr(self, name), one.name) != one.default
            ]
            if given and name != self.on:
                raise AtclError(
                    f"--{name}.{given[0]} is for runs on {name}: add --on {name}, or leave it out"
                )
        if not (self.fill or self.dry_run):
            return LAUNCHERS["local"]()
        return make(**asdict(getattr(self, self.on))) if self.on in OPTIONS else make()

    def _check_page(self) -> None:
        """Raise an AtclError for a page that has no place for the table, before any run."""
        from atcl.core.files import check_writable
        from atcl.reproduce.tables import check_place

        if self.write is None:
            return
        if not self.write.is_file():
            raise AtclError(f"there is no page {self.write}: give --write a page with a place for the table")
        check_place(self.write.read_text(encoding="utf-8"), self.experiment)
        check_writable(self.write.absolute().parent, "open it, or give --write a page elsewhere")

    def _plan(self, experiment: "Experiment", missing: "Sequence[Job]", pool: "WorkerPool") -> None:
        from atcl.reproduce.estimates import likely
        from atcl.reproduce.missing import plan_lines

        if not experiment.makes:
            print(f"{self.experiment} only shows runs of other tables")
            return
        hardware = pool.hardware or likely(self.results)
        known = pool.hardware is not None
        print("\n".join(plan_lines(missing, self.results, hardware, pool.workers, known=known)))

    def _fill(self, console: Console, missing: "Sequence[Job]", pool: "WorkerPool") -> None:
        from atcl.core.files import check_writable
        from atcl.reproduce.missing import fill

        if any(job.possible for job in missing):
            check_writable(self.results, "give --results a folder")
            check_writable(self.runs, "give --runs a folder")
        fill(missing, console, pool)

    def _show(self, console: Console, experiment: "Experiment", jobs: "Sequence[Job]") -> None:
        from atcl.core.files import write_whole
        from atcl.loggers.progress import print_line
        from atcl.reproduce.tables import TABLE_FORMATS, rewritten, tables_of
        from atcl.runs.pretrained import keep
        from atcl.runs.run import open_run

        print_line(console, f"{experiment.about}\n")
        print(TABLE_FORMATS[self.format](tables_of(experiment, self.results)))
        if self.write:
            page = rewritten(self.write.read_text(encoding="utf-8"), self.results)
            write_whole(self.write, page.encode())
            print_line(console, f"all tables of {self.write} are written again")
        for job in jobs if self.weights else ():
            if job.seed == experiment.seeds[0] and self.weights:
                print_line(console, f"stored {keep(open_run(job.folder), self.weights)}")
        if self.results.is_dir():
            print_line(console, f"results are in {self.results}")
        else:
            print_line(console, f"there is no folder {self.results}: give another with --results")
