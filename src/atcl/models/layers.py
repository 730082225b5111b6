"""Layers that the networks share."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn


class Dropout(nn.Module):
    """Dropout that draws from a generator of its owner, so that a run depends on its own seed alone."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.rng: Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = torch.rand(x.shape, generator=self.rng, device=x.device) >= self.p
        return x * kept / (1 - self.p)


class Normalize(nn.Module):
    """Subtract a mean and divide by a deviation for each channel, inside the model: attacks see [0, 1] alone."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("deviation", torch.tensor(deviation).view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation


def draw_from(model: nn.Module, rng: Generator) -> None:
    """Let every `Dropout` of a model draw from `rng`."""
    for module in model.modules():
        if isinstance(module, Dropout):
            module.rng = rng


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3x3 convolution that keeps the size, without bias: a normalisation follows."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
