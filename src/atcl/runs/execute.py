"""Carrying a run out, stage by stage, with checkpoints and resume. Here alone weak data and truth meet."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import Module

from atcl.core import checkpoints, journal
from atcl.core.device import free_memory
from atcl.core.files import clear_parts
from atcl.core.precisions import multiplying
from atcl.core.seeds import derive, forked_rng
from atcl.data.weak import WeakData
from atcl.engine.engines import Engine
from atcl.evaluation.evaluate import EpochAccuracy, epoch_accuracy, exact_accuracy
from atcl.evaluation.pseudo_labels import pseudo_label_accuracy
from atcl.runs import layout
from atcl.runs.observing import Observing
from atcl.runs.problem import Build, Problem
from atcl.runs.result import write_result
from atcl.runs.run import Run
from atcl.runs.watcher import Watcher
from atcl.training.learner import Learner
from atcl.training.loop import Observer, Snapshot, fitting
from atcl.training.selection import Best
from atcl.training.stage import Stage
from atcl.training.supervision import PseudoLabels, relabel, with_sole_candidate
from atcl.training.weak_validation import judge


@dataclass(frozen=True)
class Running:
    """A run that is being carried out: what it is, what it learns from, and by what means."""

    run: Run
    problem: Problem  # on the device
    engine: Engine
    watcher: Watcher
    observing: Observing
    build: Build | None = None  # of your own model
    together: int = 1  # runs that share the device

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of its recipe."""
        return self.run.recipe.stages


@dataclass
class Position:
    """Where a run stands: a stage, with what it trains and on what."""

    number: int
    learner: Learner
    data: WeakData
    best: Best


def carry_out(running: Running) -> Iterator[None]:
    """Go through the stages that are not done yet, pausing after each batch, then write the result."""
    run, problem, watcher = running.run, running.problem, running.watcher
    if problem.train.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(problem.train.device)
    for folder in (run.folder, run.folder / layout.CHECKPOINTS):
        clear_parts(folder)
    saved = checkpoints.newest(run.folder / layout.CHECKPOINTS, watcher.notify)
    position = _restored(running, saved) if saved else _opened(running)
    _cut_back(running, position)
    _warn(running)
    watcher.begin(run, position.number, position.learner.epoch)
    with checkpoints.Writer(run.folder / layout.CHECKPOINTS) as writer:
        while True:
            number, learner, data = position.number, position.learner, position.data
            keep = _keeper(running, position, writer)
            engine, observers = running.observing.attach(
                run, problem, number, learner, data, running.engine, watcher.notify
            )
            seed = derive(run.seed, "stage", number)
            # the keeper last: it writes the checkpoint, after which an epoch is not seen again
            yield from fitting(
                learner, data, running.stages[number], seed=seed, engine=engine, observers=[*observers, keep]
            )
            if number + 1 == len(running.stages):
                break
            position = _advanced(running, position)
    del keep, observers  # with their CUDA graphs: what follows needs the memory
    free_memory()
    write_result(
        run,
        problem,
        position.learner,
        position.best,
        stage=position.number,
        engine=running.engine,
        together=running.together,
    )


def blind(stages: Sequence[Stage]) -> list[tuple[int, int]]:
    """Return the stages that use pseudo-labels before anything was remembered, each with its first such epoch."""
    found, known = [], False
    for number, stage in enumerate(stages):
        known = known and not stage.fresh  # a learner that goes on keeps its memory
        if isinstance(stage.supervision, PseudoLabels):
            epochs = range(1, stage.epochs + 1)
            using = next((epoch for epoch in epochs if stage.gamma(epoch) < 1), None)
            learning = next((epoch for epoch in epochs if stage.supervision.remembers(epoch)), None)
            if using is not None and not known and (learning is None or learning > using):
                found.append((number, using))
            known = known or learning is not None
    return found


def _cut_back(running: Running, position: Position) -> None:
    """Drop the records of epochs that no checkpoint holds: training goes on before them."""
    folder, place = running.run.folder, (position.number, position.learner.epoch)
    kept = journal.cut_back(folder / layout.JOURNAL, *place)
    if (folder / layout.ANALYSIS).exists():
        journal.cut_back(folder / layout.ANALYSIS, *place)
    done = sum(stage.epochs for stage in running.stages[: position.number]) + position.learner.epoch
    if kept != done:
        running.watcher.notify(
            f"{layout.JOURNAL} holds {kept} of the {done} epochs that are done; going on without the others"
        )


def _warn(running: Running) -> None:
    """Tell of settings that are allowed and seldom meant."""
    last = running.stages[-1]
    if not last.grown(last.epochs):
        running.watcher.notify(
            f"note: training ends in epoch {last.epochs}, before the attack has grown to its full strength"
        )
    for number, early in blind(running.stages):
        running.watcher.notify(
            f"note: gamma falls from epoch {early} on, when pseudo-labels still know nothing: lower --stages.{number}.supervision.first"
        )


def _opened(running: Running) -> Position:
    """Return the start of the first stage."""
    data = running.problem.train
    return Position(0, _fresh(running, 0, data), data, Best(running.run.recipe.rule(0)))


