"""Losses for complementary labels: the paper's seven and others of the field; `LOSSES` names them.

`Targets` holds what the logits of a batch are fitted to.

Examples:
    >>> [name for name, loss in LOSSES.items() if loss.guesses]
    ['scl_nl', 'scl_exp', 'exp', 'log']
"""

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
    """A loss, with what it requires of the labels; a call with logits (n, K) and targets returns a scalar.

    Args:
        of: the function that computes it
        single: whether it needs exactly one complementary label for each image
        guesses: whether it has a form with pseudo-labels (gamma < 1)
        by_class: whether it is a sum of one risk per class, each a mean over a part of the batch,
            and not a mean over images
        estimates: the ordinary loss whose risk it estimates without bias where labels are uniform

    Examples:
        >>> import torch
        >>> LOSSES["log"](torch.zeros(1, 3), Targets(torch.tensor([[True, False, False]])))  # -log(1 / 3)
        tensor(1.0986)
    """

    of: Callable[[Tensor, Targets], Tensor]
    single: bool = False
    guesses: bool = True
    by_class: bool = False
    estimates: OrdinaryLoss | None = None

    def __call__(self, logits: Tensor, targets: Targets) -> Tensor:
        return self.of(logits, targets)


def names_of(which: Callable[[Loss], bool]) -> str:
    """Return the names of the losses that `which` accepts, separated by commas."""
    return ", ".join(name for name, loss in LOSSES.items() if which(loss))


def _unbiased(ordinary: OrdinaryLoss) -> Loss:
    return Loss(partial(unbiased, ordinary=ordinary), guesses=False, estimates=ordinary)


# the losses of the paper's table, each with the recipes direct-... and warmup-...
PAPER = ("forward", "free", "nn", "scl_nl", "scl_exp", "exp", "log")

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
    "OrdinaryLoss",
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
