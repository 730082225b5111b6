"""`WeakData`: images with the classes that their complementary labels leave, and batches of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from torch import Generator, Tensor

from atcl.core.errors import AtclError
from atcl.data.augment import Augment
from atcl.data.images import _pair, as_float, checked_images


@dataclass(frozen=True)
class Batch:
    """A batch of training images."""

    index: Tensor  # (n,) positions in the dataset
    x: Tensor  # (n, C, H, W) float in [0, 1]
    candidates: Tensor  # (n, K) bool
    others: tuple[Tensor, ...] = ()  # further views of the same images, each like x

    @property
    def views(self) -> tuple[Tensor, ...]:
        """All views of the images, each from an augmentation of its own; the first is `x`."""
        return (self.x, *self.others)


@dataclass(frozen=True)
class WeakData:
    """A training set of images with complementary labels.

    Args:
        x: (n, C, H, W), the images: uint8, or floats in [0, 1]; a tensor or a NumPy array.
        candidates: (n, K) bool, the classes that are not ruled out, see `rule_out`.
        transition: (K, K), p(complementary = j | true = i), where it is known; None for the uniform one.

    Raises:
        AtclError: a shape or type is wrong, an image has every class ruled out or none, or the transition
            matrix contradicts the labels.

    Examples:
        >>> data = WeakData(torch.rand(2, 1, 4, 4), rule_out(2, 3, [0, 2]))
        >>> len(data), data.classes, data.single
        (2, 3, True)
    """

    x: Tensor  # (n, C, H, W) uint8, or float in [0, 1]
    candidates: Tensor  # (n, K) bool
    transition: Tensor | None = None  # (K, K)

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", checked_images(self.x))
        object.__setattr__(self, "candidates", torch.as_tensor(self.candidates))
        if self.transition is not None:
            object.__setattr__(self, "transition", torch.as_tensor(self.transition).float())
        candidates = self.candidates
        if candidates.ndim != 2 or len(self.x) != len(candidates) or candidates.dtype != torch.bool:
            received = f"{tuple(candidates.shape)} of type {candidates.dtype}"
            raise AtclError(f"candidates are ({len(self.x)}, K) of type bool; got {received}")
        if len(self.x) == 0:
            raise AtclError("there is nothing to train on: no image is given")
        none, every = ~candidates.any(1), candidates.all(1)  # (n,)
        if bool(none.any()):
            position = int(none.int().argmax())
            raise AtclError(f"image {position} has every class ruled out: leave at least one candidate")
        if bool(every.any()):
            position = int(every.int().argmax())
            raise AtclError(
                f"image {position} has no class ruled out, so nothing can be learned from it: "
                "give it a complementary label, or leave it out"
            )
        _check_transition(self.transition, candidates)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def classes(self) -> int:
        """K, the number of classes."""
        return self.candidates.shape[1]

    @property
    def device(self) -> torch.device:
        """The device of the candidates and of batches; images that do not fit there stay on the host."""
        return self.candidates.device

    @property
    def single(self) -> bool:
        """Whether each image has exactly one class ruled out."""
        return bool((self.candidates.sum(1) == self.classes - 1).all())

    def prior(self) -> Tensor:
        """Return (K,): the share of each class among the complementary labels."""
        counts = self.candidates.logical_not().sum(0)
        return counts / counts.sum()

    def batch(self, index: Tensor, augment: Augment, rng: Generator, views: Sequence[Augment] = ()) -> Batch:
        """Return the images at `index`, augmented, as floats, with their candidates.

        Args:
            index: (n,) positions in the dataset.
            augment: makes the first view of the images.
            rng: what augmentations draw from, that of the first view first.
            views: an augmentation for each further view, made from the original images.
        """
        images = as_float(self.images(index))
        first, *others = [augment(images, rng) for augment in (augment, *views)]
        return Batch(index, first, self.candidates[index], tuple(others))

    def images(self, index: Tensor) -> Tensor:
        """Return the images at `index` on the device, also where they are stored on the host."""
        if self.x.device == self.device:
            return self.x[index]
        return self.x[index.cpu()].pin_memory().to(self.device, non_blocking=True)

    def some(self) -> Tensor:
        """Return the positions of the first images, at most four, as an example input for a model."""
        return torch.arange(min(4, len(self)), device=self.device)

    def in_order(self, batch_size: int) -> Iterator[Tensor]:
        """Yield all images as floats on the device, in order, `batch_size` at a time."""
        for x in self.x.split(batch_size):
            yield as_float(x.to(self.device, non_blocking=True))

    def take(self, index: Tensor) -> "WeakData":
        """Return the part of the data at `index`."""
        return replace(self, x=self.x[index.to(self.x.device)], candidates=self.candidates[index])

    def to(self, device: torch.device, room: int | None = None) -> "WeakData":
        """Return the same data on a device.

        Args:
            device: where to.
            room: the images stay in pinned memory of the host if they have more bytes than this; by default
                half of the free memory of the device.
        """
        transition = None if self.transition is None else self.transition.to(device)
        if self.x.device == device:
            room = self.x.nbytes  # they are there already
        if room is None:
            room = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else self.x.nbytes
        x = self.x.to(device) if self.x.nbytes <= room or device.type != "cuda" else self.x.cpu().pin_memory()
        return replace(self, x=x, candidates=self.candidates.to(device), transition=transition)


def rule_out(n: int, classes: int, complementary: Any) -> Tensor:
    """Return candidates from complementary labels: all classes but those that are ruled out.

    Args:
        n: the number of images.
        classes: K, the number of classes.
        complementary: for each image one class or several, from 0 to K - 1: a tensor, an array or lists.

    Returns:
        (n, K) bool.

    Raises:
        AtclError: there are not `n` of them, or one is not a class.

    Examples:
        >>> rule_out(2, 3, [0, [1, 2]])
        tensor([[False,  True,  True],
                [ True, False, False]])
    """
    if len(complementary) != n:
        raise AtclError(f"there are {n} images but complementary labels for {len(complementary)}")
    candidates = torch.ones(n, classes, dtype=torch.bool)
    rows = complementary.tolist() if hasattr(complementary, "tolist") else complementary
    for row, labels in enumerate(rows):
        for label in labels if isinstance(labels, Iterable) and not isinstance(labels, str) else [labels]:
            if isinstance(label, bool) or not (isinstance(label, Integral) and 0 <= int(label) < classes):
                raise AtclError(
                    f"image {row} has complementary label {label!r}, "
                    f"but the classes are the numbers 0 to {classes - 1}"
                )
            candidates[row, int(label)] = False
    return candidates


def from_torch_dataset(dataset: Any, classes: int) -> WeakData:
    """Return training data from a PyTorch dataset, or any iterable, with complementary labels.

    Args:
        dataset: pairs of an image and its complementary label, or a list of them. An image is a tensor
            (C, H, W) or (H, W), an array (H, W) or (H, W, C), or an image of Pillow; all have the same size.
        classes: K, the number of classes.

    Raises:
        AtclError: the dataset is empty, or an image or a label does not fit; the message names the first.

    Examples:
        >>> data = from_torch_dataset([(torch.zeros(1, 4, 4), 2), (torch.ones(1, 4, 4), 0)], classes=3)
        >>> data.candidates.int().tolist()
        [[1, 1, 0], [0, 1, 1]]
    """
    # map-style datasets have a length and no iterator; in iterable-style ones, indexing fails
    if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__len__"):
        raise AtclError(f"a dataset has a length or can be iterated over; got a {type(dataset).__name__}")
    iterable = hasattr(dataset, "__iter__")
    items = dataset if iterable else (dataset[position] for position in range(len(dataset)))
    images: list[Tensor] = []
    complementary: list[Any] = []
    for position, item in enumerate(items):
        try:
            image, labels = _pair(item)
            if images and (image.shape, image.dtype) != (images[0].shape, images[0].dtype):
                first = f"{tuple(images[0].shape)} {images[0].dtype}"
                raise AtclError(
                    f"{tuple(image.shape)} {image.dtype}, but image 0 is {first}: "
                    "give all images the same shape and type"
                )
        except AtclError as error:
            raise AtclError(f"image {position}: {error}") from None
        images.append(image)
        complementary.append(labels)
    if not images:
        raise AtclError("there is nothing to train on: the dataset is empty")
    return WeakData(torch.stack(images), rule_out(len(images), classes, complementary))


def shuffled(n: int, batch_size: int, rng: Generator) -> Iterator[Tensor]:
    """Yield the positions 0 to n - 1 in random order, in batches of which the last may be smaller."""
    yield from torch.randperm(n, generator=rng, device=rng.device).split(batch_size)


def _check_transition(transition: Tensor | None, candidates: Tensor) -> None:
    if transition is None:
        return
    classes = candidates.shape[1]
    if transition.shape != (classes, classes) or bool((transition < 0).any()):
        raise AtclError(
            f"a transition matrix is ({classes}, {classes}) with no negative entry; "
            f"got shape {tuple(transition.shape)}"
        )
    if not torch.allclose(transition.sum(1), torch.ones(classes, device=transition.device), atol=1e-4):
        raise AtclError(
            "each row of a transition matrix sums to 1: "
            "row i is the distribution of the complementary label of class i"
        )
    impossible = candidates.logical_not().any(0) & (transition.sum(0) == 0)
    if bool(impossible.any()):
        raise AtclError(
            f"class {int(impossible.int().argmax())} is a complementary label in the data, "
            "but has probability 0 in every row of the transition matrix"
        )
