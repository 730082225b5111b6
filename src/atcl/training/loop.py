"""The one loop: stages of epochs, each a schedule of attack budgets over a pure tensor step."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from atcl.attacks.pgd import AttackStep, pgd, pgd_step
from atcl.core.errors import AtclError
from atcl.core.precisions import InBf16, multiplying
from atcl.core.seeds import derive, forked_rng
from atcl.data.images import as_float
from atcl.data.weak import Batch, WeakData, shuffled
from atcl.engine.attack_model import AttackModel, faithful_attack_model
from atcl.engine.engines import EAGER, Engine
from atcl.losses import Targets, names_of
from atcl.training.learner import Learner
from atcl.training.objectives import Objective, loss_of
from atcl.training.stage import Phase, Stage
from atcl.training.supervision import (
    CandidatesOnly,
    PseudoLabels,
    Supervision,
    guesses,
    predicted,
    remembered,
)


@dataclass(frozen=True)
class Snapshot:
    """What an observer sees after an epoch; nothing in it reaches back into training."""

    phase: Phase
    loss: float  # mean over the epoch
    candidate_rate: float  # share of attacked training images whose prediction is a candidate
    agreement: float | None  # share of them whose prediction is the pseudo-label; None without pseudo-labels
    model: Module  # a frozen copy in eval mode
    memory: Tensor  # (n, K)
    attack_model: AttackModel  # the same model in the attack's precision
    attack_step: AttackStep  # one ascent of an attack, as the engine runs it


Observer = Callable[
    [Snapshot], Iterator[None] | None
]  # one that waits for the device pauses before, so that others can use it


def fit(
    learner: Learner,
    data: WeakData,
    stage: Stage,
    *,
    seed: int,
    engine: Engine = EAGER,
    observers: Sequence[Observer] = (),
) -> None:
    """Train through the epochs of `stage` that `learner` has not done yet."""
    with forked_rng():
        for _ in fitting(learner, data, stage, seed=seed, engine=engine, observers=observers):
            pass


def fitting(
    learner: Learner,
    data: WeakData,
    stage: Stage,
    *,
    seed: int,
    engine: Engine = EAGER,
    observers: Sequence[Observer] = (),
) -> Iterator[None]:
    """Do what `fit` does, and pause after each batch, so that several models can take turns; the global random state is the caller's to keep."""
    _check_labels(data, stage)
    precision = stage.precision.on(data.device)
    prior, some = data.prior(), as_float(data.images(data.some()))
    attack_model = faithful_attack_model(
        learner.model, precision.attack, some, engine.notify, compiles=engine.compiles
    )
    model = InBf16(learner.model) if precision.update == "bf16" else learner.model
    written = predicted, pgd_step, loss_and_tally
    quick = engine.part(predicted), engine.part(pgd_step), engine.part(loss_and_tally)
    follow = engine.part(AttackModel.follow)

    def step(index: Tensor, steps: int, remember: bool) -> Tensor:
        predict, attack_step, training_loss = (
            quick if len(index) == stage.batch_size else written
        )  # a smaller batch comes once an epoch
        batch = data.batch(index, stage.augmentation, learner.rng)
        follow(attack_model)
        with multiplying(attack_model.kind):
            if remember:
                _remember(learner.memory, batch, predict(attack_model, batch.x), stage.supervision)
            targets = _targets(learner, batch, data, prior, stage.supervision)
            adv = batch.x
            if steps:
                attack_loss = stage.objective.attack_loss(attack_model, batch.x, targets)
                adv = pgd(
                    attack_model,
                    batch.x,
                    attack_loss,
                    epsilon=learner.epsilon,
                    step_size=learner.step_size,
                    steps=steps,
                    norm=stage.budget.norm,
                    start=stage.budget.start,
                    rng=learner.rng,
                    attack_step=attack_step,
                )
        with multiplying(precision.update):
            loss, tally = training_loss(stage.objective, model, batch.x, adv, targets)
            learner.optimizer.zero_grad()
            loss.backward()
            learner.optimizer.step()
        return tally

    run = engine.whole(step, learner.rng)
    for epoch in range(learner.epoch + 1, stage.epochs + 1):
        phase = stage.phase(epoch)
        learner.turn(phase)
        attack_model.eval()  # whatever an observer did to it
        learner.rng.manual_seed(derive(seed, epoch))
        torch.manual_seed(
            derive(seed, epoch, "global")
        )  # for dropout and other modules, which draw from the global generator
        totals = torch.zeros(4, device=data.device)
        for index in shuffled(len(data), stage.batch_size, learner.rng):
            totals += run(index, phase.budget.steps, phase.remember)
            yield
        learner.epoch = epoch
        attack_model.follow()
        snapshot = _snapshot(learner, phase, totals, stage, attack_model, quick[1])
        for observe in observers:
            yield from observe(snapshot) or ()


def loss_and_tally(
    objective: Objective, model: Module, x: Tensor, adv: Tensor, targets: Targets
) -> tuple[Tensor, Tensor]:
    """Return the loss to descend, and (loss, inside, agreeing, images) summed over the batch, without waiting for the device."""
    loss, logits = objective.training_loss(model, x, adv, targets)
    return loss, _tally(loss, logits, targets)


def _remember(memory: Tensor, batch: Batch, probabilities: Tensor, supervision: Supervision) -> None:
    assert isinstance(supervision, PseudoLabels)
    memory[batch.index] = remembered(memory[batch.index], probabilities, batch.candidates, supervision.beta)


def _targets(
    learner: Learner, batch: Batch, data: WeakData, prior: Tensor, supervision: Supervision
) -> Targets:
    """Return what a batch is fitted to."""
    if isinstance(supervision, CandidatesOnly):
        return Targets(batch.candidates, prior=prior, transition=data.transition)
    return Targets(batch.candidates, learner.gamma, guesses(learner.memory[batch.index], batch.candidates))


def _tally(loss: Tensor, logits: Tensor, targets: Targets) -> Tensor:
    prediction = logits.detach().argmax(1)
    inside = targets.candidates.gather(1, prediction[:, None]).sum()
    agreeing = inside if targets.guess is None else (prediction == targets.guess).sum()
    return torch.stack([loss.detach() * len(logits), inside, agreeing, torch.full_like(inside, len(logits))])


def _snapshot(
    learner: Learner,
    phase: Phase,
    totals: Tensor,
    stage: Stage,
    attack_model: AttackModel,
    attack_step: AttackStep,
) -> Snapshot:
    """Read the epoch's totals, the only time that it waits for the device, and refuse what is not finite."""
    loss, inside, agreeing, images = totals.tolist()
    finite = bool(
        torch.stack(
            [tensor.isfinite().all() for tensor in learner.state().values() if tensor.device == totals.device]
        ).all()
    )
    if not (math.isfinite(loss) and finite):
        raise AtclError(
            f"{'the state is' if math.isfinite(loss) else 'the loss is'} no longer finite in epoch {phase.epoch} "
            f"(learning rate {phase.lr:g}): lower the learning rate or check the loss"
        )
    agreement = agreeing / images if isinstance(stage.supervision, PseudoLabels) else None
    return Snapshot(
        phase,
        loss / images,
        inside / images,
        agreement,
        learner.refresh(),
        learner.memory.clone(),
        attack_model,
        attack_step,
    )


def _check_labels(data: WeakData, stage: Stage) -> None:
    if loss_of(stage.objective).single and not data.single:
        others = names_of(lambda loss: not loss.single)
        raise AtclError(
            f"the loss {stage.objective.loss!r} needs exactly one complementary label for each image: for several use one of {others}"
        )
