"""What can be typed after `atcl`: each command a dataclass of options with one verb."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.console import Console

from atcl.analysis.observe_checkpoints import Observe
from atcl.analysis.observers import Observers
from atcl.cli.list import LISTED
from atcl.cli.views import caption, held_table, metrics_table, schedule_table
from atcl.core.errors import AtclError, pick
from atcl.core.files import write_whole
from atcl.core.settings import option_names, options, overridden
from atcl.data.image_folder import read_folder
from atcl.datasets.labelled_folder import read_truth
from atcl.evaluation.attacks import WORST
from atcl.loggers import tensorboard as boards
from atcl.loggers.progress import EvaluationProgress, progress_bars
from atcl.recipes.catalogue import on_own_data, recipe
from atcl.recipes.schema import OWN, Recipe
from atcl.reports.command import Report, after_evaluation, after_training
from atcl.reproduce.command import Reproduce
from atcl.reproduce.figures.command import Figure
from atcl.runs import layout
from atcl.runs.export import EXPORTS, export
from atcl.runs.predict import predict, predictions_as_csv, predictions_as_json
from atcl.runs.problem import Problem
from atcl.runs.run import REPORTED, Run, folder_of, open_run
from atcl.runs.spec import Execution, RunSpec
from atcl.runs.start import repeatable_form, train_together

DEFAULT = "digits/warmup-pla"

Listable = Literal[
    "recipes",
    "losses",
    "datasets",
    "models",
    "labels",
    "attacks",
    "rules",
    "exports",
    "engines",
    "experiments",
    "weights",
    "observations",
    "figures",
]


@dataclass(frozen=True)
class Train:
    """Train by a recipe, or go on with a run that was stopped. Any setting that `atcl show RECIPE` prints can be changed: --stages.0.epochs 3,
    --selection last, --holdout 0.1, --shape 3 64 64"""

    recipe: Annotated[str, tyro.conf.Positional] = DEFAULT
    """dataset/method, from `atcl list recipes`"""
    seed: int = 1
    """labels, weights and batches follow from it"""
    seeds: tuple[int, ...] = ()
    """in its place: a model for each of several seeds, all at once on one GPU"""
    out: Path | None = None
    """folder of the run; by default runs/RECIPE/seed-N, a digest behind RECIPE where settings changed; with --seeds the folder that holds seed-N"""
    device: str = "auto"
    """auto, cpu or cuda"""
    engine: str = "auto"
    """how a step is carried out, a name from `atcl list engines`; auto goes by the device and the size of the job"""
    deterministic: bool = False
    """fp32, and only algorithms that give the same bits each time; slower"""
    data_dir: Path | None = None
    """where the dataset's files lie; not needed for digits"""
    images: Path | None = None
    """a folder of pictures of your own, in the place of the recipe's dataset"""
    labels: Path | None = None
    """their labels: a CSV file with the columns file and not"""
    classes: tuple[str, ...] = ()
    """names of the classes; by default those that the CSV file rules out"""
    observe: tuple[str, ...] = ()
    """what to look at while training, names from `atcl list observations`; it changes nothing, and is kept in analysis.jsonl"""
    observe_every: int | None = None
    """epochs between two looks; by default so many that all looks together are meant to take less than 5% of the time"""
    tensorboard: bool = False
    """log the same numbers for TensorBoard, in the folder of the run; it takes pip install 'atcl[tensorboard]'"""
    report: bool = True
    """end with report.html in the folder of the run; --no-report leaves it out"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        own = (
            self.images is not None
            or self.labels is not None
            or bool(self.classes)
            or self.recipe.startswith(f"{OWN}/")
        )
        wanted = _wanted(self.recipe, overrides, "train", own)
        if own and wanted.dataset != OWN:
            raise AtclError(f"--images gives the data: leave out --dataset {wanted.dataset}")
        problem = self._problem(wanted.shape) if own else None
        name = f"{OWN}/{self.recipe.partition('/')[2]}" if own else self.recipe
        wanted = repeatable_form(wanted) if self.deterministic else wanted
        if self.seeds and self.seed != 1:
            raise AtclError(f"give --seed {self.seed} or --seeds {' '.join(map(str, self.seeds))}, not both")
        seeds = self.seeds or (self.seed,)
        parent = Path("runs", *folder_of(name, wanted)) if self.out is None else self.out
        outs = [parent / f"seed-{seed}" if self.out is None or self.seeds else self.out for seed in seeds]
        if self.tensorboard:
            boards.check_installed()
        pictures = (
            [f"{len(problem.train)} pictures, classes {', '.join(problem.names or ())}"] if problem else []
        )
        opening = [
            *pictures,
            *(f"{name}, seed {seed}, to {out}" for seed, out in zip(seeds, outs, strict=True)),
        ]
        specs = [
            RunSpec.of(wanted, name=name, seed=seed, out=out, problem=problem)
            for seed, out in zip(seeds, outs, strict=True)
        ]
        observing = Observers(tuple(self.observe), self.observe_every)
        execution = Execution(self.device, self.data_dir, self.engine, self.deterministic, observing)
        trained = _train(console, specs, execution, self.tensorboard, opening)
        for done in trained:
            _tell(console, done, REPORTED)
        if self.report:
            after_training(console, trained, parent, self.device, self.data_dir)
        for done in trained:
            console.print(
                f"recipe, journal, model and result lie in {done.folder}", highlight=False, markup=False
            )

    def _problem(self, shape: tuple[int, int, int]) -> Problem:
        if self.images is None or self.labels is None:
            raise AtclError(
                "pictures of your own take two options: --images FOLDER and --labels FILE.csv, which has the columns file and not"
            )
        found = read_folder(self.images, self.labels, shape, self.classes or None)
        return Problem(found.data, names=found.names)


@dataclass(frozen=True)
class Evaluate:
    """Measure a run's chosen model, and keep the numbers in its result.json."""

    run_folder: Annotated[Path, tyro.conf.Positional]
    """folder of a run"""
    attacks: tuple[str, ...] = REPORTED
    """names from `atcl list attacks`"""
    seed: int = 0
    """of the attacks' random starts"""
    batch_size: int | None = None
    """images at a time; by default 500, and for AutoAttack on a GPU up to 10,000, by the size of the model and of the GPU"""
    device: str = "auto"
    data_dir: Path | None = None
    images: Path | None = None
    """a folder of pictures to evaluate on, in the place of the recipe's test set"""
    labels: Path | None = None
    """their true classes: a CSV file with the columns file and class"""
    checks: bool = True
    """look for signs of false robustness; --no-checks is faster"""
    strict_fp32: bool = False
    """full fp32 on a GPU, where convolutions else use tf32"""
    json: bool = False
    """print result.json (of your own pictures: their accuracies) instead of a table"""
    report: bool = True
    """where the run has a report.html, write it anew; --no-report leaves it as it is"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        done = open_run(self.run_folder)
        test = None
        if self.images is not None or self.labels is not None:
            if self.images is None or self.labels is None:
                raise AtclError(
                    "pictures of your own take two options: --images FOLDER and --labels FILE.csv, which has the columns file and class"
                )
            test = read_truth(self.images, self.labels, done.shape, done.class_names)
        try:
            with EvaluationProgress(Console(stderr=True)) as judging:
                measured = done.evaluate(
                    self.attacks,
                    device=self.device,
                    test=test,
                    seed=self.seed,
                    batch_size=self.batch_size,
                    data_dir=self.data_dir,
                    checks=self.checks,
                    strict_fp32=self.strict_fp32,
                    watch=judging,
                )
        except torch.OutOfMemoryError:
            raise AtclError(
                "the GPU's memory does not hold so many images at a time: give a smaller --batch-size; what is done is kept"
            ) from None
        found = {"metrics": {name: asdict(one) for name, one in measured.items()}} if test else done.result
        if self.json:
            print(json.dumps(found, indent=2))
            self._report(Console(stderr=True), done)
            return
        console.print(caption(done.result), highlight=False, markup=False)
        console.print(metrics_table(found, list(dict.fromkeys([*self.attacks, WORST]))))
        for flag in [] if test else done.result["flags"] or []:
            console.print(
                f"{flag['name']}: {flag['says']} (docs/masking.md)", highlight=False, soft_wrap=True
            )
        console.print(
            "measured on your pictures; nothing is kept"
            if test
            else f"kept in {done.folder / 'result.json'}",
            highlight=False,
            markup=False,
        )
        self._report(console, done)

    def _report(self, console: Console, done: Run) -> None:
        if self.report and self.images is None:  # what is measured on other pictures is on no page
            after_evaluation(console, done, self.device, self.data_dir)


@dataclass(frozen=True)
class Predict:
    """Tell the class of pictures, how sure the model is, and whether PGD20 at the recipe's epsilon would change its mind."""

    run_folder: Annotated[Path, tyro.conf.Positional]
    """folder of a run"""
    images: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """pictures, and folders of pictures"""
    json: bool = False
    """a list of objects instead of CSV; so does a file --out that ends in .json"""
    out: Path | None = None
    """write there instead of to the terminal"""
    attack: bool = True
    """try each prediction with PGD20; --no-attack is faster"""
    seed: int = 0
    """of the attack's random start"""
    batch_size: int = 500
    device: str = "auto"

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        done = open_run(self.run_folder)
        if self.out is not None and (self.out.is_dir() or not self.out.parent.is_dir()):
            raise AtclError(
                f"{self.out} cannot be written: {'it is a folder' if self.out.is_dir() else f'{self.out.parent} is no folder'}"
            )
        found = predict(
            done,
            self.images,
            attack=self.attack,
            device=self.device,
            seed=self.seed,
            batch_size=self.batch_size,
        )
        text = (
            predictions_as_json(found)
            if self.json or (self.out and self.out.suffix == ".json")
            else predictions_as_csv(found)
        )
        if self.out is None:
            print(text, end="")
            return
        try:
            write_whole(self.out, text.encode())
        except OSError as error:
            raise AtclError(f"{self.out} cannot be written: {error.strerror}") from None
        console.print(f"{len(found)} predictions lie in {self.out}", highlight=False, markup=False)


