"""Carry out a run stage by stage, with checkpoints and resume.

Only here, true labels are measured beside training; training itself receives none.
"""

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
from atcl.runs.measure import write_result
from atcl.runs.observing import Observing
from atcl.runs.problem import Build, Problem
from atcl.runs.run import Run
from atcl.runs.watcher import Watcher
from atcl.training.learner import Learner
from atcl.training.loop import Observer, Snapshot, fitting
from atcl.training.selection import Best
from atcl.training.stage import Stage
from atcl.training.supervision import relabel, with_sole_candidate
from atcl.training.weak_validation import judge


@dataclass(frozen=True)
class Running:
    """A run that is being carried out.

    Args:
        run: its recipe, seed and folder.
        problem: what it learns from, on the device.
        engine: how a step is executed.
        watcher: receives what happens.
        observing: which analyses are recorded.
        build: returns a new model of your own; None: the recipe's model.
        together: how many runs share the device.
    """

    run: Run
    problem: Problem
    engine: Engine
    watcher: Watcher
    observing: Observing
    build: Build | None = None
    together: int = 1

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the recipe."""
        return self.run.recipe.stages


@dataclass
class Position:
    """How far a run is: the number of its stage, what the stage trains, on which data, and its best model."""

    number: int
    learner: Learner
    data: WeakData
    best: Best


def carry_out(running: Running) -> Iterator[None]:
    """Train the stages that are not done yet, pausing after each batch, then write the result."""
    run, problem, watcher = running.run, running.problem, running.watcher
    if problem.train.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(problem.train.device)
    for folder in (run.folder, run.folder / layout.CHECKPOINTS):
        clear_parts(folder)
    saved = checkpoints.newest(run.folder / layout.CHECKPOINTS, watcher.notify)
    position = _restored(running, saved) if saved else _first_stage(running)
    _cut_back(running, position)
    _note_unusual_settings(running)
    watcher.begin(run, position.number, position.learner.epoch)
    with checkpoints.Writer(run.folder / layout.CHECKPOINTS) as writer:
        while True:
            number, learner, data = position.number, position.learner, position.data
            record_epoch = _epoch_recorder(running, position, writer)
            engine, observers = running.observing.attach(
                run, problem, number, learner, data, running.engine, watcher.notify
            )
            seed = derive(run.seed, "stage", number)
            # record_epoch last: it writes the checkpoint, after which the epoch is not observed again
            observers = [*observers, record_epoch]
            stage = running.stages[number]
            yield from fitting(learner, data, stage, seed=seed, engine=engine, observers=observers)
            if number + 1 == len(running.stages):
                break
            position = _next_stage(running, position)
    del record_epoch, observers  # with their CUDA graphs: the evaluation needs the memory
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
    """Return the stages that use pseudo-labels before any prediction was remembered.

    Args:
        stages: the stages of a recipe.

    Returns:
        The number of each such stage, and the first epoch in which it uses them.
    """
    found, known = [], False
    for number, stage in enumerate(stages):
        known = known and not stage.fresh  # a learner that goes on keeps its memory
        if stage.supervision.uses_guesses:
            epochs = range(1, stage.epochs + 1)
            using = next((epoch for epoch in epochs if stage.gamma(epoch) < 1), None)
            learning = next((epoch for epoch in epochs if stage.supervision.remembers(epoch)), None)
            if using is not None and not known and (learning is None or learning > using):
                found.append((number, using))
            known = known or learning is not None
    return found


def _cut_back(running: Running, position: Position) -> None:
    """Remove the records of epochs after the checkpoint, since these epochs are trained again."""
    folder, place = running.run.folder, (position.number, position.learner.epoch)
    kept = journal.cut_back(folder / layout.JOURNAL, *place)
    if (folder / layout.ANALYSIS).exists():
        journal.cut_back(folder / layout.ANALYSIS, *place)
    done = sum(stage.epochs for stage in running.stages[: position.number]) + position.learner.epoch
    if kept != done:
        running.watcher.notify(
            f"{layout.JOURNAL} holds {kept} of the {done} epochs that are done; going on without the others"
        )


def _note_unusual_settings(running: Running) -> None:
    """Notify the watcher of settings that are allowed, but seldom intended."""
    last = running.stages[-1]
    if not last.grown(last.epochs):
        running.watcher.notify(
            f"note: training ends in epoch {last.epochs}, before the attack has grown to its full strength"
        )
    for number, early in blind(running.stages):
        running.watcher.notify(
            f"note: gamma falls from epoch {early} on, before the memory holds any prediction: "
            f"lower --stages.{number}.supervision.first"
        )


def _first_stage(running: Running) -> Position:
    """Return the start of the first stage."""
    data = running.problem.train
    return Position(0, _fresh(running, 0, data), data, Best(running.run.recipe.rule(0)))


def _next_stage(running: Running, done: Position) -> Position:
    """Return the start of the stage that follows a finished one."""
    number = done.number + 1
    stage, data, learner = running.stages[number], done.data, done.learner
    if "labels" in stage.takes:
        data = relabel(running.problem.train, _teacher(done))
    if "weights" in stage.takes:
        learner.begin(stage)
    else:
        learner = _fresh(running, number, data)
    return Position(number, learner, data, Best(running.run.recipe.rule(number)))


def _restored(running: Running, saved: dict[str, Tensor]) -> Position:
    """Return the position at which a checkpoint was written."""
    data = running.problem.train
    state = checkpoints.to_device(saved, data.device)
    number = int(state["stage"])
    if "relabelled" in state:
        data = with_sole_candidate(data, state["relabelled"])
    position = Position(number, _fresh(running, number, data), data, Best(running.run.recipe.rule(number)))
    position.learner.load(state)
    position.best.load(state)
    return position


def _epoch_recorder(running: Running, position: Position, writer: checkpoints.Writer) -> Observer:
    """Return the observer that measures each epoch and writes its line of the journal and its checkpoint.

    The line is written before the checkpoint, so that a kill between the two loses no line.
    """
    run, problem = running.run, running.problem
    number, learner, data, best = position.number, position.learner, position.data, position.best
    last, accuracy = time.perf_counter(), None

    def record_epoch(snapshot: Snapshot) -> Iterator[None]:
        nonlocal last, accuracy
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
            accuracy = accuracy or _test_accuracy(running, snapshot)
            with multiplying(snapshot.attack_model.kind):
                right = accuracy.natural()
            yield
            with multiplying(snapshot.attack_model.kind):
                accuracies = accuracy.attacked(right)
            yield
            natural, pgd20 = accuracies.tolist()
            record |= {"test_natural": natural, "test_pgd20": pgd20, "crafted": snapshot.attack_model.kind}
        if best.rule and best.rule.considers(grown=running.stages[number].grown(phase.epoch)):
            best.see(record[best.rule.key], phase.epoch, snapshot.model)
        last, record["seconds"] = time.perf_counter(), time.perf_counter() - last
        journal.append(run.folder / layout.JOURNAL, record)
        relabelled = {} if data is problem.train else {"relabelled": data.candidates.int().argmax(1)}
        state = {**learner.state(), **best.state(), **relabelled, "stage": torch.tensor(number)}
        writer.save(number, phase.epoch, state)
        running.watcher.epoch(record)

    return record_epoch


def _record(stage: int, snapshot: Snapshot) -> journal.Record:
    """Return the line of an epoch in the journal, without accuracies."""
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
    """Return what measures natural and PGD20 accuracy on the test set after each epoch."""
    model, test, images = snapshot.model, running.problem.test, running.problem.train.x
    device, threat = snapshot.memory.device, running.run.recipe.threat
    assert test is not None
    if device.type != "cuda":
        return exact_accuracy(model, test, threat)
    # a device that holds the training images has room for a test set that is no larger
    if images.device == device and test.x.nbytes <= images.nbytes:
        test = test.to(device)
    # recorded CUDA graphs stay valid: both models are updated in place throughout a stage
    repeated = partial(running.engine.repeated, device=device)
    return epoch_accuracy(model, snapshot.attack_model, test, threat, snapshot.attack_step, repeated=repeated)


def _fresh(running: Running, number: int, data: WeakData) -> Learner:
    """Return a learner with new weights, which follow from the run's seed; the global random state stays."""
    run = running.run
    with forked_rng():
        model = run.recipe.initial(lambda: run.fresh_model(running.build), run.seed, number)
    return Learner(model, data, running.stages[number])


def _teacher(done: Position) -> Module:
    """Return the model that relabels the images for the next stage."""
    # Paper: the best epoch by validation; official code: by natural accuracy on the test set.
    # The default here is the last epoch, which needs no true labels.
    teacher = done.learner.refresh()  # an observer may have changed the copy
    if done.best.weights:
        teacher.load_state_dict(done.best.weights)
    return teacher
