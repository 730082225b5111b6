"""Gradients of the weights: how far the images of a batch agree, and how much of them reaches the first layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import Module

from atcl.attacks import evaluating
from atcl.errors import AtclError
from atcl.losses import Targets
from atcl.objectives import Objective


@dataclass(frozen=True)
class Variance:
    """How far the gradient directions of a batch scatter."""

    trace: float | None  # of their covariance, from 0 (all agree) to 1; None where no image has a direction
    zeros: float  # share of the images whose gradient is zero, which have no direction


def first_and_last(model: Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the parameters of the first and of the last layer that has any, in the order in which the model defines them."""
    layers = [tuple(f"{name}.{own}".lstrip(".") for own, _ in module.named_parameters(recurse=False)) for name, module in model.named_modules()]
    owning = [names for names in layers if names]
    if not owning:
        raise AtclError("the model has no parameters, so it has no gradients to look at")
    return owning[0], owning[-1]


def image_gradients(model: Module, objective: Objective, x: Tensor, adv: Tensor, targets: Targets, names: Sequence[str]) -> Tensor:
    """Return (n, P): the part of each image in the gradient of the batch's loss with respect to the named parameters.

    The parts add up to that gradient, whatever the loss. Where it is a mean over images, each is an image's own gradient over n.
    The model is looked at in eval mode: batch statistics would mix the images.
    """
    state = {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    chosen = {name: state[name] for name in names}

    def pulled(chosen: Mapping[str, Tensor], image: Tensor, pull: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, {**state, **chosen}, (image[None],))
        return (logits[0] * pull).sum()

    with evaluating(model):
        seen = _Seen(model)
        with torch.enable_grad():
            loss, _ = objective.descend(seen, x, adv, targets)
        pulls = torch.autograd.grad(loss, [logits for _, logits in seen.calls])
        total: Tensor | None = None
        for (images, _), pull in zip(seen.calls, pulls, strict=True):
            try:
                found = vmap(grad(pulled), in_dims=(None, 0, 0))(chosen, images, pull)
            except RuntimeError as error:
                raise AtclError(f"torch.func cannot vectorise this model: {str(error).splitlines()[0]}") from None
            part = torch.cat([found[name].flatten(1) for name in names], 1)
            total = part if total is None else total + part
    assert total is not None
    return total


def direction_variance(gradients: Tensor) -> Variance:
    """Return the trace of the covariance (ddof 0) of the unit vectors along gradients (n, P), and how many are zero."""
    lengths = torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float64)  # in fp32 the squares of a tiny gradient would vanish
    alive = lengths > 0
    number = int(alive.sum())
    zeros = 1 - number / len(gradients)
    if not number:
        return Variance(None, zeros)
    weights = torch.where(alive, 1 / lengths, 0).to(gradients)
    mean = weights @ gradients / number
    return Variance(max(0.0, 1 - float(mean.square().sum())), zeros)  # unit vectors: the mean of squares less the square of the mean


def layer_norms(gradients: Mapping[str, Tensor | None], layers: Sequence[Sequence[str]]) -> Tensor:
    """Return (layers,): the L2 norm of the gradient of each layer, given the gradients of parameters by name; nothing waits for the device."""
    norms = [[found.detach().norm() for name in names if (found := gradients[name]) is not None] for names in layers]
    return torch.stack([torch.stack(parts).norm() for parts in norms])


class _Seen(Module):
    """A model that notes what it is asked and hands out its answers cut off from the weights."""

    def __init__(self, model: Module) -> None:
        super().__init__()
        self.asked = model
        self.calls: list[tuple[Tensor, Tensor]] = []  # images, logits

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self.asked(images)
        self.calls.append((images, logits.requires_grad_()))
        return logits
