"""Observations of a run: analyses of a frozen copy after an epoch, written to `analysis.jsonl`.

They return nothing to training.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import Module

from atcl.analysis.attacks import GUESSED, ORACLE, Quality, paper_attack_losses, qualities_from
from atcl.analysis.gradients import direction_variance, first_and_last, image_gradients
from atcl.analysis.norm_recorder import NormRecorder
from atcl.attacks.norms import NORMS, STARTS
from atcl.attacks.pgd import given, pgd, pgd_step
from atcl.attacks.threat import Threat
from atcl.core import journal
from atcl.core.errors import AtclError, Notify, pick
from atcl.core.seeds import derive, generator
from atcl.data.images import as_float
from atcl.data.weak import Batch, WeakData
from atcl.datasets.labels import Complementary
from atcl.engine.engines import EAGER, Engine
from atcl.evaluation.epoch_accuracy import epoch_accuracy
from atcl.losses import PAPER, Targets
from atcl.runs import layout
from atcl.runs.observing import Observing
from atcl.runs.problem import Problem
from atcl.runs.run import Run
from atcl.training.learner import Learner
from atcl.training.loop import Observer, Snapshot
from atcl.training.stage import Phase, Stage

OBSERVED_IMAGES = 256  # training images, as many as the paper's batch, for gradients and attacks
TEST_IMAGES = 1000  # test images at most
INSTANCES = 4  # images whose numbers are also recorded one by one
SHARE = 0.035  # of a stage's passes through the network, for all observations: less than 5 % of the time
# On a GPU a pass of an observation costs as much as so many of a training step, which is compiled and in a
# lower precision.
ON_GPU = 2.5

Values = dict[str, float | list[float] | None]
Work = Callable[..., Tensor]  # of tensors alone


@dataclass(frozen=True)
class ObserverContext:
    """What an observation receives after an epoch."""

    model: Module  # frozen, in eval mode
    memory: Tensor  # (n, K)
    phase: Phase
    stage: Stage
    data: WeakData  # what the stage trains on
    problem: Problem
    threat: Threat
    seed: int  # of the observations of this run; nothing else uses it
    norms: tuple[float, ...] = ()  # gradient norms of first and last layer, means over the epoch's steps
    # name, kind, work -> the same work, as the stage's engine repeats it
    repeated: Callable[[str, object, Work], Work] = lambda name, kind, work: work

    def rng(self, *path: int | str) -> Generator:
        """Return a generator for the observation alone: drawing from it changes no other random number."""
        return generator(self.data.device, self.seed, *path)


@dataclass(frozen=True)
class Observation:
    """An analysis that is made after an epoch.

    Args:
        of: returns the numbers to record.
        passes: what it costs: passes of one image through the network.
        about: what it is, in a few words.
        truth: whether it needs the true classes of the training images.
        test: whether it needs a test set.
    """

    of: Callable[[ObserverContext], Values]
    passes: Callable[[Stage, Problem], int]
    about: str
    truth: bool = False
    test: bool = False


def gradients(context: ObserverContext) -> Values:
    """Return the variance of a batch's gradient directions, and the gradient norms of the epoch's steps.

    The variance is that of the first layer, on a batch made as in training.
    """
    rng = context.rng("gradients", context.phase.epoch)
    index = torch.randperm(len(context.data), generator=rng, device=rng.device)[:OBSERVED_IMAGES]
    batch = context.data.batch(index, context.stage.augmentation, rng, context.stage.views)
    model, targets = context.model, _targets(context, batch)
    budget, objective = context.phase.budget, context.stage.objective
    adv = batch.x
    if budget.steps:
        parts = {name: value for name, value in _parts(targets).items() if isinstance(value, Tensor)}

        def attack(x: Tensor, start: Tensor, epsilon: Tensor, step_size: Tensor, *tensors: Tensor) -> Tensor:
            with_tensors = replace(targets, **dict(zip(parts, tensors, strict=True)))
            attack_loss = objective.attack_loss(model, x, with_tensors)
            return pgd(
                model,
                x,
                attack_loss,
                epsilon=epsilon,
                step_size=step_size,
                steps=budget.steps,
                norm=budget.norm,
                start=given(start),
                rng=rng,
            )

        start = STARTS[budget.start](batch.x, budget.epsilon, NORMS[budget.norm], rng)
        sizes = (batch.x.new_tensor(size) for size in (budget.epsilon, budget.step_size))
        attacked = context.repeated("gradients", budget.steps, attack)
        adv = attacked(batch.x, start, *sizes, *parts.values())
    first, last = first_and_last(model)
    # Paper: the gradients of training. There dropout makes the directions vary, most of all those of a model
    # that ignores its input.
    own = image_gradients(model, objective, batch.x, adv, targets, first, rng, batch.others)
    variance = direction_variance(own)
    values: Values = {"gradient.variance": variance.trace, "gradient.zeros": variance.zeros}
    if context.norms:
        return values | dict(zip(("gradient.first_norm", "gradient.last_norm"), context.norms, strict=True))
    # a checkpoint has no steps: the gradient of this batch, which is no mean over steps and has another name
    both = (own, image_gradients(model, objective, batch.x, adv, targets, last, rng, batch.others))
    return values | {
        f"gradient.batch_{layer}_norm": float(one.sum(0).norm())
        for layer, one in zip(("first", "last"), both, strict=True)
    }


def attacks(context: ObserverContext) -> Values:
    """Return the quality of attacks with each loss of the paper, on the same images in every epoch."""
    if not context.stage.budget.steps:
        return {}
    model, budget = context.model, context.stage.budget

    def qualities(x: Tensor, candidates: Tensor, true: Tensor, start: Tensor) -> Tensor:
        found = qualities_from(start, model, x, paper_attack_losses(model, x, candidates), true, budget)
        return torch.stack([torch.stack(list(_parts(one).values())) for one in found.values()])

    x, candidates, true = attack_sample(context.problem, context.seed)
    rng = context.rng("attacks", context.phase.epoch)
    start = STARTS[budget.start](x, budget.epsilon, NORMS[budget.norm], rng)
    found = context.repeated("attacks", None, qualities)(x, candidates, true, start)
    values: Values = {}
    for name, parts in zip((ORACLE, *PAPER, GUESSED), found, strict=True):
        for metric, each in _metrics(Quality(*parts)).items():
            values[f"attack.{name}.{metric}"] = float(each.mean())
            values[f"instance.{name}.{metric}"] = each[:INSTANCES].tolist()
    return values


def test_accuracy(context: ObserverContext) -> Values:
    """Return natural and PGD20 accuracy on the first images of the test set."""
    test = context.problem.test
    assert test is not None
    first = test.take(slice(TEST_IMAGES))

    def repeated(work: Work) -> Work:
        return context.repeated(f"test, {work.__name__}", None, work)

    found = epoch_accuracy(context.model, context.model, first, context.threat, pgd_step, repeated=repeated)
    natural, pgd20 = found.attacked(found.natural()).tolist()
    return {"test_natural": natural, "test_pgd20": pgd20}


def attack_sample(problem: Problem, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the images that attacks are observed on, their candidates and their true classes.

    Complementary labels are drawn where the training images do not have a single one each.
    """
    assert problem.truth is not None
    data = problem.train
    order = torch.randperm(len(data), generator=Generator().manual_seed(derive(seed, "images")))
    index = order[:OBSERVED_IMAGES]
    true = problem.truth.labels.cpu()[index]
    # the labels of the oracle are the true ones: a complementary loss needs complementary labels
    drawn = Complementary()(true, data.classes, Generator().manual_seed(derive(seed, "labels")))
    candidates = data.candidates[index.to(data.device)] if data.single else drawn.to(data.device)
    return as_float(data.images(index.to(data.device))), candidates, true.to(data.device)


