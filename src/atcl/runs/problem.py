"""What a run learns from: weak labels, and for observers the truth."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator
from torch.nn import Module

from atcl.core.errors import AtclError
from atcl.data.weak import WeakData
from atcl.datasets.truth import Split, Truth
from atcl.evaluation.cache import digest_of, fingerprint_of

Build = Callable[[], Module]


@dataclass(frozen=True)
class Problem:
    """Weak labels to learn from, and, for looking on only, the truth."""

    train: WeakData
    truth: Truth | None = None  # of the training images: for the accuracy of pseudo-labels in the journal
    test: Split | None = None
    held: WeakData | None = (
        None  # to choose and judge by without truth; a recipe's `holdout` takes it from the training images
    )
    names: tuple[str, ...] | None = None  # of the classes
    source: str | None = (
        None  # digest of the training images before some were held out, the same for every seed
    )

    def __post_init__(self) -> None:
        if self.names is not None and len(set(self.names)) != self.train.classes:
            raise AtclError(
                f"there are {self.train.classes} classes but {len(set(self.names))} different names for them"
            )
        if self.held is not None and (self.held.classes, self.held.x.shape[1:]) != (
            self.train.classes,
            self.train.x.shape[1:],
        ):
            raise AtclError("held-out and training images differ in shape or in the number of classes")
        if self.truth is not None and len(self.truth.labels) != len(self.train):
            raise AtclError(
                f"there are {len(self.train)} training images but {len(self.truth.labels)} true labels"
            )
        if self.test is None:
            return
        if len(self.test) == 0:
            raise AtclError("the test set is empty: give images, or no test set")
        if self.test.x.shape[1:] != self.train.x.shape[1:] or self.test.truth.classes != self.train.classes:
            raise AtclError(
                f"training and test set differ: images {tuple(self.train.x.shape[1:])} and {tuple(self.test.x.shape[1:])}, "
                f"classes {self.train.classes} and {self.test.truth.classes}"
            )

    def held_out(self, share: float, seed: int) -> "Problem":
        """Return the problem with a random share of the training images held out."""
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
        """Return the problem with what training sees, and what it is chosen by, on a device."""
        return replace(
            self, train=self.train.to(device), held=None if self.held is None else self.held.to(device)
        )

    def fingerprints(self) -> dict[str, str | None]:
        """Return digests of what training sees, of the held-out part, and of the test set."""
        return {
            "data": _weak_digest(self.train),
            "held": None if self.held is None else _weak_digest(self.held),
            "test": None if self.test is None else fingerprint_of(self.test),
        }


def _weak_digest(data: WeakData) -> str:
    return digest_of([data.x, data.candidates, *([] if data.transition is None else [data.transition])])
