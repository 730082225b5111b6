"""A run in its folder: stages in order, checkpoints, resume, the chosen epoch, its result. Here alone weak data and truth meet."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from atcl import checkpoints, journal
from atcl.batches import WeakData
from atcl.data import DATASETS
from atcl.environment import environment, resolve
from atcl.errors import AtclError, pick
from atcl.evaluation import Measurement, evaluate
from atcl.files import read_json, sole_writer, write_json, write_whole
from atcl.labels import weaken
from atcl.models import MODELS
from atcl.recipes import KINDS, RECIPES, Recipe, recipe
from atcl.selection import Best, tracked
from atcl.settings import digest, from_data, to_data
from atcl.supervision import guesses, relabel, with_sole_candidate
from atcl.training import Learner, Snapshot, Stage, derive, fit
from atcl.truth import Split, Truth

REPORTED = ("natural", "pgd20", "cw30")


@dataclass(frozen=True)
class Problem:
    """Weak labels to learn from, and, for looking on only, the truth."""

    train: WeakData
    truth: Truth | None = None  # of the training images: for the accuracy of pseudo-labels in the journal
    test: Split | None = None


class Watcher:
    """What a run tells while it goes; this one keeps silent."""

    def begin(self, run: "Run", stage: int, epoch: int) -> None:
        """The run is about to go on after an epoch of a stage (0, 0: from the start)."""

    def epoch(self, record: journal.Record) -> None:
        """An epoch has ended, and this is its line in the journal."""

    def say(self, text: str) -> None:
        """Something that the user should know."""


class Run:
    """A folder with `recipe.json`, `journal.jsonl`, `checkpoints/`, `model.safetensors` and `result.json`."""

    def __init__(self, folder: Path, recipe: Recipe, name: str, seed: int) -> None:
        self.folder, self.recipe, self.name, self.seed = folder, recipe, name, seed

    @property
    def result(self) -> dict[str, Any]:
        """What `result.json` says; it is there once training has ended."""
        data: dict[str, Any] = read_json(self.folder / "result.json")
        return data

    @property
    def journal(self) -> list[journal.Record]:
        """One record an epoch."""
        return journal.read(self.folder / "journal.jsonl")

    def model(self, device: str = "cpu", build: Callable[[], Module] | None = None, data_dir: Path | None = None) -> Module:
        """Return the chosen model, in eval mode; a model of your own needs `build` again."""
        path = self.folder / "model.safetensors"
        if not path.exists():
            raise AtclError(f"{self.folder} has no model yet: the same `atcl train` command goes on with it")
        model = build() if build else _build(self.recipe, pick(DATASETS, self.recipe.dataset, "dataset")(data_dir).train)
        model.load_state_dict(checkpoints.unpacked(path.read_bytes(), path))
        return model.to(resolve(device)).eval()

    def evaluate(
        self, attacks: Sequence[str] = REPORTED, *, device: str = "auto", test: Split | None = None, seed: int = 0, batch_size: int = 500,
        build: Callable[[], Module] | None = None, data_dir: Path | None = None,
    ) -> dict[str, Measurement]:  # fmt: skip
        """Measure the chosen model, and keep the numbers in `result.json`."""
        test = test or pick(DATASETS, self.recipe.dataset, "dataset")(data_dir).test
        model = self.model(device, build, data_dir)
        measured = evaluate(model, test, self.recipe.threat, attacks, seed=seed, batch_size=batch_size)
        with sole_writer(self.folder):
            result = self.result
            result["metrics"] |= {name: asdict(one) for name, one in measured.items()}
            write_json(self.folder / "result.json", result)
        return measured


def open_run(folder: Path | str) -> Run:
    """Return the run that lies in a folder."""
    folder = Path(folder)
    if not (folder / "recipe.json").exists():
        raise AtclError(f"{folder} is not the folder of a run: there is no recipe.json in it")
    told = read_json(folder / "recipe.json")
    try:
        return Run(folder, from_data(told["recipe"], KINDS), told["name"], told["seed"])
    except KeyError as error:
        raise AtclError(f"{folder / 'recipe.json'} is not of a run: it lacks {error}") from None


def train(
    what: Recipe | str, *, name: str | None = None, seed: int = 1, out: Path | str | None = None, device: str = "auto", data_dir: Path | None = None,
    problem: Problem | None = None, build: Callable[[], Module] | None = None, watcher: Watcher | None = None,
) -> Run:  # fmt: skip
    """Train by a recipe, or go on with a run that was stopped; return it with its result.

    `problem` brings your own data and `build` your own model; the recipe then keeps their names, not its own.
    """
    wanted = recipe(what) if isinstance(what, str) else what
    name = name or (what if isinstance(what, str) else name_of(what))
    if build:
        wanted = replace(wanted, model=getattr(build, "__name__", "own"))
    run = Run(Path(out) if out else Path("runs", *folder_of(name, wanted), f"seed-{seed}"), wanted, name, seed)
    target = resolve(device)
    problem = problem or _problem(wanted, seed, data_dir)
    if problem.test is None and (wanted.looks_at_test_truth or wanted.selection != "last"):
        raise AtclError("this recipe chooses an epoch on a test set, and there is none: set selection and teacher to last")
    watcher = watcher or Watcher()
    with sole_writer(run.folder):
        _claim(run, problem)
        if not (run.folder / "result.json").exists():
            _train(run, replace(problem, train=problem.train.to(target)), build, watcher)
    return run


def name_of(wanted: Recipe) -> str:
    """Return the name of a recipe: its own, or for a variant its dataset's with `custom`."""
    return next((name for name, build in RECIPES.items() if build() == wanted), f"{wanted.dataset}/custom")


