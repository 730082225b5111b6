"""The one loop: stages of epochs, each a schedule of attack budgets over a pure tensor step."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import Module

from atcl.attacks import GROWING, Ascend, Budget, ascent, pgd
from atcl.batches import Augmentation, Batch, WeakData, as_float, shuffled
from atcl.engines import EAGER, Engine
from atcl.errors import AtclError, nearest
from atcl.losses import Targets, names_of
from atcl.objectives import MinMax, Objective, loss_of
from atcl.precisions import InBf16, Precision, multiplying
from atcl.schedules import Constant, Schedule
from atcl.seeds import derive, forked_rng
from atcl.supervision import CandidatesOnly, PseudoLabels, Supervision, blank_memory, guesses, predicted, remembered
from atcl.twins import Twin, faithful_twin, takes_channels_last, tensors_of


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent."""

    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.momentum < 1 and self.weight_decay >= 0):
            raise AtclError(f"momentum lies in [0, 1) and weight_decay is at least 0 (momentum {self.momentum}, weight_decay {self.weight_decay})")

    def __call__(self, model: Module, lr: Tensor) -> torch.optim.Optimizer:
        # fused: faster, and the other kinds read a learning rate that lies on the GPU back to the host at each step
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=self.momentum, weight_decay=self.weight_decay, fused=True)


@dataclass(frozen=True)
class Adam:
    """Adam with weight decay in the gradient, as in the original."""

    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not self.weight_decay >= 0:
            raise AtclError(f"weight_decay is at least 0, not {self.weight_decay}")

    def __call__(self, model: Module, lr: Tensor) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=lr, weight_decay=self.weight_decay, capturable=lr.is_cuda, fused=True)


@dataclass(frozen=True)
class Phase:
    """What holds during one epoch."""

    epoch: int
    budget: Budget
    gamma: float
    lr: float
    remember: bool


@dataclass(frozen=True)
class Stage:
    """A number of epochs under one objective, with its schedules."""

    epochs: int
    """how many epochs"""
    batch_size: int
    """images in a batch; the last one may be smaller"""
    optimizer: Sgd | Adam
    lr: Schedule
    objective: Objective = MinMax()
    budget: Budget = Budget()
    strength: Schedule = Constant(1.0)
    grow: tuple[str, ...] = ("epsilon", "step_size")
    """what grows with the strength: epsilon, step_size, steps"""
    gamma: Schedule = Constant(1.0)
    supervision: Supervision = CandidatesOnly()
    augmentation: Augmentation = Augmentation()
    precision: Precision = Precision()
    fresh: bool = True
    """start from a new model, optimiser and memory; False goes on with those of the stage before"""
    teacher: str = "none"
    """relabel first with a model of the stage before, chosen by a rule of `atcl list rules` (the paper's, test_natural, looks at the truth)"""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise AtclError(f"a stage has at least 1 epoch and 1 image a batch (epochs {self.epochs}, batch_size {self.batch_size})")
        for part in self.grow:
            if part not in GROWING:
                raise AtclError(f"unknown part of a budget {part!r} in grow{nearest(part, GROWING)}")
        if isinstance(self.supervision, PseudoLabels) and not loss_of(self.objective).guesses:
            others = names_of(lambda loss: loss.guesses)
            raise AtclError(f"the loss {self.objective.loss!r} has no form with pseudo-labels: use one of {others}")
        for epoch in range(1, self.epochs + 1):
            self.phase(epoch)

    def phase(self, epoch: int) -> Phase:
        """Return what holds in an epoch, counted from 1: pure, so it can be printed, plotted and tested."""
        gamma, lr, strength = self.gamma(epoch), self.lr(epoch), self.strength(epoch)
        if not 0 <= strength <= 1:
            raise AtclError(f"strength is a share of the budget in [0, 1], but is {strength} in epoch {epoch}")
        if not 0 <= gamma <= 1:
            raise AtclError(f"gamma must lie in [0, 1], but is {gamma} in epoch {epoch}")
        if gamma < 1 and isinstance(self.supervision, CandidatesOnly):
            raise AtclError(f"gamma is {gamma} in epoch {epoch}, but there are no pseudo-labels to carry the rest: set supervision to PseudoLabels")
        if not (lr >= 0 and math.isfinite(lr)):
            raise AtclError(f"the learning rate must be a number of at least 0, but is {lr} in epoch {epoch}")
        remember = isinstance(self.supervision, PseudoLabels) and self.supervision.remembers(epoch)
        return Phase(epoch, self.budget.grown(strength, self.grow), gamma, lr, remember)

    def grown(self, epoch: int) -> bool:
        """Tell whether the attack of an epoch has its full strength."""
        return self.phase(epoch).budget == self.budget


