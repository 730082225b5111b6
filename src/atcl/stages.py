"""Going through the stages of a run: checkpoints, resume, the chosen epoch, its result. Here alone weak data and truth meet."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from atcl import checkpoints, journal, observing
from atcl.analysis import pseudo_label_accuracy
from atcl.batches import WeakData
from atcl.engines import Engine
from atcl.environment import environment, free_memory
from atcl.files import clear_parts, read_json, write_json, write_whole
from atcl.heldout import judge
from atcl.paper import card
from atcl.precisions import multiplying
from atcl.recipes import Recipe
from atcl.runs import REPORTED, Build, Problem, Run
from atcl.seeds import derive, forked_rng
from atcl.selection import Best
from atcl.settings import digest, to_data
from atcl.supervision import PseudoLabels, relabel, with_sole_candidate
from atcl.training import Learner, Observer, Snapshot, Stage, fitting
from atcl.verdicts import Glance, glance, measure, scrutiny


class Watcher:
    """What a run tells while it goes; this one keeps silent."""

    def engine(self, about: str) -> None:
        """An engine was picked, and this is it."""

    def begin(self, run: Run, stage: int, epoch: int) -> None:
        """The run is about to go on after an epoch of a stage (0, 0: from the start)."""

    def epoch(self, record: journal.Record) -> None:
        """An epoch has ended, and this is its line in the journal."""

    def say(self, text: str) -> None:
        """Something that the user should know."""


@dataclass
class Position:
    """Where a run stands: a stage, with what it trains and on what."""

    number: int
    learner: Learner
    data: WeakData
    best: Best


@dataclass(frozen=True)
class Means:
    """What carries a run out."""

    engine: Engine
    watcher: Watcher
    build: Build | None = None  # of a model of one's own
    together: int = 1  # runs that share the device
    observe: tuple[str, ...] = ()  # what onlookers write down
    every: int | None = None  # so many epochs; None: as often as 5% of the time allows


def carry_out(run: Run, problem: Problem, means: Means) -> Iterator[None]:
    """Go through the stages that are not done yet, pausing after each batch, then write the result."""
    watcher = means.watcher
    if problem.train.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(problem.train.device)
    for folder in (run.folder, run.folder / "checkpoints"):
        clear_parts(folder)
    saved = checkpoints.newest(run.folder / "checkpoints", watcher.say)
    position = _restored(run, problem, means.build, saved) if saved else _opened(run, problem, means.build)
    kept = journal.cut_back(run.folder / "journal.jsonl", position.number, position.learner.epoch)
    observing.cut_back(run.folder, position.number, position.learner.epoch)
    done = sum(stage.epochs for stage in run.recipe.stages[: position.number]) + position.learner.epoch
    if kept != done:
        watcher.say(f"journal.jsonl holds {kept} of the {done} epochs that are done; going on without the others")
    last = run.recipe.stages[-1]
    if not last.grown(last.epochs):
        watcher.say(f"note: training ends in epoch {last.epochs}, before the attack has grown to its full strength")
    for number, early in blind(run.recipe.stages):
        watcher.say(f"note: gamma falls from epoch {early} on, when pseudo-labels still know nothing: lower --stages.{number}.supervision.first")
    watcher.begin(run, position.number, position.learner.epoch)
    with checkpoints.Writer(run.folder / "checkpoints") as writer:
        while True:
            stage = run.recipe.stages[position.number]
            observe, seed = _observer(run, problem, position, means, writer), derive(run.seed, "stage", position.number)
            engine, onlookers = observing.onlooking(
                means.observe, run, problem, position.number, position.learner, position.data, means.engine, means.every, watcher.say
            )  # fmt: skip
            # the journal's observer last: it writes the checkpoint, after which an epoch is not seen again
            yield from fitting(position.learner, position.data, stage, seed=seed, engine=engine, observers=[*onlookers, observe])
            if position.number + 1 == len(run.recipe.stages):
                break
            position = _advanced(run, problem, means.build, position)
    del observe, onlookers  # with their recordings: what follows needs the memory
    free_memory()
    _finish(run, problem, position, means)


def blind(stages: Sequence[Stage]) -> list[tuple[int, int]]:
    """Return the stages that lean on pseudo-labels before anything was remembered, each with its first such epoch."""
    found, known = [], False
    for number, stage in enumerate(stages):
        known = known and not stage.fresh  # a learner that goes on keeps its memory
        if isinstance(stage.supervision, PseudoLabels):
            leaning = next((epoch for epoch in range(1, stage.epochs + 1) if stage.gamma(epoch) < 1), None)
            learning = next((epoch for epoch in range(1, stage.epochs + 1) if stage.supervision.remembers(epoch)), None)
            if leaning is not None and not known and (learning is None or learning > leaning):
                found.append((number, leaning))
            known = known or learning is not None
    return found


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


def _observer(run: Run, problem: Problem, position: Position, means: Means, writer: checkpoints.Writer) -> Observer:
    """Return what happens after each epoch: the journal's line first, so that a cut between the two loses no line, then the checkpoint."""
    number, learner, data, best = position.number, position.learner, position.data, position.best
    last, look = time.perf_counter(), None

    def observe(snapshot: Snapshot) -> Iterator[None]:
        nonlocal last, look
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
            look = look or _looking(run.recipe, problem, snapshot, means.engine)
            with multiplying(snapshot.twin.kind):
                right = look.natural()
            yield
            with multiplying(snapshot.twin.kind):
                found = look.attacked(right)
            yield
            record |= {**dict(zip(("test_natural", "test_pgd20"), found.tolist(), strict=True)), "crafted": snapshot.twin.kind}
        if best.rule and best.rule.considers(grown=run.recipe.stages[number].grown(phase.epoch)):
            best.see(record[best.rule.key], phase.epoch, snapshot.model)
        last, record["seconds"] = time.perf_counter(), time.perf_counter() - last
        journal.append(run.folder / "journal.jsonl", record)
        relabelled = {} if data is problem.train else {"relabelled": data.candidates.int().argmax(1)}
        state = {**learner.state(), **best.state(), **relabelled, "stage": torch.tensor(number)}
        writer.save(number, phase.epoch, state)
        means.watcher.epoch(record)

    return observe