OBSERVATIONS: dict[str, Observation] = {
    "gradients": Observation(
        gradients,
        lambda stage, problem: min(OBSERVED_IMAGES, len(problem.train)) * (4 + stage.budget.steps),
        "variance of gradient directions at the first layer; norms of the gradients of first and last layer",
    ),
    "attacks": Observation(
        attacks,
        lambda stage, problem: (
            min(OBSERVED_IMAGES, len(problem.train))
            * (len(PAPER) + 2)
            * (2 + stage.budget.steps)
            * bool(stage.budget.steps)
        ),
        "attacks on the model with each loss of the paper, compared with the attack through the true label",
        truth=True,
    ),
    "test": Observation(
        test_accuracy,
        lambda stage, problem: 22 * min(TEST_IMAGES, len(problem.test) if problem.test else 0),
        f"natural and PGD20 accuracy on the first {TEST_IMAGES} test images",
        test=True,
    ),
}


def observed_epochs(epochs: int, number: int) -> set[int]:
    """Return so many epochs of a stage, evenly spaced from first to last; a single one is the last."""
    if number < 2:
        return {epochs} if number else set()
    if epochs == 1:
        return {1}
    gaps = min(number, epochs) - 1
    return {1 + round(step * (epochs - 1) / gaps) for step in range(gaps + 1)}