class Learner:
    """All that training changes: model, optimiser, memory of predictions, and the dials that an epoch turns."""

    def __init__(self, model: Module, data: WeakData, stage: Stage) -> None:
        device = data.device
        self.model: Module = model.to(device).train()
        if takes_channels_last(self.model, as_float(data.images(data.some()))):
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.frozen: Module = copy.deepcopy(self.model).eval().requires_grad_(False)  # what observers look at
        self.rng = Generator(device)
        # 0-d tensors, so that a compiled or captured step reads them anew in each epoch
        self.epsilon, self.step_size, self.gamma, self.lr = (torch.zeros((), device=device) for _ in range(4))
        self.optimizer = stage.optimizer(self.model, self.lr)
        self.memory = blank_memory(data.candidates)
        self.epoch = 0

    def refresh(self) -> Module:
        """Copy the model into its frozen twin, and return that."""
        with torch.no_grad():
            for old, new in zip(tensors_of(self.frozen), tensors_of(self.model), strict=True):
                old.copy_(new)
        return self.frozen

    def turn(self, phase: Phase) -> None:
        """Set the dials of an epoch."""
        self.frozen.eval()  # whatever an observer did to it
        for dial, value in (
            (self.epsilon, phase.budget.epsilon),
            (self.step_size, phase.budget.step_size),
            (self.gamma, phase.gamma),
            (self.lr, phase.lr),
        ):
            dial.fill_(value)

    def state(self) -> dict[str, Tensor]:
        """Return everything that must outlive the process, as named tensors."""
        state = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for number, parameter in enumerate(self.model.parameters()):
            for name, tensor in self.optimizer.state[parameter].items():
                state[f"optimizer.{number}.{name}"] = tensor
        return {**state, "memory": self.memory, "epoch": torch.tensor(self.epoch)}

    def load(self, state: dict[str, Tensor]) -> None:
        """Put a saved state back, in place: a captured step points at these very tensors."""
        self.model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")})
        parameters = list(self.model.parameters())
        for key, tensor in state.items():
            if key.startswith("optimizer."):
                _, number, name = key.split(".")
                parameter = parameters[int(number)]
                slot = self.optimizer.state[parameter]
                if name not in slot:  # in the layout of its parameter: fused optimisers walk both as they lie in memory
                    slot[name] = torch.empty_like(parameter if tensor.shape == parameter.shape else tensor, dtype=tensor.dtype).detach()
                slot[name].copy_(tensor)
        self.memory.copy_(state["memory"])
        self.epoch = int(state["epoch"])
        self.refresh()


@dataclass(frozen=True)
class Snapshot:
    """What an observer sees after an epoch; nothing in it reaches back into training."""

    phase: Phase
    loss: float  # mean over the epoch
    inside: float  # share of attacked training images whose prediction is a candidate
    agreement: float | None  # share of them whose prediction is the pseudo-label; None without pseudo-labels
    model: Module  # a frozen copy in eval mode
    memory: Tensor  # (n, K)
    twin: Twin  # the same model in the attack's precision
    ascend: Ascend  # one ascent of an attack, as the engine runs it


Observer = Callable[[Snapshot], Iterator[None] | None]  # one that waits for the device pauses before, so that others can use it


def fit(learner: Learner, data: WeakData, stage: Stage, *, seed: int, engine: Engine = EAGER, observers: Sequence[Observer] = ()) -> None:
    """Train through the epochs of `stage` that `learner` has not done yet."""
    with forked_rng():
        for _ in fitting(learner, data, stage, seed=seed, engine=engine, observers=observers):
            pass