def _looking(wanted: Recipe, problem: Problem, snapshot: Snapshot, engine: Engine) -> Glance:
    """Return a look at natural accuracy and PGD20 on the test set, which choose an epoch; the chosen one is measured anew."""
    model, test, device, images = snapshot.model, problem.test, snapshot.memory.device, problem.train.x
    assert test is not None
    if device.type != "cuda":
        return scrutiny(model, test, wanted.threat)
    if images.device == device and test.x.nbytes <= images.nbytes:  # where they have room, these have: from the host each batch would be waited for
        test = test.to(device)
    # one model and one twin see a stage through, and are brought up to date in place: what is recorded stays true
    return glance(model, snapshot.twin, test, wanted.threat, snapshot.ascend, repeated=partial(engine.repeated, device=device))


def _fresh(run: Run, number: int, data: WeakData, build: Build | None) -> Learner:
    """Return a learner with new weights, which follow from the run's seed and leave the global random state alone."""
    with forked_rng():
        model = run.recipe.initial(lambda: run.fresh_model(build), run.seed, number)
    return Learner(model, data, run.recipe.stages[number])


def _teacher(done: Position) -> Module:
    """Return the model that relabels."""
    # Paper: the best by validation; official code: the best by natural accuracy on the test set. The default is the last epoch, without truth.
    teacher = done.learner.refresh()  # whatever an observer did to it
    if done.best.weights:
        teacher.load_state_dict(done.best.weights)
    return teacher


def _finish(run: Run, problem: Problem, position: Position, means: Means) -> None:
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
    attacked = best.rule and best.rule.on == "test" and best.rule.metric != "natural" and records
    crafted = {"crafted": records[-1]["crafted"]} if attacked else {}
    result = {
        "name": run.name, "digest": digest(run.recipe), "seed": run.seed,
        "selection": {"rule": rule, "stage": position.number, "epoch": best.epoch or position.learner.epoch, **crafted},
        "metrics": metrics["chosen"], "flags": None, "published": card(run.recipe),
        "held": {} if problem.held is None else {name: asdict(one) for name, one in judge(model, problem.held, run.recipe.threat).items()},
        "last_epoch": {"metrics": metrics.get("last", metrics["chosen"]), "journal": records[-1] if records else None},
        "data": {name: told[name] for name in ("data", "held", "test")},
        "model": {"sha256": hashlib.sha256(weights).hexdigest(), "bytes": len(weights)},
        "training_seconds": sum(record["seconds"] for record in records),
        "engine": _engine(problem.train.device, means),
        "environment": environment(problem.train.device), "recipe": to_data(run.recipe),
    }  # fmt: skip
    write_json(run.folder / "result.json", result)


def _measured(run: Run, problem: Problem, model: Module, keep: Path | None = None) -> dict[str, dict[str, Any]]:
    if problem.test is None:
        return {}
    return {name: asdict(one) for name, one in measure(model, problem.test, run.recipe.threat, REPORTED, keep=keep).items()}


def _engine(device: torch.device, means: Means) -> dict[str, Any]:
    """Return what carried the run out, and the most memory that the process took of a GPU."""
    peak = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
    return {
        "name": means.engine.name,
        "compiled": means.engine.compiles and not means.engine.failures,
        "together": means.together,
        "peak_gpu_bytes": peak,
    }
