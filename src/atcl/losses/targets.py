"""What the logits of a batch are fitted to: candidates and, with pseudo-labels, guesses."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from atcl.core.errors import AtclError


@dataclass(frozen=True)
class Targets:
    """What the logits of a batch are fitted to.

    Args:
        candidates: the classes not ruled out
        gamma: weight of the candidates; the guess has weight 1 - gamma
        guess: the pseudo-label of each image, always one of its candidates
        prior: share of each complementary label in the dataset, for FREE and NN; None: in the batch
        transition: transition matrix for FORWARD; None: the uniform one

    Raises:
        AtclError: gamma is not 1, but there is no guess

    Examples:
        >>> import torch
        >>> Targets(torch.tensor([[True, True, False]]), gamma=0.5, guess=torch.tensor([0])).weights
        tensor([[1.0000, 0.5000, 0.0000]])
    """

    candidates: Tensor  # (n, K) bool
    gamma: Tensor | float = 1.0
    guess: Tensor | None = None  # (n,)
    prior: Tensor | None = None  # (K,)
    transition: Tensor | None = None  # (K, K) p(complementary = j | true = i)

    def __post_init__(self) -> None:
        if self.guess is None and not isinstance(self.gamma, Tensor) and self.gamma != 1:
            raise AtclError(f"gamma is {self.gamma}, but there is no guess that could have weight 1 - gamma")

    @property
    def classes(self) -> int:
        """K, the number of classes."""
        return self.candidates.shape[1]

    @property
    def weights(self) -> Tensor:
        """(n, K): gamma * candidates + (1 - gamma) * onehot(guess); without guesses, the candidates."""
        if self.guess is None:
            return self.candidates.float()
        return self.gamma * self.candidates + (1 - self.gamma) * F.one_hot(self.guess, self.classes)

    @property
    def complementary(self) -> Tensor:
        """(n,): the class that is ruled out; `fit` checks that each image has exactly one."""
        return self.candidates.logical_not().int().argmax(1)

    @property
    def correction(self) -> Tensor:
        """(n,): (K - 1) / (number of complementary labels), which is 1 for a single candidate."""
        return (self.classes - 1) / (self.classes - self.candidates.sum(1))
