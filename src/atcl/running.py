"""Carrying a run out: stages in order, checkpoints, resume, the chosen epoch, its result. Here alone weak data and truth meet."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from atcl import checkpoints, journal, observing
from atcl.analysis import pseudo_label_accuracy
from atcl.attacks import evaluating
from atcl.batches import WeakData, as_float
from atcl.data import DATASETS
from atcl.environment import environment, resolve
from atcl.errors import AtclError, pick
from atcl.files import clear_parts, read_json, sole_writer, write_json, write_whole
from atcl.heldout import check_invertible, judge
from atcl.labels import Given, weaken
from atcl.recipes import OWN, Recipe, recipe
from atcl.runs import REPORTED, Build, Problem, Run, folder_of, name_of
from atcl.seeds import derive, forked_rng
from atcl.selection import Best
from atcl.settings import digest, to_data
from atcl.supervision import relabel, with_sole_candidate
from atcl.training import Learner, Snapshot, fit
from atcl.transitions import estimated_transition
from atcl.verdicts import measure


class Watcher:
    """What a run tells while it goes; this one keeps silent."""

    def begin(self, run: Run, stage: int, epoch: int) -> None:
        """The run is about to go on after an epoch of a stage (0, 0: from the start)."""

    def epoch(self, record: journal.Record) -> None:
        """An epoch has ended, and this is its line in the journal."""

    def say(self, text: str) -> None:
        """Something that the user should know."""


def train(
    what: Recipe | str, *, name: str | None = None, seed: int = 1, out: Path | str | None = None, device: str = "auto", data_dir: Path | None = None,
    problem: Problem | None = None, build: Build | None = None, watcher: Watcher | None = None,
    observe: Sequence[str] = (), every: int | None = None,
) -> Run:  # fmt: skip
    """Train by a recipe, or go on with a run that was stopped; return it with its result.

    `problem` brings your own data, `build` a function that returns your own model; the run's recipe then names them instead of its own.
    `observe` names what onlookers write to `analysis.jsonl`, `every` so many epochs (by default so seldom that they slow the run by 5% at most).
    """
    if not isinstance(seed, int) or seed < 0:
        raise AtclError(f"a seed is a whole number of at least 0, not {seed!r}")
    wanted = recipe(what) if isinstance(what, str) else what
    name = name or (what if isinstance(what, str) else name_of(what))
    target = resolve(device)
    if problem is None:
        problem = problem_of(wanted, seed, data_dir)
    else:
        wanted, name = _on_own_data(wanted, problem), f"{OWN}/{name.partition('/')[2]}"
        if wanted.holdout and problem.held is None:
            problem = problem.held_out(wanted.holdout, derive(seed, "holdout"))
    if build is not None:
        wanted = replace(wanted, model=getattr(build, "__name__", OWN))
    if problem.test is None and "test" in wanted.needs:
        raise AtclError(
            "this recipe chooses an epoch on a test set, and there is none: set selection and teacher to last, or to a rule on held-out labels"
        )
    if problem.held is None and "held" in wanted.needs:
        raise AtclError("this recipe chooses an epoch by held-out labels, and there are none: set holdout, such as 0.1, or selection to last")
    if problem.held is not None:
        check_invertible(problem.held)
    observing.check(observe, problem, every)
    folder = Path(out) if out else Path("runs", *folder_of(name, wanted), f"seed-{seed}")
    run = Run(folder, name, seed, wanted, problem.train.classes, wanted.shape, problem.names)
    watcher = watcher or Watcher()
    _probe(run, problem, build)
    with sole_writer(folder):
        run.claim(problem)
        if not ((folder / "result.json").exists() and (folder / "model.safetensors").exists()):
            there = problem.to(target)
            there = _estimated(run, there, build, watcher) if wanted.transition == "estimated" else there
            _train(run, there, build, watcher, observe, every)
        else:
            watcher.say("this run is finished: nothing is trained again")
    return run


def problem_of(wanted: Recipe, seed: int, data_dir: Path | None = None) -> Problem:
    """Return what a recipe learns from: its dataset, with labels and a held-out part that follow from the seed."""
    if wanted.dataset == OWN:
        raise AtclError("this recipe learns from data of your own: give them as `problem` (from the shell: --images FOLDER --labels FILE.csv)")
    dataset = pick(DATASETS, wanted.dataset, "dataset")(data_dir)
    wanted.labels.check(dataset.classes)
    if dataset.shape != wanted.shape:
        raise AtclError(f"{wanted.dataset} has images of shape {dataset.shape}, but the recipe says {wanted.shape}: set shape")
    problem = Problem(weaken(dataset.train, wanted.labels, derive(seed, "labels")), dataset.train.truth, dataset.test)
    return problem.held_out(wanted.holdout, derive(seed, "holdout")) if wanted.holdout else problem


def _on_own_data(wanted: Recipe, problem: Problem) -> Recipe:
    channels, height, width = problem.train.x.shape[1:]
    return replace(wanted, dataset=OWN, labels=Given(), shape=(channels, height, width))


def _probe(run: Run, problem: Problem, build: Build | None) -> None:
    """Pass two images through a new model, so that one that does not fit is refused before anything is written."""
    with forked_rng():
        model = run.fresh_model(build)
        if next(model.parameters(), None) is None:
            raise AtclError(f"the model {run.recipe.model} has no parameters to train")
        try:
            with evaluating(model), torch.no_grad():
                logits = model(as_float(problem.train.x[:2].cpu()))
        except RuntimeError as error:
            raise AtclError(f"the model {run.recipe.model} does not take images of shape {run.shape}: {str(error).splitlines()[0]}") from None
    if logits.shape != (min(2, len(problem.train)), run.classes):
        raise AtclError(f"the model {run.recipe.model} returns {tuple(logits.shape)} for two images, and there are {run.classes} classes")


def _estimated(run: Run, problem: Problem, build: Build | None, watcher: Watcher) -> Problem:
    """Return the problem with a transition matrix estimated from its weak labels, which a resumed run finds in its folder."""
    path, made = run.folder / "transition.json", {"seed": run.seed, "recipe": digest(run.recipe), **problem.fingerprints()}
    kept = read_json(path) if path.exists() else {}
    if kept.get("made") != made:  # of a start that was given up for another
        watcher.say("estimating the transition matrix from the complementary labels")
        found = estimated_transition(problem.train, lambda: run.fresh_model(build), seed=derive(run.seed, "transition"))
        kept = {"made": made, "matrix": found.tolist()}
        write_json(path, kept)
    transition = torch.tensor(kept["matrix"], device=problem.train.device)
    held = None if problem.held is None else replace(problem.held, transition=transition)
    return replace(problem, train=replace(problem.train, transition=transition), held=held)


@dataclass
class Position:
    """Where a run stands: a stage, with what it trains and on what."""

    number: int
    learner: Learner
    data: WeakData
    best: Best


def _train(run: Run, problem: Problem, build: Build | None, watcher: Watcher, names: Sequence[str], every: int | None) -> None:
    """Go through the stages that are not done yet, then write the result."""
    for folder in (run.folder, run.folder / "checkpoints"):
        clear_parts(folder)
    saved = checkpoints.newest(run.folder / "checkpoints", watcher.say)
    position = _restored(run, problem, build, saved) if saved else _opened(run, problem, build)
    kept = journal.cut_back(run.folder / "journal.jsonl", position.number, position.learner.epoch)
    observing.cut_back(run.folder, position.number, position.learner.epoch)
    done = sum(stage.epochs for stage in run.recipe.stages[: position.number]) + position.learner.epoch
    if kept != done:
        watcher.say(f"journal.jsonl holds {kept} of the {done} epochs that are done; going on without the others")
    last = run.recipe.stages[-1]
    if not last.grown(last.epochs):
        watcher.say(f"note: training ends in epoch {last.epochs}, before the attack has grown to its full strength")
    watcher.begin(run, position.number, position.learner.epoch)
    while True:
        stage = run.recipe.stages[position.number]
        observe = _observer(run, problem, position, watcher)
        engine, onlookers = observing.onlooking(names, run, problem, position.number, position.learner, position.data, every, watcher.say)
        # the journal's observer last: it writes the checkpoint, after which an epoch is not seen again
        fit(position.learner, position.data, stage, seed=derive(run.seed, "stage", position.number), engine=engine, observers=[*onlookers, observe])
        if position.number + 1 == len(run.recipe.stages):
            break
        position = _advanced(run, problem, build, position)
    _finish(run, problem, position)


def _opened(run: Run, problem: Problem, build: Build | None) -> Position:
    """Return the start of the first stage."""
    return Position(0, _fresh(run, 0, problem.train, build), problem.train, Best(run.recipe.rule(0)))


def _advanced(run: Run, problem: Problem, build: Build | None, done: Position) -> Position:
    """Return the start of the stage after one that is done."""
    number = done.number + 1
    stage = run.recipe.stages[number]
    data = done.data
    if stage.teacher != "none":
        data = relabel(problem.train, _teacher(done))
    learner = done.learner
    learner.epoch = 0
    if stage.fresh:
        learner = _fresh(run, number, data, build)
    return Position(number, learner, data, Best(run.recipe.rule(number)))


def _restored(run: Run, problem: Problem, build: Build | None, saved: dict[str, Tensor]) -> Position:
    """Return where a checkpoint was written."""
    state = checkpoints.to_device(saved, problem.train.device)
    number = int(state["stage"])
    data = with_sole_candidate(problem.train, state["relabelled"]) if "relabelled" in state else problem.train
    position = Position(number, _fresh(run, number, data, build), data, Best(run.recipe.rule(number)))
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
            record["pseudo_label_accuracy"] = pseudo_label_accuracy(snapshot.memory, data.candidates, problem.truth.labels)
        if problem.held is not None:
            record |= {f"held_{name}": one.mean for name, one in judge(snapshot.model, problem.held, run.recipe.threat).items()}
        if best.rule and best.rule.on == "test" and problem.test is not None:
            measured = measure(snapshot.model, problem.test, run.recipe.threat, ("natural", best.rule.metric))
            record |= {f"test_{name}": measured[name].accuracy for name in ("natural", best.rule.metric)}
        if best.rule and best.rule.considers(grown=run.recipe.stages[number].grown(phase.epoch)):
            best.see(record[best.rule.key], phase.epoch, snapshot.model)
        last, record["seconds"] = time.perf_counter(), time.perf_counter() - last
        journal.append(run.folder / "journal.jsonl", record)
        relabelled = {} if data is problem.train else {"relabelled": data.candidates.int().argmax(1)}
        state = {**learner.state(), **best.state(), **relabelled, "stage": torch.tensor(number)}
        checkpoints.save(run.folder / "checkpoints", number, phase.epoch, state)
        watcher.epoch(record)

    return observe


def _fresh(run: Run, number: int, data: WeakData, build: Build | None) -> Learner:
    """Return a learner with new weights, which follow from the run's seed and leave the global random state alone."""
    with forked_rng():
        torch.manual_seed(derive(run.seed, "model", number))
        model = run.fresh_model(build)
    return Learner(model, data, run.recipe.stages[number])