def _advanced(running: Running, done: Position) -> Position:
    """Return the start of the stage after one that is done."""
    number = done.number + 1
    stage, data, learner = running.stages[number], done.data, done.learner
    if stage.teacher != "none":
        data = relabel(running.problem.train, _teacher(done))
    learner.epoch = 0
    if stage.fresh:
        learner = _fresh(running, number, data)
    return Position(number, learner, data, Best(running.run.recipe.rule(number)))


def _restored(running: Running, saved: dict[str, Tensor]) -> Position:
    """Return where a checkpoint was written."""
    data = running.problem.train
    state = checkpoints.to_device(saved, data.device)
    number = int(state["stage"])
    if "relabelled" in state:
        data = with_sole_candidate(data, state["relabelled"])
    position = Position(number, _fresh(running, number, data), data, Best(running.run.recipe.rule(number)))
    position.learner.load(state)
    position.best.load(state)
    return position


def _keeper(running: Running, position: Position, writer: checkpoints.Writer) -> Observer:
    """Return what happens after each epoch.

    The journal's line is written before the checkpoint, so that a kill between the two loses no line.
    """
    run, problem = running.run, running.problem
    number, learner, data, best = position.number, position.learner, position.data, position.best
    last, look = time.perf_counter(), None

    def keep(snapshot: Snapshot) -> Iterator[None]:
        nonlocal last, look
        phase = snapshot.phase
        record = _record(number, snapshot)
        if snapshot.agreement is not None and problem.truth is not None:
            record["pseudo_label_accuracy"] = pseudo_label_accuracy(
                snapshot.memory, data.candidates, problem.truth.labels
            )
        if problem.held is not None:
            estimates = judge(snapshot.model, problem.held, run.recipe.threat)
            record |= {f"held_{name}": one.mean for name, one in estimates.items()}
        if best.rule and best.rule.on == "test" and problem.test is not None:
            look = look or _test_accuracy(running, snapshot)
            with multiplying(snapshot.attack_model.kind):
                right = look.natural()
            yield
            with multiplying(snapshot.attack_model.kind):
                found = look.attacked(right)
            yield
            natural, pgd20 = found.tolist()
            record |= {"test_natural": natural, "test_pgd20": pgd20, "crafted": snapshot.attack_model.kind}
        if best.rule and best.rule.considers(grown=running.stages[number].grown(phase.epoch)):
            best.see(record[best.rule.key], phase.epoch, snapshot.model)
        last, record["seconds"] = time.perf_counter(), time.perf_counter() - last
        journal.append(run.folder / layout.JOURNAL, record)
        relabelled = {} if data is problem.train else {"relabelled": data.candidates.int().argmax(1)}
        state = {**learner.state(), **best.state(), **relabelled, "stage": torch.tensor(number)}
        writer.save(number, phase.epoch, state)
        running.watcher.epoch(record)

    return keep


def _record(stage: int, snapshot: Snapshot) -> journal.Record:
    """Return the line of an epoch in the journal, as far as training alone knows it."""
    phase = snapshot.phase
    budget = phase.budget
    return {
        "stage": stage,
        "epoch": phase.epoch,
        "epsilon": budget.epsilon,
        "step_size": budget.step_size,
        "steps": budget.steps,
        "gamma": phase.gamma,
        "lr": phase.lr,
        "loss": snapshot.loss,
        "inside": snapshot.candidate_rate,
        "agreement": snapshot.agreement,
    }


def _test_accuracy(running: Running, snapshot: Snapshot) -> EpochAccuracy:
    """Return how natural accuracy and PGD20 on the test set are measured after an epoch, to choose one by."""
    model, test, images = snapshot.model, running.problem.test, running.problem.train.x
    device, threat = snapshot.memory.device, running.run.recipe.threat
    assert test is not None
    if device.type != "cuda":
        return exact_accuracy(model, test, threat)
    # on the device where there is room, as there is where it holds a larger training set
    if images.device == device and test.x.nbytes <= images.nbytes:
        test = test.to(device)
    # one model and one copy for attacks last a stage, updated in place: what is recorded of them stays true
    repeated = partial(running.engine.repeated, device=device)
    return epoch_accuracy(model, snapshot.attack_model, test, threat, snapshot.attack_step, repeated=repeated)


def _fresh(running: Running, number: int, data: WeakData) -> Learner:
    """Return a learner with new weights. They follow from the run's seed and leave the global random state alone."""
    run = running.run
    with forked_rng():
        model = run.recipe.initial(lambda: run.fresh_model(running.build), run.seed, number)
    return Learner(model, data, running.stages[number])


def _teacher(done: Position) -> Module:
    """Return the model that relabels."""
    # Paper: the best by validation; official code: the best by natural accuracy on the test set. The default here is
    # the last epoch, which takes no truth.
    teacher = done.learner.refresh()  # whatever an observer did to it
    if done.best.weights:
        teacher.load_state_dict(done.best.weights)
    return teacher