def fitting(
    learner: Learner, data: WeakData, stage: Stage, *, seed: int, engine: Engine = EAGER, observers: Sequence[Observer] = ()
) -> Iterator[None]:  # fmt: skip
    """Do what `fit` does, and pause after each batch, so that several models can take turns; the global random state is the caller's to keep."""
    _check_labels(data, stage)
    precision = stage.precision.on(data.device)
    prior, some = data.prior(), as_float(data.images(data.some()))
    twin = faithful_twin(learner.model, precision.attack, some, engine.say, compiles=engine.compiles)
    model = InBf16(learner.model) if precision.update == "bf16" else learner.model
    written = predicted, ascent, descent
    quick = engine.part(predicted), engine.part(ascent), engine.part(descent)
    follow = engine.part(Twin.follow)

    def step(index: Tensor, steps: int, remember: bool) -> Tensor:
        predict, ascend, descend = quick if len(index) == stage.batch_size else written  # a smaller batch comes once an epoch
        batch = data.batch(index, stage.augmentation, learner.rng)
        follow(twin)
        with multiplying(twin.kind):
            if remember:
                _remember(learner.memory, batch, predict(twin, batch.x), stage.supervision)
            targets = _targets(learner, batch, data, prior, stage.supervision)
            adv = batch.x
            if steps:
                climb = stage.objective.climb(twin, batch.x, targets)
                adv = pgd(
                    twin, batch.x, climb, epsilon=learner.epsilon, step_size=learner.step_size, steps=steps,
                    norm=stage.budget.norm, start=stage.budget.start, rng=learner.rng, ascend=ascend,
                )  # fmt: skip
        with multiplying(precision.update):
            loss, tally = descend(stage.objective, model, batch.x, adv, targets)
            learner.optimizer.zero_grad()
            loss.backward()
            learner.optimizer.step()
        return tally

    run = engine.whole(step, learner.rng)
    for epoch in range(learner.epoch + 1, stage.epochs + 1):
        phase = stage.phase(epoch)
        learner.turn(phase)
        twin.eval()  # whatever an observer did to it
        learner.rng.manual_seed(derive(seed, epoch))
        torch.manual_seed(derive(seed, epoch, "global"))  # for dropout and other modules, which draw from the global generator
        totals = torch.zeros(4, device=data.device)
        for index in shuffled(len(data), stage.batch_size, learner.rng):
            totals += run(index, phase.budget.steps, phase.remember)
            yield
        learner.epoch = epoch
        twin.follow()
        snapshot = _snapshot(learner, phase, totals, stage, twin, quick[1])
        for observe in observers:
            yield from observe(snapshot) or ()


def descent(objective: Objective, model: Module, x: Tensor, adv: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return the loss to descend, and (loss, inside, agreeing, images) summed over the batch, without waiting for the device."""
    loss, logits = objective.descend(model, x, adv, targets)
    return loss, _tally(loss, logits, targets)


def _remember(memory: Tensor, batch: Batch, probabilities: Tensor, supervision: Supervision) -> None:
    assert isinstance(supervision, PseudoLabels)
    memory[batch.index] = remembered(memory[batch.index], probabilities, batch.candidates, supervision.beta)


def _targets(learner: Learner, batch: Batch, data: WeakData, prior: Tensor, supervision: Supervision) -> Targets:
    """Return what a batch is fitted to."""
    if isinstance(supervision, CandidatesOnly):
        return Targets(batch.candidates, prior=prior, transition=data.transition)
    return Targets(batch.candidates, learner.gamma, guesses(learner.memory[batch.index], batch.candidates))


def _tally(loss: Tensor, logits: Tensor, targets: Targets) -> Tensor:
    prediction = logits.detach().argmax(1)
    inside = targets.candidates.gather(1, prediction[:, None]).sum()
    agreeing = inside if targets.guess is None else (prediction == targets.guess).sum()
    return torch.stack([loss.detach() * len(logits), inside, agreeing, torch.full_like(inside, len(logits))])


def _snapshot(learner: Learner, phase: Phase, totals: Tensor, stage: Stage, twin: Twin, ascend: Ascend) -> Snapshot:
    """Read the epoch's totals, the only time that it waits for the device, and refuse what is not finite."""
    loss, inside, agreeing, images = totals.tolist()
    finite = bool(torch.stack([tensor.isfinite().all() for tensor in learner.state().values() if tensor.device == totals.device]).all())
    if not (math.isfinite(loss) and finite):
        raise AtclError(
            f"{'the state is' if math.isfinite(loss) else 'the loss is'} no longer finite in epoch {phase.epoch} "
            f"(learning rate {phase.lr:g}): lower the learning rate or check the loss"
        )
    agreement = agreeing / images if isinstance(stage.supervision, PseudoLabels) else None
    return Snapshot(phase, loss / images, inside / images, agreement, learner.refresh(), learner.memory.clone(), twin, ascend)


def _check_labels(data: WeakData, stage: Stage) -> None:
    if loss_of(stage.objective).single and not data.single:
        others = names_of(lambda loss: not loss.single)
        raise AtclError(f"the loss {stage.objective.loss!r} needs exactly one complementary label for each image: for several use one of {others}")
