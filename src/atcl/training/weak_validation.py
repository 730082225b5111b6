"""Validation on held-out complementary labels: how a model is chosen and evaluated without true labels.

Each score is computed on natural images and on images after PGD20 against the model's own prediction. This
attack uses no label, so an estimate that is unbiased on natural images is unbiased on attacked ones too.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Generator, Tensor
from torch.nn import Module
from torch.nn import functional as F

from atcl.attacks.pgd import pgd
from atcl.attacks.threat import Threat
from atcl.core.errors import AtclError
from atcl.core.modules import evaluating
from atcl.core.seeds import generator
from atcl.data.weak import WeakData
from atcl.losses import Targets, unbiased_each


@dataclass(frozen=True)
class Estimate:
    """A mean over the held-out images, with its standard error."""

    mean: float
    error: float | None  # None for a single image
    images: int


def inside_candidates(logits: Tensor, held: WeakData) -> Tensor:
    """Return (n,): 1 where the prediction is a candidate."""
    return held.candidates.gather(1, logits.argmax(1, keepdim=True))[:, 0].float()


def scel(logits: Tensor, held: WeakData) -> Tensor:
    """Return (n,): the surrogate complementary loss -log p(candidates) of Chou et al. 2020."""
    return -logits.log_softmax(1).masked_fill(~held.candidates, -torch.inf).logsumexp(1)


def ure(logits: Tensor, held: WeakData) -> Tensor:
    """Return (n,): the unbiased estimate of the cross-entropy.

    It is that of Ishida et al. 2019, and for several labels that of Feng et al. 2020.
    """
    return unbiased_accuracy(-logits.log_softmax(1), held)


def accuracy(logits: Tensor, held: WeakData) -> Tensor:
    """Return (n,): terms whose mean is an unbiased estimate of the accuracy."""
    return 1 - unbiased_accuracy(1 - F.one_hot(logits.argmax(1), held.classes).float(), held)


def unbiased_accuracy(loss: Tensor, held: WeakData) -> Tensor:
    """Return (n,): estimates whose expectation over the complementary labels is the loss of the true class.

    Args:
        loss: (n, K), the loss if class k were the true one.
        held: the held-out images.
    """
    if held.transition is not None and held.single:
        # (n, K): the estimate when class j is the complementary label
        corrected: Tensor = loss @ torch.linalg.pinv(held.transition).T
        return corrected.masked_fill(held.candidates, 0).sum(1)
    return unbiased_each(loss, Targets(held.candidates))


def check_invertible(held: WeakData) -> None:
    """Refuse a transition matrix without an inverse, since unbiased estimates need one.

    Raises:
        AtclError: it has none.
    """
    if held.transition is None or not held.single:
        return
    if int(torch.linalg.matrix_rank(held.transition)) < held.classes:
        raise AtclError(
            "the transition matrix has no inverse, so a model cannot be evaluated on held-out labels: "
            "set selection last and holdout 0"
        )


SCORES: dict[str, Callable[[Tensor, WeakData], Tensor]] = {
    "inside": inside_candidates,
    "scel": scel,
    "ure": ure,
    "accuracy": accuracy,
}


def judge(
    model: Module, held: WeakData, threat: Threat, *, seed: int = 0, batch_size: int = 500
) -> dict[str, Estimate]:
    """Evaluate a model on held-out complementary labels.

    Returns:
        each of `SCORES` as `NAME_natural` and `NAME_attacked`; besides, the share of images whose prediction
        the attack does not change and is a candidate (`withstands`) or right (`robust`, an unbiased estimate)

    Raises:
        AtclError: the model returns numbers that are not finite.
    """
    natural, attacked = _logits(model, held, threat, seed, batch_size)
    if not bool((natural.isfinite() & attacked.isfinite()).all()):
        raise AtclError("the model returns logits that are not finite, so it cannot be evaluated")
    values = {
        f"{name}_{kind}": score(logits, held)
        for kind, logits in (("natural", natural), ("attacked", attacked))
        for name, score in SCORES.items()
    }
    kept = natural.argmax(1) == attacked.argmax(1)
    values |= {
        "withstands": inside_candidates(natural, held) * kept,
        "robust": accuracy(natural, held) * kept,
    }
    ruled_out = (held.classes - held.candidates.sum(1)).double().mean()  # classes of an image
    hit = float(1 - (held.classes - 1) / ruled_out)  # what a prediction that is ruled out adds to `accuracy`
    worst = {"inside": 0.0, "withstands": 0.0, "accuracy": hit, "robust": hit}
    return {name: _estimate(value, worst.get(name.partition("_")[0])) for name, value in values.items()}


def away_from(model: Module, x: Tensor, predicted: Tensor, threat: Threat, rng: Generator) -> Tensor:
    """Return the images after PGD20 on the cross-entropy of the model's own prediction, without labels."""
    return pgd(
        model,
        x,
        lambda logits: F.cross_entropy(logits, predicted, reduction="sum"),
        **asdict(threat),
        steps=20,
        rng=rng,
    )


def _logits(
    model: Module, held: WeakData, threat: Threat, seed: int, batch_size: int
) -> tuple[Tensor, Tensor]:
    natural, attacked = [], []
    with evaluating(model):
        for number, x in enumerate(held.in_order(batch_size)):
            with torch.no_grad():
                natural.append(model(x))
            adv = away_from(model, x, natural[-1].argmax(1), threat, generator(held.device, seed, number))
            with torch.no_grad():
                attacked.append(model(adv))
    return torch.cat(natural).float(), torch.cat(attacked).float()


def _estimate(values: Tensor, worst: float | None) -> Estimate:
    """Return mean and standard error.

    Args:
        values: (n,), the terms of the mean.
        worst: the worst value of a term, for shares: one term with it is added to those that the error is
            computed from. Otherwise the error would be 0 where none of a few images fails.
    """
    values = values.double()
    spread = values if worst is None else torch.cat([values, values.new_tensor([worst])])
    error = float(spread.std(correction=1)) / math.sqrt(len(values)) if len(spread) > 1 else None
    return Estimate(float(values.mean()), error, len(values))