@dataclass(frozen=True)
class Export:
    """Write a run's chosen model to a file that runs elsewhere, after checking that it says the same."""

    run_folder: Annotated[Path, tyro.conf.Positional]
    """folder of a run"""
    format: str = "onnx"
    """a name from `atcl list exports`"""
    out: Path | None = None
    """the file; by default exported.FORMAT in the folder of the run"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        pick(EXPORTS, self.format, "format")
        done = open_run(self.run_folder)
        path = self.out or done.folder / f"exported.{self.format}"
        if path.suffix[1:] in EXPORTS and path.suffix[1:] != self.format:
            raise AtclError(
                f"{path} would hold {self.format}: give --format {path.suffix[1:]}, or another name"
            )
        if path.parent.resolve() == done.folder.resolve() and path.name in layout.FILES:
            raise AtclError(f"{path} is the run's own: choose another name")
        made = export(done.model(), done.shape, done.class_names, path, self.format, kind=done.recipe.model)
        shape = ", ".join(map(str, done.shape))
        console.print(
            f"takes floats in [0, 1] of shape (n, {shape}), returns {done.classes} logits for each image",
            highlight=False,
        )
        console.print(
            f"read back and compared: the same classes, logits within {made.difference:.1e}", highlight=False
        )
        console.print(f"{made.bytes:,} bytes lie in {made.path}", highlight=False, markup=False)


@dataclass(frozen=True)
class List:
    """List what there is to choose from: a name and what it is on each line."""

    what: Annotated[Listable, tyro.conf.Positional]

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        width = max(map(len, LISTED[self.what]))
        for name, about in LISTED[self.what].items():
            print(f"{name:{width}}  {about}".rstrip())


@dataclass(frozen=True)
class Show:
    """Print a recipe in full, with what each epoch does; overrides are taken as in `atcl train`."""

    recipe: Annotated[str, tyro.conf.Positional] = DEFAULT
    """dataset/method, from `atcl list recipes`"""
    own: bool = False
    """as it is used on pictures of your own (train --images)"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        wanted = _wanted(self.recipe, overrides, "show", self.own)
        print("\n".join(options(wanted)))
        for number, stage in enumerate(wanted.stages, 1):
            console.print(f"\nstage {number} of {len(wanted.stages)}", highlight=False)
            console.print(schedule_table(stage))


