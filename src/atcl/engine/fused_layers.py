"""Layers of the frozen copy that attacks look at, in the form that is fastest on a GPU; only the gradient of their input is ever asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn import functional as F

EIGHT = 8  # channels that libraries for convolutions want at least
SIXTEEN = 16  # columns that matrix products want at least
TURNING = 32  # channels up to which the gradient of an input is faster as a convolution of its own


class FusedConv(Module):
    """A convolution with the normalisation and the ReLU behind it, and with both its passes in the form that is fastest for its size."""

    forward_weight: Tensor
    backward_weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        convolution: nn.Conv2d,
        norm: nn.BatchNorm2d | None,
        form: "Form",
        relu: bool,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.sources = (convolution, norm)  # in a tuple: followed, not owned
        self.form, self.relu = form, relu
        self.padding: Any = convolution.padding
        self.options: Any = (
            convolution.stride,
            convolution.padding,
            convolution.dilation,
            convolution.groups,
        )
        empty = torch.zeros_like(convolution.weight, dtype=dtype).detach()
        self.register_buffer("forward_weight", _laid(self.form.forward_weight(empty)))
        self.register_buffer("backward_weight", _laid(self.form.backward_weight(empty)))
        self.register_buffer(
            "bias", None if convolution.bias is None and norm is None else empty.new_zeros(len(empty))
        )

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        return self.form.run(x, self) if added is None else _fused(x, self, added)

    def derive(self) -> None:
        """Work out weights and bias anew."""
        convolution, norm = self.sources
        weight, bias = convolution.weight, convolution.bias
        if norm is not None:
            assert norm.running_var is not None and norm.running_mean is not None  # noqa: PT018 (others are not folded)
            scale = torch.rsqrt(norm.running_var + norm.eps)
            scale = scale if norm.weight is None else scale * norm.weight
            mean = norm.running_mean if bias is None else norm.running_mean - bias
            bias = -mean * scale if norm.bias is None else norm.bias - mean * scale
            weight = weight * scale[:, None, None, None]
        self.forward_weight.copy_(self.form.forward_weight(weight))
        self.backward_weight.copy_(self.form.backward_weight(weight))
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)


@dataclass(frozen=True)
class Form:
    """A way to carry a convolution out."""

    run: Callable[[Tensor, FusedConv], Tensor]
    forward_weight: Callable[[Tensor], Tensor] = lambda weight: (
        weight
    )  # the weight as it is used forth, and back
    backward_weight: Callable[[Tensor], Tensor] = lambda weight: weight[:0]  # not used by every form


def form_of(convolution: nn.Conv2d) -> Form:
    """Return the form that is fastest for a convolution, by what was measured (docs/performance.md)."""
    if (
        isinstance(convolution.padding, str)
        or convolution.padding_mode != "zeros"
        or convolution.groups != 1
        or convolution.dilation != (1, 1)
    ):
        return LIBRARY
    if convolution.kernel_size == (1, 1) and convolution.padding == (0, 0):
        return PRODUCT
    # more padding than the kernel is wide would make the gradient's padding negative
    simple = convolution.stride == (1, 1) and all(
        pad < side for pad, side in zip(convolution.padding, convolution.kernel_size, strict=True)
    )
    if not simple or convolution.in_channels > TURNING:
        return LIBRARY
    return STENCIL if convolution.in_channels == 1 and max(convolution.kernel_size) <= 3 else TURNED


class ReluMaxPool(Module):
    """ReLU and pooling by two as one: it remembers which of four pixels was taken, and no picture of the size before."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] % 2 or x.shape[3] % 2:
            return F.relu(F.max_pool2d(x, 2))
        taken, _ = _ReluMaxPool.apply(x)  # type: ignore[no-untyped-call]
        return taken  # type: ignore[no-any-return]


