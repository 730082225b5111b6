"""Optimisers as settings: frozen dataclasses that build an optimiser of PyTorch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Union

import torch
from torch import Tensor
from torch.nn import Module

from atcl.core.errors import AtclError


class MakeOptimizer(Protocol):
    """The interface of the settings of an optimiser."""

    def __call__(self, model: Module, lr: Tensor) -> torch.optim.Optimizer:
        """Return the optimiser of a model; it reads the learning rate, a 0-d tensor, in each step."""
        ...


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum.

    Raises:
        AtclError: `momentum` lies outside [0, 1), or `weight_decay` is negative.

    Examples:
        >>> Sgd(momentum=0.5)(torch.nn.Linear(2, 2), torch.tensor(0.1)).param_groups[0]["momentum"]
        0.5
    """

    momentum: float = 0.9
    """momentum of the gradient, in [0, 1)"""
    weight_decay: float = 0.0
    """weight of the L2 penalty, which is added to the gradient"""

    def __post_init__(self) -> None:
        if not (0 <= self.momentum < 1 and self.weight_decay >= 0):
            settings = f"momentum {self.momentum}, weight_decay {self.weight_decay}"
            raise AtclError(f"momentum lies in [0, 1) and weight_decay is at least 0 ({settings})")

    def __call__(self, model: Module, lr: Tensor) -> torch.optim.Optimizer:
        # fused: it is faster, and the others copy a learning rate on the GPU to the host in each step
        return torch.optim.SGD(
            model.parameters(), lr=lr, momentum=self.momentum, weight_decay=self.weight_decay, fused=True
        )


@dataclass(frozen=True)
class Adam:
    """Adam with weight decay in the gradient, unlike AdamW.

    Raises:
        AtclError: `weight_decay` is negative.

    Examples:
        >>> Adam()(torch.nn.Linear(2, 2), torch.tensor(1e-3)).param_groups[0]["betas"]
        (0.9, 0.999)
    """

    weight_decay: float = 0.0
    """weight of the L2 penalty, which is added to the gradient"""

    def __post_init__(self) -> None:
        if not self.weight_decay >= 0:
            raise AtclError(f"weight_decay is at least 0, not {self.weight_decay}")

    def __call__(self, model: Module, lr: Tensor) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            model.parameters(), lr=lr, weight_decay=self.weight_decay, capturable=lr.is_cuda, fused=True
        )


OPTIMIZERS: dict[str, type[MakeOptimizer]] = {"sgd": Sgd, "adam": Adam}

# Type checkers accept whatever has the interface; the command line offers what the registry names.
if TYPE_CHECKING:
    AnyOptimizer = MakeOptimizer
else:
    AnyOptimizer = Union[tuple(OPTIMIZERS.values())]  # noqa: UP007