Command = Train | Evaluate | Predict | Export | List | Show | Reproduce | Observe | Figure | Report

COMMANDS: dict[str, type[Command]] = {
    "train": Train,
    "evaluate": Evaluate,
    "predict": Predict,
    "export": Export,
    "list": List,
    "show": Show,
    "reproduce": Reproduce,
    "observe": Observe,
    "figure": Figure,
    "report": Report,
}

TAKES_OVERRIDES = (Train, Show)


def _wanted(name: str, overrides: Sequence[str], command: str, own: bool = False) -> Recipe:
    plain = on_own_data(recipe(name)) if own else recipe(name)
    return (
        overridden(plain, overrides, f"atcl {command} {name}", option_names(COMMANDS[command]))
        if overrides
        else plain
    )


def _train(
    console: Console,
    specs: Sequence[RunSpec],
    execution: Execution,
    tensorboard: bool,
    opening: Sequence[str],
) -> list[Run]:
    with progress_bars(console, [f"seed {spec.seed}" for spec in specs], opening) as shown:
        logged = [boards.TensorBoardLogger(live) for live in shown] if tensorboard else []
        trained = train_together(specs, execution, logged or shown)
        for log, run in zip(logged, trained, strict=False):
            log.close(run)
        return trained


def _tell(console: Console, done: Run, attacks: Sequence[str]) -> None:
    """Print what was measured: on the test set, and by held-out labels, each where there are any."""
    console.print(caption(done.result), highlight=False, soft_wrap=True, markup=False)
    if done.result["metrics"]:
        console.print(metrics_table(done.result, attacks))
        if done.result["flags"] is None:
            console.print(
                f"`atcl evaluate {done.folder}` looks for signs of false robustness",
                highlight=False,
                soft_wrap=True,
                markup=False,
            )
    if done.result.get("held"):
        images = done.result["held"]["robust"]["images"]
        console.print(
            f"estimated from the complementary labels of {images} held-out images, without truth:",
            highlight=False,
        )
        console.print(held_table(done.result["held"]))