def folder_of(name: str, wanted: Recipe) -> tuple[str, str]:
    """Return dataset and method, the method with a digest where the settings are not those of the named recipe."""
    dataset, _, method = name.partition("/")
    plain = name in RECIPES and RECIPES[name]() == wanted
    return dataset, method if plain else f"{method}-{digest(wanted)}"


def _problem(wanted: Recipe, seed: int, data_dir: Path | None) -> Problem:
    dataset = pick(DATASETS, wanted.dataset, "dataset")(data_dir)
    wanted.labels.check(dataset.classes)
    return Problem(weaken(dataset.train, wanted.labels, derive(seed, "labels")), dataset.train.truth, dataset.test)


def _claim(run: Run, problem: Problem) -> None:
    """Write `recipe.json`, or refuse a folder that holds another recipe, seed or dataset."""
    path = run.folder / "recipe.json"
    told = {"name": run.name, "seed": run.seed, "data": fingerprint(problem.train), "recipe": to_data(run.recipe)}
    if not path.exists():
        write_json(path, told)
        return
    held = read_json(path)
    differing = [key for key in ("recipe", "seed", "data") if held.get(key) != told[key]]
    if differing:
        raise AtclError(f"{run.folder} holds a run with another {' and '.join(differing)}: choose another --out")


def fingerprint(data: WeakData) -> str:
    """Return a digest of the training images and their candidates."""
    summary = hashlib.sha256()
    for tensor in (data.x, data.candidates):
        summary.update(str((tensor.dtype, tuple(tensor.shape))).encode() + tensor.cpu().contiguous().numpy().tobytes())
    return summary.hexdigest()[:16]


@dataclass
class Position:
    """Where a run stands: a stage, with what it trains and on what."""

    number: int
    learner: Learner
    data: WeakData
    best: Best


def _train(run: Run, problem: Problem, build: Callable[[], Module] | None, watcher: Watcher) -> None:
    """Go through the stages that are not done yet, then write the result."""
    saved = checkpoints.newest(run.folder / "checkpoints", watcher.say)
    position = _restored(run, problem, build, saved) if saved else _opened(run, problem, build)
    journal.cut_back(run.folder / "journal.jsonl", position.number, position.learner.epoch)
    watcher.begin(run, position.number, position.learner.epoch)
    while True:
        stage = run.recipe.stages[position.number]
        observe = _observer(run, problem, position, watcher)
        fit(position.learner, position.data, stage, seed=derive(run.seed, "stage", position.number), observers=[observe])
        if position.number + 1 == len(run.recipe.stages):
            break
        position = _advanced(run, problem, build, position)
    _finish(run, problem, position)


def _opened(run: Run, problem: Problem, build: Callable[[], Module] | None) -> Position:
    """Return the start of the first stage."""
    return Position(0, _fresh(run, 0, problem.train, build), problem.train, Best(tracked(run.recipe, 0)))


def _advanced(run: Run, problem: Problem, build: Callable[[], Module] | None, done: Position) -> Position:
    """Return the start of the stage after one that is done."""
    number = done.number + 1
    stage = run.recipe.stages[number]
    data = done.data
    if stage.teacher != "none":
        data = relabel(problem.train, _teacher(stage, done))
    learner = done.learner
    learner.epoch = 0
    if stage.fresh:
        learner = _fresh(run, number, data, build)
    return Position(number, learner, data, Best(tracked(run.recipe, number)))


