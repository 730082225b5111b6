"""Projected gradient ascent, written once: a start, a direction and a projection, climbing any scalar of the logits.

    adv = pgd(model, x, lambda logits: F.cross_entropy(logits, guess), epsilon=8 / 255, step_size=2 / 255, steps=10, rng=rng)

Images lie in [0, 1]. The budget belongs to the call, so one attack serves every epoch of a warm-up.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor
from torch.nn import Module

from atcl.errors import AtclError, pick

Climb = Callable[[Tensor], Tensor]  # logits (n, K) -> scalar
Ascend = Callable[[Module, Tensor, Tensor, Climb, "Tensor | float", "Tensor | float", "Norm"], Tensor]
Start = Callable[[Tensor, "Tensor | float", "Norm", Generator], Tensor]  # x, epsilon, norm, rng -> where the ascent begins


@dataclass(frozen=True)
class Norm:
    """What a norm supplies: a random point of the ball, the steepest direction, the way back into the ball."""

    sample: Callable[[Tensor, Tensor | float, Generator], Tensor]
    direction: Callable[[Tensor], Tensor]
    project: Callable[[Tensor, Tensor | float], Tensor]


GROWING = ("epsilon", "step_size", "steps")  # the parts of a budget that a warm-up may raise


@dataclass(frozen=True)
class Budget:
    """What an attack may do while training, and how it grows."""

    epsilon: float = 0.0
    """radius of the ball around each image"""
    step_size: float = 0.0
    """length of one ascent"""
    steps: int = 0
    """number of ascents; 0 trains on the natural images"""
    norm: str = "linf"
    """linf or l2"""
    start: str = "uniform"
    """uniform in the ball, gaussian (TRADES) or natural"""

    def __post_init__(self) -> None:
        if not (self.epsilon >= 0 and self.step_size >= 0 and math.isfinite(self.epsilon) and math.isfinite(self.step_size)):
            raise AtclError(f"epsilon and step_size must be numbers of at least 0 (epsilon {self.epsilon}, step_size {self.step_size})")
        if self.steps < 0:
            raise AtclError(f"an attack takes at least 0 steps, not {self.steps}")
        if self.epsilon > 0 and self.steps == 0:
            raise AtclError(f"epsilon is {self.epsilon} but the attack takes 0 steps: give steps, or epsilon 0 for natural training")
        if self.steps > 0 and self.step_size == 0:
            raise AtclError(f"the attack takes {self.steps} steps of length 0: give a step_size")
        pick(NORMS, self.norm, "norm")
        pick(STARTS, self.start, "start")

    def grown(self, strength: float, grow: Sequence[str]) -> "Budget":
        """Return the budget with each part in `grow` at `strength` of its full size; at strength 0, no attack."""
        if strength <= 0:
            return replace(self, epsilon=0.0, step_size=0.0, steps=0)
        return replace(
            self,
            epsilon=self.epsilon * strength if "epsilon" in grow else self.epsilon,
            step_size=self.step_size * strength if "step_size" in grow else self.step_size,
            # rounded first, so that half of 40 steps is 20 however the cosine rounds
            steps=max(1, math.ceil(round(self.steps * strength, 9))) if "steps" in grow else self.steps,
        )


@dataclass(frozen=True)
class Threat:
    """The adversary that a model is judged by."""

    epsilon: float
    """radius of the ball around each image"""
    step_size: float
    """length of one step of PGD20 and CW30"""
    norm: str = "linf"
    """linf or l2"""

    def __post_init__(self) -> None:
        if not (0 <= self.epsilon < math.inf and 0 < self.step_size < math.inf):
            raise AtclError(f"a threat needs epsilon of at least 0 and a positive step_size (epsilon {self.epsilon}, step_size {self.step_size})")
        pick(NORMS, self.norm, "norm")


def pgd(
    model: Module,
    x: Tensor,  # (n, C, H, W) in [0, 1]
    climb: Climb,
    *,
    epsilon: Tensor | float,
    step_size: Tensor | float,
    steps: int,
    norm: str = "linf",
    start: str | Start = "uniform",
    rng: Generator,
    ascend: "Ascend | None" = None,  # one ascent, where an engine runs it otherwise than it is written
) -> Tensor:
    """Return adversarial images: `steps` ascents of `climb(model(adv))`, inside the ball around `x` and [0, 1]."""
    if steps < 0 or not x.is_floating_point():
        raise AtclError(f"an attack takes at least 0 steps on images of floats in [0, 1] (steps {steps}, images {x.dtype})")
    geometry = pick(NORMS, norm, "norm")
    begin = pick(STARTS, start, "start") if isinstance(start, str) else start

    with evaluating(model):
        adv = inside(x, begin(x, epsilon, geometry, rng), epsilon, geometry).detach()
        for _ in range(steps):
            adv = (ascend or ascent)(model, x, adv, climb, epsilon, step_size, geometry)
    return adv


def ascent(model: Module, x: Tensor, adv: Tensor, climb: Climb, epsilon: Tensor | float, step_size: Tensor | float, geometry: "Norm") -> Tensor:
    """Return the images after one step up the gradient of `climb(model(adv))`, back inside the ball around `x` and [0, 1]."""
    if torch.compiler.is_compiling():  # the compiler follows this form of a gradient alone; models of others may not
        gradient = torch.func.grad(lambda at: climb(model(at)))(adv)
    else:
        with torch.enable_grad():
            at = adv.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(climb(model(at)), at)
    return inside(x, adv + step_size * geometry.direction(gradient), epsilon, geometry)


def inside(x: Tensor, adv: Tensor, epsilon: Tensor | float, geometry: "Norm") -> Tensor:
    """Return the images brought back into the ball around `x`, and then into [0, 1]: clipping towards x cannot leave the ball."""
    return (x + geometry.project(adv - x, epsilon)).clamp(0, 1)


def given(adv: Tensor) -> Start:
    """Start the ascent from these images."""
    return lambda x, epsilon, norm, rng: adv


def margin(labels: Tensor, confidence: float = 50.0) -> Climb:
    """Climb the best wrong logit over the right one until it leads by `confidence` (Carlini and Wagner)."""

    def climb(logits: Tensor) -> Tensor:
        right = logits.gather(1, labels[:, None])
        wrong = logits.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True)
        return -(right - wrong + confidence).clamp(min=0).sum()

    return climb


def divergence(clean: Tensor) -> Climb:
    """Climb KL(clean || adv), the attack of TRADES, which needs no label at all."""
    log_p = clean.detach().log_softmax(1)
    return lambda logits: kl(log_p, logits.log_softmax(1)) * len(logits)


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the mean over the batch of KL(p || q), both given as logarithms (n, K)."""
    return (log_p.exp() * (log_p - log_q)).sum(1).mean()


