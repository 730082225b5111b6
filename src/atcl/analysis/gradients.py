"""Gradients of the weights: how far the images of a batch agree, and how much of them reaches the first layer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn import Module

from atcl.core.errors import AtclError
from atcl.core.modules import evaluating
from atcl.losses import Targets
from atcl.training.objectives import Objective


@dataclass(frozen=True)
class Variance:
    """How far the gradient directions of a batch scatter."""

    trace: float | None  # of their covariance, from 0 (all agree) to 1; None where no image has a direction
    zeros: float  # share of the images whose gradient is zero, which have no direction


def first_and_last(model: Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the parameters of the first and of the last layer that has any, in the order in which the model defines them."""
    layers = [
        tuple(f"{name}.{own}".lstrip(".") for own, _ in module.named_parameters(recurse=False))
        for name, module in model.named_modules()
    ]
    owning = [names for names in layers if names]
    if not owning:
        raise AtclError("the model has no parameters, so it has no gradients to look at")
    return owning[0], owning[-1]


def image_gradients(
    model: Module,
    objective: Objective,
    x: Tensor,
    adv: Tensor,
    targets: Targets,
    names: Sequence[str],
    rng: Generator | None = None,
) -> Tensor:
    """Return (n, P): the part of each image in the gradient of the batch's loss with respect to the named parameters.

    The parts add up to that gradient, whatever the loss. Where it is a mean over images, each is an image's own gradient over n.
    The model is looked at in eval mode: batch statistics would mix the images. With a generator, its `nn.Dropout` layers drop as they do in training,
    unless one of them sees something else than a row for each image.
    """
    with evaluating(model):
        seen = _Seen(model, names, rng)
        with torch.enable_grad():
            loss, _ = objective.training_loss(seen, x, adv, targets)
        pulls = torch.autograd.grad(loss, seen.logits)
        found = [back(pull)[0] for back, pull in zip(seen.backs, pulls, strict=True)]
    return torch.stack([torch.cat([parts[name].flatten(1) for name in names], 1) for parts in found]).sum(0)


def direction_variance(gradients: Tensor) -> Variance:
    """Return the trace of the covariance (ddof 0) of the unit vectors along gradients (n, P), and how many are zero."""
    # in fp64: in fp32 the squares of a tiny gradient would vanish, and one over its length would be infinite
    lengths = torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float64)
    alive = lengths > 0
    number = int(alive.sum())
    zeros = 1 - number / len(gradients)
    if not number:
        return Variance(None, zeros)
    weights = torch.where(alive, 1 / lengths, 0)
    mean = weights @ gradients.double() / number
    return Variance(
        max(0.0, 1 - float(mean.square().sum())), zeros
    )  # unit vectors: the mean of squares less the square of the mean


def layer_norms(gradients: Mapping[str, Tensor | None], layers: Sequence[Sequence[str]]) -> Tensor:
    """Return (layers,): the L2 norm of the gradient of each layer, given the gradients of parameters by name; nothing waits for the device."""
    norms = [
        [found.detach().norm() for name in names if (found := gradients[name]) is not None]
        for names in layers
    ]
    nothing = next(
        (part.new_zeros(()) for parts in norms for part in parts), torch.zeros(())
    )  # where a layer gets no gradient
    return torch.stack([torch.stack(parts).norm() if parts else nothing for parts in norms])


class _Seen(Module):
    """A model whose answers are cut off from the weights, and which keeps, for each call, the way back to them, image by image."""

    def __init__(self, model: Module, names: Sequence[str], rng: Generator | None) -> None:
        super().__init__()
        self.model, self.rng = (model,), rng  # in a tuple: looked at, not owned
        state = {
            name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())
        }
        self.chosen = {name: state[name] for name in names}
        self.logits: list[Tensor] = []
        self.backs: list[Callable[[Tensor], tuple[dict[str, Tensor]]]] = []

        def answer(chosen: dict[str, Tensor], image: Tensor, masks: tuple[Tensor, ...]) -> Tensor:
            left = iter(masks)

            def dropped(layer: nn.Dropout, inputs: object, output: Tensor) -> Tensor:
                mask = next(left, None)
                return output if mask is None else output * mask[None]

            with _dropping(model, dropped):
                logits: Tensor = functional_call(model, {**state, **chosen}, (image[None],))
            return logits[0]

        self.answer = answer

    def forward(self, images: Tensor) -> Tensor:
        own = {
            name: tensor.expand(len(images), *tensor.shape) for name, tensor in self.chosen.items()
        }  # weights of its own for each image
        try:
            masks = () if self.rng is None else _masks(*self.model, images, self.rng)
            found = vjp(lambda chosen: vmap(self.answer)(chosen, images, masks), own)
        except RuntimeError as error:
            raise AtclError(f"torch.func cannot vectorise this model: {str(error).splitlines()[0]}") from None
        self.logits.append(found[0].detach().requires_grad_())
        self.backs.append(found[1])
        return self.logits[-1]


def _masks(model: Module, images: Tensor, rng: Generator) -> tuple[Tensor, ...]:
    """Return what each call of a dropout multiplies the values of each image with, in the order of the calls."""
    masks: list[Tensor] = []
    rows: set[int] = set()

    def draw(layer: nn.Dropout, inputs: object, output: Tensor) -> None:
        rows.add(len(output))
        kept = torch.rand(output.shape, generator=rng, device=output.device) >= layer.p
        masks.append(kept / max(1 - layer.p, 1e-6))

    with _dropping(model, draw), torch.no_grad():
        model(images)
    return tuple(masks) if rows == {len(images)} else ()


@contextmanager
def _dropping(model: Module, hook: Callable[[nn.Dropout, object, Tensor], Tensor | None]) -> Iterator[None]:
    """Let a hook see what the dropouts of a model in eval mode, which drop nothing, give."""
    with ExitStack() as stack:
        for layer in model.modules():
            if type(layer) is nn.Dropout:
                stack.callback(layer.register_forward_hook(hook).remove)
        yield