def is_pool_by_two(pool: Module) -> bool:
    """Tell whether a module is the pooling that `Halved` carries out."""
    if type(pool) is not nn.MaxPool2d or pool.return_indices or pool.ceil_mode:
        return False
    pairs = [
        value if isinstance(value, tuple) else (value, value)
        for value in (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    ]
    return pairs == [(2, 2), (2, 2), (0, 0), (1, 1)]


def _library(x: Tensor, layer: FusedConv) -> Tensor:
    return _relu(F.conv2d(x, layer.forward_weight, layer.bias, *layer.options), layer)


def _fused(x: Tensor, layer: FusedConv, added: Tensor | None = None) -> Tensor:
    """One kernel for the convolution, its bias, what is added to it and the ReLU behind."""
    if (
        not layer.relu
        or torch.are_deterministic_algorithms_enabled()
        or (added is not None and added.shape != _shape(x, layer))
    ):
        plain = F.conv2d(x, layer.forward_weight, layer.bias, *layer.options)
        return _relu(plain if added is None else plain + added, layer)
    out: Tensor = _Fused.apply(x, layer.forward_weight, layer.bias, layer.options, added)  # type: ignore[no-untyped-call]
    return out


def _product(x: Tensor, layer: FusedConv) -> Tensor:
    """One pixel at a time: a matrix product of the pixels that the stride leaves."""
    (down, right), *_ = layer.options
    return _relu(
        F.linear(
            x[:, :, ::down, ::right].permute(0, 2, 3, 1), layer.forward_weight.flatten(1), layer.bias
        ).permute(0, 3, 1, 2),
        layer,
    )


def _turned(x: Tensor, layer: FusedConv) -> Tensor:
    """Few channels, filled up to eight with empty ones: the gradient of the input is the convolution with the turned weight."""
    if layer.forward_weight.shape[1] > x.shape[1]:
        x = F.pad(x, [0, 0, 0, 0, 0, layer.forward_weight.shape[1] - x.shape[1]]).contiguous(
            memory_format=torch.channels_last
        )
    out: Tensor = _Turned.apply(x, layer.forward_weight, layer.backward_weight, layer.bias, layer.padding)  # type: ignore[no-untyped-call]
    return _relu(out, layer)


def _stencil(x: Tensor, layer: FusedConv) -> Tensor:
    """One channel: a product of patches forth, a sum of shifted pictures back; libraries for convolutions change the layout for it."""
    bias = layer.forward_weight.new_zeros(len(layer.forward_weight)) if layer.bias is None else layer.bias
    out: Tensor = _Stencil.apply(
        x, layer.forward_weight, layer.backward_weight, bias, layer.padding, layer.relu
    )  # type: ignore[no-untyped-call]
    return out


def _shape(x: Tensor, layer: FusedConv) -> tuple[int, ...]:
    """Return the shape of what a convolution gives."""
    sides = zip(
        x.shape[2:], layer.forward_weight.shape[2:], *layer.options[:3], strict=True
    )  # stride, padding, dilation
    return (
        len(x),
        len(layer.forward_weight),
        *((side + 2 * pad - gap * (kernel - 1) - 1) // step + 1 for side, kernel, step, pad, gap in sides),
    )


def _relu(x: Tensor, layer: FusedConv) -> Tensor:
    return F.relu(x) if layer.relu else x


def _laid(weight: Tensor) -> Tensor:
    return weight.contiguous(
        memory_format=torch.channels_last if weight.ndim == 4 else torch.contiguous_format
    ).clone()


def _filled(weight: Tensor) -> Tensor:
    return F.pad(weight, [0, 0, 0, 0, 0, max(0, EIGHT - weight.shape[1])])


LIBRARY = Form(_library)
FUSED = Form(_fused)  # where no compiler draws parts together
PRODUCT = Form(_product)
TURNED = Form(
    _turned, forward_weight=_filled, backward_weight=lambda weight: _filled(weight).flip(2, 3).transpose(0, 1)
)
STENCIL = Form(
    _stencil,
    forward_weight=lambda weight: F.pad(weight.flatten(1), [0, SIXTEEN - weight[0].numel()]),
    backward_weight=lambda weight: weight,
)


class _ReluMaxPool(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        pixels = x.permute(0, 2, 3, 1)  # channels_last as it lies in memory
        n, height, width, channels = pixels.shape
        fours = pixels.reshape(n, height // 2, 2, width // 2, 2, channels)
        a, b, c, d = (fours[:, :, row, :, column] for row in (0, 1) for column in (0, 1))
        top, low = torch.maximum(a, b), torch.maximum(c, d)
        best = torch.maximum(top, low)
        which = torch.where(
            top >= low, torch.where(a >= b, 0, 1), torch.where(c >= d, 2, 3)
        )  # of equals the first, as in the library
        which = torch.where(best > 0, which, -1).to(torch.int8)  # behind a ReLU that gave 0, no pixel counts
        return best.clamp(min=0).permute(0, 3, 1, 2), which

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        (which,), slope = ctx.saved_tensors, upstream[0].permute(0, 2, 3, 1)
        n, height, width, channels = slope.shape
        each = torch.arange(4, dtype=torch.int8, device=slope.device).view(1, 1, 2, 1, 2, 1)
        spread = torch.where(
            which[:, :, None, :, None] == each, slope[:, :, None, :, None], 0
        )  # (n, H, 2, W, 2, channels)
        return spread.reshape(n, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, forward_weight: Tensor, bias: Tensor | None, options: Any, added: Tensor | None
    ) -> Tensor:
        if not x.is_cuda:
            out = F.conv2d(x, forward_weight, bias, *options)
            return F.relu(out if added is None else out + added)
        if added is None:
            return torch.cudnn_convolution_relu(x, forward_weight, bias, *options)
        return torch.cudnn_convolution_add_relu(x, forward_weight, added, 1.0, bias, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, forward_weight, _, ctx.options, added = inputs
        ctx.save_for_backward(x, forward_weight, output)
        ctx.adds = added is not None

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (x, forward_weight, output), (stride, padding, dilation, groups) = ctx.saved_tensors, ctx.options
        slope = torch.ops.aten.threshold_backward(upstream[0], output, 0)
        gradient = None
        if ctx.needs_input_grad[0]:
            only = [True, False, False]  # the gradient of x, of no weight and no bias
            gradient, _, _ = torch.ops.aten.convolution_backward(
                slope, x, forward_weight, None, stride, padding, dilation, False, [0, 0], groups, only
            )
        return gradient, None, None, None, slope if ctx.adds else None


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, forward_weight: Tensor, backward_weight: Tensor, bias: Tensor | None, padding: Any
    ) -> Tensor:
        return F.conv2d(x, forward_weight, bias, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])
        ctx.padding = inputs[4]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (backward_weight,) = ctx.saved_tensors
        other = [side - 1 - pad for side, pad in zip(backward_weight.shape[2:], ctx.padding, strict=True)]
        return F.conv2d(upstream[0], backward_weight, padding=other), None, None, None, None


class _Stencil(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, forward_weight: Tensor, backward_weight: Tensor, bias: Tensor, padding: Any, relu: bool
    ) -> Tensor:
        (rows, columns), (top, left) = backward_weight.shape[2:], padding
        patches = (
            F.pad(x, [left, left, top, top])[:, 0].unfold(1, rows, 1).unfold(2, columns, 1).flatten(3)
        )  # (n, H, W, rows * columns)
        wide = F.pad(patches, [0, forward_weight.shape[1] - patches.shape[3]])
        flat = wide.reshape(-1, forward_weight.shape[1])
        out = (
            torch._addmm_activation(bias, flat, forward_weight.t())
            if relu
            else torch.addmm(bias, flat, forward_weight.t())
        )  # the ReLU inside the product
        return out.view(*wide.shape[:3], -1).permute(0, 3, 1, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, backward_weight, _, ctx.padding, ctx.relu = inputs
        ctx.save_for_backward(backward_weight, *([output] if ctx.relu else []))
        ctx.size = x.shape[2:]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (backward_weight, *output), slope = ctx.saved_tensors, upstream[0]
        if ctx.relu:
            slope = torch.where(output[0] > 0, slope, 0)
        (top, left), (height, width), pixels = (
            ctx.padding,
            ctx.size,
            slope.permute(0, 2, 3, 1).float(),
        )  # (n, H, W, outputs)
        tall, broad = pixels.shape[1:3]
        total = torch.zeros((), device=backward_weight.device)
        for row in range(backward_weight.shape[2]):
            for column in range(backward_weight.shape[3]):
                share = (pixels * backward_weight[:, 0, row, column].float()).sum(3)
                total = total + F.pad(
                    share, [column, width + 2 * left - broad - column, row, height + 2 * top - tall - row]
                )
        return (
            total[:, None, top : top + height, left : left + width].to(backward_weight.dtype),
            None,
            None,
            None,
            None,
            None,
        )