def device_of(model: Module, otherwise: torch.device) -> torch.device:
    """Return where a model lies; one without parameters and buffers lies nowhere, and goes where its images are."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), otherwise)


@contextmanager
def evaluating(model: Module) -> Iterator[None]:
    """Put every part of the model into eval mode, and put each back as it was found."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _sample_linf(x: Tensor, epsilon: Tensor | float, rng: Generator) -> Tensor:
    return (2 * torch.rand(x.shape, generator=rng, device=x.device) - 1) * epsilon


def _sample_l2(x: Tensor, epsilon: Tensor | float, rng: Generator) -> Tensor:
    direction = torch.randn(x.shape, generator=rng, device=x.device)
    radius = torch.rand(len(x), generator=rng, device=x.device) ** (1 / x[0].numel())
    return direction / _length(direction) * _per_image(radius, x) * epsilon


def _project_linf(delta: Tensor, epsilon: Tensor | float) -> Tensor:
    if not isinstance(epsilon, Tensor):  # a number stays one: to copy it to a GPU would make the host wait
        return delta.clamp(-epsilon, epsilon)
    bound = epsilon.to(delta.dtype)
    return delta.clamp(-bound, bound)


def _project_l2(delta: Tensor, epsilon: Tensor | float) -> Tensor:
    return delta * (epsilon / _length(delta)).clamp(max=1)


def _length(delta: Tensor) -> Tensor:
    # the floor keeps a zero gradient a zero direction instead of NaN
    return _per_image(delta.flatten(1).norm(dim=1).clamp(min=1e-12), delta)


def _per_image(value: Tensor, like: Tensor) -> Tensor:
    return value.view(-1, *[1] * (like.ndim - 1))


NORMS: dict[str, Norm] = {
    "linf": Norm(_sample_linf, torch.sign, _project_linf),
    "l2": Norm(_sample_l2, lambda gradient: gradient / _length(gradient), _project_l2),
}

STARTS: dict[str, Start] = {
    "uniform": lambda x, epsilon, norm, rng: x + norm.sample(x, epsilon, rng),
    "gaussian": lambda x, epsilon, norm, rng: x + 0.001 * torch.randn(x.shape, generator=rng, device=x.device),  # TRADES
    "natural": lambda x, epsilon, norm, rng: x,
}
