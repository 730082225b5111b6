"""Layers that the networks share."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalize(nn.Module):
    """Subtract a mean and divide by a deviation, both per channel.

    As a layer of the model it lets attacks work on images in [0, 1].
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("deviation", torch.tensor(deviation).view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Return a padded 3x3 convolution without a bias, since a batch normalisation follows."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
