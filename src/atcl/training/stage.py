"""The settings of a stage of training: a number of epochs with one objective."""

import math
from dataclasses import dataclass

from atcl.attacks.threat import GROWING, Budget
from atcl.core.errors import AtclError, nearest
from atcl.core.precisions import Precision
from atcl.data.augment import AnyAugmentation, Augmentation
from atcl.losses import names_of
from atcl.training.objectives import AnyObjective, MinMax, loss_of
from atcl.training.optimizers import AnyOptimizer
from atcl.training.schedules import Constant, Schedule
from atcl.training.supervision import AnySupervision, CandidatesOnly


@dataclass(frozen=True)
class Phase:
    """The settings of one epoch."""

    epoch: int
    budget: Budget
    gamma: float
    lr: float
    remember: bool


@dataclass(frozen=True)
class Stage:
    """The settings of a stage of training: a number of epochs with one objective.

    Raises:
        AtclError: the settings contradict each other, or a schedule leaves its range in some epoch.

    Examples:
        >>> from atcl.training.optimizers import Adam
        >>> full = Budget(epsilon=0.1, step_size=0.05, steps=4)
        >>> Stage(2, 32, Adam(), Constant(1e-3), budget=full).phase(2).budget.steps
        4
    """

    epochs: int
    """number of epochs"""
    batch_size: int
    """images in a batch; the last one may be smaller"""
    optimizer: AnyOptimizer
    """the optimiser"""
    lr: Schedule
    """learning rate in each epoch"""
    objective: AnyObjective = MinMax()
    """the loss that the attack raises, and the one that training lowers"""
    budget: Budget = Budget()
    """the attack at full strength; by default none"""
    strength: Schedule = Constant(1.0)
    """strength of the attack in each epoch, from 0 (no attack) to 1"""
    grow: tuple[str, ...] = ("epsilon", "step_size")
    """the parts of the budget that are multiplied by the strength: epsilon, step_size, steps"""
    gamma: Schedule = Constant(1.0)
    """weight of the candidates in each epoch; the pseudo-label has the rest"""
    supervision: AnySupervision = CandidatesOnly()
    """what a batch is fitted to: the candidates alone, or pseudo-labels too"""
    augmentation: AnyAugmentation = Augmentation()
    """augmentation of the training images"""
    precision: Precision = Precision()
    """what attacks and the update compute in"""
    fresh: bool = True
    """start from a new model, optimiser and memory; False continues with those of the previous stage"""
    teacher: str = "none"
    """relabel the images first by a model of the previous stage, chosen by a rule of `atcl list rules`; the
    rule of the paper, test_natural, uses the true labels of the test set"""
    views: tuple[AnyAugmentation, ...] = ()
    """an augmentation for each further view of the images, for objectives that use several"""
    average: float = 0.0
    """decay of an exponential moving average of the weights, such as 0.999; the average is evaluated and
    exported in place of the weights; 0 for none"""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            counts = f"epochs {self.epochs}, batch_size {self.batch_size}"
            raise AtclError(f"a stage has at least 1 epoch and 1 image in a batch ({counts})")
        if not 0 <= self.average < 1:
            raise AtclError(f"average is a decay in [0, 1), not {self.average}")
        for part in self.grow:
            if part not in GROWING:
                raise AtclError(f"unknown part of a budget {part!r} in grow{nearest(part, GROWING)}")
        if self.supervision.uses_guesses and not loss_of(self.objective).guesses:
            others = names_of(lambda loss: loss.guesses)
            loss = self.objective.loss
            raise AtclError(f"the loss {loss!r} has no form with pseudo-labels: use one of {others}")
        views = getattr(self.objective, "views", 1)
        if views != 1 + len(self.views):
            raise AtclError(
                f"{type(self.objective).__name__} uses {views} views of each image, "
                f"but the stage makes {1 + len(self.views)}: set views"
            )
        for epoch in range(1, self.epochs + 1):
            self.phase(epoch)

    def phase(self, epoch: int) -> Phase:
        """Return the settings of an epoch, counted from 1.

        Raises:
            AtclError: a schedule leaves its range in this epoch.
        """
        gamma, lr, strength = self.gamma(epoch), self.lr(epoch), self.strength(epoch)
        if not 0 <= strength <= 1:
            raise AtclError(f"strength must lie in [0, 1], but is {strength} in epoch {epoch}")
        if not 0 <= gamma <= 1:
            raise AtclError(f"gamma must lie in [0, 1], but is {gamma} in epoch {epoch}")
        if gamma < 1 and not self.supervision.uses_guesses:
            raise AtclError(
                f"gamma is {gamma} in epoch {epoch}, but there are no pseudo-labels to carry the rest: "
                "set supervision to PseudoLabels"
            )
        if not (lr >= 0 and math.isfinite(lr)):
            raise AtclError(f"the learning rate must be a number of at least 0, but is {lr} in epoch {epoch}")
        remember = self.supervision.remembers(epoch)
        return Phase(epoch, self.budget.grown(strength, self.grow), gamma, lr, remember)

    @property
    def takes(self) -> tuple[str, ...]:
        """What it takes from the previous stage: `labels` of a teacher; `weights`, optimiser and memory."""
        return ("labels",) * (self.teacher != "none") + ("weights",) * (not self.fresh)

    def grown(self, epoch: int) -> bool:
        """Return whether the attack of an epoch has its full strength."""
        return self.phase(epoch).budget == self.budget
