"""Augmentations: functions of a batch of images and a generator."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from atcl.core.errors import AtclError


@dataclass(frozen=True)
class Augmentation:
    """Random crop after padding, and random horizontal flip; the default changes nothing."""

    padding: int = 0
    """pixels of black added on each side before a random crop to the old size"""
    flip: bool = False
    """mirror half of the images"""

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise AtclError(f"padding counts pixels and cannot be negative ({self.padding})")

    def __call__(self, x: Tensor, rng: Generator) -> Tensor:
        if self.padding:
            x = _random_crop(x, self.padding, rng)
        if self.flip:
            mirrored = torch.rand(len(x), 1, 1, 1, generator=rng, device=x.device) < 0.5
            x = torch.where(mirrored, x.flip(3), x)
        return x


def _random_crop(x: Tensor, padding: int, rng: Generator) -> Tensor:
    n, _, height, width = x.shape
    padded = F.pad(x, [padding] * 4)
    top, left = torch.randint(2 * padding + 1, (2, n, 1), generator=rng, device=x.device)
    rows = top + torch.arange(height, device=x.device)  # (n, H)
    columns = left + torch.arange(width, device=x.device)  # (n, W)
    image = torch.arange(n, device=x.device)[:, None, None]
    # advanced indices around a slice put the channels last
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
