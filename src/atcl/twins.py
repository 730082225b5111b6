"""The frozen copy of a model that attacks look at: in the attack's precision, and in the form that runs fastest on a GPU."""

import copy
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import Module
from torch.nn import functional as F

from atcl.precisions import Kind, multiplying
from atcl.seeds import forked_rng

EIGHT = 8  # channels that libraries for convolutions want at least
TURNING = 32  # channels up to which the gradient of an input is faster as a convolution of its own


class Twin(Module):
    """A model in eval mode that follows another, takes and returns fp32, and asks for no gradient of its weights."""

    def __init__(self, model: Module, kind: Kind = "fp32", *, settle: bool = False) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.kind = kind
        self.dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        if kind == "bf16":
            _lower(self.model)
        self.settled: list[Settled] = []
        if settle:
            self.settled = _settle(self.model, model, self.dtype)
        self.pairs = _by_type(self.model, model)
        self.follow()

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x.to(self.dtype)).float()  # type: ignore[no-any-return]

    @torch.no_grad()
    def follow(self) -> None:
        """Take over the weights and statistics of the other as they are now."""
        for ours, theirs in self.pairs:
            torch._foreach_copy_(ours, theirs)  # one kernel for many tensors
        for convolution in self.settled:
            convolution.derive()


class Settled(Module):
    """A convolution with the normalisation behind it folded in, and with both its passes in the form that is fastest for its size."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.sources = (convolution, norm)  # in a tuple: followed, not owned
        weight = convolution.weight
        self.form = _form(convolution)
        self.options: Any = (convolution.stride, convolution.padding, convolution.dilation, convolution.groups)
        filled = max(0, EIGHT - weight.shape[1]) if self.form is turned else 0
        empty = torch.zeros(weight.shape[0], weight.shape[1] + filled, *weight.shape[2:], dtype=dtype, device=weight.device)
        self.register_buffer("weight", empty.to(memory_format=torch.channels_last))
        self.register_buffer("bias", None if convolution.bias is None and norm is None else empty.new_zeros(weight.shape[0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.form(x, self.weight, self.bias, *self.options)

    def derive(self) -> None:
        """Work out weight and bias anew."""
        convolution, norm = self.sources
        weight, bias = convolution.weight, convolution.bias
        if norm is not None:
            assert norm.running_var is not None and norm.running_mean is not None  # noqa: PT018 (others are not folded)
            scale = torch.rsqrt(norm.running_var + norm.eps)
            scale = scale if norm.weight is None else scale * norm.weight
            mean = norm.running_mean if bias is None else norm.running_mean - bias
            bias = -mean * scale if norm.bias is None else norm.bias - mean * scale
            weight = weight * scale[:, None, None, None]
        self.weight[:, : weight.shape[1]].copy_(weight)
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)


Form = Callable[..., Tensor]  # x, weight, bias, stride, padding, dilation, groups -> what the convolution gives


def stencil(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    """One channel: a product of patches forth, a sum of shifted pictures back; libraries for convolutions change the layout for it."""
    out: Tensor = _Stencil.apply(x, weight, bias, padding)  # type: ignore[no-untyped-call]
    return out


def turned(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    """Few channels, filled up to eight with empty ones: the gradient of the input is the convolution with the turned weight."""
    if weight.shape[1] > x.shape[1]:
        x = F.pad(x, [0, 0, 0, 0, 0, weight.shape[1] - x.shape[1]]).contiguous(memory_format=torch.channels_last)
    out: Tensor = _Turned.apply(x, weight, bias, padding)  # type: ignore[no-untyped-call]
    return out


def product(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    """One pixel at a time: a matrix product of the pixels that the stride leaves."""
    return F.linear(x[:, :, :: stride[0], :: stride[1]].permute(0, 2, 3, 1), weight.flatten(1), bias).permute(0, 3, 1, 2)


def _form(convolution: nn.Conv2d) -> Form:
    """Return the form that is fastest for a convolution, by what was measured (docs/performance.md)."""
    if isinstance(convolution.padding, str) or convolution.padding_mode != "zeros" or convolution.groups != 1 or convolution.dilation != (1, 1):
        return F.conv2d
    if convolution.kernel_size == (1, 1) and convolution.padding == (0, 0):
        return product
    # more padding than the kernel is wide would make the gradient's padding negative
    simple = convolution.stride == (1, 1) and all(pad < side for pad, side in zip(convolution.padding, convolution.kernel_size, strict=True))
    if not simple or convolution.in_channels > TURNING:
        return F.conv2d
    return stencil if convolution.in_channels == 1 and max(convolution.kernel_size) <= 3 else turned


class _Stencil(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Any) -> Tensor:
        (rows, columns), (top, left) = weight.shape[2:], padding
        patches = F.pad(x, [left, left, top, top])[:, 0].unfold(1, rows, 1).unfold(2, columns, 1).flatten(3)  # (n, H, W, rows * columns)
        to16 = [0, 16 - patches.shape[3]]  # what matrix products like
        return F.linear(F.pad(patches, to16), F.pad(weight.flatten(1), to16), bias).permute(0, 3, 1, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, ctx.padding = inputs
        ctx.save_for_backward(weight)
        ctx.size = x.shape[2:]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        (top, left), (height, width), pixels = ctx.padding, ctx.size, upstream[0].permute(0, 2, 3, 1).float()  # (n, H, W, outputs)
        tall, broad = pixels.shape[1:3]
        total = torch.zeros((), device=weight.device)
        for row in range(weight.shape[2]):
            for column in range(weight.shape[3]):
                share = (pixels * weight[:, 0, row, column].float()).sum(3)
                total = total + F.pad(share, [column, width + 2 * left - broad - column, row, height + 2 * top - tall - row])
        return total[:, None, top : top + height, left : left + width].to(weight.dtype), None, None, None


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Any) -> Tensor:
        return F.conv2d(x, weight, bias, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.padding = inputs[3]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        back = [side - 1 - pad for side, pad in zip(weight.shape[2:], ctx.padding, strict=True)]
        other = weight.flip(2, 3).transpose(0, 1).contiguous(memory_format=torch.channels_last)
        return F.conv2d(upstream[0], other, padding=back), None, None, None


def faithful_twin(model: Module, kind: Kind, x: Tensor, say: Callable[[str], None] = print) -> Twin:
    """Return the fastest twin that says what the model says of images `x`, and of their gradient; on a CPU the plain one."""
    if not x.is_cuda and kind != "bf16":
        return Twin(model, kind)
    settle = _agrees(model, x, "fp32", settle=True)
    if kind == "bf16" and not _agrees(model, x, "bf16", settle=settle):
        say("the model does not compute in bf16: the attack looks at it in fp32")
        kind = "fp32"
    return Twin(model, kind, settle=settle)


def takes_channels_last(model: Module, x: Tensor) -> bool:
    """Tell whether a model trains in the layout in which convolutions run without a detour; some look at the layout themselves."""
    with forked_rng():
        try:
            tried: Module = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            for images in (x, x.contiguous(memory_format=torch.channels_last)):
                tried.eval()(images.clone().requires_grad_()).sum().backward()
        except RuntimeError:
            return False
    return True


def _agrees(model: Module, x: Tensor, kind: Kind, *, settle: bool) -> bool:
    """Tell whether a twin answers as the model does, both with other weights and statistics than a new model's, which hide mistakes."""
    with forked_rng(), torch.no_grad():
        torch.manual_seed(0)
        probe = copy.deepcopy(model).eval()
        for tensor in tensors_of(probe):
            if tensor.is_floating_point():
                tensor.mul_(0.8 + 0.4 * torch.rand_like(tensor))
                tensor.add_(0.1 * torch.rand_like(tensor) * (tensor == 0).all())  # a layer that starts at zero says nothing
            if tensor.is_floating_point() and tensor.ndim < 2:  # biases and statistics; variances stay positive
                tensor.add_(0.1 * torch.rand_like(tensor))
    answers = []
    with multiplying("fp32"):
        for settled in (False, True):
            at = x.detach().clone().requires_grad_()
            try:
                logits: Tensor = Twin(probe, kind, settle=settle)(at) if settled else probe(at)
                (gradient,) = torch.autograd.grad((logits * torch.linspace(-1, 1, logits.shape[1], device=x.device)).sum(), at)
            except (RuntimeError, AttributeError, TypeError):
                return False
            answers.append((logits.detach(), gradient))
    within = 0.25 if kind == "bf16" else 0.01
    return all(bool((theirs - ours).norm() <= within * theirs.norm() + 1e-6) for theirs, ours in zip(*answers, strict=True))


