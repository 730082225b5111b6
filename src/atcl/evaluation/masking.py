"""Checks for false robustness: signs that the attacks failed rather than that the model is robust.

The literature calls the cause gradient masking. What each check tests, why, and what to do about a flag:
docs/masking.md.
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
    value: float  # percent of the images, what the sentence counts
    says: str


Check = Callable[[Evidence], tuple[float, str] | None]  # value and sentence of a flag; None: no flag


def beyond_chance(count: int, of: int) -> bool:
    """Return whether random starts alone do not explain a number of images: over two, and over 2 %."""
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
    if not count:
        return None
    says = "images yield outputs or gradients that are not finite: no attack can follow them"
    return 100 * count / n, f"{count} of {n} {says}"


def randomised(evidence: Evidence) -> tuple[float, str] | None:
    """Logits that differ between passes of the same images."""
    first = evidence.passes[0]
    # AutoAttack allows 1e-4 of the length too: more than what the order of a sum changes in fp32
    moved = ((evidence.passes - first).norm(dim=2) > 1e-4 * first.norm(dim=1)).any(0)  # (n,)
    count, n = int(moved.sum()), len(moved)
    if not count:
        return None
    says = "images change from pass to pass: the gradients of the attacks are unreliable"
    return 100 * count / n, f"the logits of {count} of {n} {says}"


def probabilities(evidence: Evidence) -> tuple[float, str] | None:
    """Outputs that are probabilities, to which the attack's loss applies a second softmax."""
    outputs = evidence.passes[0]
    # 1e-3: the rounding error of such sums in half precision
    if not bool(((outputs.sum(1) - 1).abs() < 1e-3).all() and (outputs > -1e-3).all()):
        return None
    return (
        100.0,
        f"the outputs of all {len(outputs)} images are probabilities, not logits: "
        "their gradient vanishes where the model is sure",
    )


def constant(evidence: Evidence) -> tuple[float, str] | None:
    """One class for at least 98 % of the images, which are of several: a constant model is not robust."""
    answers, n = evidence.passes[0].argmax(1), len(evidence.labels)
    one = int(answers.bincount().argmax())
    given, of_it = int((answers == one).sum()), int((evidence.labels == one).sum())
    if given < 0.98 * n or not beyond_chance(n - of_it, n) or not bool(evidence.passes.isfinite().all()):
        return None
    return (
        100 * given / n,
        f"{given} of {n} images are given class {one}, and {of_it} are of it: "
        "what is right is right by chance, attacked or not",
    )


def zero_gradient(evidence: Evidence) -> tuple[float, str] | None:
    """Naturally right images at which neither the cross-entropy nor the margin has a gradient."""
    blind = _no_direction(evidence.loss_gradient, evidence.norm) & _no_direction(
        evidence.margin_gradient, evidence.norm
    )
    return _blind(evidence, blind, "have no gradient at all: the attacks cannot move")


def saturated(evidence: Evidence) -> tuple[float, str] | None:
    """Naturally right images whose margin has a gradient, while that of the cross-entropy has vanished."""
    blind = _no_direction(evidence.loss_gradient, evidence.norm) & ~_no_direction(
        evidence.margin_gradient, evidence.norm
    )
    return _blind(
        evidence,
        blind,
        "are so sure that their cross-entropy has no gradient, though their margin has one: PGD cannot move",
    )


def more_steps(evidence: Evidence) -> tuple[float, str] | None:
    """PGD20 that breaks fewer images than its own first five steps do."""
    five, twenty = (int((~evidence.kept(logits)).sum()) for logits in (evidence.pgd5, evidence.pgd20))
    m = len(evidence.pgd20)
    if not beyond_chance(five - twenty, m):
        return None
    says = f"PGD20 breaks {twenty} of {m} right images, its first five steps {five}"
    return 100 * (five - twenty) / m, f"{says}: more steps are weaker"


