"""What a batch is fitted to."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from atcl.core.errors import AtclError


@dataclass(frozen=True)
class Targets:
    """What the logits of a batch are fitted to."""

    candidates: Tensor  # (n, K) bool, the classes not ruled out
    gamma: Tensor | float = 1.0  # weight of the candidates; 1 - gamma goes to the guess
    guess: Tensor | None = None  # (n,) pseudo-label, always a candidate
    prior: Tensor | None = None  # (K,) share of each complementary label in the dataset; FREE and NN
    transition: Tensor | None = None  # (K, K) p(complementary = j | true = i); FORWARD; None: uniform

    def __post_init__(self) -> None:
        if self.guess is None and not isinstance(self.gamma, Tensor) and self.gamma != 1:
            raise AtclError(f"gamma is {self.gamma}, but there is no guess to carry the rest")

    @property
    def classes(self) -> int:
        """K."""
        return self.candidates.shape[1]

    @property
    def weights(self) -> Tensor:
        """(n, K): gamma * candidates + (1 - gamma) * onehot(guess)."""
        if self.guess is None:
            return self.candidates.float()
        return self.gamma * self.candidates + (1 - self.gamma) * F.one_hot(self.guess, self.classes)

    @property
    def complementary(self) -> Tensor:
        """(n,): the one class ruled out (that it is exactly one is checked where the data are built)."""
        return self.candidates.logical_not().int().argmax(1)

    @property
    def correction(self) -> Tensor:
        """(n,): (K - 1) / number of complementary labels; 1 for a single candidate."""
        return (self.classes - 1) / (self.classes - self.candidates.sum(1))
