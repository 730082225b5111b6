"""Which epoch of a stage is kept: the rules by name, and the best model so far by one of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn import Module


@dataclass(frozen=True)
class Rule:
    """Choose the epoch with the best value of a metric, which is measured after each epoch."""

    on: Literal["held", "test"]  # held-out complementary labels, or true labels of the test set
    metric: str  # a score of `weak_validation.judge`, or the name of an attack of evaluation
    about: str  # one line for `atcl list rules`
    smallest: bool = False  # whether the smallest value is the best

    def considers(self, grown: bool) -> bool:
        """Return whether an epoch may be chosen.

        Rules on held-out labels choose among epochs with the full attack alone: before, a model that always
        predicts the same class would withstand everything.

        Args:
            grown: whether the attack of the epoch had its full strength.
        """
        return grown or self.on == "test"

    @property
    def key(self) -> str:
        """The name of the metric in the journal."""
        return f"{self.on}_{self.metric}"


_HELD = {
    "inside": ("most predictions inside the candidates", False),
    "scel": ("lowest surrogate complementary loss", True),
    "ure": ("lowest unbiased risk estimate", True),
}

RULES: dict[str, Rule | None] = {
    "last": None,
    **{
        f"held_{score}_{kind}": Rule(
            "held", f"{score}_{kind}", f"{about} on {kind} held-out images", smallest
        )
        for score, (about, smallest) in _HELD.items()
        for kind in ("natural", "attacked")
    },
    "held_withstands": Rule(
        "held", "withstands", "most held-out predictions inside the candidates that withstand the attack"
    ),
    "held_robust": Rule(
        "held",
        "robust",
        "most held-out predictions right, by an unbiased estimate, that withstand the attack",
    ),
    "test_natural": Rule("test", "natural", "the best natural accuracy on the test set"),
    "test_pgd20": Rule("test", "pgd20", "the best PGD20 on the test set"),
}


@dataclass
class Best:
    """The best model of a stage so far by a rule; without a rule it stays empty."""

    rule: Rule | None
    score: float = -float("inf")
    epoch: int = 0
    weights: dict[str, Tensor] = field(default_factory=dict)

    def see(self, measured: float, epoch: int, model: Module) -> None:
        """Keep the weights of a model that is better than all before it."""
        score = -measured if self.rule and self.rule.smallest else measured
        if score > self.score:
            self.score, self.epoch = score, epoch
            self.weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def state(self) -> dict[str, Tensor]:
        """Return it as named tensors for a checkpoint, empty without a rule."""
        if not self.weights:
            return {}
        weights = {f"best.{name}": tensor for name, tensor in self.weights.items()}
        return {
            **weights,
            "best_score": torch.tensor(self.score, dtype=torch.float64),
            "best_epoch": torch.tensor(self.epoch),
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore a saved state."""
        self.weights = {
            name.removeprefix("best."): tensor for name, tensor in state.items() if name.startswith("best.")
        }
        if self.weights:
            self.score, self.epoch = float(state["best_score"]), int(state["best_epoch"])


def chosen_epoch(rule: Rule, measured: Mapping[int, float]) -> int:
    """Return the epoch that a rule chooses, the earliest one of equals.

    Args:
        rule: the rule.
        measured: the value of its metric for each epoch that may be chosen.
    """
    best = (min if rule.smallest else max)(measured.values())
    return min(epoch for epoch, value in measured.items() if value == best)
