"""The accuracy of pseudo-labels."""

from torch import Tensor

from atcl.training.supervision import guesses


def pseudo_label_accuracy(memory: Tensor, candidates: Tensor, true: Tensor) -> float:
    """Return the share of pseudo-labels that are right."""
    guess = guesses(memory, candidates)
    return float((guess == true.to(guess.device)).float().mean())