def _restored(run: Run, problem: Problem, build: Callable[[], Module] | None, saved: dict[str, Tensor]) -> Position:
    """Return where a checkpoint was written."""
    state = checkpoints.to_device(saved, problem.train.x.device)
    number = int(state["stage"])
    data = with_sole_candidate(problem.train, state["relabelled"]) if "relabelled" in state else problem.train
    position = Position(number, _fresh(run, number, data, build), data, Best(tracked(run.recipe, number)))
    position.learner.load(state)
    position.best.load(state)
    return position


def _observer(run: Run, problem: Problem, position: Position, watcher: Watcher) -> Callable[[Snapshot], None]:
    """Return what happens after each epoch: the journal's line first, so that a cut between the two loses no line, then the checkpoint."""
    number, learner, data, best = position.number, position.learner, position.data, position.best
    last = time.perf_counter()

    def observe(snapshot: Snapshot) -> None:
        nonlocal last
        phase = snapshot.phase
        record: journal.Record = {
            "stage": number, "epoch": phase.epoch, "epsilon": phase.budget.epsilon, "step_size": phase.budget.step_size, "steps": phase.budget.steps,
            "gamma": phase.gamma, "lr": phase.lr, "loss": snapshot.loss, "inside": snapshot.inside, "agreement": snapshot.agreement,
        }  # fmt: skip
        if snapshot.agreement is not None and problem.truth is not None:
            guess = guesses(snapshot.memory, data.candidates)
            record["pseudo_label_accuracy"] = float((guess == problem.truth.labels.to(guess.device)).float().mean())
        if best.metric and problem.test:
            measured = evaluate(snapshot.model, problem.test, run.recipe.threat, ("natural", best.metric))
            record |= {f"test_{name}": one.accuracy for name, one in measured.items()}
            best.see(measured[best.metric].accuracy, phase.epoch, snapshot.model)
        last, record["seconds"] = time.perf_counter(), time.perf_counter() - last
        journal.append(run.folder / "journal.jsonl", record)
        relabelled = {} if data is problem.train else {"relabelled": data.candidates.int().argmax(1)}
        state = {**learner.state(), **best.state(), **relabelled, "stage": torch.tensor(number)}
        checkpoints.save(run.folder / "checkpoints", number, phase.epoch, state)
        watcher.epoch(record)

    return observe


def _fresh(run: Run, number: int, data: WeakData, build: Callable[[], Module] | None) -> Learner:
    """Return a learner with new weights, which follow from the run's seed and leave the global random state alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(run.seed, "model", number))
        model = build() if build else _build(run.recipe, data)
    return Learner(model, data, run.recipe.stages[number])


def _build(wanted: Recipe, images: WeakData | Split) -> Module:
    channels, height, width = images.x.shape[1:]
    classes = images.classes if isinstance(images, WeakData) else images.truth.classes
    return pick(MODELS, wanted.model, "model")(classes, (channels, height, width))


def _teacher(stage: Stage, done: Position) -> Module:
    """Return the model that relabels."""
    # Paper: the best by validation; official code: the best by natural accuracy on the test set. The default is the last epoch, without truth.
    if stage.teacher == "test_natural":
        done.learner.frozen.load_state_dict(done.best.weights)
    return done.learner.frozen


def _finish(run: Run, problem: Problem, position: Position) -> None:
    """Write the chosen model and the result."""
    best, chosen = position.best, position.learner.refresh()
    if best.weights:
        chosen.load_state_dict(best.weights)
    write_whole(run.folder / "model.safetensors", checkpoints.packed(chosen.state_dict()))
    measured = evaluate(chosen, problem.test, run.recipe.threat, REPORTED) if problem.test else {}
    records = run.journal
    result = {
        "name": run.name, "digest": digest(run.recipe), "seed": run.seed,
        "selection": {"rule": run.recipe.selection, "epoch": best.epoch or records[-1]["epoch"]},
        "metrics": {name: asdict(one) for name, one in measured.items()},
        "last_epoch": records[-1], "training_seconds": sum(record["seconds"] for record in records),
        "environment": environment(problem.train.x.device), "recipe": to_data(run.recipe),
    }  # fmt: skip
    write_json(run.folder / "result.json", result)
