"""What a run learns from: images with weak labels, and true labels for measurements."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator
from torch.nn import Module

from atcl.core.errors import AtclError
from atcl.data.weak import WeakData
from atcl.datasets.truth import Split, Truth
from atcl.evaluation.cache import digest_of, fingerprint_of

Build = Callable[[], Module]  # returns a new model of your own


@dataclass(frozen=True)
class Problem:
    """The data of a run: weak labels to learn from, and true labels that are only measured against.

    Args:
        train: images with weak labels.
        truth: the true labels of the training images, for the accuracy of pseudo-labels in the journal.
        test: a test set with true labels.
        held: held-out images with weak labels, to choose an epoch without true labels. By default the
            recipe's `holdout` says which share of the training images is held out.
        names: the names of the classes.
        source: a digest of the training images before some were held out, the same for every seed.

    Raises:
        AtclError: the parts differ in their images or classes.

    Examples:
        Four images of three classes, with one complementary label each:

        >>> from atcl.data.weak import rule_out
        >>> data = WeakData(torch.rand(4, 1, 8, 8), rule_out(4, 3, [0, 1, 2, 0]))
        >>> problem = Problem(data, names=("cat", "dog", "bird"))
        >>> half = problem.held_out(0.5, seed=0)
        >>> len(half.train), len(half.held)
        (2, 2)
    """

    train: WeakData
    truth: Truth | None = None
    test: Split | None = None
    held: WeakData | None = None
    names: tuple[str, ...] | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        if self.names is not None and len(set(self.names)) != self.train.classes:
            raise AtclError(
                f"there are {self.train.classes} classes but {len(set(self.names))} different names: "
                "give a name for each class"
            )
        if self.held is not None and (self.held.classes, self.held.x.shape[1:]) != (
            self.train.classes,
            self.train.x.shape[1:],
        ):
            raise AtclError(
                "held-out and training images differ in shape or in the number of classes: give both alike"
            )
        if self.truth is not None and len(self.truth.labels) != len(self.train):
            raise AtclError(
                f"there are {len(self.train)} training images but {len(self.truth.labels)} true labels: "
                "give one for each image"
            )
        if self.test is None:
            return
        if len(self.test) == 0:
            raise AtclError("the test set is empty: give images, or no test set")
        shape, test_shape = tuple(self.train.x.shape[1:]), tuple(self.test.x.shape[1:])
        classes, test_classes = self.train.classes, self.test.truth.classes
        if (test_shape, test_classes) != (shape, classes):
            raise AtclError(
                f"training and test set differ: images {shape} and {test_shape}, "
                f"classes {classes} and {test_classes}: give both alike"
            )

    def held_out(self, share: float, seed: int) -> "Problem":
        """Return the problem with a random share of the training images held out.

        Args:
            share: between 0 and 1.
            seed: which images these are follows from it.
        """
        number = round(share * len(self.train))
        if not 0 < number < len(self.train):
            raise AtclError(
                f"a holdout of {share} takes {number} of {len(self.train)} images: leave some on both sides"
            )
        order = torch.randperm(len(self.train), generator=Generator().manual_seed(seed)).to(self.train.device)
        held, rest = order[:number].sort().values, order[number:].sort().values
        truth = (
            None
            if self.truth is None
            else Truth(self.truth.labels[rest.to(self.truth.labels.device)], self.truth.classes)
        )
        return replace(
            self,
            train=self.train.take(rest),
            truth=truth,
            held=self.train.take(held),
            source=_weak_digest(self.train),
        )

    def to(self, device: torch.device) -> "Problem":
        """Return the problem with its training and held-out images on a device."""
        return replace(
            self, train=self.train.to(device), held=None if self.held is None else self.held.to(device)
        )

    def fingerprints(self) -> dict[str, str | None]:
        """Return digests of the training data, of the held-out data, and of the test set."""
        return {
            "data": _weak_digest(self.train),
            "held": None if self.held is None else _weak_digest(self.held),
            "test": None if self.test is None else fingerprint_of(self.test),
        }


def _weak_digest(data: WeakData) -> str:
    return digest_of([data.x, data.candidates, *([] if data.transition is None else [data.transition])])
