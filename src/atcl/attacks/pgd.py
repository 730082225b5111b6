"""Projected gradient ascent (PGD) on any scalar function of the logits.

Images lie in [0, 1]. The budget is an argument of each call, since it changes with the epoch in a warm-up.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import Module

from atcl.attacks.norms import NORMS, STARTS, Norm, Start
from atcl.core.errors import AtclError, pick
from atcl.core.modules import evaluating

AttackLoss = Callable[[Tensor], Tensor]  # logits (n, K) -> scalar, which the attack raises

# the signature of `pgd_step`
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
    attack_step: "AttackStep | None" = None,
) -> Tensor:
    """Return adversarial images: inside the ball around `x` and [0, 1], where `attack_loss` is large.

    Args:
        model: the model under attack; it is in eval mode meanwhile.
        x: (n, C, H, W), the natural images, floats in [0, 1].
        attack_loss: the function that the attack raises, from logits (n, K) to a scalar.
        epsilon: radius of the ball around each image.
        step_size: length of one step.
        steps: number of steps; 0 returns the start.
        norm: `linf` or `l2`.
        start: `uniform`, `gaussian` or `natural`, or a function as in `atcl.attacks.norms.STARTS`.
        rng: the generator that the start draws from, on the device of the images.
        attack_step: carries out one step in place of `pgd_step`; engines give a compiled one.

    Returns:
        (n, C, H, W), without a gradient.

    Raises:
        AtclError: `steps` is negative, the images are not floats, or a norm or start has an unknown name.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        >>> x, rng = torch.full((2, 1, 2, 2), 0.5), Generator().manual_seed(0)
        >>> adv = pgd(model, x, torch.sum, epsilon=0.1, step_size=0.05, steps=3, rng=rng)
        >>> bool((adv - x).abs().max() < 0.101)
        True
    """
    if steps < 0 or not x.is_floating_point():
        received = f"steps {steps}, images {x.dtype}"
        raise AtclError(f"an attack takes at least 0 steps on images of floats in [0, 1] ({received})")
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
    """Return `adv` after one step along the gradient, projected back into the ball around `x` and [0, 1]."""
    # torch.compile traces this form of a gradient alone, but some models of users do not support it
    if torch.compiler.is_compiling():
        gradient = torch.func.grad(lambda at: attack_loss(model(at)))(adv)
    else:
        with torch.enable_grad():
            at = adv.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(attack_loss(model(at)), at)
    return clip_to_ball(x, adv + step_size * geometry.direction(gradient), epsilon, geometry)


def clip_to_ball(x: Tensor, adv: Tensor, epsilon: Tensor | float, geometry: "Norm") -> Tensor:
    """Return `adv` projected onto the ball around `x`, and then clipped to [0, 1].

    Since `x` lies in [0, 1], clipping moves each pixel towards it and cannot leave the ball.
    """
    return (x + geometry.project(adv - x, epsilon)).clamp(0, 1)


def given(adv: Tensor) -> Start:
    """Return the start of an attack that begins at the images `adv`."""
    return lambda x, epsilon, norm, rng: adv


def cw_margin(labels: Tensor, confidence: float = 50.0) -> AttackLoss:
    """Return the loss of Carlini and Wagner: the margin of the best wrong logit over the right one.

    Args:
        labels: (n,), the true classes.
        confidence: the margin beyond which an image adds no more to the loss.
    """

    def attack_loss(logits: Tensor) -> Tensor:
        right = logits.gather(1, labels[:, None])
        wrong = logits.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True)
        return -(right - wrong + confidence).clamp(min=0).sum()

    return attack_loss


def divergence(clean: Tensor) -> AttackLoss:
    """Return the attack loss of TRADES, KL(clean || adv) summed over the batch; it needs no labels.

    Args:
        clean: (n, K), the logits of the natural images.
    """
    log_p = clean.detach().log_softmax(1)
    return lambda logits: kl(log_p, logits.log_softmax(1)) * len(logits)


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the mean over the batch of KL(p || q), both given as log-probabilities (n, K)."""
    return (log_p.exp() * (log_p - log_q)).sum(1).mean()
