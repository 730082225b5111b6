"""Sources of training labels: drawn from the true labels or read from a file; `LABELS` names them.

No other module makes training labels from true labels.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor

from atcl.core.errors import AtclError
from atcl.data.weak import WeakData
from atcl.datasets.label_files import LABEL_FORMATS, numbers
from atcl.datasets.matrices import LIBCLL_SEED, matrix
from atcl.datasets.truth import Split
from atcl.losses import uniform_transition


@dataclass(frozen=True)
class Ordinary:
    """The true class is the only candidate, for training with ordinary labels.

    Examples:
        >>> Ordinary()(torch.tensor([1]), 3, Generator())
        tensor([[False,  True, False]])
    """

    single = False

    def __call__(self, true: Tensor, classes: int, rng: Generator) -> Tensor:
        return torch.nn.functional.one_hot(true, classes).bool()

    def check(self, classes: int) -> None:
        """Accept any number of classes."""

    def shares(self, classes: int) -> Tensor:
        """Return (K, K): p(class j is ruled out | true class i)."""
        return 1 - torch.eye(classes, dtype=torch.float64)

    def declared(self, classes: int) -> Tensor | None:
        """Return the transition matrix for training: None."""
        return None


@dataclass(frozen=True)
class Complementary:
    """A number of different classes ruled out, each set of wrong classes with the same probability.

    Raises:
        AtclError: `wrong` is not in [0, 1].

    Examples:
        >>> Complementary(2)(torch.tensor([0, 1]), 4, Generator()).sum(1)
        tensor([2, 2])
    """

    number: int = 1
    """how many classes are ruled out for each image"""
    wrong: float = 0.0
    """share of images for which the true class is among those ruled out; training does not use this number"""

    def __post_init__(self) -> None:
        if not 0 <= self.wrong <= 1:
            raise AtclError(
                f"wrong is the share of images with a wrong label, a number in [0, 1], not {self.wrong}"
            )

    @property
    def single(self) -> bool:
        """Whether each image has exactly one class ruled out."""
        return self.number == 1

    def __call__(self, true: Tensor, classes: int, rng: Generator) -> Tensor:
        self.check(classes)
        return _rule_out_first(true, classes, torch.full_like(true, self.number), self.wrong, rng)

    def check(self, classes: int) -> None:
        """Refuse numbers of labels that leave no wrong class ruled out, or no candidate."""
        if not 1 <= self.number < classes:
            raise AtclError(
                f"{self.number} complementary labels cannot be drawn among {classes} classes: "
                f"give 1 to {classes - 1}"
            )

    def shares(self, classes: int) -> Tensor:
        """Return (K, K): p(class j is ruled out | true class i)."""
        wrong = self.wrong * torch.eye(classes, dtype=torch.float64)
        return (self.number - self.wrong) * uniform_transition(classes).double() + wrong

    def declared(self, classes: int) -> Tensor | None:
        """Return the transition matrix for training: None, the uniform one without wrong labels."""
        return None


@dataclass(frozen=True)
class RandomSets:
    """A random set of wrong classes ruled out, as in experiments with multiple complementary labels.

    Examples:
        >>> bool(RandomSets()(torch.tensor([2, 0]), 4, Generator())[0, 2])
        True
    """

    single = False

    def __call__(self, true: Tensor, classes: int, rng: Generator) -> Tensor:
        # Paper: "following Feng et al.", p(s labels) = C(K-1, s) / (2^(K-1) - 1);
        # official code: C(K, s) / (2^K - 2), from which the published numbers come.
        share = torch.tensor([math.comb(classes, size) for size in range(1, classes)], dtype=torch.float64)
        size = 1 + torch.multinomial(share, len(true), replacement=True, generator=rng)
        return _rule_out_first(true, classes, size, 0.0, rng)

    def check(self, classes: int) -> None:
        """Accept any number of classes."""

    def shares(self, classes: int) -> Tensor:
        """Return (K, K): p(class j is ruled out | true class i); a set has K / 2 classes on average."""
        return classes / 2 * uniform_transition(classes).double()

    def declared(self, classes: int) -> Tensor | None:
        """Return the transition matrix for training: None."""
        return None


@dataclass(frozen=True)
class Biased:
    """One complementary label, drawn by a transition matrix; FORWARD uses the same matrix.

    Examples:
        >>> Biased("weak")(torch.tensor([0, 1]), 10, Generator()).sum(1)
        tensor([9, 9])
    """

    matrix: str = "strong"
    """weak, strong, clcifar10, or the path of a .npy, .json, .csv or .txt file with K rows of K numbers, one
    row for each true class"""
    matrix_seed: int = LIBCLL_SEED
    """seed of the random part of weak and strong, which does not depend on the seed of the run"""

    single = True

    def __call__(self, true: Tensor, classes: int, rng: Generator) -> Tensor:
        bounds = self.shares(classes).cumsum(1)
        bounds = bounds / bounds[:, -1:]  # the last bound is exactly 1, so that no draw exceeds it
        drawn = torch.rand(len(true), 1, generator=rng, dtype=torch.float64)
        label = (bounds[true] <= drawn).sum(1, keepdim=True)  # (n, 1)
        return torch.ones(len(true), classes, dtype=torch.bool).scatter(1, label, False)

    def check(self, classes: int) -> None:
        """Refuse a matrix that does not exist, or has another number of classes."""
        self.shares(classes)

    def shares(self, classes: int) -> Tensor:
        """Return (K, K): p(class j is ruled out | true class i)."""
        return matrix(self.matrix, classes, self.matrix_seed)

    def declared(self, classes: int) -> Tensor | None:
        """Return the transition matrix for training: the one that the labels are drawn from."""
        return self.shares(classes)


@dataclass(frozen=True)
class FromFile:
    """Complementary labels from a file, one or several for each image, in the order of the images.

    Raises:
        AtclError: `rounds` is negative.

    Examples:
        >>> FromFile("clcifar10.pkl", rounds=3).single
        False
    """

    path: str
    """a .npy, .npz, .csv, .txt or .json file, or a release of CLCIFAR or ACLCIFAR (.pkl)"""
    rounds: int = 1
    """how many labels of each image are used, from the first on; 0 uses all; repeated labels count once"""
    matrix: str = ""
    """transition matrix for FORWARD, as in Biased; empty for the uniform one"""

    def __post_init__(self) -> None:
        if self.rounds < 0:
            raise AtclError(
                "rounds is the number of labels used of each image, where 0 means all; "
                f"it cannot be {self.rounds}"
            )

    @property
    def single(self) -> bool:
        """Whether each image has exactly one class ruled out."""
        return self.rounds == 1

    def read(self, n: int, classes: int) -> Tensor:
        """Return the candidates, (n, K) bool.

        Raises:
            AtclError: the file cannot be read, or its labels do not fit the images and classes.
        """
        found = numbers(Path(self.path).expanduser(), ("cl_labels", "com_labels"), LABEL_FORMATS)
        table = torch.from_numpy(found)  # (n, rounds), NaN where an image has fewer labels
        if len(table) != n:
            raise AtclError(
                f"{self.path} has labels for {len(table)} images, but there are {n}: "
                "the rows are the images, in their order"
            )
        if self.rounds > table.shape[1]:
            raise AtclError(
                f"{self.path} has {table.shape[1]} labels for an image, not {self.rounds}: "
                "lower rounds, or give 0 for all"
            )
        table = table[:, : self.rounds] if self.rounds else table
        given = ~table.isnan()
        bad = given & ~((table == table.round()) & (table >= 0) & (table < classes))
        if bool(bad.any()):
            row = int(bad.any(1).int().argmax())
            raise AtclError(
                f"{self.path}: image {row} has label {table[row][bad[row]][0]:g}, "
                f"but the classes are the numbers 0 to {classes - 1}"
            )
        ruled_out = torch.zeros(n, classes + 1, dtype=torch.bool)  # the last column is for missing labels
        ruled_out.scatter_(1, table.nan_to_num(nan=classes).long(), True)
        return self._checked(~ruled_out[:, :classes])

    def _checked(self, candidates: Tensor) -> Tensor:
        remaining = candidates.sum(1)
        for number, what, remedy in (
            (0, "every class ruled out", "use fewer rounds, or leave them out with their images"),
            (candidates.shape[1], "no label", "give one, or leave them out with their images"),
        ):
            if bool((found := remaining == number).any()):
                first = int(found.int().argmax())
                raise AtclError(
                    f"{self.path}: images with {what}: {int(found.sum())}, "
                    f"the first is number {first}; {remedy}"
                )
        return candidates

    def check(self, classes: int) -> None:
        """Refuse a file that does not exist, or a wrong matrix; `read` checks the labels."""
        if not Path(self.path).expanduser().is_file():
            raise AtclError(
                f"the file of labels {self.path} does not exist, or is not a file: "
                "give its path, absolute or from the current folder"
            )
        self.declared(classes)

    def declared(self, classes: int) -> Tensor | None:
        """Return the transition matrix for training: the one that was named, or None."""
        return matrix(self.matrix, classes, LIBCLL_SEED) if self.matrix else None


@dataclass(frozen=True)
class Given:
    """Labels that the user gives together with the images; true labels are unknown."""

    single = True  # not known yet: the loop checks it once the labels are there

    def check(self, classes: int) -> None:
        """Accept any number of classes: labels are checked when they are read."""


Drawn = Ordinary | Complementary | RandomSets | Biased
LabelSource = Drawn | FromFile | Given

LABELS: dict[str, type[LabelSource]] = {
    "ordinary": Ordinary,
    "complementary": Complementary,
    "random-sets": RandomSets,
    "biased": Biased,
    "from-file": FromFile,
}


def weaken(split: Split, source: LabelSource, seed: int) -> WeakData:
    """Return training data with complementary labels, and without the true labels.

    Args:
        split: the images and their true classes.
        source: where the labels come from.
        seed: labels that are drawn follow from it.

    Raises:
        AtclError: the source does not fit the split.

    Examples:
        >>> from atcl.datasets.truth import Truth
        >>> split = Split(torch.rand(3, 1, 4, 4), Truth(torch.tensor([0, 1, 2]), classes=3))
        >>> weaken(split, Complementary(), seed=0).candidates.sum(1)
        tensor([2, 2, 2])
    """
    if isinstance(source, Given):
        raise AtclError(
            "these labels come with images of your own: "
            "give a folder and its labels, or a Problem from Python"
        )
    classes = split.truth.classes
    source.check(classes)
    if isinstance(source, FromFile):
        return WeakData(split.x, source.read(len(split), classes), source.declared(classes))
    rng = torch.Generator().manual_seed(seed)
    return WeakData(split.x, source(split.truth.labels.cpu(), classes, rng), source.declared(classes))


def _rule_out_first(true: Tensor, classes: int, number: Tensor, wrong: float, rng: Generator) -> Tensor:
    """Return candidates (n, K): the first classes of a random order are ruled out.

    Args:
        true: (n,), the true classes, which are last in the order, except for wrong labels.
        classes: K.
        number: (n,), how many classes are ruled out.
        wrong: the rate at which the true class is first in the order.
        rng: what is drawn from.
    """
    order = torch.rand(len(true), classes, generator=rng)
    # drawn last, so that the other labels are the same at any rate
    mistaken = torch.rand(len(true), 1, generator=rng) < wrong
    order = order.scatter(1, true[:, None], torch.where(mistaken, -1.0, 2.0))
    rank = order.argsort(1).argsort(1)
    return rank >= number[:, None]
