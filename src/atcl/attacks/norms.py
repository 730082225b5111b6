"""Norms and starts of an attack; `NORMS` and `STARTS` name them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

# images, epsilon, norm, generator -> the images that the attack starts from
Start = Callable[[Tensor, "Tensor | float", "Norm", Generator], Tensor]


@dataclass(frozen=True)
class Norm:
    """The three operations that an attack needs in a norm.

    Args:
        sample: draws a random point of the ball around zero.
        direction: returns the direction of steepest ascent for a gradient.
        project: projects a perturbation onto the ball around zero.
    """

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
    if not isinstance(epsilon, Tensor):  # as a tensor it would be copied to the GPU, and the host would wait
        return delta.clamp(-epsilon, epsilon)
    bound = epsilon.to(delta.dtype)
    return delta.clamp(-bound, bound)


def _project_l2(delta: Tensor, epsilon: Tensor | float) -> Tensor:
    return delta * (epsilon / _length(delta)).clamp(max=1)


def _length(delta: Tensor) -> Tensor:
    # the minimum turns a zero gradient into a zero direction instead of NaN
    return _per_image(delta.flatten(1).norm(dim=1).clamp(min=1e-12), delta)


def _per_image(value: Tensor, like: Tensor) -> Tensor:
    return value.view(-1, *[1] * (like.ndim - 1))


def _gaussian(x: Tensor, epsilon: Tensor | float, norm: Norm, rng: Generator) -> Tensor:
    """Return the images with a little Gaussian noise, where TRADES starts its attack."""
    return x + 0.001 * torch.randn(x.shape, generator=rng, device=x.device)


NORMS: dict[str, Norm] = {
    "linf": Norm(_sample_linf, torch.sign, _project_linf),
    "l2": Norm(_sample_l2, lambda gradient: gradient / _length(gradient), _project_l2),
}


STARTS: dict[str, Start] = {
    "uniform": lambda x, epsilon, norm, rng: x + norm.sample(x, epsilon, rng),
    "gaussian": _gaussian,
    "natural": lambda x, epsilon, norm, rng: x,
}
