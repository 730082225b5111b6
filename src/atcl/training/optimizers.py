"""Optimisers as settings: frozen dataclasses that make one of PyTorch's."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from atcl.core.errors import AtclError


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent."""

    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.momentum < 1 and self.weight_decay >= 0):
            raise AtclError(
                f"momentum lies in [0, 1) and weight_decay is at least 0 (momentum {self.momentum}, weight_decay {self.weight_decay})"
            )

    def __call__(self, model: Module, lr: Tensor) -> torch.optim.Optimizer:
        # fused: faster, and the other kinds read a learning rate that lies on the GPU back to the host at each step
        return torch.optim.SGD(
            model.parameters(), lr=lr, momentum=self.momentum, weight_decay=self.weight_decay, fused=True
        )


@dataclass(frozen=True)
class Adam:
    """Adam with weight decay in the gradient, as in the original."""

    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not self.weight_decay >= 0:
            raise AtclError(f"weight_decay is at least 0, not {self.weight_decay}")

    def __call__(self, model: Module, lr: Tensor) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            model.parameters(), lr=lr, weight_decay=self.weight_decay, capturable=lr.is_cuda, fused=True
        )
