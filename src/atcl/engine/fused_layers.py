"""Layers of the frozen copy that attacks use, in the form that is fastest on a GPU.

Attacks need the gradient with respect to the input alone, so these layers compute no gradient of their
weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn import functional as F

MIN_CHANNELS = 8  # of the input of a convolution: with fewer, the library uses slow kernels
MIN_COLUMNS = 16  # of a matrix product: with fewer, the library uses slow kernels
# Up to this many input channels, the gradient of the input is faster as a forward convolution with the
# flipped weight.
MAX_FLIPPED_CHANNELS = 32


class FusedConv(Module):
    """A convolution together with the normalisation and the ReLU that follow it.

    Its forward and its backward pass have the form that is fastest for its size.
    """

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
        self.sources = (convolution, norm)  # in a tuple: not registered as submodules
        self.form, self.relu = form, relu
        self.padding: Any = convolution.padding
        self.options: Any = (
            convolution.stride,
            convolution.padding,
            convolution.dilation,
            convolution.groups,
        )
        empty = torch.zeros_like(convolution.weight, dtype=dtype).detach()
        self.register_buffer("forward_weight", _contiguous(self.form.forward_weight(empty)))
        self.register_buffer("backward_weight", _contiguous(self.form.backward_weight(empty)))
        has_bias = convolution.bias is not None or norm is not None
        self.register_buffer("bias", empty.new_zeros(len(empty)) if has_bias else None)

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        return self.form.run(x, self) if added is None else _fused(x, self, added)

    def derive(self) -> None:
        """Compute weights and bias from the present convolution and normalisation."""
        convolution, norm = self.sources
        weight, bias = convolution.weight, convolution.bias
        if norm is not None:
            assert norm.running_var is not None and norm.running_mean is not None  # noqa: PT018 (`_fuse` skips others)
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
    """One way to compute a convolution, and the weight as each pass needs it."""

    run: Callable[[Tensor, FusedConv], Tensor]
    forward_weight: Callable[[Tensor], Tensor] = lambda weight: weight
    backward_weight: Callable[[Tensor], Tensor] = lambda weight: weight[:0]  # empty: autograd needs none


def form_of(convolution: nn.Conv2d) -> Form:
    """Return the form that was measured to be fastest for a convolution (docs/performance.md)."""
    if (
        isinstance(convolution.padding, str)
        or convolution.padding_mode != "zeros"
        or convolution.groups != 1
        or convolution.dilation != (1, 1)
    ):
        return LIBRARY
    if convolution.kernel_size == (1, 1) and convolution.padding == (0, 0):
        return PRODUCT
    # with more padding than the kernel is wide, the padding of the gradient would be negative
    simple = convolution.stride == (1, 1) and all(
        pad < side for pad, side in zip(convolution.padding, convolution.kernel_size, strict=True)
    )
    if not simple or convolution.in_channels > MAX_FLIPPED_CHANNELS:
        return LIBRARY
    return STENCIL if convolution.in_channels == 1 and max(convolution.kernel_size) <= 3 else FLIPPED


class ReluMaxPool(Module):
    """ReLU and max pooling by two in one.

    For the backward pass it stores which of four pixels was the largest, and no image of the full size.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] % 2 or x.shape[3] % 2:
            return F.relu(F.max_pool2d(x, 2))
        pooled, _ = _ReluMaxPool.apply(x)  # type: ignore[no-untyped-call]
        return pooled  # type: ignore[no-any-return]


def is_pool_by_two(pool: Module) -> bool:
    """Whether a module is the pooling that `ReluMaxPool` computes."""
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
    """One kernel for the convolution, its bias, an added tensor and the ReLU."""
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
    """A convolution of size 1: a matrix product over the pixels that the stride selects."""
    (down, right), *_ = layer.options
    pixels = x[:, :, ::down, ::right].permute(0, 2, 3, 1)  # (n, H, W, channels)
    out = F.linear(pixels, layer.forward_weight.flatten(1), layer.bias)
    return _relu(out.permute(0, 3, 1, 2), layer)


def _flipped(x: Tensor, layer: FusedConv) -> Tensor:
    """Few input channels, padded with zeros to eight.

    The gradient of the input is a convolution with the flipped weight.
    """
    missing = layer.forward_weight.shape[1] - x.shape[1]
    if missing > 0:
        x = F.pad(x, [0, 0, 0, 0, 0, missing]).contiguous(memory_format=torch.channels_last)
    out: Tensor = _Flipped.apply(x, layer.forward_weight, layer.backward_weight, layer.bias, layer.padding)  # type: ignore[no-untyped-call]
    return _relu(out, layer)


def _stencil(x: Tensor, layer: FusedConv) -> Tensor:
    """One input channel: forward a matrix product over patches, backward a sum of shifted images.

    The library would change the memory layout for such a convolution.
    """
    bias = layer.forward_weight.new_zeros(len(layer.forward_weight)) if layer.bias is None else layer.bias
    weights = (layer.forward_weight, layer.backward_weight)
    out: Tensor = _Stencil.apply(x, *weights, bias, layer.padding, layer.relu)  # type: ignore[no-untyped-call]
    return out


