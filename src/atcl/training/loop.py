"""The training loop: `fit`, and `fitting`, which pauses after each batch."""

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
from atcl.data.weak import WeakData, shuffled
from atcl.engine.attack_model import AttackModel, faithful_attack_model
from atcl.engine.engines import EAGER, Engine
from atcl.losses import Targets, names_of
from atcl.training.learner import Learner
from atcl.training.objectives import Objective, loss_of
from atcl.training.stage import Phase, Stage
from atcl.training.supervision import predicted


@dataclass(frozen=True)
class Snapshot:
    """What an observer receives after an epoch; an observer that changes it does not change training."""

    phase: Phase
    loss: float  # mean over the epoch
    candidate_rate: float  # share of attacked training images whose prediction is a candidate
    agreement: float | None  # share of them whose prediction is the pseudo-label; None without pseudo-labels
    model: Module  # a frozen copy in eval mode, with the averaged weights if the stage averages them
    memory: Tensor  # (n, K)
    attack_model: AttackModel  # the same model in the attack's precision
    attack_step: AttackStep  # one step of an attack, as the engine runs it


# An observer that waits for the device yields first, so that other runs can use the device meanwhile.
Observer = Callable[[Snapshot], Iterator[None] | None]


def fit(
    learner: Learner,
    data: WeakData,
    stage: Stage,
    *,
    seed: int,
    engine: Engine = EAGER,
    observers: Sequence[Observer] = (),
) -> None:
    """Train through the epochs of a stage that the learner has not done yet.

    Args:
        learner: what is trained, in place.
        data: images with their candidates.
        stage: epochs, objective and schedules.
        seed: the order of images, augmentations and starts of attacks follow from it.
        engine: how a step is executed; it changes the speed alone.
        observers: called after each epoch.

    Raises:
        AtclError: the loss does not take these labels, or the loss or a weight is no longer finite.

    Examples:
        >>> from atcl.data.weak import rule_out
        >>> from atcl.training.optimizers import Sgd
        >>> from atcl.training.schedules import Constant
        >>> data = WeakData(torch.rand(4, 1, 2, 2), rule_out(4, 3, [0, 1, 2, 0]))
        >>> stage = Stage(2, 2, Sgd(), Constant(0.1))
        >>> learner = Learner(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)), data, stage)
        >>> fit(learner, data, stage, seed=0)
        >>> learner.epoch
        2
    """
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
    """Do what `fit` does, but yield after each batch, so that several runs can take turns.

    Unlike `fit`, it leaves the global random state changed.
    """
    _check_labels(data, stage)
    objective, supervision, budget = stage.objective, stage.supervision, stage.budget
    precision = stage.precision.on(data.device)
    model = InBf16(learner.model) if precision.update == "bf16" else learner.model
    some = as_float(data.images(data.some()))
    attack_model = faithful_attack_model(
        learner.model, precision.attack, some, engine.notify, compiles=engine.compiles
    )
    prior = data.prior()
    written = predicted, pgd_step, loss_and_tally
    quick = engine.part(predicted), engine.part(pgd_step), engine.part(loss_and_tally)
    follow = engine.part(AttackModel.follow)

    def step(index: Tensor, steps: int, remember: bool) -> Tensor:
        # the smaller batch at the end of an epoch is not worth a compilation
        predict, attack_step, training_loss = quick if len(index) == stage.batch_size else written
        batch = data.batch(index, stage.augmentation, learner.rng, stage.views)
        x = adv = batch.x
        follow(attack_model)
        with multiplying(attack_model.kind):
            if remember:
                supervision.remember(learner.memory, batch, predict(attack_model, x))
            targets = supervision.targets(batch, learner.memory, learner.gamma, prior, data.transition)
            if steps:
                adv = pgd(
                    attack_model,
                    x,
                    objective.attack_loss(attack_model, x, targets),
                    epsilon=learner.epsilon,
                    step_size=learner.step_size,
                    steps=steps,
                    norm=budget.norm,
                    start=budget.start,
                    rng=learner.rng,
                    attack_step=attack_step,
                )
        with multiplying(precision.update):
            loss, tally = training_loss(objective, model, x, adv, targets, *batch.others)
            learner.optimizer.zero_grad()
            loss.backward()
            learner.optimizer.step()
        learner.average()
        return tally

    run = engine.whole(step, learner.rng)
    for epoch in range(learner.epoch + 1, stage.epochs + 1):
        phase = stage.phase(epoch)
        learner.set_epoch(phase)
        attack_model.eval()  # in case an observer put it into training mode
        learner.rng.manual_seed(derive(seed, epoch))
        torch.manual_seed(derive(seed, epoch, "global"))  # dropout draws from the global generator
        totals = torch.zeros(4, device=data.device)
        for index in shuffled(len(data), stage.batch_size, learner.rng):
            totals += run(index, phase.budget.steps, phase.remember)
            yield
        learner.epoch = epoch
        with learner.averaged_weights():
            attack_model.follow()
        snapshot = _snapshot(learner, phase, totals, stage, attack_model, quick[1])
        for observe in observers:
            yield from observe(snapshot) or ()


def loss_and_tally(
    objective: Objective, model: Module, x: Tensor, adv: Tensor, targets: Targets, *others: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the training loss, and sums over the batch that are read once an epoch.

    Args:
        objective: the objective of the stage.
        model: the model that is trained.
        x: (b, C, H, W), the first view of the images.
        adv: (b, C, H, W), the same after the attack.
        targets: what the batch is fitted to.
        others: further views of the images.

    Returns:
        The loss, and the sums (4,) of losses, of predictions that are candidates, of those that agree with
        the pseudo-label, and of images. They stay on the device, so that the host does not wait for it.
    """
    loss, logits = objective.training_loss(model, x, adv, targets, *others)
    return loss, _tally(loss, logits, targets)


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
    """Return the snapshot of an epoch, or raise if its loss or state is not finite."""
    # reading the sums is the only point in an epoch where the host waits for the device
    loss, inside, agreeing, images = totals.tolist()
    state = [tensor for tensor in learner.state().values() if tensor.device == totals.device]
    finite = bool(torch.stack([tensor.isfinite().all() for tensor in state]).all())
    if not (math.isfinite(loss) and finite):
        broken = "the state is" if math.isfinite(loss) else "the loss is"
        raise AtclError(
            f"{broken} no longer finite in epoch {phase.epoch} (learning rate {phase.lr:g}): "
            "lower the learning rate or check the loss"
        )
    return Snapshot(
        phase,
        loss / images,
        inside / images,
        agreeing / images if stage.supervision.uses_guesses else None,
        learner.refresh(),
        learner.memory.clone(),
        attack_model,
        attack_step,
    )


def _check_labels(data: WeakData, stage: Stage) -> None:
    if loss_of(stage.objective).single and not data.single:
        others = names_of(lambda loss: not loss.single)
        raise AtclError(
            f"the loss {stage.objective.loss!r} needs exactly one complementary label for each image: "
            f"for several use one of {others}"
        )
