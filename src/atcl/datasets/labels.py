"""From true labels, or from a file, to candidates: the only module that turns truth into training labels."""

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
    """The true class is the sole candidate: the oracle."""

    single = False

    def __call__(self, true: Tensor, classes: int, rng: Generator) -> Tensor:
        return torch.nn.functional.one_hot(true, classes).bool()

    def check(self, classes: int) -> None:
        """Any number of classes will do."""

    def shares(self, classes: int) -> Tensor:
        """Return (K, K): p(class j is ruled out | true class i)."""
        return 1 - torch.eye(classes, dtype=torch.float64)

    def declared(self, classes: int) -> Tensor | None:
        """Return the transition matrix that training is told: none."""
        return None


@dataclass(frozen=True)
class Complementary:
    """`number` different classes ruled out, each set of wrong classes with the same probability."""

    number: int = 1
    """how many classes are ruled out for each image"""
    wrong: float = 0.0
    """share of the images for which the true class is one of those ruled out; training is not told"""

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
        """Refuse to rule out no class, or the true one with the others."""
        if not 1 <= self.number < classes:
            raise AtclError(
                f"{self.number} complementary labels cannot be drawn among {classes} classes: give 1 to {classes - 1}"
            )

    def shares(self, classes: int) -> Tensor:
        """Return (K, K): p(class j is ruled out | true class i)."""
        return (self.number - self.wrong) * uniform_transition(classes).double() + self.wrong * torch.eye(
            classes, dtype=torch.float64
        )

    def declared(self, classes: int) -> Tensor | None:
        """Return the transition matrix that training is told: none, which stands for uniform without noise."""
        return None


@dataclass(frozen=True)
class RandomSets:
    """A random set of wrong classes ruled out, as in the experiments with multiple complementary labels."""

    single = False

    def __call__(self, true: Tensor, classes: int, rng: Generator) -> Tensor:
        # Paper: "following Feng et al.", C(K-1, s) / (2^(K-1) - 1); official code: C(K, s) / (2^K - 2), whose numbers are the published ones.
        share = torch.tensor([math.comb(classes, size) for size in range(1, classes)], dtype=torch.float64)
        size = 1 + torch.multinomial(share, len(true), replacement=True, generator=rng)
        return _rule_out_first(true, classes, size, 0.0, rng)

    def check(self, classes: int) -> None:
        """Any number of classes will do."""

    def shares(self, classes: int) -> Tensor:
        """Return (K, K): p(class j is ruled out | true class i); a set has K / 2 classes on average."""
        return classes / 2 * uniform_transition(classes).double()

    def declared(self, classes: int) -> Tensor | None:
        """Return the transition matrix that training is told: none."""
        return None


@dataclass(frozen=True)
class Biased:
    """One complementary label from a transition matrix, which the data then carry: FORWARD is corrected by it."""

    matrix: str = "strong"
    """weak, strong, clcifar10, or the path of a .npy, .json, .csv or .txt file with K rows of K numbers, row = true class"""
    matrix_seed: int = LIBCLL_SEED
    """what the random part of weak and strong follows from, whatever the seed of the run"""

    single = True

    def __call__(self, true: Tensor, classes: int, rng: Generator) -> Tensor:
        bounds = self.shares(classes).cumsum(1)
        bounds = bounds / bounds[:, -1:]  # the last is 1 exactly, so that no draw lies above it
        drawn = torch.rand(len(true), 1, generator=rng, dtype=torch.float64)
        label = (bounds[true] <= drawn).sum(1, keepdim=True)  # (n, 1)
        return torch.ones(len(true), classes, dtype=torch.bool).scatter(1, label, False)

    def check(self, classes: int) -> None:
        """Refuse a matrix that is not there, or not for so many classes."""
        self.shares(classes)

    def shares(self, classes: int) -> Tensor:
        """Return (K, K): p(class j is ruled out | true class i)."""
        return matrix(self.matrix, classes, self.matrix_seed)

    def declared(self, classes: int) -> Tensor | None:
        """Return the transition matrix that training is told: the one that the labels are drawn from."""
        return self.shares(classes)