def _shape(x: Tensor, layer: FusedConv) -> tuple[int, ...]:
    """Return the shape of the output of a convolution."""
    stride, padding, dilation, _ = layer.options
    sides = zip(x.shape[2:], layer.forward_weight.shape[2:], stride, padding, dilation, strict=True)
    return (
        len(x),
        len(layer.forward_weight),
        *((side + 2 * pad - gap * (kernel - 1) - 1) // step + 1 for side, kernel, step, pad, gap in sides),
    )


def _relu(x: Tensor, layer: FusedConv) -> Tensor:
    return F.relu(x) if layer.relu else x


def _contiguous(weight: Tensor) -> Tensor:
    layout = torch.channels_last if weight.ndim == 4 else torch.contiguous_format
    return weight.contiguous(memory_format=layout).clone()


def _padded(weight: Tensor) -> Tensor:
    return F.pad(weight, [0, 0, 0, 0, 0, max(0, MIN_CHANNELS - weight.shape[1])])


LIBRARY = Form(_library)
FUSED = Form(_fused)  # where no compiler merges operations
PRODUCT = Form(_product)
FLIPPED = Form(
    _flipped,
    forward_weight=_padded,
    backward_weight=lambda weight: _padded(weight).flip(2, 3).transpose(0, 1),
)
STENCIL = Form(
    _stencil,
    forward_weight=lambda weight: F.pad(weight.flatten(1), [0, MIN_COLUMNS - weight[0].numel()]),
    backward_weight=lambda weight: weight,
)


class _ReluMaxPool(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        pixels = x.permute(0, 2, 3, 1)  # in channels_last, this is the order in memory
        n, height, width, channels = pixels.shape
        fours = pixels.reshape(n, height // 2, 2, width // 2, 2, channels)
        a, b, c, d = (fours[:, :, row, :, column] for row in (0, 1) for column in (0, 1))
        top, low = torch.maximum(a, b), torch.maximum(c, d)
        best = torch.maximum(top, low)
        # of equal pixels the first, as in the library
        which = torch.where(top >= low, torch.where(a >= b, 0, 1), torch.where(c >= d, 2, 3))
        # where the ReLU gives 0, no pixel has a gradient
        which = torch.where(best > 0, which, -1).to(torch.int8)
        return best.clamp(min=0).permute(0, 3, 1, 2), which

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        (which,), gradient = ctx.saved_tensors, upstream[0].permute(0, 2, 3, 1)
        n, height, width, channels = gradient.shape
        each = torch.arange(4, dtype=torch.int8, device=gradient.device).view(1, 1, 2, 1, 2, 1)
        # (n, H, 2, W, 2, channels)
        spread = torch.where(which[:, :, None, :, None] == each, gradient[:, :, None, :, None], 0)
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
        before_relu = torch.ops.aten.threshold_backward(upstream[0], output, 0)
        gradient = None
        if ctx.needs_input_grad[0]:
            only = [True, False, False]  # the gradient of x, of no weight and no bias
            gradient, _, _ = torch.ops.aten.convolution_backward(
                before_relu, x, forward_weight, None, stride, padding, dilation, False, [0, 0], groups, only
            )
        return gradient, None, None, None, before_relu if ctx.adds else None


class _Flipped(torch.autograd.Function):
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
        padded = F.pad(x, [left, left, top, top])[:, 0]
        patches = padded.unfold(1, rows, 1).unfold(2, columns, 1).flatten(3)  # (n, H, W, rows * columns)
        wide = F.pad(patches, [0, forward_weight.shape[1] - patches.shape[3]])
        flat = wide.reshape(-1, forward_weight.shape[1])
        # _addmm_activation computes the ReLU inside the matrix product
        product = torch._addmm_activation if relu else torch.addmm
        out = product(bias, flat, forward_weight.t())
        return out.view(*wide.shape[:3], -1).permute(0, 3, 1, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, backward_weight, _, ctx.padding, ctx.relu = inputs
        ctx.save_for_backward(backward_weight, *([output] if ctx.relu else []))
        ctx.size = x.shape[2:]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (backward_weight, *output), gradient = ctx.saved_tensors, upstream[0]
        if ctx.relu:
            gradient = torch.where(output[0] > 0, gradient, 0)
        (top, left), (height, width) = ctx.padding, ctx.size
        pixels = gradient.permute(0, 2, 3, 1).float()  # (n, H, W, outputs)
        rows, columns = pixels.shape[1:3]
        total = torch.zeros((), device=backward_weight.device)
        for row in range(backward_weight.shape[2]):
            for column in range(backward_weight.shape[3]):
                share = (pixels * backward_weight[:, 0, row, column].float()).sum(3)
                right, bottom = width + 2 * left - columns - column, height + 2 * top - rows - row
                total = total + F.pad(share, [column, right, row, bottom])
        whole = total[:, None, top : top + height, left : left + width].to(backward_weight.dtype)
        return whole, None, None, None, None, None
