"""Attacks of record: the attacks that the accuracy of a model is measured by.

Each makes one or more passes over the images. A pass after the first gets the images that are still right.
docs/evaluation.md explains what such an accuracy means.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F

from atcl.attacks.pgd import AttackLoss, cw_margin, pgd
from atcl.attacks.threat import Threat
from atcl.core.errors import AtclError, pick
from atcl.core.seeds import generator

WORST = "worst"  # for each image the worst case over all attacks that were run

# model, x, true labels, threat, seed, number of the batch -> the images that the model is evaluated on
Pass = Callable[[Module, Tensor, Tensor, Threat, int, int], Tensor]


@dataclass(frozen=True)
class Attack:
    """An attack of record.

    Args:
        passes: what it runs, one after the other, by name.
        about: what it is, in a few words.
        title: the heading of its column.
        first: how many images of the test set it takes, the first ones; None: all.
        classes: how many classes a model needs at least.
        half: whether it may run, on a GPU, on a copy of the model in fp16; the model itself decides whether
            an image is right.
        wide: whether it takes as many images at a time as a GPU has room for, because of its many small
            steps, which keep the host busy.
    """

    passes: Mapping[str, Pass]
    about: str
    title: str
    first: int | None = None
    classes: int = 2
    half: bool = False
    wide: bool = False

    def check(self, classes: int) -> None:
        """Refuse a model that has too few classes."""
        if classes < self.classes:
            need = f"{self.about} needs at least {self.classes} classes, and there are {classes}"
            raise AtclError(f"{need}: use pgd20, pgd20_restarts or cw30")


def natural(model: Module, x: Tensor, labels: Tensor, threat: Threat, seed: int, number: int) -> Tensor:
    """Return the images unchanged."""
    return x


def pgd_attack(
    model: Module,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    seed: int,
    number: int,
    *,
    attack_loss: Callable[[Tensor], AttackLoss],
    steps: int,
    restart: int = 0,
) -> Tensor:
    """Return the images after PGD from a random start, which follows from seed, batch and restart alone."""
    rng = generator(x.device, seed, number, *([restart] if restart else []))
    return pgd(model, x, attack_loss(labels), **asdict(threat), steps=steps, rng=rng)


def cross_entropy_of(labels: Tensor) -> AttackLoss:
    """Return the attack loss that is the cross-entropy of the true class."""
    return lambda logits: F.cross_entropy(logits, labels, reduction="sum")


def autoattack(
    model: Module, x: Tensor, labels: Tensor, threat: Threat, seed: int, number: int, *, part: str
) -> Tensor:
    """Return the images after one of the four attacks of AutoAttack's standard version, by pyautoattack."""
    from pyautoattack import AutoAttack

    with torch.no_grad():
        classes = model(x[:1]).shape[1]
    norm = pick({"linf": "Linf", "l2": "L2"}, threat.norm, "norm of AutoAttack")
    whole = AutoAttack(model, device=x.device, eps=threat.epsilon, norm=norm, seed=seed, version="standard")
    whole.attacks_to_run = [part]
    # the standard version targets nine classes; with fewer to target, all of them
    whole.apgd_targeted.n_target_classes = whole.fab.n_target_classes = min(9, classes - 1)
    adv, _ = whole.run_standard_evaluation(x, labels, batch_size=len(x))
    found: Tensor = adv
    return found


_PGD20 = partial(pgd_attack, attack_loss=cross_entropy_of, steps=20)
RESTARTS = 10

ATTACKS: dict[str, Attack] = {
    "natural": Attack({"natural": natural}, "the images as they are", "natural"),
    "pgd20": Attack({"pgd20": _PGD20}, "20 ascents of cross-entropy from a random start", "PGD20"),
    "cw30": Attack(
        {"cw30": partial(pgd_attack, attack_loss=cw_margin, steps=30)},
        "30 ascents of the margin with confidence 50 from a random start",
        "CW30",
    ),
    "pgd20_restarts": Attack(
        {f"restart {number}": partial(_PGD20, restart=number) for number in range(RESTARTS)},
        f"20 ascents of cross-entropy from each of {RESTARTS} random starts",
        "PGD20, 10 starts",
    ),
    "autoattack": Attack(
        {
            "natural": natural,
            **{part: partial(autoattack, part=part) for part in ("apgd-ce", "apgd-t", "fab-t", "square")},
        },
        "AutoAttack, standard version (APGD-CE, APGD-T, FAB-T, Square)",
        "AutoAttack",
        first=10_000,  # as published
        classes=4,  # its DLR loss compares the third and fourth logit
        half=True,
        wide=True,
    ),
}


def heading(name: str) -> str:
    """Return the heading of the column of an attack, or of the worst case over several."""
    return "worst case" if name == WORST else ATTACKS[name].title if name in ATTACKS else name
