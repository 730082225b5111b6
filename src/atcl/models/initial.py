"""How the first weights of a run are drawn from its seed."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import Module

from atcl.core.errors import AtclError
from atcl.core.seeds import derive


@dataclass(frozen=True)
class Derived:
    """The model of each stage has a seed of its own, derived from the run's; layers draw as they are built."""

    def __call__(self, build: Callable[[], Module], seed: int, stage: int) -> Module:
        torch.manual_seed(derive(seed, "model", stage))
        return build()


@dataclass(frozen=True)
class Official:
    """The very weights that the official code draws from the same seed, for the model of the first stage."""

    loader_draws: int = 1
    """integers that the official code's data loader draws before: 1 on MNIST and Kuzushiji, 0 on CIFAR-10 and SVHN"""

    def __post_init__(self) -> None:
        if self.loader_draws < 0:
            raise AtclError(f"loader_draws counts integers and cannot be negative ({self.loader_draws})")

    def __call__(self, build: Callable[[], Module], seed: int, stage: int) -> Module:
        model = build()
        # Official code: a second model draws after all that training the first one drew. Ours: a seed of its own, which a resumed run can have again.
        torch.manual_seed(derive(seed, "model", stage) if stage else seed)
        for _ in range(self.loader_draws):
            torch.empty((), dtype=torch.int64).random_()
        return redrawn(model)


Initial = Derived | Official


def redrawn(model: Module) -> Module:
    """Draw all parameters anew by `reset_parameters`: those of the layers in their order, then what the network changes of them."""
    return model.apply(_reset)  # children first


def _reset(module: Module) -> None:
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
