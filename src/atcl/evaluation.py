"""Accuracy on natural and on attacked images: the attacks of record."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Generator, Tensor
from torch.nn import Module
from torch.nn import functional as F

from atcl.attacks import Threat, evaluating, margin, pgd
from atcl.batches import as_float
from atcl.errors import AtclError, pick
from atcl.seeds import generator
from atcl.truth import Split


@dataclass(frozen=True)
class Measurement:
    """One accuracy with what it takes to measure it again."""

    accuracy: float  # percent
    correct: int
    images: int
    seed: int
    batch_size: int
    seconds: float


Attack = Callable[[Module, Tensor, Tensor, Threat, Generator], Tensor]  # model, x, true labels, threat, rng -> images to judge by


def natural(model: Module, x: Tensor, labels: Tensor, threat: Threat, rng: Generator) -> Tensor:
    """The images as they are."""
    return x


def pgd20(model: Module, x: Tensor, labels: Tensor, threat: Threat, rng: Generator) -> Tensor:
    """Twenty ascents of cross-entropy from a random start."""
    return pgd(model, x, lambda logits: F.cross_entropy(logits, labels, reduction="sum"), **asdict(threat), steps=20, rng=rng)


def cw30(model: Module, x: Tensor, labels: Tensor, threat: Threat, rng: Generator) -> Tensor:
    """Thirty ascents of the margin with confidence 50 from a random start."""
    return pgd(model, x, margin(labels), **asdict(threat), steps=30, rng=rng)


ATTACKS: dict[str, Attack] = {"natural": natural, "pgd20": pgd20, "cw30": cw30}


def evaluate(model: Module, test: Split, threat: Threat, attacks: Sequence[str], *, seed: int = 0, batch_size: int = 500) -> dict[str, Measurement]:
    """Measure the accuracy of a model under each attack."""
    if len(test) == 0:
        raise AtclError("there is nothing to evaluate on: the test set is empty")
    if batch_size < 1 or not 0 <= seed < 2**63:
        raise AtclError(f"batch_size is at least 1, and a seed lies in 0 to 2^63 - 1 (batch_size {batch_size}, seed {seed})")
    if not attacks:
        raise AtclError(f"name at least one attack of {', '.join(ATTACKS)}")
    chosen = {name: pick(ATTACKS, name, "attack") for name in attacks}
    return {name: _measure(model, test, threat, attack, seed, batch_size) for name, attack in chosen.items()}


def _measure(model: Module, test: Split, threat: Threat, attack: Attack, seed: int, batch_size: int) -> Measurement:
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), test.x.device)
    began, correct = time.perf_counter(), 0
    with evaluating(model):
        for number, (x, labels) in enumerate(zip(test.x.split(batch_size), test.truth.labels.split(batch_size), strict=True)):
            x, labels = as_float(x.to(device)), labels.to(device)
            adv = attack(model, x, labels, threat, generator(device, seed, number))
            with torch.no_grad():
                logits = model(adv)
            if not bool(logits.isfinite().all()):
                raise AtclError("the model returns numbers that are not finite: its accuracy means nothing")
            correct += int((logits.argmax(1) == labels).sum())
    return Measurement(100 * correct / len(test), correct, len(test), seed, batch_size, time.perf_counter() - began)
