"""From true labels to candidates: the only module that turns truth into training labels."""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from atcl.batches import WeakData
from atcl.errors import AtclError
from atcl.truth import Split


@dataclass(frozen=True)
class Ordinary:
    """The true class is the sole candidate: the oracle."""

    def __call__(self, true: Tensor, classes: int, rng: Generator) -> Tensor:
        return torch.nn.functional.one_hot(true, classes).bool()

    def check(self, classes: int) -> None:
        """Any number of classes will do."""


@dataclass(frozen=True)
class Complementary:
    """`number` different classes ruled out, each set of wrong classes with the same probability."""

    number: int = 1
    """how many classes are ruled out for each image"""

    def __call__(self, true: Tensor, classes: int, rng: Generator) -> Tensor:
        self.check(classes)
        return _rule_out_first(true, classes, torch.full_like(true, self.number), rng)

    def check(self, classes: int) -> None:
        """Refuse to rule out no class, or the true one with the others."""
        if not 1 <= self.number < classes:
            raise AtclError(f"{self.number} complementary labels cannot be drawn among {classes} classes: give 1 to {classes - 1}")


@dataclass(frozen=True)
class RandomSets:
    """A random set of wrong classes ruled out, as in the experiments with multiple complementary labels."""

    def __call__(self, true: Tensor, classes: int, rng: Generator) -> Tensor:
        # Paper: "following Feng et al.", C(K-1, s) / (2^(K-1) - 1); official code: C(K, s) / (2^K - 2), whose numbers are the published ones.
        share = torch.tensor([math.comb(classes, size) for size in range(1, classes)], dtype=torch.float64)
        size = 1 + torch.multinomial(share, len(true), replacement=True, generator=rng)
        return _rule_out_first(true, classes, size, rng)

    def check(self, classes: int) -> None:
        """Any number of classes will do."""


@dataclass(frozen=True)
class Given:
    """The labels came with the images: nothing is drawn, and nobody knows the truth."""

    def __call__(self, true: Tensor, classes: int, rng: Generator) -> Tensor:
        raise AtclError("the labels of this recipe come with the images: give a folder and its labels, or a Problem from Python")

    def check(self, classes: int) -> None:
        """They are checked where they are read."""


LabelSource = Ordinary | Complementary | RandomSets | Given

LABELS = {"ordinary": Ordinary, "complementary": Complementary, "random-sets": RandomSets}


def weaken(split: Split, source: LabelSource, seed: int) -> WeakData:
    """Draw training labels for a split; the truth stays behind."""
    rng = torch.Generator().manual_seed(seed)
    return WeakData(split.x, source(split.truth.labels.cpu(), split.truth.classes, rng))


def _rule_out_first(true: Tensor, classes: int, number: Tensor, rng: Generator) -> Tensor:
    """Rule out the first `number` classes of a random order in which the true one comes last."""
    order = torch.rand(len(true), classes, generator=rng).scatter(1, true[:, None], 2.0)
    rank = order.argsort(1).argsort(1)
    return rank >= number[:, None]
