"""Checks for false robustness: signs that the attacks failed where the model seems to withstand them ("gradient masking").

    for flag in suspicions(model, x, labels, threat):
        print(flag.says)

What each check looks at, why, and what to do about it: docs/masking.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from atcl.attacks.norms import NORMS
from atcl.attacks.threat import Threat
from atcl.evaluation.masking_evidence import DRAWS, Evidence, gather_evidence


@dataclass(frozen=True)
class Flag:
    """A reason to doubt an accuracy under attack."""

    name: str  # of the check
    value: float  # percent of the images that the sentence counts among
    says: str


Check = Callable[
    [Evidence], tuple[float, str] | None
]  # the value and the sentence of a flag, or nothing to say


def beyond_chance(count: int, of: int) -> bool:
    """Whether a number of images is more than what a draw of random starts explains: over two images, and over 2 %."""
    return count > max(2, 0.02 * of)


def not_finite(evidence: Evidence) -> tuple[float, str] | None:
    """Outputs or gradients that are NaN or infinite, on natural or on attacked images."""
    bad = ~evidence.passes.isfinite().all(2).all(0)  # (n,)
    logits = (
        evidence.pgd5,
        evidence.pgd20,
        evidence.cw30,
        evidence.noise,
        evidence.square,
        evidence.erased,
        evidence.grey,
    )
    attacked = torch.cat([*logits, evidence.loss_gradient.flatten(1), evidence.margin_gradient.flatten(1)], 1)
    bad[evidence.right] |= ~attacked.isfinite().all(1)
    count, n = int(bad.sum()), len(bad)
    return (
        (
            100 * count / n,
            f"{count} of {n} images yield outputs or gradients that are not finite: no attack can follow them",
        )
        if count
        else None
    )


def randomised(evidence: Evidence) -> tuple[float, str] | None:
    """Logits that differ between passes of the same images."""
    first = evidence.passes[0]
    # 1e-4 of the length is AutoAttack's allowance too: above what the order of a sum changes in single precision
    moved = ((evidence.passes - first).norm(dim=2) > 1e-4 * first.norm(dim=1)).any(0)  # (n,)
    count, n = int(moved.sum()), len(moved)
    return (
        (
            100 * count / n,
            f"the logits of {count} of {n} images change from pass to pass: the attacks chase a moving target",
        )
        if count
        else None
    )


def probabilities(evidence: Evidence) -> tuple[float, str] | None:
    """Outputs that are distributions: whoever takes them for logits applies a second softmax."""
    outputs = evidence.passes[0]
    # 1e-3: what sums of numbers in half precision miss
    if not bool(((outputs.sum(1) - 1).abs() < 1e-3).all() and (outputs > -1e-3).all()):
        return None
    return (
        100.0,
        f"the outputs of all {len(outputs)} images are probabilities, not logits: their gradient fades where the model is sure",
    )


def constant(evidence: Evidence) -> tuple[float, str] | None:
    """One class for at least 98 % of the images, which are not of one class: a collapsed model has no robustness at all."""
    answers, n = evidence.passes[0].argmax(1), len(evidence.labels)
    one = int(answers.bincount().argmax())
    given, of_it = int((answers == one).sum()), int((evidence.labels == one).sum())
    if given < 0.98 * n or not beyond_chance(n - of_it, n) or not bool(evidence.passes.isfinite().all()):
        return None
    return (
        100 * given / n,
        f"{given} of {n} images are given class {one}, and {of_it} are of it: what is right is right by chance, attacked or not",
    )


def zero_gradient(evidence: Evidence) -> tuple[float, str] | None:
    """Naturally right images at which neither the cross-entropy nor the margin has a gradient."""
    blind = _no_direction(evidence.loss_gradient, evidence.norm) & _no_direction(
        evidence.margin_gradient, evidence.norm
    )
    return _blind(evidence, blind, "give the attacks no gradient at all: they cannot see where to go")


def saturated(evidence: Evidence) -> tuple[float, str] | None:
    """Naturally right images whose margin has a gradient, while that of the cross-entropy has vanished."""
    blind = _no_direction(evidence.loss_gradient, evidence.norm) & ~_no_direction(
        evidence.margin_gradient, evidence.norm
    )
    return _blind(
        evidence,
        blind,
        "are so sure that their cross-entropy has no gradient, though their margin has one: PGD stands still",
    )


def more_steps(evidence: Evidence) -> tuple[float, str] | None:
    """PGD20 that breaks fewer images than its own first five steps did."""
    five, twenty, m = (
        int((~evidence.kept(evidence.pgd5)).sum()),
        int((~evidence.kept(evidence.pgd20)).sum()),
        len(evidence.pgd20),
    )
    if not beyond_chance(five - twenty, m):
        return None
    return 100 * (
        five - twenty
    ) / m, f"PGD20 breaks {twenty} of {m} right images, its first five steps {five}: more steps are weaker"


def erasing(evidence: Evidence) -> tuple[float, str] | None:
    """Images that plain grey breaks but PGD, in a ball that holds it, does not."""
    left, m = evidence.kept(evidence.erased), len(evidence.erased)
    missed = int((left & ~evidence.kept(evidence.grey)).sum())
    if not beyond_chance(missed, m):
        return None
    share = 100 * float(left.sum()) / m
    return (
        share,
        f"PGD of radius {evidence.radius:g} leaves {int(left.sum())} of {m} right images, {missed} of which plain grey in that ball breaks",
    )


def square(evidence: Evidence) -> tuple[float, str] | None:
    """Images that Square, which has no gradient, breaks after PGD20 and CW30 did not."""
    left, m = evidence.kept(evidence.pgd20) & evidence.kept(evidence.cw30), len(evidence.square)
    found = int((left & ~evidence.kept(evidence.square)).sum())
    if not beyond_chance(found, m):
        return None
    return (
        100 * found / m,
        f"Square, without gradients, breaks {found} of the {int(left.sum())} images (of {m} right) that PGD20 and CW30 leave",
    )


def loss_under_noise(evidence: Evidence) -> tuple[float, str] | None:
    """Random noise that breaks what PGD20 leaves, or as much as PGD20 while much is left."""
    by_noise, by_pgd, m = ~evidence.kept(evidence.noise), ~evidence.kept(evidence.pgd20), len(evidence.noise)
    drawn, climbed, alone = int(by_noise.sum()), int(by_pgd.sum()), int((by_noise & ~by_pgd).sum())
    as_strong = drawn >= climbed and beyond_chance(drawn, m) and beyond_chance(m - climbed, m)
    if not (as_strong or beyond_chance(alone, m)):
        return None
    return (
        100 * drawn / m,
        f"{DRAWS} draws of noise in the ball break {drawn} of {m} right images ({alone} that PGD20 leaves), PGD20 {climbed}",
    )


CHECKS: dict[str, Check] = {
    "not_finite": not_finite,
    "randomised": randomised,
    "probabilities": probabilities,
    "constant": constant,
    "zero_gradient": zero_gradient,
    "saturated": saturated,
    "more_steps": more_steps,
    "erasing": erasing,
    "square": square,
    "noise": loss_under_noise,
}


def suspicions(
    model: Module,
    x: Tensor,  # (n, C, H, W) uint8, or float in [0, 1]
    labels: Tensor,  # (n,) int64, the true classes
    threat: Threat,
    *,
    seed: int = 0,
    batch_size: int = 256,
    images: int = 256,  # at most so many are looked at, drawn by the seed
    queries: int = 1000,  # of Square
) -> list[Flag]:
    """Return a flag for each check that finds a sign of false robustness; none is no proof of robustness."""
    evidence = gather_evidence(
        model, x, labels, threat, seed=seed, batch_size=batch_size, images=images, queries=queries
    )
    return [Flag(name, *found) for name, check in CHECKS.items() if (found := check(evidence))]


def _no_direction(gradient: Tensor, norm: str) -> Tensor:
    """Return (m,) bool: the attack makes less than half a step of this gradient, whose numbers below the smallest normal one count as 0."""
    heard = torch.where(gradient.abs() < torch.finfo(gradient.dtype).tiny, 0, gradient)
    length: Tensor = NORMS[norm].direction(heard).flatten(1).norm(dim=1)
    return length < 0.5


def _blind(evidence: Evidence, blind: Tensor, says: str) -> tuple[float, str] | None:
    count, m = int(blind.sum()), len(blind)
    if _answers_alike(evidence) or not beyond_chance(count, m):
        return None
    return 100 * count / m, f"{count} of {m} right images {says}"


def _answers_alike(evidence: Evidence) -> bool:
    """Whether the model gives one class to nearly all images, while they are not of one class: it has no robustness that could be false."""
    n = len(evidence.labels)
    answered, true = (
        int(classes.bincount().max()) for classes in (evidence.passes[0].argmax(1), evidence.labels)
    )
    return not beyond_chance(n - answered, n) and beyond_chance(n - true, n)