def erasing(evidence: Evidence) -> tuple[float, str] | None:
    """Images that plain grey breaks but PGD does not, although its ball contains plain grey."""
    left, m = evidence.kept(evidence.erased), len(evidence.erased)
    missed = int((left & ~evidence.kept(evidence.grey)).sum())
    if not beyond_chance(missed, m):
        return None
    standing = int(left.sum())
    return (
        100 * float(left.sum()) / m,
        f"PGD of radius {evidence.radius:g} leaves {standing} of {m} right images, "
        f"{missed} of which plain grey in that ball breaks",
    )


def square(evidence: Evidence) -> tuple[float, str] | None:
    """Images that Square, which uses no gradient, breaks after PGD20 and CW30 did not."""
    left, m = evidence.kept(evidence.pgd20) & evidence.kept(evidence.cw30), len(evidence.square)
    found = int((left & ~evidence.kept(evidence.square)).sum())
    if not beyond_chance(found, m):
        return None
    return (
        100 * found / m,
        f"Square, without gradients, breaks {found} of the {int(left.sum())} images (of {m} right) "
        "that PGD20 and CW30 leave",
    )


def loss_under_noise(evidence: Evidence) -> tuple[float, str] | None:
    """Random noise that breaks what PGD20 leaves, or as much as PGD20 while much is left."""
    by_noise, by_pgd, m = ~evidence.kept(evidence.noise), ~evidence.kept(evidence.pgd20), len(evidence.noise)
    drawn, attacked, alone = int(by_noise.sum()), int(by_pgd.sum()), int((by_noise & ~by_pgd).sum())
    as_strong = drawn >= attacked and beyond_chance(drawn, m) and beyond_chance(m - attacked, m)
    if not (as_strong or beyond_chance(alone, m)):
        return None
    broken = f"{DRAWS} draws of noise in the ball break {drawn} of {m} right images"
    return 100 * drawn / m, f"{broken} ({alone} that PGD20 leaves), PGD20 {attacked}"


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
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    *,
    seed: int = 0,
    batch_size: int = 256,
    images: int = 256,
    queries: int = 1000,
) -> list[Flag]:
    """Return a flag for each check that finds a sign of false robustness; no flag is no proof of robustness.

    Args:
        model: returns logits (n, K).
        x: (n, C, H, W) images, uint8 or floats in [0, 1].
        labels: (n,) int64, their true classes.
        threat: norm, epsilon and step size of the attacks.
        seed: the sample of images and the random starts follow from it.
        batch_size: images at a time.
        images: how many images are used at most, drawn by the seed.
        queries: how many queries of the model Square makes for each image.

    Raises:
        AtclError: images, labels or numbers cannot be used.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3), torch.nn.Softmax(1))
        >>> x, labels = torch.rand(20, 1, 2, 2), torch.arange(20) % 3
        >>> flags = suspicions(model, x, labels, Threat(epsilon=0.1, step_size=0.02), queries=10)
        >>> "probabilities" in [flag.name for flag in flags]
        True
    """
    evidence = gather_evidence(
        model, x, labels, threat, seed=seed, batch_size=batch_size, images=images, queries=queries
    )
    return [Flag(name, *found) for name, check in CHECKS.items() if (found := check(evidence))]


def _no_direction(gradient: Tensor, norm: str) -> Tensor:
    """Return (m,) bool: with this gradient, a step of the attack has less than half of its length."""
    # subnormal numbers count as 0
    normal = torch.where(gradient.abs() < torch.finfo(gradient.dtype).tiny, 0, gradient)
    length: Tensor = NORMS[norm].direction(normal).flatten(1).norm(dim=1)
    return length < 0.5


def _blind(evidence: Evidence, blind: Tensor, says: str) -> tuple[float, str] | None:
    count, m = int(blind.sum()), len(blind)
    if _answers_alike(evidence) or not beyond_chance(count, m):
        return None
    return 100 * count / m, f"{count} of {m} right images {says}"


def _answers_alike(evidence: Evidence) -> bool:
    """Return whether a model predicts one class for nearly all images, which are of several.

    It has no robustness that could be false.
    """
    n = len(evidence.labels)
    answered, true = (
        int(classes.bincount().max()) for classes in (evidence.passes[0].argmax(1), evidence.labels)
    )
    return not beyond_chance(n - answered, n) and beyond_chance(n - true, n)
