"""True labels, in a type of their own; training never imports this module, not even through others."""

from dataclasses import dataclass

import torch
from torch import Tensor

from atcl.core.errors import AtclError
from atcl.data.images import checked_images


@dataclass(frozen=True)
class Truth:
    """The true class of each image, for evaluation and analysis alone.

    Args:
        labels: (n,) int64, a tensor or a NumPy array.
        classes: K, the number of classes.

    Raises:
        AtclError: the labels have another shape or type, or are not in 0 to K - 1.

    Examples:
        >>> Truth(torch.tensor([0, 2]), classes=3).labels
        tensor([0, 2])
    """

    labels: Tensor  # (n,) int64
    classes: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", torch.as_tensor(self.labels))
        if self.labels.ndim != 1 or self.labels.dtype != torch.int64:
            received = f"{tuple(self.labels.shape)} of type {self.labels.dtype}"
            raise AtclError(f"true labels are (n,) of type int64; got {received}")
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < self.classes:
            raise AtclError(f"true labels must lie in 0 to {self.classes - 1}")


@dataclass(frozen=True)
class Split:
    """Images with their true classes: a test set, or a training set before `weaken`.

    Args:
        x: (n, C, H, W), the images: uint8, or floats in [0, 1]; a tensor or a NumPy array.
        truth: the true class of each image.

    Raises:
        AtclError: the images have another shape or type, or there is not one label for each.

    Examples:
        >>> split = Split(torch.rand(2, 1, 4, 4), Truth(torch.tensor([0, 2]), classes=3))
        >>> len(split)
        2
    """

    x: Tensor  # (n, C, H, W) uint8, or float in [0, 1]
    truth: Truth

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", checked_images(self.x))
        if len(self.x) != len(self.truth.labels):
            raise AtclError(f"there are {len(self.x)} images but {len(self.truth.labels)} true labels")

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: torch.device) -> "Split":
        """Return the same images and true classes on a device."""
        return Split(self.x.to(device), Truth(self.truth.labels.to(device), self.truth.classes))

    def take(self, part: slice) -> "Split":
        """Return a part of the images with their true classes."""
        return Split(self.x[part], Truth(self.truth.labels[part], self.truth.classes))
