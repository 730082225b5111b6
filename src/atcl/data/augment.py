"""Augmentations: callables that take a batch of images and a generator; `AUGMENTATIONS` names them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Union

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from atcl.core.errors import AtclError


class Augment(Protocol):
    """The interface of an augmentation."""

    def __call__(self, x: Tensor, rng: Generator, /) -> Tensor:
        """Return other images like x, (n, C, H, W) in [0, 1], made with random numbers from `rng` alone."""
        ...


@dataclass(frozen=True)
class Augmentation:
    """Random crop after padding, and random horizontal flip; the default changes nothing.

    Raises:
        AtclError: `padding` is negative.

    Examples:
        >>> images = torch.zeros(2, 3, 8, 8)
        >>> Augmentation(padding=1, flip=True)(images, torch.Generator()).shape
        torch.Size([2, 3, 8, 8])
    """

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


@dataclass(frozen=True)
class Cutout:
    """A grey square at a random place of each image (DeVries and Taylor 2017), after crop and flip.

    Raises:
        AtclError: `size` or `padding` is negative.

    Examples:
        >>> images = torch.zeros(2, 3, 8, 8)
        >>> Cutout(size=2)(images, torch.Generator()).max()
        tensor(0.5000)
    """

    size: int = 0
    """side of the square in pixels; its centre lies anywhere in the image, so a part may fall outside"""
    padding: int = 0
    """pixels of black added on each side before a random crop to the old size, as in Augmentation"""
    flip: bool = False
    """mirror half of the images, as in Augmentation"""

    def __post_init__(self) -> None:
        if self.size < 0 or self.padding < 0:
            sizes = f"size {self.size}, padding {self.padding}"
            raise AtclError(f"size and padding count pixels and cannot be negative ({sizes})")

    def __call__(self, x: Tensor, rng: Generator) -> Tensor:
        x = Augmentation(self.padding, self.flip)(x, rng)
        return _random_cut(x, self.size, rng) if self.size else x


@dataclass(frozen=True)
class AugmentationKind:
    """A class of augmentations, with an example of its settings."""

    of: type[Augment]
    example: Augment  # settings that change the images


AUGMENTATIONS: dict[str, AugmentationKind] = {
    "crop_flip": AugmentationKind(Augmentation, Augmentation(padding=2, flip=True)),
    "cutout": AugmentationKind(Cutout, Cutout(size=4, padding=2, flip=True)),
}

# Type checkers accept whatever has the interface; the command line offers what the registry names.
if TYPE_CHECKING:
    AnyAugmentation = Augment
else:
    AnyAugmentation = Union[tuple(kind.of for kind in AUGMENTATIONS.values())]  # noqa: UP007


def _random_crop(x: Tensor, padding: int, rng: Generator) -> Tensor:
    n, _, height, width = x.shape
    padded = F.pad(x, [padding] * 4)
    top, left = torch.randint(2 * padding + 1, (2, n, 1), generator=rng, device=x.device)
    rows = top + torch.arange(height, device=x.device)  # (n, H)
    columns = left + torch.arange(width, device=x.device)  # (n, W)
    image = torch.arange(n, device=x.device)[:, None, None]
    # advanced indices around a slice put the channels last
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def _random_cut(x: Tensor, size: int, rng: Generator) -> Tensor:
    n, _, height, width = x.shape
    top = torch.randint(height, (n, 1), generator=rng, device=x.device) - size // 2
    left = torch.randint(width, (n, 1), generator=rng, device=x.device) - size // 2
    rows = torch.arange(height, device=x.device) - top  # (n, H), counted from the top of the square
    columns = torch.arange(width, device=x.device) - left  # (n, W)
    inside = ((rows >= 0) & (rows < size))[:, :, None] & ((columns >= 0) & (columns < size))[:, None, :]
    return x.masked_fill(inside[:, None], 0.5)