def tensors_of(model: Module) -> list[Tensor]:
    """Return all that a model computes with."""
    return [*model.parameters(), *model.buffers()]


def _by_type(ours: Module, theirs: Module) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Return the tensors that both have, in pairs of lists, each list of one type: copied at once."""
    groups: dict[tuple[torch.dtype, torch.dtype], tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
    others = {**dict(theirs.named_parameters(remove_duplicate=False)), **dict(theirs.named_buffers(remove_duplicate=False))}
    settled = {name for name, module in ours.named_modules() if isinstance(module, Settled)}
    for name, own in (*ours.named_parameters(), *ours.named_buffers()):
        if name.rpartition(".")[0] not in settled:
            group = groups[own.dtype, others[name].dtype]
            group[0].append(own)
            group[1].append(others[name])
    return list(groups.values())


def _lower(model: Module) -> None:
    """Turn parameters to bf16, but leave normalisations: their statistics need the digits, and they take bf16 images as they are."""
    for module in model.modules():
        if not isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm):
            for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
                if tensor.is_floating_point():
                    tensor.data = tensor.data.bfloat16()


def _settle(ours: Module, theirs: Module, dtype: torch.dtype) -> list[Settled]:
    """Put a `Settled` in the place of each convolution that has a normalisation behind it, or a faster form."""
    norms, found = _followed_by_norm(ours), []
    names = Counter(module for _, module in ours.named_modules(remove_duplicate=False))
    for name, module in list(ours.named_modules()):
        if names[module] > 1 or (name in norms and names[ours.get_submodule(norms[name])] > 1):
            continue  # under its other names it would stay as it was
        if type(module) is not nn.Conv2d or (name not in norms and _form(module) is F.conv2d):
            continue
        convolution, norm = theirs.get_submodule(name), theirs.get_submodule(norms[name]) if name in norms else None
        found.append(Settled(convolution, norm, dtype))  # type: ignore[arg-type]
        ours.set_submodule(name, found[-1])
        if name in norms:
            ours.set_submodule(norms[name], nn.Identity())
    return found


def _followed_by_norm(model: Module) -> dict[str, str]:
    """Return the names of convolutions whose output goes to one normalisation alone, each used once, with the normalisation's name."""
    try:
        nodes = list(fx.symbolic_trace(model).graph.nodes)
    except Exception:  # a model that looks at values, or whose course depends on them: it stays as it is
        return {}
    calls = Counter(node.target for node in nodes if node.op == "call_module")
    found: dict[str, str] = {}
    for node in nodes:
        if node.op != "call_module" or len(node.users) != 1 or not _plain(model.get_submodule(node.target)):
            continue
        (user,) = node.users
        norm = model.get_submodule(user.target) if user.op == "call_module" else None
        if type(norm) is nn.BatchNorm2d and norm.running_var is not None and calls[node.target] == calls[user.target] == 1:
            found[node.target] = user.target
    return found


def _plain(module: Module) -> bool:
    """Tell whether a module is a convolution that `F.conv2d` carries out as it stands."""
    return type(module) is nn.Conv2d and module.padding_mode == "zeros"
