"""Onlookers of a run: analyses that see a frozen copy after an epoch, write to `analysis.jsonl`, and hand nothing back to training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import Module

from atcl.analysis.attacks import GUESSED, ORACLE, Quality, paper_attack_losses, qualities_from
from atcl.analysis.gradients import direction_variance, first_and_last, image_gradients, layer_norms
from atcl.attacks.norms import NORMS, STARTS
from atcl.attacks.pgd import given, pgd, pgd_step
from atcl.attacks.threat import Threat
from atcl.core import journal
from atcl.core.errors import AtclError, pick
from atcl.core.seeds import derive, generator
from atcl.data.images import as_float
from atcl.data.weak import Batch, WeakData
from atcl.datasets.labels import Complementary
from atcl.engine.engines import EAGER, Engine, Step
from atcl.evaluation.evaluate import epoch_accuracy
from atcl.losses import PAPER, Targets
from atcl.runs import layout
from atcl.runs.observing import Observing
from atcl.runs.problem import Problem
from atcl.runs.run import Run
from atcl.training.learner import Learner
from atcl.training.loop import Observer, Snapshot
from atcl.training.stage import Phase, Stage
from atcl.training.supervision import CandidatesOnly, guesses

OBSERVED_IMAGES = 256  # the paper's batch: training images that gradients and attacks are looked at on
TEST_IMAGES = 1000
INSTANCES = 4  # images whose numbers are also kept one by one
SHARE = 0.035  # of a stage's passes through the network, for all onlookers together: it is to take less than 5% of the time
ON_GPU = 2.5  # passes of a training step, compiled and in a low precision, that a pass of an onlooker, which is neither, counts as on a GPU

Values = dict[str, float | list[float] | None]
Work = Callable[..., Tensor]  # of tensors alone


@dataclass(frozen=True)
class ObserverContext:
    """What an onlooker sees after an epoch."""

    model: Module  # frozen, in eval mode
    memory: Tensor  # (n, K)
    phase: Phase
    stage: Stage
    data: WeakData  # what the stage learns from
    problem: Problem
    threat: Threat
    seed: int  # of the onlookers of this run, no other uses it
    norms: tuple[float, ...] = ()  # of the gradients of first and last layer: the mean over the epoch's steps
    repeated: Callable[[str, object, Work], Work] = lambda name, kind, work: (
        work
    )  # work of a name that comes again, as the stage's engine runs it

    def rng(self, *path: int | str) -> Generator:
        """Return a generator of one's own: what is drawn from it shifts no other number."""
        return generator(self.data.device, self.seed, *path)


@dataclass(frozen=True)
class Observation:
    """Something to look at after an epoch."""

    of: Callable[[ObserverContext], Values]
    passes: Callable[[Stage, Problem], int]  # what it costs: passes of one image through the network
    about: str
    truth: bool = False  # whether it needs that of the training images
    test: bool = False  # whether it needs a test set


def gradients(context: ObserverContext) -> Values:
    """Variance of the gradient directions of a batch at the first layer, as a step would see them; norms of the gradients of the epoch's steps."""
    rng = context.rng("gradients", context.phase.epoch)
    index = torch.randperm(len(context.data), generator=rng, device=rng.device)[:OBSERVED_IMAGES]
    batch = context.data.batch(index, context.stage.augmentation, rng)
    model, targets, budget, objective = (
        context.model,
        _targets(context, batch),
        context.phase.budget,
        context.stage.objective,
    )
    adv = batch.x
    if budget.steps:
        told = {name: value for name, value in _parts(targets).items() if isinstance(value, Tensor)}

        def attack(x: Tensor, start: Tensor, epsilon: Tensor, step_size: Tensor, *tensors: Tensor) -> Tensor:
            attack_loss = objective.attack_loss(
                model, x, replace(targets, **dict(zip(told, tensors, strict=True)))
            )
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
        dials = (batch.x.new_tensor(dial) for dial in (budget.epsilon, budget.step_size))
        adv = context.repeated("gradients", budget.steps, attack)(batch.x, start, *dials, *told.values())
    first, last = first_and_last(model)
    # Paper: looks at the gradients of training; there dropout scatters the directions of a model that sees no image, and less those of one that does
    parts = image_gradients(model, objective, batch.x, adv, targets, first, rng)
    variance = direction_variance(parts)
    values: Values = {"gradient.variance": variance.trace, "gradient.zeros": variance.zeros}
    if context.norms:
        return values | dict(zip(("gradient.first_norm", "gradient.last_norm"), context.norms, strict=True))
    # no steps to look at, as on a checkpoint: the gradient of this batch, which is no mean over steps and bears another name
    both = (parts, image_gradients(model, objective, batch.x, adv, targets, last, rng))
    return values | {
        f"gradient.batch_{layer}_norm": float(one.sum(0).norm())
        for layer, one in zip(("first", "last"), both, strict=True)
    }


