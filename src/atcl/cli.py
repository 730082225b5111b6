"""The command line: a dict of commands, each a dataclass of options with one verb."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from atcl.console import Live, caption, metrics_table, schedule_table
from atcl.data import DATASETS
from atcl.environment import __version__
from atcl.errors import AtclError, pick
from atcl.evaluation import ATTACKS
from atcl.experiments import EXPERIMENTS, missing, reproduce, table, with_table
from atcl.files import write_whole
from atcl.labels import LABELS
from atcl.losses import LOSSES
from atcl.models import MODELS
from atcl.recipes import RECIPES, Recipe, recipe
from atcl.running import train
from atcl.runs import REPORTED, Run, folder_of, open_run
from atcl.settings import overridden, parse

DEFAULT = "digits/warmup-pla"


@dataclass(frozen=True)
class Train:
    """Train by a recipe, or go on with a run that was stopped. Any setting that `atcl show RECIPE` prints can be changed: --stages.0.epochs 3"""

    recipe: Annotated[str, tyro.conf.Positional] = DEFAULT
    """dataset/method, from `atcl list recipes`"""
    seed: int = 1
    """labels, weights and batches follow from it"""
    out: Path | None = None
    """folder of the run; by default runs/RECIPE/seed-N"""
    device: str = "auto"
    """auto, cpu or cuda"""
    data_dir: Path | None = None
    """where the dataset's files lie; not needed for digits"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        wanted = _wanted(self.recipe, overrides, "train")
        out = self.out or Path("runs", *folder_of(self.recipe, wanted), f"seed-{self.seed}")
        console.print(f"{self.recipe}, seed {self.seed}, to {out}", highlight=False)
        done = _train(console, wanted, self.recipe, self.seed, out, self.device, self.data_dir)
        console.print(caption(done.result), highlight=False)
        console.print(metrics_table(done.result, REPORTED))
        console.print(f"recipe, journal, model and result lie in {done.folder}", highlight=False)


@dataclass(frozen=True)
class Evaluate:
    """Measure a run's chosen model, and keep the numbers in its result.json."""

    run_folder: Annotated[Path, tyro.conf.Positional]
    """folder of a run"""
    attacks: tuple[str, ...] = REPORTED
    """names from `atcl list attacks`"""
    seed: int = 0
    """of the attacks' random starts"""
    batch_size: int = 500
    device: str = "auto"
    data_dir: Path | None = None
    json: bool = False
    """print result.json instead of a table"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        done = open_run(self.run_folder)
        done.evaluate(self.attacks, device=self.device, seed=self.seed, batch_size=self.batch_size, data_dir=self.data_dir)
        if self.json:
            print(json.dumps(done.result, indent=2))
            return
        console.print(caption(done.result), highlight=False)
        console.print(metrics_table(done.result, self.attacks))
        console.print(f"kept in {done.folder / 'result.json'}", highlight=False)


@dataclass(frozen=True)
class List:
    """List what there is to choose from."""

    what: Annotated[Literal["recipes", "losses", "datasets", "models", "labels", "attacks", "experiments"], tyro.conf.Positional]

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        for name in LISTED[self.what]:
            print(name)


@dataclass(frozen=True)
class Show:
    """Print a recipe in full, with what each epoch does; overrides are taken as in `atcl train`."""

    recipe: Annotated[str, tyro.conf.Positional] = DEFAULT
    """dataset/method, from `atcl list recipes`"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        wanted = _wanted(self.recipe, overrides, "show")
        print("\n".join(_lines(wanted)))
        for number, stage in enumerate(wanted.stages, 1):
            console.print(f"\nstage {number} of {len(wanted.stages)}", highlight=False)
            console.print(schedule_table(stage))


