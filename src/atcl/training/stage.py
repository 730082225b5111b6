"""A stage of training: a number of epochs under one objective, with its schedules."""

import math
from dataclasses import dataclass

from atcl.attacks.threat import GROWING, Budget
from atcl.core.errors import AtclError, nearest
from atcl.core.precisions import Precision
from atcl.data.augment import Augmentation
from atcl.losses import names_of
from atcl.training.objectives import MinMax, Objective, loss_of
from atcl.training.optimizers import Adam, Sgd
from atcl.training.schedules import Constant, Schedule
from atcl.training.supervision import CandidatesOnly, PseudoLabels, Supervision


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
            raise AtclError(
                f"a stage has at least 1 epoch and 1 image a batch (epochs {self.epochs}, batch_size {self.batch_size})"
            )
        for part in self.grow:
            if part not in GROWING:
                raise AtclError(f"unknown part of a budget {part!r} in grow{nearest(part, GROWING)}")
        if isinstance(self.supervision, PseudoLabels) and not loss_of(self.objective).guesses:
            others = names_of(lambda loss: loss.guesses)
            raise AtclError(
                f"the loss {self.objective.loss!r} has no form with pseudo-labels: use one of {others}"
            )
        for epoch in range(1, self.epochs + 1):
            self.phase(epoch)

    def phase(self, epoch: int) -> Phase:
        """Return what holds in an epoch, counted from 1: pure, so it can be printed, plotted and tested."""
        gamma, lr, strength = self.gamma(epoch), self.lr(epoch), self.strength(epoch)
        if not 0 <= strength <= 1:
            raise AtclError(
                f"strength is a share of the budget in [0, 1], but is {strength} in epoch {epoch}"
            )
        if not 0 <= gamma <= 1:
            raise AtclError(f"gamma must lie in [0, 1], but is {gamma} in epoch {epoch}")
        if gamma < 1 and isinstance(self.supervision, CandidatesOnly):
            raise AtclError(
                f"gamma is {gamma} in epoch {epoch}, but there are no pseudo-labels to carry the rest: set supervision to PseudoLabels"
            )
        if not (lr >= 0 and math.isfinite(lr)):
            raise AtclError(f"the learning rate must be a number of at least 0, but is {lr} in epoch {epoch}")
        remember = isinstance(self.supervision, PseudoLabels) and self.supervision.remembers(epoch)
        return Phase(epoch, self.budget.grown(strength, self.grow), gamma, lr, remember)

    def grown(self, epoch: int) -> bool:
        """Tell whether the attack of an epoch has its full strength."""
        return self.phase(epoch).budget == self.budget
