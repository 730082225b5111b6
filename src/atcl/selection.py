"""Which epoch is kept beside the last: the best by a metric on the test set, where a rule of the recipe asks for it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import Module

from atcl.recipes import Recipe


@dataclass
class Best:
    """The best model of a stage by a metric on the test set, where a rule asks for it."""

    metric: str | None
    score: float = -1.0
    epoch: int = 0
    weights: dict[str, Tensor] = field(default_factory=dict)

    def see(self, score: float, epoch: int, model: Module) -> None:
        """Keep a model that beats all before it."""
        if score > self.score:
            self.score, self.epoch = score, epoch
            self.weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def state(self) -> dict[str, Tensor]:
        """Return it as named tensors, empty where no rule asks for it."""
        if not self.weights:
            return {}
        weights = {f"best.{name}": tensor for name, tensor in self.weights.items()}
        return {**weights, "best_score": torch.tensor(self.score, dtype=torch.float64), "best_epoch": torch.tensor(self.epoch)}

    def load(self, state: dict[str, Tensor]) -> None:
        """Put a saved state back."""
        self.weights = {name.removeprefix("best."): tensor for name, tensor in state.items() if name.startswith("best.")}
        if self.weights:
            self.score, self.epoch = float(state["best_score"]), int(state["best_epoch"])


def tracked(wanted: Recipe, number: int) -> str | None:
    """Return the metric by which the best epoch of a stage is kept: for a teacher, or for the report."""
    if number + 1 < len(wanted.stages):
        return "natural" if wanted.stages[number + 1].teacher == "test_natural" else None
    return "pgd20" if wanted.selection == "test_pgd20" else None