def attacks(context: ObserverContext) -> Values:
    """Quality of attacks on this model through each loss of the paper, on the same training images in every epoch."""
    if not context.stage.budget.steps:
        return {}
    model, budget = context.model, context.stage.budget

    def qualities(x: Tensor, candidates: Tensor, true: Tensor, start: Tensor) -> Tensor:
        found = qualities_from(start, model, x, paper_attack_losses(model, x, candidates), true, budget)
        return torch.stack([torch.stack(list(_parts(one).values())) for one in found.values()])

    x, candidates, true = attack_sample(context.problem, context.seed)
    start = STARTS[budget.start](
        x, budget.epsilon, NORMS[budget.norm], context.rng("attacks", context.phase.epoch)
    )
    found = context.repeated("attacks", None, qualities)(x, candidates, true, start)
    values: Values = {}
    for name, parts in zip((ORACLE, *PAPER, GUESSED), found, strict=True):
        for metric, each in _metrics(Quality(*parts)).items():
            values[f"attack.{name}.{metric}"] = float(each.mean())
            values[f"instance.{name}.{metric}"] = each[:INSTANCES].tolist()
    return values


def test_accuracy(context: ObserverContext) -> Values:
    """Natural and PGD20 accuracy on the first images of the test set."""
    test = context.problem.test
    assert test is not None
    seen, repeated = (
        test.take(slice(TEST_IMAGES)),
        lambda work: context.repeated(f"test, {work.__name__}", None, work),
    )
    look = epoch_accuracy(context.model, context.model, seen, context.threat, pgd_step, repeated=repeated)
    natural, pgd20 = look.attacked(look.natural()).tolist()
    return {"test_natural": natural, "test_pgd20": pgd20}