@dataclass(frozen=True)
class Reproduce:
    """Run what an experiment still lacks, and print its table."""

    experiment: Annotated[str, tyro.conf.Positional]
    """a name from `atcl list experiments`"""
    results: Path = Path("results")
    """the ledger: one result.json for each run"""
    runs: Path = Path("runs")
    """where new runs go"""
    write: Path | None = None
    """also put the table between its markers in this Markdown page"""
    device: str = "auto"
    data_dir: Path | None = None
    dry_run: bool = False
    """only list the runs that are missing"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        experiment = pick(EXPERIMENTS, self.experiment, "experiment")
        if self.write:
            if not self.write.is_file():
                raise AtclError(f"there is no page {self.write} to write the table into")
            with_table(self.write.read_text(), self.experiment, "")  # is there a place for it? better asked before the runs than after
        if self.dry_run:
            lacking = [f"atcl train {name} --seed {seed}" for name, seed in missing(experiment, self.results)]
            print("\n".join(lacking) or "nothing is missing")
            return

        def run(name: str, seed: int) -> Run:
            console.print(f"{name}, seed {seed}", highlight=False)
            return _train(console, recipe(name), name, seed, self.runs / name / f"seed-{seed}", self.device, self.data_dir)

        reproduce(experiment, self.results, run)
        text = table(experiment, self.results)
        console.print(f"{experiment.about}\n", highlight=False, soft_wrap=True)
        print(text)
        if self.write:
            write_whole(self.write, with_table(self.write.read_text(), self.experiment, text).encode())
        console.print(f"results lie in {self.results}", highlight=False)


Command = Train | Evaluate | List | Show | Reproduce

COMMANDS: dict[str, type[Command]] = {"train": Train, "evaluate": Evaluate, "list": List, "show": Show, "reproduce": Reproduce}

LISTED: dict[str, Sequence[str]] = {
    "recipes": list(RECIPES), "losses": list(LOSSES), "datasets": list(DATASETS), "models": list(MODELS), "labels": list(LABELS),
    "attacks": list(ATTACKS), "experiments": list(EXPERIMENTS),
}  # fmt: skip

TAKES_OVERRIDES = (Train, Show)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a mistake of the user's gives one line on standard error and exit code 1."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if words[0] == "--version":
        print(__version__)
        return 0
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        kind = pick(COMMANDS, words[0], "command")
        if kind in TAKES_OVERRIDES:
            words = [words[0], *_recipe_first(words[1:])]
        command, unknown = parse(kind, words[1:], f"atcl {words[0]}", return_unknown_args=True)
        if unknown and kind not in TAKES_OVERRIDES:
            raise AtclError(f"`atcl {words[0]}` does not know {' '.join(unknown)}; see atcl {words[0]} --help")
        command.run(console, unknown)
    except AtclError as error:
        print(f"atcl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("atcl: stopped; the same command goes on where it was", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has left; nothing more to say to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _recipe_first(words: Sequence[str]) -> list[str]:
    """Return the words with the recipe in front, the default where none is named: tyro would take an override for it."""
    named = next((word for word in words if "/" in word and word in RECIPES), None)
    if words and words[0].startswith("-") and words[0] not in ("-h", "--help"):
        return [named or DEFAULT, *(word for word in words if word != named)]
    return list(words)


def _overview() -> str:
    lines = [f"  atcl {name:10} {str(kind.__doc__).split('. ')[0].rstrip('.')}" for name, kind in COMMANDS.items()]
    return "\n".join(["Robust image classifiers from complementary labels alone.", "", *lines, "", "`atcl COMMAND --help` tells the rest."])


def _wanted(name: str, overrides: Sequence[str], command: str) -> Recipe:
    plain = recipe(name)
    return overridden(plain, overrides, f"atcl {command} {name}") if overrides else plain


def _train(console: Console, wanted: Recipe, name: str, seed: int, out: Path, device: str, data_dir: Path | None) -> Run:
    with Live(console) as live:
        return train(wanted, name=name, seed=seed, out=out, device=device, data_dir=data_dir, watcher=live)


def _lines(value: Any, name: str = "") -> list[str]:
    """Return settings as the options that would give them, each group under the name of its kind."""
    if is_dataclass(value):
        kind = [f"# {name}: {type(value).__name__}"] if name else []
        return kind + [line for part in fields(value) for line in _lines(getattr(value, part.name), f"{name}.{part.name}".lstrip("."))]
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return [line for number, part in enumerate(value) for line in _lines(part, f"{name}.{number}")]
    return [f"--{name} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"]