def planned_epochs(
    names: Sequence[str], stage: Stage, problem: Problem, device: torch.device
) -> dict[str, set[int]]:
    """Return the epochs in which each observation is made by default.

    There are as many as keep all observations together within `SHARE` of the passes of the stage.
    """
    passes = sum(3 + stage.phase(epoch).budget.steps for epoch in range(1, stage.epochs + 1))
    room = SHARE / len(names) * len(problem.train) * passes
    room /= ON_GPU if device.type == "cuda" else 1
    return {
        name: observed_epochs(stage.epochs, int(room // max(1, OBSERVATIONS[name].passes(stage, problem))))
        for name in names
    }


def attach_observers(
    names: Sequence[str],
    run: Run,
    problem: Problem,
    number: int,
    learner: Learner,
    data: WeakData,
    inner: Engine = EAGER,
    every: int | None = None,
    notify: Notify = lambda text: None,
) -> tuple[Engine, list[Observer]]:
    """Return an engine and observers for a stage, which make the named observations while it trains.

    Args:
        names: names from `atcl list observations`; without any, the engine is returned as it is.
        run: the run, in whose folder the numbers are recorded.
        problem: the data of the run, with their truth.
        number: the stage, counted from 0.
        learner: what is trained.
        data: what the stage trains on.
        inner: the engine that runs the steps.
        every: epochs between two records; None: as `planned_epochs` says.
        notify: called with a line where an observation is left out.
    """
    if not names:
        return inner, []
    stage, path = run.recipe.stages[number], run.folder / layout.ANALYSIS
    plan = (
        {name: {*range(1, stage.epochs, every), stage.epochs} for name in names}
        if every
        else planned_epochs(names, stage, problem, data.device)
    )
    for name in (name for name, epochs in plan.items() if not epochs):
        share = "one observation takes more than its share of the time"
        notify(f"{name} is not observed in stage {number + 1}: {share}; give --observe-every 10 to do so")
    recorder = NormRecorder.of(learner, inner) if "gradients" in names else None
    known: dict[str, tuple[object, Work]] = {}

    def repeated(name: str, kind: object, work: Work) -> Work:
        """Return the recorded form of the first work of a kind; what changes comes as tensors."""
        if not inner.records:
            return work
        if name not in known or known[name][0] != kind:  # the recording of another kind is dropped
            known[name] = (kind, inner.repeated(work, data.device))
        return known[name][1]

    def observe(snapshot: Snapshot) -> None:
        phase = snapshot.phase
        context = ObserverContext(
            snapshot.model,
            snapshot.memory,
            phase,
            stage,
            data,
            problem,
            run.recipe.threat,
            seed_of(run, number),
            recorder.means() if recorder else (),
            repeated,
        )
        values: dict[str, Any] = {}
        for name, epochs in plan.items():
            if phase.epoch in epochs:
                values |= OBSERVATIONS[name].of(context)
        if values:
            journal.append(path, {"stage": number, "epoch": phase.epoch, **values})

    return recorder or inner, [observe]


@dataclass(frozen=True)
class Observers(Observing):
    """The observations to make while a run trains; they change nothing in training.

    Args:
        names: names from `atcl list observations`.
        every: epochs between two records; None: so many that all take less than 5 % of the time.

    Examples:
        >>> Observers(("gradients", "test"), every=10).names
        ('gradients', 'test')
        >>> Observers(("gradient",)).check_names()
        Traceback (most recent call last):
        atcl.core.errors.AtclError: unknown observation 'gradient'; did you mean 'gradients'?
    """

    names: tuple[str, ...] = ()
    every: int | None = None

    def check_names(self) -> None:
        for name in self.names:
            pick(OBSERVATIONS, name, "observation")
        if self.every is not None and self.every < 1:
            raise AtclError(f"observations are made every 1 or more epochs, not every {self.every}")

    def check(self, problem: Problem) -> None:
        self.check_names()
        for name in self.names:
            wanted = OBSERVATIONS[name]
            if wanted.truth and problem.truth is None:
                need = f"to observe {name} takes the true classes of the training images"
                raise AtclError(f"{need}, and there are none: leave it out")
            if wanted.test and problem.test is None:
                raise AtclError(f"to observe {name} takes a test set, and there is none: leave it out")

    def attach(
        self,
        run: Run,
        problem: Problem,
        stage: int,
        learner: Learner,
        data: WeakData,
        engine: Engine,
        notify: Notify,
    ) -> tuple[Engine, list[Observer]]:
        return attach_observers(self.names, run, problem, stage, learner, data, engine, self.every, notify)


def seed_of(run: Run, number: int) -> int:
    """Return the seed of the observations of a stage; nothing else uses it."""
    return derive(run.seed, "onlookers", number)


def _targets(context: ObserverContext, batch: Batch) -> Targets:
    """Return what the stage fits a batch to, without changing the memory."""
    data, gamma = context.data, context.memory.new_tensor(context.phase.gamma)
    return context.stage.supervision.targets(batch, context.memory, gamma, data.prior(), data.transition)


def _parts(one: Targets | Quality) -> dict[str, Any]:
    return {part.name: getattr(one, part.name) for part in fields(one)}


def _metrics(one: Quality) -> dict[str, Tensor]:
    return {
        "cosine": one.cosine,
        "l1": one.l1,
        "natural": one.natural,
        "attacked": one.attacked,
        "drop": one.drop,
        "lowered": one.lowered.float(),
    }
