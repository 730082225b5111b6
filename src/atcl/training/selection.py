"""Which epoch is kept: rules by name, and the best model so far by one of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn import Module


@dataclass(frozen=True)
class Rule:
    """An epoch chosen by a number that is measured after each: on held-out complementary labels, or on the truth of the test set."""

    on: Literal["held", "test"]
    metric: str  # a score of `heldout.judge`, or an attack of record
    about: str
    smallest: bool = False

    def considers(self, grown: bool) -> bool:
        """Tell whether an epoch competes: without truth, only one whose attack had grown to its full strength."""
        return grown or self.on == "test"

    @property
    def key(self) -> str:
        """The number's name in the journal."""
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
        "most held-out predictions right, by an unbiased estimate, and withstanding the attack",
    ),
    "test_natural": Rule("test", "natural", "the best natural accuracy on the test set"),
    "test_pgd20": Rule("test", "pgd20", "the best PGD20 on the test set"),
}


@dataclass
class Best:
    """The best model of a stage by a rule, where there is one."""

    rule: Rule | None
    score: float = -float("inf")
    epoch: int = 0
    weights: dict[str, Tensor] = field(default_factory=dict)

    def see(self, measured: float, epoch: int, model: Module) -> None:
        """Keep a model that beats all before it."""
        score = -measured if self.rule and self.rule.smallest else measured
        if score > self.score:
            self.score, self.epoch = score, epoch
            self.weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def state(self) -> dict[str, Tensor]:
        """Return it as named tensors, empty where no rule asks for it."""
        if not self.weights:
            return {}
        weights = {f"best.{name}": tensor for name, tensor in self.weights.items()}
        return {
            **weights,
            "best_score": torch.tensor(self.score, dtype=torch.float64),
            "best_epoch": torch.tensor(self.epoch),
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Put a saved state back."""
        self.weights = {
            name.removeprefix("best."): tensor for name, tensor in state.items() if name.startswith("best.")
        }
        if self.weights:
            self.score, self.epoch = float(state["best_score"]), int(state["best_epoch"])


def chosen_epoch(rule: Rule, measured: Mapping[int, float]) -> int:
    """Return the epoch that a rule picks from the numbers of those that compete; the earliest of equals."""
    best = (min if rule.smallest else max)(measured.values())
    return min(epoch for epoch, value in measured.items() if value == best)
