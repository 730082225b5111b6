"""How good a model is, told by held-out complementary labels alone: what chooses and judges a model where there is no true label.

Images are judged as they are (`natural`) and after PGD20 away from the model's own prediction (`attacked`), within the threat of the recipe.
The attack looks at no label, so that what is unbiased on natural images is so on attacked ones.
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
    error: float | None  # None where one image is all there is
    images: int


def inside_candidates(logits: Tensor, held: WeakData) -> Tensor:
    """Return (n,): 1 where the prediction is a candidate."""
    return held.candidates.gather(1, logits.argmax(1, keepdim=True))[:, 0].float()


def scel(logits: Tensor, held: WeakData) -> Tensor:
    """Return (n,): the surrogate complementary loss (Chou et al. 2020), the negative logarithm of the candidates' probability."""
    return -logits.log_softmax(1).masked_fill(~held.candidates, -torch.inf).logsumexp(1)


def ure(logits: Tensor, held: WeakData) -> Tensor:
    """Return (n,): the unbiased estimate of the cross-entropy (Ishida et al. 2019; for several labels Feng et al. 2020)."""
    return unbiased_accuracy(-logits.log_softmax(1), held)


def accuracy(logits: Tensor, held: WeakData) -> Tensor:
    """Return (n,): the unbiased estimate of the accuracy; one image's value means nothing, their mean does."""
    return 1 - unbiased_accuracy(1 - F.one_hot(logits.argmax(1), held.classes).float(), held)


def unbiased_accuracy(loss: Tensor, held: WeakData) -> Tensor:
    """Return (n,) whose expectation over the complementary labels is the loss of the true class, from the loss of each class (n, K)."""
    if held.transition is not None and held.single:
        corrected: Tensor = (
            loss @ torch.linalg.pinv(held.transition).T
        )  # (n, K): what to count when j is the complementary label
        return corrected.masked_fill(held.candidates, 0).sum(1)
    return unbiased_each(loss, Targets(held.candidates))


def check_invertible(held: WeakData) -> None:
    """Refuse a transition matrix that mixes the classes up for good: no estimate could tell them apart."""
    if (
        held.transition is not None
        and held.single
        and int(torch.linalg.matrix_rank(held.transition)) < held.classes
    ):
        raise AtclError(
            "the transition matrix has no inverse, so held-out labels cannot tell how good a model is: set selection last and holdout 0"
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
    """Return each score on natural and on attacked images, and the shares that are candidates (`withstands`) or right (`robust`) and survive."""
    natural, attacked = _logits(model, held, threat, seed, batch_size)
    if not bool((natural.isfinite() & attacked.isfinite()).all()):
        raise AtclError("the model returns numbers that are not finite: its quality means nothing")
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
    hit = float(
        1 - (held.classes - 1) / (held.classes - held.candidates.sum(1)).double().mean()
    )  # what one prediction that is ruled out counts
    worst = {"inside": 0.0, "withstands": 0.0, "accuracy": hit, "robust": hit}
    return {name: _estimate(value, worst.get(name.partition("_")[0])) for name, value in values.items()}


def away_from(model: Module, x: Tensor, predicted: Tensor, threat: Threat, rng: Generator) -> Tensor:
    """Return the images after PGD20 away from what the model predicts, the attack that needs no truth."""
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
    """Return mean and standard error; a share is given one image more that fell, since no misses among few images prove little."""
    values = values.double()
    spread = values if worst is None else torch.cat([values, values.new_tensor([worst])])
    error = float(spread.std(correction=1)) / math.sqrt(len(values)) if len(spread) > 1 else None
    return Estimate(float(values.mean()), error, len(values))
