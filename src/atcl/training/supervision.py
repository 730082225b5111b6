"""What a batch is fitted to: the candidates of its images and, as an option, pseudo-labels."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, Union

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F

from atcl.core.errors import AtclError
from atcl.core.modules import evaluating
from atcl.data.weak import Batch, WeakData
from atcl.losses import Targets


class Supervision(Protocol):
    """The interface of a supervision: it updates a memory of predictions and returns targets."""

    @property
    def uses_guesses(self) -> bool:
        """Whether the targets hold a pseudo-label for each image."""
        ...

    def remembers(self, epoch: int) -> bool:
        """Return whether the predictions of an epoch enter the memory."""
        ...

    def remember(self, memory: Tensor, batch: Batch, probabilities: Tensor) -> None:
        """Update the memory (n, K) with the predictions (b, K) for a batch, in place."""
        ...

    def targets(
        self, batch: Batch, memory: Tensor, gamma: Tensor, prior: Tensor, transition: Tensor | None
    ) -> Targets:
        """Return what a batch is fitted to.

        Args:
            batch: the images, with their positions in the dataset and their candidates.
            memory: (n, K), the moving average of the predictions for every image of the dataset.
            gamma: the weight of the candidates in this epoch; the pseudo-label has the rest.
            prior: (K,), the share of each class among the complementary labels.
            transition: (K, K), the transition matrix of the labels, where it is known.
        """
        ...


@dataclass(frozen=True)
class CandidatesOnly:
    """Fit the candidates alone: gamma is 1, and predictions are not remembered.

    Examples:
        >>> CandidatesOnly().remembers(epoch=1)
        False
    """

    uses_guesses: ClassVar[bool] = False

    def remembers(self, epoch: int) -> bool:
        return False

    def remember(self, memory: Tensor, batch: Batch, probabilities: Tensor) -> None:
        """Leave the memory as it is."""

    def targets(
        self, batch: Batch, memory: Tensor, gamma: Tensor, prior: Tensor, transition: Tensor | None
    ) -> Targets:
        return Targets(batch.candidates, prior=prior, transition=transition)


@dataclass(frozen=True)
class PseudoLabels:
    """Guess the class of each image from a moving average of predictions, restricted to its candidates.

    The pseudo-label of an image is the candidate with the highest average.

    Raises:
        AtclError: `beta` lies outside [0, 1).

    Examples:
        >>> [PseudoLabels(first=2, last=3).remembers(epoch) for epoch in (1, 2, 3, 4)]
        [False, True, True, False]
    """

    beta: float = 0.9
    """decay of the moving average"""
    first: int = 1
    """the first epoch whose predictions are remembered"""
    last: int = 10**6
    """the last such epoch; afterwards the pseudo-labels stay fixed"""

    uses_guesses: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise AtclError(f"beta must lie in [0, 1), not {self.beta}")

    def remembers(self, epoch: int) -> bool:
        """Return whether the predictions of an epoch enter the average."""
        return self.first <= epoch <= self.last

    def remember(self, memory: Tensor, batch: Batch, probabilities: Tensor) -> None:
        """Update the averages of a batch with its predictions, in place."""
        memory[batch.index] = remembered(memory[batch.index], probabilities, batch.candidates, self.beta)

    def targets(
        self, batch: Batch, memory: Tensor, gamma: Tensor, prior: Tensor, transition: Tensor | None
    ) -> Targets:
        """Return the candidates with weight gamma, and the pseudo-labels with weight 1 - gamma."""
        return Targets(batch.candidates, gamma, guesses(memory[batch.index], batch.candidates))


SUPERVISIONS: dict[str, type[Supervision]] = {
    "candidates": CandidatesOnly,
    "pseudo-labels": PseudoLabels,
}

# Type checkers accept whatever has the interface; the command line offers what the registry names.
if TYPE_CHECKING:
    AnySupervision = Supervision
else:
    AnySupervision = Union[tuple(SUPERVISIONS.values())]  # noqa: UP007


def blank_memory(candidates: Tensor) -> Tensor:
    """Return the memory (n, K) before any prediction: all candidates of an image are equally likely."""
    return candidates.float() / candidates.sum(1, keepdim=True)


@torch.no_grad()
def predicted(model: Module, x: Tensor) -> Tensor:
    """Return the probabilities (n, K) that a model in eval mode predicts."""
    return model(x).softmax(1)  # type: ignore[no-any-return]


def remembered(memory: Tensor, probabilities: Tensor, candidates: Tensor, beta: float) -> Tensor:
    """Return the moving average after new predictions, zero for other classes (Algorithm 1, line 7)."""
    return (beta * memory + (1 - beta) * probabilities) * candidates


def guesses(memory: Tensor, candidates: Tensor) -> Tensor:
    """Return the pseudo-label of each image, (n,): its likeliest candidate."""
    return memory.masked_fill(~candidates, -1).argmax(1)


@torch.no_grad()
def relabel(data: WeakData, teacher: Module, batch_size: int = 1000) -> WeakData:
    """Return the data with the teacher's prediction as the only candidate of each image."""
    # Paper: it does not mention candidates; official code: arg-max over all classes, also the one ruled out.
    with evaluating(teacher):
        guess = torch.cat([teacher(x).argmax(1) for x in data.in_order(batch_size)])
    return with_sole_candidate(data, guess)


def with_sole_candidate(data: WeakData, guess: Tensor) -> WeakData:
    """Return the data with `guess` (n,) as the only candidate of each image."""
    if len(guess) != len(data):
        raise AtclError(f"there are {len(data)} images but {len(guess)} guesses")
    # the transition matrix describes complementary labels, not guesses
    return replace(data, candidates=F.one_hot(guess, data.classes).bool(), transition=None)