def attack_sample(problem: Problem, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the images that attacks are measured on, their candidates and their true classes; labels are drawn where there are no single ones."""
    assert problem.truth is not None
    data = problem.train
    index = torch.randperm(len(data), generator=Generator().manual_seed(derive(seed, "images")))[
        :OBSERVED_IMAGES
    ]
    true = problem.truth.labels.cpu()[index]
    # the oracle's own labels are the truth: what a complementary loss would do to it takes complementary labels
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
        "attacks on the model through each loss of the paper, beside the attack through the true label",
        truth=True,
    ),
    "test": Observation(
        test_accuracy,
        lambda stage, problem: 22 * min(TEST_IMAGES, len(problem.test) if problem.test else 0),
        f"natural and PGD20 accuracy on the first {TEST_IMAGES} test images",
        test=True,
    ),
}


def observed_epochs(epochs: int, looks: int) -> set[int]:
    """Return so many epochs of a stage, evenly spaced from the first to the last; for one look the last, for none none."""
    if looks < 2:
        return {epochs} if looks else set()
    return (
        {1 + round(step * (epochs - 1) / (min(looks, epochs) - 1)) for step in range(min(looks, epochs))}
        if epochs > 1
        else {1}
    )


def planned_epochs(
    names: Sequence[str], stage: Stage, problem: Problem, device: torch.device
) -> dict[str, set[int]]:
    """Return the epochs that each is looked at by default: as many as keep all together to their share of the passes."""
    room = (
        SHARE
        / len(names)
        * len(problem.train)
        * sum(3 + stage.phase(epoch).budget.steps for epoch in range(1, stage.epochs + 1))
    )
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
    notify: Callable[[str], None] = lambda text: None,
) -> tuple[Engine, list[Observer]]:
    """Return an engine and the observers that look on while a stage is trained; without names, the engine as it is and none."""
    if not names:
        return inner, []
    stage, path = run.recipe.stages[number], run.folder / layout.ANALYSIS
    plan = (
        {name: {*range(1, stage.epochs, every), stage.epochs} for name in names}
        if every
        else planned_epochs(names, stage, problem, data.device)
    )
    for name in (name for name, epochs in plan.items() if not epochs):
        share = "one look takes more than its share of what onlookers may cost"
        notify(
            f"{name} is not observed in stage {number + 1}: {share}; give --observe-every 10 to look anyway"
        )
    noting = NormRecorder.of(learner, inner) if "gradients" in names else None
    known: dict[str, tuple[object, Work]] = {}

    def repeated(name: str, kind: object, work: Work) -> Work:
        """Return the first work of this kind, where it is recorded: what changes from look to look it is given as tensors."""
        if not inner.records:
            return work
        if name not in known or known[name][0] != kind:  # the recording of another kind is dropped
            known[name] = (kind, inner.repeated(work, data.device))
        return known[name][1]

    def observe(snapshot: Snapshot) -> None:
        phase = snapshot.phase
        seen = ObserverContext(
            snapshot.model,
            snapshot.memory,
            phase,
            stage,
            data,
            problem,
            run.recipe.threat,
            seed_of(run, number),
            noting.means() if noting else (),
            repeated,
        )
        values: dict[str, Any] = {}
        for name, epochs in plan.items():
            if phase.epoch in epochs:
                values |= OBSERVATIONS[name].of(seen)
        if values:
            journal.append(path, {"stage": number, "epoch": phase.epoch, **values})

    return noting or inner, [observe]


@dataclass(frozen=True)
class Observers(Observing):
    """Analyses by their names, recorded after some epochs: `atcl.Observers(["gradients"])`."""

    names: tuple[str, ...] = ()
    every: int | None = (
        None  # epochs between two records; None: so many that all take less than 5% of the time
    )

    def check_names(self) -> None:
        for name in self.names:
            pick(OBSERVATIONS, name, "observation")
        if self.every is not None and self.every < 1:
            raise AtclError(f"one observes every 1 or more epochs, not every {self.every}")

    def check(self, problem: Problem) -> None:
        self.check_names()
        for name in self.names:
            wanted = OBSERVATIONS[name]
            if wanted.truth and problem.truth is None:
                raise AtclError(
                    f"to observe {name} takes the true classes of the training images, and there are none: leave it out"
                )
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
        notify: Callable[[str], None],
    ) -> tuple[Engine, list[Observer]]:
        return attach_observers(self.names, run, problem, stage, learner, data, engine, self.every, notify)


def seed_of(run: Run, number: int) -> int:
    """Return the seed of the onlookers of a stage: nothing else draws by it."""
    return derive(run.seed, "onlookers", number)


@dataclass(frozen=True)
class NormRecorder(Engine):
    """An engine whose step also adds up the norms of the gradients that it leaves, as part of the step: recorded where that is."""

    inner: Engine = EAGER
    totals: Tensor = field(default_factory=lambda: torch.zeros(3))  # first layer, last layer, steps
    note: Callable[[], Tensor] = lambda: torch.zeros(2)

    @staticmethod
    def of(learner: Learner, inner: Engine) -> "NormRecorder":
        """Return the engine for a learner."""
        layers = first_and_last(learner.model)
        parameters = {
            name: parameter
            for name, parameter in learner.model.named_parameters()
            if name in {*layers[0], *layers[1]}
        }
        note = lambda: layer_norms({name: parameter.grad for name, parameter in parameters.items()}, layers)  # noqa: E731
        totals = torch.zeros(3, device=learner.memory.device)
        return NormRecorder(
            inner.name, inner.compiles, inner.records, inner.notify, inner.failures, inner, totals, note
        )

    def whole(self, step: Step, rng: Generator) -> Step:
        def noting(index: Tensor, steps: int, remember: bool) -> Tensor:
            tally = step(index, steps, remember)
            self.totals[:2] += self.note()
            self.totals[2] += 1
            return tally

        return self.inner.whole(noting, rng)

    def means(self) -> tuple[float, ...]:
        """Return the means over the steps since the last time."""
        first, last, steps = self.totals.tolist()
        self.totals.zero_()
        return (first / steps, last / steps) if steps else ()


def _targets(context: ObserverContext, batch: Batch) -> Targets:
    """Return what the stage fits a batch to, without moving the memory."""
    if isinstance(context.stage.supervision, CandidatesOnly):
        return Targets(batch.candidates, prior=context.data.prior(), transition=context.data.transition)
    gamma = context.memory.new_tensor(context.phase.gamma)
    return Targets(batch.candidates, gamma, guesses(context.memory[batch.index], batch.candidates))


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
