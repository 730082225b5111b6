"""`atcl train`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from atcl.cli.names import check_recipe
from atcl.core.errors import AtclError, pick
from atcl.recipes.names import DEFAULT, OWN

if TYPE_CHECKING:
    from atcl.loggers.base import Logger
    from atcl.runs.problem import Problem
    from atcl.runs.run import Run
    from atcl.runs.spec import Execution, RunSpec
    from atcl.runs.watcher import Watcher

# the name of the second column follows
PICTURES = (
    "for pictures of your own give --images FOLDER and --labels FILE.csv, which has the columns file and"
)


@dataclass(frozen=True)
class Train:
    """Train a recipe, or resume a run that was stopped. Every setting that `atcl show RECIPE` prints can be
    changed: --stages.0.epochs 3, --selection last, --holdout 0.1, --shape 3 64 64"""

    recipe: Annotated[str, tyro.conf.Positional] = DEFAULT
    """dataset/method, from `atcl list recipes`"""
    seed: int = 1
    """labels, initial weights and batches follow from it"""
    seeds: tuple[int, ...] = ()
    """several seeds in place of --seed: a run for each, all at once on one GPU"""
    out: Path | None = None
    """folder of the run; by default runs/RECIPE/seed-N, with a digest after RECIPE if settings were changed;
    with --seeds the folder of the folders seed-N"""
    device: str = "auto"
    """auto, cpu or cuda"""
    engine: str = "auto"
    """how a step is executed, a name from `atcl list engines`; auto takes the fastest that works"""
    deterministic: bool = False
    """fp32, and only algorithms that give the same bits each time; slower"""
    data_dir: Path | None = None
    """folder of the dataset's files; not needed for digits"""
    images: Path | None = None
    """a folder of pictures of your own, in place of the recipe's dataset"""
    labels: Path | None = None
    """their complementary labels: a CSV file with the columns file and not"""
    classes: tuple[str, ...] = ()
    """names of the classes; by default all that occur in the column not"""
    observe: tuple[str, ...] = ()
    """analyses to record in analysis.jsonl, names from `atcl list observations`; training stays the same"""
    observe_every: int | None = None
    """epochs between two records; by default so many that the analyses take less than 5% of the time"""
    log: tuple[str, ...] = ()
    """further logs in the folder of the run, names from `atcl list loggers`"""
    tensorboard: bool = False
    """the same as --log tensorboard; needs pip install 'atcl[tensorboard]'"""
    report: bool = True
    """write report.html into the folder of the run; --no-report leaves it out"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        check_recipe(self.recipe)
        from atcl.analysis.observers import Observers
        from atcl.cli.overrides import overridden_recipe
        from atcl.loggers.registry import LOGGERS
        from atcl.runs.run import folder_of
        from atcl.runs.spec import Execution, RunSpec
        from atcl.runs.start import repeatable_form

        own = self._takes_pictures()
        wanted = overridden_recipe(self.recipe, overrides, Train, own)
        if own and wanted.dataset != OWN:
            raise AtclError(f"--images replaces the dataset: leave out --dataset {wanted.dataset}")
        problem = self._problem(wanted.shape) if own else None
        name = f"{OWN}/{self.recipe.partition('/')[2]}" if own else self.recipe
        wanted = repeatable_form(wanted) if self.deterministic else wanted
        if self.seeds and self.seed != 1:
            raise AtclError(f"give --seed {self.seed} or --seeds {' '.join(map(str, self.seeds))}, not both")
        seeds = self.seeds or (self.seed,)
        parent = Path("runs", *folder_of(name, wanted)) if self.out is None else self.out
        in_parent = self.out is None or bool(self.seeds)
        specs = [
            RunSpec.of(
                wanted,
                name=name,
                seed=seed,
                out=parent / f"seed-{seed}" if in_parent else parent,
                problem=problem,
            )
            for seed in seeds
        ]
        loggers = [pick(LOGGERS, name, "logger") for name in self._logs()]
        for logger in loggers:
            logger.check()
        observing = Observers(tuple(self.observe), self.observe_every)
        execution = Execution(self.device, self.data_dir, self.engine, self.deterministic, observing)
        runs = self._train(console, specs, execution, loggers)
        self._show(console, runs, parent)

    def _takes_pictures(self) -> bool:
        given = self.images is not None or self.labels is not None or bool(self.classes)
        return given or self.recipe.startswith(f"{OWN}/")

    def _problem(self, shape: tuple[int, int, int]) -> "Problem":
        from atcl.data.image_folder import read_folder
        from atcl.runs.problem import Problem

        if self.images is None or self.labels is None:
            raise AtclError(f"{PICTURES} not")
        folder = read_folder(self.images, self.labels, shape, self.classes or None)
        return Problem(folder.data, names=folder.names)

    def _logs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.log, *["tensorboard"] * self.tensorboard]))

    def _train(
        self,
        console: Console,
        specs: Sequence["RunSpec"],
        execution: "Execution",
        loggers: "Sequence[type[Logger]]",
    ) -> "list[Run]":
        from atcl.loggers.progress import progress_bars
        from atcl.runs.start import train_together

        problem = specs[0].problem
        opening = [f"{spec}, to {spec.out}" for spec in specs]
        if problem is not None:
            classes = ", ".join(problem.names or ())
            opening.insert(0, f"{len(problem.train)} pictures, classes {classes}")
        with progress_bars(console, [f"seed {spec.seed}" for spec in specs], opening) as bars:
            watchers: list[Watcher] = list(bars)
            for logger in loggers:
                watchers = [logger(watcher) for watcher in watchers]
            return train_together(specs, execution, watchers)

    def _show(self, console: Console, runs: "Sequence[Run]", parent: Path) -> None:
        from atcl.cli.pages import page_after_training
        from atcl.cli.views import print_result
        from atcl.loggers.progress import print_line

        for run in runs:
            print_result(console, run)
        if self.report:
            page_after_training(console, runs, parent, self.device, self.data_dir)
        for run in runs:
            print_line(console, f"recipe, journal, model and result are in {run.folder}")
