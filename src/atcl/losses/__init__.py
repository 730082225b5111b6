"""Losses for complementary labels: what a batch is fitted to (`Targets`), the paper's seven and others of the field; `LOSSES` names them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from atcl.losses.field import (
    OrdinaryLoss,
    absolute_error,
    cpe,
    cross_entropy,
    decode,
    ga,
    generalized_cross_entropy,
    l_uw,
    l_w,
    pairwise,
    partially_huberised,
    pc,
    scarce,
    squared_error,
    unbiased,
    unbiased_each,
)
from atcl.losses.paper import exp, forward, free, log, nn, scl_exp, scl_nl, uniform_transition
from atcl.losses.targets import Targets


@dataclass(frozen=True)
class Loss:
    """A scalar of logits (n, K) and targets, with what it asks of the labels."""

    of: Callable[[Tensor, Targets], Tensor]
    single: bool = False  # needs exactly one complementary label for each image
    guesses: bool = True  # knows what to do with a pseudo-label (gamma < 1)
    by_class: bool = (
        False  # a sum of risks of classes, each a mean over some of the batch: not a mean over images
    )
    estimates: OrdinaryLoss | None = (
        None  # the ordinary loss whose risk it is an unbiased estimate of, for uniform labels
    )

    def __call__(self, logits: Tensor, targets: Targets) -> Tensor:
        return self.of(logits, targets)


def names_of(which: Callable[[Loss], bool]) -> str:
    """Return the names of the losses that `which` accepts, as a message lists them."""
    return ", ".join(name for name, loss in LOSSES.items() if which(loss))


def _unbiased(ordinary: OrdinaryLoss) -> Loss:
    return Loss(partial(unbiased, ordinary=ordinary), guesses=False, estimates=ordinary)


PAPER = ("forward", "free", "nn", "scl_nl", "scl_exp", "exp", "log")  # each has recipes of its own

LOSSES: dict[str, Loss] = {
    "forward": Loss(forward, single=True, guesses=False),
    "free": Loss(free, single=True, guesses=False, by_class=True, estimates=cross_entropy),
    "nn": Loss(nn, single=True, guesses=False, by_class=True),
    "scl_nl": Loss(scl_nl),
    "scl_exp": Loss(scl_exp),
    "exp": Loss(exp),
    "log": Loss(log),
    "ga": Loss(ga, single=True, guesses=False, by_class=True, estimates=cross_entropy),
    "pc": Loss(pc, single=True, guesses=False, estimates=pairwise),
    "mae": _unbiased(absolute_error),
    "mse": _unbiased(squared_error),
    "ce": _unbiased(cross_entropy),
    "gce": _unbiased(generalized_cross_entropy),
    "phuber_ce": _unbiased(partially_huberised),
    "l_uw": Loss(l_uw, single=True, guesses=False),
    "l_w": Loss(l_w, single=True, guesses=False),
    "cpe": Loss(cpe, single=True, guesses=False),
    "scarce": Loss(scarce, guesses=False, by_class=True),
}

__all__ = [
    "LOSSES",
    "PAPER",
    "Loss",
    "Ordinary",
    "Targets",
    "absolute_error",
    "cpe",
    "cross_entropy",
    "decode",
    "exp",
    "forward",
    "free",
    "ga",
    "generalized_cross_entropy",
    "l_uw",
    "l_w",
    "log",
    "names_of",
    "nn",
    "pairwise",
    "partially_huberised",
    "pc",
    "scarce",
    "scl_exp",
    "scl_nl",
    "squared_error",
    "unbiased",
    "unbiased_each",
    "uniform_transition",
]
