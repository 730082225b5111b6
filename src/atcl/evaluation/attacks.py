"""Attacks of record: what a model is judged by. Each is a few passes over the images; one after the first sees only those that still stand.

docs/evaluation.md says what such a number promises, and what it does not.
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
from atcl.core.errors import AtclError
from atcl.core.seeds import generator

WORST = "worst"  # the pointwise worst case over everything run

Pass = Callable[
    [Module, Tensor, Tensor, Threat, int, int], Tensor
]  # model, x, true labels, threat, seed, number of the batch -> images to judge by


@dataclass(frozen=True)
class Attack:
    """An attack of record, by the passes that it makes."""

    passes: Mapping[str, Pass]
    about: str
    title: str  # over a column
    first: int | None = None  # how many images of the test set it looks at, the first ones; None: all
    classes: int = 2  # how many a model needs at least
    half: bool = False  # whether it may look, on a GPU, at a copy of the model in fp16; an image stands only if the model itself gets it right too
    wide: bool = False  # whether it takes as many images at a time as a GPU has room for: its many small steps keep the host busy

    def check(self, classes: int) -> None:
        """Refuse a model that has too few classes."""
        if classes < self.classes:
            raise AtclError(
                f"{self.about} needs at least {self.classes} classes, and there are {classes}: use pgd20, pgd20_restarts or cw30"
            )


def natural(model: Module, x: Tensor, labels: Tensor, threat: Threat, seed: int, number: int) -> Tensor:
    """The images as they are."""
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
    """Projected gradient ascent from a random start that follows from seed, batch and restart alone."""
    rng = generator(x.device, seed, number, *([restart] if restart else []))
    return pgd(model, x, attack_loss(labels), **asdict(threat), steps=steps, rng=rng)


def cross_entropy_of(labels: Tensor) -> AttackLoss:
    """Climb the cross-entropy of the true class."""
    return lambda logits: F.cross_entropy(logits, labels, reduction="sum")


def autoattack(
    model: Module, x: Tensor, labels: Tensor, threat: Threat, seed: int, number: int, *, part: str
) -> Tensor:
    """One of the four attacks of AutoAttack's standard version, as its authors package it, on images that the others left right."""
    from pyautoattack import AutoAttack

    with torch.no_grad():
        classes = model(x[:1]).shape[1]
    names = {"linf": "Linf", "l2": "L2"}
    whole = AutoAttack(
        model, device=x.device, eps=threat.epsilon, norm=names[threat.norm], seed=seed, version="standard"
    )
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
    """Return what stands over the column of an attack, or of the worst case over several."""
    return "worst case" if name == WORST else ATTACKS[name].title if name in ATTACKS else name
