"""Projected gradient ascent, written once: a start, a direction and a projection, climbing any scalar of the logits.

    adv = pgd(model, x, lambda logits: F.cross_entropy(logits, guess), epsilon=8 / 255, step_size=2 / 255, steps=10, rng=rng)

Images lie in [0, 1]. The budget belongs to the call, so one attack serves every epoch of a warm-up.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import Module

from atcl.attacks.norms import NORMS, STARTS, Norm, Start
from atcl.core.errors import AtclError, pick
from atcl.core.modules import evaluating

AttackLoss = Callable[[Tensor], Tensor]  # logits (n, K) -> scalar


AttackStep = Callable[
    [Module, Tensor, Tensor, AttackLoss, "Tensor | float", "Tensor | float", "Norm"], Tensor
]


def pgd(
    model: Module,
    x: Tensor,  # (n, C, H, W) in [0, 1]
    attack_loss: AttackLoss,
    *,
    epsilon: Tensor | float,
    step_size: Tensor | float,
    steps: int,
    norm: str = "linf",
    start: str | Start = "uniform",
    rng: Generator,
    attack_step: "AttackStep | None" = None,  # one ascent, where an engine runs it otherwise than it is written
) -> Tensor:
    """Return adversarial images: `steps` ascents of `climb(model(adv))`, inside the ball around `x` and [0, 1]."""
    if steps < 0 or not x.is_floating_point():
        raise AtclError(
            f"an attack takes at least 0 steps on images of floats in [0, 1] (steps {steps}, images {x.dtype})"
        )
    geometry = pick(NORMS, norm, "norm")
    begin = pick(STARTS, start, "start") if isinstance(start, str) else start

    with evaluating(model):
        adv = clip_to_ball(x, begin(x, epsilon, geometry, rng), epsilon, geometry).detach()
        for _ in range(steps):
            adv = (attack_step or pgd_step)(model, x, adv, attack_loss, epsilon, step_size, geometry)
    return adv


def pgd_step(
    model: Module,
    x: Tensor,
    adv: Tensor,
    attack_loss: AttackLoss,
    epsilon: Tensor | float,
    step_size: Tensor | float,
    geometry: "Norm",
) -> Tensor:
    """Return the images after one step up the gradient of `climb(model(adv))`, back inside the ball around `x` and [0, 1]."""
    if (
        torch.compiler.is_compiling()
    ):  # the compiler follows this form of a gradient alone; models of others may not
        gradient = torch.func.grad(lambda at: attack_loss(model(at)))(adv)
    else:
        with torch.enable_grad():
            at = adv.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(attack_loss(model(at)), at)
    return clip_to_ball(x, adv + step_size * geometry.direction(gradient), epsilon, geometry)


def clip_to_ball(x: Tensor, adv: Tensor, epsilon: Tensor | float, geometry: "Norm") -> Tensor:
    """Return the images brought back into the ball around `x`, and then into [0, 1]: clipping towards x cannot leave the ball."""
    return (x + geometry.project(adv - x, epsilon)).clamp(0, 1)


def given(adv: Tensor) -> Start:
    """Start the ascent from these images."""
    return lambda x, epsilon, norm, rng: adv


def cw_margin(labels: Tensor, confidence: float = 50.0) -> AttackLoss:
    """Climb the best wrong logit over the right one until it leads by `confidence` (Carlini and Wagner)."""

    def attack_loss(logits: Tensor) -> Tensor:
        right = logits.gather(1, labels[:, None])
        wrong = logits.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True)
        return -(right - wrong + confidence).clamp(min=0).sum()

    return attack_loss


def divergence(clean: Tensor) -> AttackLoss:
    """Climb KL(clean || adv), the attack of TRADES, which needs no label at all."""
    log_p = clean.detach().log_softmax(1)
    return lambda logits: kl(log_p, logits.log_softmax(1)) * len(logits)


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the mean over the batch of KL(p || q), both given as logarithms (n, K)."""
    return (log_p.exp() * (log_p - log_q)).sum(1).mean()