def _teacher(done: Position) -> Module:
    """Return the model that relabels."""
    # Paper: the best by validation; official code: the best by natural accuracy on the test set. The default is the last epoch, without truth.
    teacher = done.learner.refresh()  # whatever an observer did to it
    if done.best.weights:
        teacher.load_state_dict(done.best.weights)
    return teacher


def _finish(run: Run, problem: Problem, position: Position) -> None:
    """Write the chosen model and the result; where a rule chose another epoch, the last one is measured too."""
    best, model = position.best, position.learner.refresh()
    metrics = {} if not best.weights else {"last": _measured(run, problem, model)}
    if best.weights:
        model.load_state_dict(best.weights)
    metrics["chosen"] = _measured(run, problem, model, run.folder / "evaluation")
    weights = checkpoints.packed(model.state_dict())
    write_whole(run.folder / "model.safetensors", weights)
    records, told = run.journal, read_json(run.folder / "recipe.json")
    rule = "last" if best.rule and not best.weights else run.recipe.selection  # no epoch competed
    result = {
        "name": run.name, "digest": digest(run.recipe), "seed": run.seed,
        "selection": {"rule": rule, "stage": position.number, "epoch": best.epoch or position.learner.epoch},
        "metrics": metrics["chosen"], "flags": None, "published": None,
        "held": {} if problem.held is None else {name: asdict(one) for name, one in judge(model, problem.held, run.recipe.threat).items()},
        "last_epoch": {"metrics": metrics.get("last", metrics["chosen"]), "journal": records[-1] if records else None},
        "data": {name: told[name] for name in ("data", "held", "test")},
        "model": {"sha256": hashlib.sha256(weights).hexdigest(), "bytes": len(weights)},
        "training_seconds": sum(record["seconds"] for record in records),
        "environment": environment(problem.train.device), "recipe": to_data(run.recipe),
    }  # fmt: skip
    write_json(run.folder / "result.json", result)


def _measured(run: Run, problem: Problem, model: Module, keep: Path | None = None) -> dict[str, dict[str, Any]]:
    if problem.test is None:
        return {}
    return {name: asdict(one) for name, one in measure(model, problem.test, run.recipe.threat, REPORTED, keep=keep).items()}
