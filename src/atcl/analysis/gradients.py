"""Gradients of the weights: how much their directions vary within a batch, and their norms by layer."""

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
    """The variance of the gradient directions of a batch."""

    trace: float | None  # of their covariance, from 0 (all agree) to 1; None if all gradients are zero
    zeros: float  # share of the images whose gradient is zero


def first_and_last(model: Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the parameters of the first and of the last layer that has any.

    The order is the one in which the model defines its layers.
    """
    layers = [
        tuple(f"{name}.{own}".lstrip(".") for own, _ in module.named_parameters(recurse=False))
        for name, module in model.named_modules()
    ]
    owning = [names for names in layers if names]
    if not owning:
        raise AtclError("the model has no parameters, so it has no gradients to measure")
    return owning[0], owning[-1]


def image_gradients(
    model: Module,
    objective: Objective,
    x: Tensor,
    adv: Tensor,
    targets: Targets,
    names: Sequence[str],
    rng: Generator | None = None,
    others: Sequence[Tensor] = (),
) -> Tensor:
    """Return (n, P): the part of each image in the gradient of the batch's loss.

    The parts add up to that gradient, whatever the loss. Where the loss is a mean over images, each part is
    the image's own gradient divided by n. The model runs in eval mode, since batch statistics would mix the
    images.

    Args:
        model: the model whose gradients are computed.
        objective: its training loss is differentiated.
        x: (n, C, H, W), the images before the attack.
        adv: (n, C, H, W), the images after it.
        targets: what the batch is fitted to.
        names: the parameters, by name; P is the number of their values.
        rng: draws the masks of `nn.Dropout` layers, as in training; None: no dropout. There is none either
            where a dropout layer receives anything but one row for each image.
        others: further views of the images, of the same shape each, for objectives that use several.

    Raises:
        AtclError: `torch.func` cannot vectorise the model.
    """
    with evaluating(model):
        seen = _Seen(model, names, rng)
        with torch.enable_grad():
            loss, _ = objective.training_loss(seen, x, adv, targets, *others)
        pulls = torch.autograd.grad(loss, seen.logits)
        found = [back(pull)[0] for back, pull in zip(seen.backs, pulls, strict=True)]
    return torch.stack([torch.cat([parts[name].flatten(1) for name in names], 1) for parts in found]).sum(0)


def direction_variance(gradients: Tensor) -> Variance:
    """Return the trace of the covariance (ddof 0) of the unit vectors along gradients (n, P)."""
    # fp64: in fp32 the squares of a tiny gradient would underflow, and the inverse of its length overflow
    lengths = torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float64)
    alive = lengths > 0
    number = int(alive.sum())
    zeros = 1 - number / len(gradients)
    if not number:
        return Variance(None, zeros)
    weights = torch.where(alive, 1 / lengths, 0)
    mean = weights @ gradients.double() / number
    # for unit vectors, the mean of squares minus the square of the mean
    return Variance(max(0.0, 1 - float(mean.square().sum())), zeros)


def layer_norms(gradients: Mapping[str, Tensor | None], layers: Sequence[Sequence[str]]) -> Tensor:
    """Return (layers,): the L2 norm of the gradient of each layer; it does not wait for the device.

    Args:
        gradients: of parameters, by name; None where a parameter has no gradient.
        layers: the names of the parameters of each layer.
    """
    norms = [
        [found.detach().norm() for name in names if (found := gradients[name]) is not None]
        for names in layers
    ]
    existing = (part for parts in norms for part in parts)
    nothing = next((part.new_zeros(()) for part in existing), torch.zeros(()))  # for a layer without gradient
    return torch.stack([torch.stack(parts).norm() if parts else nothing for parts in norms])


class _Seen(Module):
    """A model whose logits are detached from the weights.

    For each call it keeps the function that backpropagates to the weights, image by image.
    """

    def __init__(self, model: Module, names: Sequence[str], rng: Generator | None) -> None:
        super().__init__()
        self.model, self.rng = (model,), rng  # in a tuple: not a submodule
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
        # weights of its own for each image
        own = {name: tensor.expand(len(images), *tensor.shape) for name, tensor in self.chosen.items()}
        try:
            masks = () if self.rng is None else _masks(*self.model, images, self.rng)
            found = vjp(lambda chosen: vmap(self.answer)(chosen, images, masks), own)
        except RuntimeError as error:
            raise AtclError(f"torch.func cannot vectorise this model: {str(error).splitlines()[0]}") from None
        self.logits.append(found[0].detach().requires_grad_())
        self.backs.append(found[1])
        return self.logits[-1]


def _masks(model: Module, images: Tensor, rng: Generator) -> tuple[Tensor, ...]:
    """Return the factors of each call of a dropout layer, image by image, in the order of the calls."""
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
    """Call a hook with the output of each dropout layer of a model in eval mode, where nothing is dropped."""
    with ExitStack() as stack:
        for layer in model.modules():
            if type(layer) is nn.Dropout:
                stack.callback(layer.register_forward_hook(hook).remove)
        yield
