"""Images with their candidates, on the device, in shuffled and augmented batches. There is no field for the truth."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from torch import Generator, Tensor

from atcl.core.errors import AtclError
from atcl.data.augment import Augmentation
from atcl.data.images import _pair, as_float, checked_images


@dataclass(frozen=True)
class Batch:
    """What one training step sees."""

    index: Tensor  # (n,) positions in the dataset
    x: Tensor  # (n, C, H, W) float in [0, 1]
    candidates: Tensor  # (n, K) bool


@dataclass(frozen=True)
class WeakData:
    """A training set whose only supervision is the matrix of candidates."""

    x: Tensor  # (n, C, H, W) uint8, or float in [0, 1]; NumPy arrays are taken too
    candidates: Tensor  # (n, K) bool, the classes not ruled out
    transition: Tensor | None = (
        None  # (K, K) p(complementary = j | true = i), where it is known; None: uniform
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", checked_images(self.x))
        object.__setattr__(self, "candidates", torch.as_tensor(self.candidates))
        if self.transition is not None:
            object.__setattr__(self, "transition", torch.as_tensor(self.transition).float())
        candidates = self.candidates
        if candidates.ndim != 2 or len(self.x) != len(candidates) or candidates.dtype != torch.bool:
            raise AtclError(
                f"candidates are ({len(self.x)}, K) of type bool; got {tuple(candidates.shape)} of type {candidates.dtype}"
            )
        if len(self.x) == 0:
            raise AtclError("there is nothing to train on: no image is given")
        remaining = candidates.sum(1)
        if bool((remaining == 0).any()):
            raise AtclError(
                f"image {int((remaining == 0).int().argmax())} has every class ruled out: leave at least one candidate"
            )
        if bool((remaining == candidates.shape[1]).any()):
            raise AtclError(
                f"image {int((remaining == candidates.shape[1]).int().argmax())} has no class ruled out: it teaches nothing"
            )
        _check_transition(self.transition, candidates)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def classes(self) -> int:
        """K."""
        return self.candidates.shape[1]

    @property
    def device(self) -> torch.device:
        """Where batches are made: that of the candidates; images too many for it wait in the host's memory."""
        return self.candidates.device

    @property
    def single(self) -> bool:
        """Whether each image has exactly one class ruled out."""
        return bool((self.candidates.sum(1) == self.classes - 1).all())

    def prior(self) -> Tensor:
        """Return (K,): the share of each class among the complementary labels."""
        counts = self.candidates.logical_not().sum(0)
        return counts / counts.sum()

    def batch(self, index: Tensor, augmentation: Augmentation, rng: Generator) -> Batch:
        """Return the images at `index`, augmented, as floats, with their candidates."""
        return Batch(index, augmentation(as_float(self.images(index)), rng), self.candidates[index])

    def images(self, index: Tensor) -> Tensor:
        """Return the images at `index` on the device, wherever they lie."""
        if self.x.device == self.device:
            return self.x[index]
        return self.x[index.cpu()].pin_memory().to(self.device, non_blocking=True)

    def some(self) -> Tensor:
        """Return the positions of the first few images, to try a model on."""
        return torch.arange(min(4, len(self)), device=self.device)

    def in_order(self, batch_size: int) -> Iterator[Tensor]:
        """Yield all images as floats on the device, in order, `batch_size` at a time."""
        for x in self.x.split(batch_size):
            yield as_float(x.to(self.device, non_blocking=True))

    def take(self, index: Tensor) -> "WeakData":
        """Return the part of the data at `index`."""
        return replace(self, x=self.x[index.to(self.x.device)], candidates=self.candidates[index])

    def to(self, device: torch.device, room: int | None = None) -> "WeakData":
        """Return the same data on a device; images over `room` bytes (by default half of what is free there) stay in pinned memory of the host."""
        transition = None if self.transition is None else self.transition.to(device)
        if self.x.device == device:
            room = self.x.nbytes  # it lies there already
        if room is None:
            room = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else self.x.nbytes
        x = self.x.to(device) if self.x.nbytes <= room or device.type != "cuda" else self.x.cpu().pin_memory()
        return replace(self, x=x, candidates=self.candidates.to(device), transition=transition)


def rule_out(n: int, classes: int, complementary: Any) -> Tensor:
    """Return candidates (n, K): all classes but the complementary label, or labels, of each image (a tensor, an array or lists)."""
    if len(complementary) != n:
        raise AtclError(f"there are {n} images but complementary labels for {len(complementary)}")
    candidates = torch.ones(n, classes, dtype=torch.bool)
    for row, labels in enumerate(
        complementary.tolist() if hasattr(complementary, "tolist") else complementary
    ):
        for label in labels if isinstance(labels, Iterable) and not isinstance(labels, str) else [labels]:
            if isinstance(label, bool) or not (isinstance(label, Integral) and 0 <= int(label) < classes):
                raise AtclError(
                    f"image {row} has complementary label {label!r}, but the classes are the numbers 0 to {classes - 1}"
                )
            candidates[row, int(label)] = False
    return candidates


def from_torch_dataset(dataset: Any, classes: int) -> WeakData:
    """Return weak data from any PyTorch dataset, or iterable, of pairs of an image and its complementary label or labels."""
    # PyTorch's datasets with an index have a length and no iterator; those with an iterator have an index that fails
    if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__len__"):
        raise AtclError(f"a dataset has a length or can be iterated over; got a {type(dataset).__name__}")
    items = (
        dataset if hasattr(dataset, "__iter__") else (dataset[position] for position in range(len(dataset)))
    )
    images: list[Tensor] = []
    complementary: list[Any] = []
    for position, item in enumerate(items):
        try:
            image, labels = _pair(item)
            if images and (image.shape, image.dtype) != (images[0].shape, images[0].dtype):
                raise AtclError(
                    f"{tuple(image.shape)} {image.dtype}, but image 0 is {tuple(images[0].shape)} {images[0].dtype}: make them alike"
                )
        except AtclError as error:
            raise AtclError(f"image {position}: {error}") from None
        images.append(image)
        complementary.append(labels)
    if not images:
        raise AtclError("there is nothing to train on: the dataset is empty")
    return WeakData(torch.stack(images), rule_out(len(images), classes, complementary))


def shuffled(n: int, batch_size: int, rng: Generator) -> Iterator[Tensor]:
    """Yield the positions 0 to n - 1 in random order, `batch_size` at a time; the last batch may be smaller."""
    yield from torch.randperm(n, generator=rng, device=rng.device).split(batch_size)


def _check_transition(transition: Tensor | None, candidates: Tensor) -> None:
    if transition is None:
        return
    classes = candidates.shape[1]
    if transition.shape != (classes, classes) or bool((transition < 0).any()):
        raise AtclError(
            f"a transition matrix is ({classes}, {classes}) with no negative entry; got shape {tuple(transition.shape)}"
        )
    if not torch.allclose(transition.sum(1), torch.ones(classes, device=transition.device), atol=1e-4):
        raise AtclError(
            "each row of a transition matrix sums to 1: row i is the distribution of the complementary label of class i"
        )
    impossible = candidates.logical_not().any(0) & (transition.sum(0) == 0)
    if bool(impossible.any()):
        raise AtclError(
            f"class {int(impossible.int().argmax())} is a complementary label in the data, but the transition matrix forbids it"
        )
