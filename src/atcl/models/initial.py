"""How the first weights of a run follow from its seed."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import Module

from atcl.core.errors import AtclError
from atcl.core.seeds import derive


@dataclass(frozen=True)
class Derived:
    """The model of each stage has a seed derived from the run's, and draws its weights as it is built."""

    def __call__(self, build: Callable[[], Module], seed: int, stage: int) -> Module:
        torch.manual_seed(derive(seed, "model", stage))
        return build()


@dataclass(frozen=True)
class Official:
    """The model of the first stage starts from the same weights as the official code with the same seed."""

    loader_draws: int = 1
    """integers that the official data loader draws first: 1 on MNIST and Kuzushiji, 0 on CIFAR-10 and SVHN"""

    def __post_init__(self) -> None:
        if self.loader_draws < 0:
            raise AtclError(f"loader_draws counts integers and cannot be negative ({self.loader_draws})")

    def __call__(self, build: Callable[[], Module], seed: int, stage: int) -> Module:
        model = build()
        # Official code: the second model draws after all that training the first one drew.
        # Ours: it has a seed of its own, so that a resumed run draws the same weights.
        torch.manual_seed(derive(seed, "model", stage) if stage else seed)
        for _ in range(self.loader_draws):
            torch.empty((), dtype=torch.int64).random_()
        return redrawn(model)


Initial = Derived | Official


def redrawn(model: Module) -> Module:
    """Draw all weights of a model anew, by the `reset_parameters` of each layer and then of the network."""
    return model.apply(_reset)  # children first, in their order


def _reset(module: Module) -> None:
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
