"""Norms and starts of an attack: a random point of the ball, the steepest direction, the way back into the ball."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

Start = Callable[
    [Tensor, "Tensor | float", "Norm", Generator], Tensor
]  # x, epsilon, norm, rng -> where the ascent begins


@dataclass(frozen=True)
class Norm:
    """What a norm supplies: a random point of the ball, the steepest direction, the way back into the ball."""

    sample: Callable[[Tensor, Tensor | float, Generator], Tensor]
    direction: Callable[[Tensor], Tensor]
    project: Callable[[Tensor, Tensor | float], Tensor]


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
    "gaussian": lambda x, epsilon, norm, rng: (
        x + 0.001 * torch.randn(x.shape, generator=rng, device=x.device)
    ),  # TRADES
    "natural": lambda x, epsilon, norm, rng: x,
}
