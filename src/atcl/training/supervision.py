"""What a batch is fitted to, from its candidates and the model's own predictions alone."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F

from atcl.core.errors import AtclError
from atcl.core.modules import evaluating
from atcl.data.weak import WeakData


@dataclass(frozen=True)
class CandidatesOnly:
    """Fit the candidates as they are: gamma is 1."""


@dataclass(frozen=True)
class PseudoLabels:
    """Guess each image's class from a moving average of predictions, kept inside its candidates."""

    beta: float = 0.9
    """how much of the average is kept at each update"""
    first: int = 1
    """the first epoch whose predictions are remembered"""
    last: int = 10**6
    """the last one: guesses stand still once attacks blur the predictions"""

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise AtclError(f"beta must lie in [0, 1), not {self.beta}")

    def remembers(self, epoch: int) -> bool:
        """Tell whether this epoch's predictions enter the average."""
        return self.first <= epoch <= self.last


Supervision = CandidatesOnly | PseudoLabels


def blank_memory(candidates: Tensor) -> Tensor:
    """Return the first memory (n, K): every candidate equally likely."""
    return candidates.float() / candidates.sum(1, keepdim=True)


@torch.no_grad()
def predicted(model: Module, x: Tensor) -> Tensor:
    """Return (n, K): the probabilities that a model in eval mode gives."""
    return model(x).softmax(1)  # type: ignore[no-any-return]


def remembered(memory: Tensor, probabilities: Tensor, candidates: Tensor, beta: float) -> Tensor:
    """Return the memory moved towards new predictions, zero off the candidates (Algorithm 1, line 7)."""
    return (beta * memory + (1 - beta) * probabilities) * candidates


def guesses(memory: Tensor, candidates: Tensor) -> Tensor:
    """Return (n,): the likeliest candidate of each image."""
    return memory.masked_fill(~candidates, -1).argmax(1)


@torch.no_grad()
def relabel(data: WeakData, teacher: Module, batch_size: int = 1000) -> WeakData:
    """Return the data with the teacher's prediction as the sole candidate: the second stage of two-stage training."""
    # Paper: candidates are not mentioned; official code: arg-max over all classes, even the one ruled out.
    with evaluating(teacher):
        guess = torch.cat([teacher(x).argmax(1) for x in data.in_order(batch_size)])
    return with_sole_candidate(data, guess)


def with_sole_candidate(data: WeakData, guess: Tensor) -> WeakData:
    """Return the data with `guess` (n,) as the sole candidate of each image."""
    if len(guess) != len(data):
        raise AtclError(f"there are {len(data)} images but {len(guess)} guesses")
    # the matrix tells of complementary labels, not of guesses
    return replace(data, candidates=F.one_hot(guess, data.classes).bool(), transition=None)
