"""Objectives: the loss that an attack raises, and the loss that training lowers; `OBJECTIVES` names them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Union

from torch import Tensor
from torch.nn import Module

from atcl.attacks.pgd import AttackLoss, divergence, kl
from atcl.core.errors import pick
from atcl.losses import LOSSES, Loss, Targets


class Objective(Protocol):
    """The interface of an objective."""

    @property
    def loss(self) -> str:
        """The name, in `LOSSES`, of the loss that it fits to the targets."""
        ...

    @property
    def views(self) -> int:
        """How many views of each image it uses; the first is attacked."""
        ...

    def attack_loss(self, model: Module, x: Tensor, targets: Targets) -> AttackLoss:
        """Return the function of the logits that an attack on the images `x` raises."""
        ...

    def training_loss(
        self, model: Module, x: Tensor, adv: Tensor, targets: Targets, *others: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the loss that training lowers, and the logits of the adversarial images.

        Args:
            model: the model that is trained.
            x: (b, C, H, W), the first view of the images.
            adv: (b, C, H, W), the same after the attack; `x` itself where the budget has no steps.
            targets: what the batch is fitted to.
            others: the further views of the images, of the same shape each.
        """
        ...


@dataclass(frozen=True)
class MinMax:
    """Adversarial training by Madry et al. 2018: the attack raises the loss that training lowers.

    Examples:
        >>> MinMax("exp").loss
        'exp'
    """

    loss: str = "log"
    """a name from `atcl list losses`"""

    views: ClassVar[int] = 1

    def attack_loss(self, model: Module, x: Tensor, targets: Targets) -> AttackLoss:
        loss = loss_of(self)
        return lambda logits: loss(logits, targets)

    def training_loss(
        self, model: Module, x: Tensor, adv: Tensor, targets: Targets, *others: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = model(adv)
        return loss_of(self)(logits, targets), logits


@dataclass(frozen=True)
class Trades:
    """TRADES by Zhang et al. 2019: the attack raises KL(clean || adv); training lowers a loss plus this KL.

    Examples:
        >>> Trades("log", on="adv", weight=6.0).weight
        6.0
    """

    loss: str = "scl_nl"
    """a name from `atcl list losses`"""
    on: Literal["clean", "adv"] = "clean"
    """the images whose loss is lowered: clean or adv"""
    weight: float = 1.0
    """1 / lambda, the weight of the divergence; with 0 it is in the attack alone"""

    views: ClassVar[int] = 1

    def attack_loss(self, model: Module, x: Tensor, targets: Targets) -> AttackLoss:
        return divergence(model(x))

    def training_loss(
        self, model: Module, x: Tensor, adv: Tensor, targets: Targets, *others: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = model(adv)
        clean = model(x) if self.on == "clean" or self.weight else logits
        loss = loss_of(self)(clean if self.on == "clean" else logits, targets)
        if self.weight:
            loss = loss + self.weight * kl(clean.log_softmax(1), logits.log_softmax(1))
        return loss, logits


OBJECTIVES: dict[str, type[Objective]] = {
    "min-max": MinMax,
    "trades": Trades,
}

# Type checkers accept whatever has the interface; the command line offers what the registry names.
if TYPE_CHECKING:
    AnyObjective = Objective
else:
    AnyObjective = Union[tuple(OBJECTIVES.values())]  # noqa: UP007


def loss_of(objective: Objective) -> Loss:
    """Return the loss that an objective names."""
    return pick(LOSSES, objective.loss, "loss")
