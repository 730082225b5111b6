"""What the attack climbs and what the optimiser descends."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn import Module

from atcl.attacks.pgd import AttackLoss, divergence, kl
from atcl.core.errors import pick
from atcl.losses import LOSSES, Loss, Targets


@dataclass(frozen=True)
class MinMax:
    """Madry et al. 2018: attack and optimiser pull at the same loss of the adversarial images."""

    loss: str = "log"
    """a name from `atcl list losses`"""

    def attack_loss(self, model: Module, x: Tensor, targets: Targets) -> AttackLoss:
        loss = loss_of(self)
        return lambda logits: loss(logits, targets)

    def training_loss(self, model: Module, x: Tensor, adv: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        logits = model(adv)
        return loss_of(self)(logits, targets), logits


@dataclass(frozen=True)
class Trades:
    """Zhang et al. 2019: the attack climbs KL(clean || adv), needing no label; the optimiser adds that divergence to a loss."""

    loss: str = "scl_nl"
    """a name from `atcl list losses`"""
    on: Literal["clean", "adv"] = "clean"
    """the images whose loss is descended"""
    weight: float = 1.0
    """1 / lambda: the weight of the divergence; 0 leaves the loss alone"""

    def attack_loss(self, model: Module, x: Tensor, targets: Targets) -> AttackLoss:
        return divergence(model(x))

    def training_loss(self, model: Module, x: Tensor, adv: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        logits = model(adv)
        clean = model(x) if self.on == "clean" or self.weight else logits
        loss = loss_of(self)(clean if self.on == "clean" else logits, targets)
        if self.weight:
            loss = loss + self.weight * kl(clean.log_softmax(1), logits.log_softmax(1))
        return loss, logits


Objective = MinMax | Trades


def loss_of(objective: Objective) -> Loss:
    """Return the loss that an objective names."""
    return pick(LOSSES, objective.loss, "loss")