@dataclass(frozen=True)
class FromFile:
    """Labels that someone gave, one or several for each image, in the order of the images; the truth is not looked at."""

    path: str
    """a .npy, .npz, .csv, .txt or .json file, or a release of CLCIFAR or ACLCIFAR (.pkl)"""
    rounds: int = 1
    """how many of an image's labels are used, from the first on; 0 uses all; repeated ones count once"""
    matrix: str = ""
    """a matrix as in Biased that FORWARD is corrected by; empty for the uniform one"""

    def __post_init__(self) -> None:
        if self.rounds < 0:
            raise AtclError(
                f"rounds counts the labels used of each image, and 0 means all: {self.rounds} means nothing"
            )

    @property
    def single(self) -> bool:
        """Whether each image has exactly one class ruled out."""
        return self.rounds == 1

    def read(self, n: int, classes: int) -> Tensor:
        """Return candidates (n, K), or say which labels do not fit the images and classes."""
        table = torch.from_numpy(
            numbers(Path(self.path).expanduser(), ("cl_labels", "com_labels"), LABEL_FORMATS)
        )  # (n, rounds), NaN: none given
        if len(table) != n:
            raise AtclError(
                f"{self.path} has labels for {len(table)} images, but there are {n}: the rows are the images, in their order"
            )
        if self.rounds > table.shape[1]:
            raise AtclError(
                f"{self.path} has {table.shape[1]} labels for an image, not {self.rounds}: lower rounds, or give 0 for all"
            )
        table = table[:, : self.rounds] if self.rounds else table
        given = ~table.isnan()
        bad = given & ~((table == table.round()) & (table >= 0) & (table < classes))
        if bool(bad.any()):
            row = int(bad.any(1).int().argmax())
            raise AtclError(
                f"{self.path}: image {row} has label {table[row][bad[row]][0]:g}, but the classes are the numbers 0 to {classes - 1}"
            )
        ruled_out = torch.zeros(n, classes + 1, dtype=torch.bool)  # the last column takes what was not given
        ruled_out.scatter_(1, table.nan_to_num(nan=classes).long(), True)
        return self._checked(~ruled_out[:, :classes])

    def _checked(self, candidates: Tensor) -> Tensor:
        remaining = candidates.sum(1)
        for number, what, remedy in (
            (0, "every class ruled out", "use fewer rounds, or leave them out with their images"),
            (candidates.shape[1], "no label", "give one, or leave them out with their images"),
        ):
            if bool((found := remaining == number).any()):
                raise AtclError(
                    f"{self.path}: images with {what}: {int(found.sum())}, the first is number {int(found.int().argmax())}; {remedy}"
                )
        return candidates

    def check(self, classes: int) -> None:
        """Refuse a file that is not there before anything is trained; its content is checked where it is read."""
        if not Path(self.path).expanduser().is_file():
            raise AtclError(
                f"the file of labels {self.path} is not there, or no file: give its path, from the folder you are in or from the root"
            )
        self.declared(classes)

    def declared(self, classes: int) -> Tensor | None:
        """Return the transition matrix that training is told: the one that was named, or none."""
        return matrix(self.matrix, classes, LIBCLL_SEED) if self.matrix else None


@dataclass(frozen=True)
class Given:
    """The labels came with the images: nothing is drawn or read, and nobody knows the truth."""

    single = True  # maybe: where the labels are read it is seen

    def check(self, classes: int) -> None:
        """They are checked where they are read."""


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
    """Draw training labels for a split, or read them; the truth stays behind."""
    if isinstance(source, Given):
        raise AtclError(
            "these labels come with images of one's own: give a folder and its labels, or a Problem from Python"
        )
    classes = split.truth.classes
    source.check(classes)
    if isinstance(source, FromFile):
        return WeakData(split.x, source.read(len(split), classes), source.declared(classes))
    rng = torch.Generator().manual_seed(seed)
    return WeakData(split.x, source(split.truth.labels.cpu(), classes, rng), source.declared(classes))


def _rule_out_first(true: Tensor, classes: int, number: Tensor, wrong: float, rng: Generator) -> Tensor:
    """Rule out the first `number` classes of a random order in which the true one comes last or, at the rate `wrong`, first."""
    order = torch.rand(len(true), classes, generator=rng)
    mistaken = (
        torch.rand(len(true), 1, generator=rng) < wrong
    )  # drawn last, so that the rest is the same at any rate
    order = order.scatter(1, true[:, None], torch.where(mistaken, -1.0, 2.0))
    rank = order.argsort(1).argsort(1)
    return rank >= number[:, None]
