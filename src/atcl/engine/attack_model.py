"""The frozen copy of a model that attacks use, in the precision and the form that are fastest on a GPU."""

import copy
import io
import operator
from collections import Counter, defaultdict
from contextlib import redirect_stderr
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import Module
from torch.nn import functional as F

from atcl.core.errors import Notify
from atcl.core.precisions import Lower, PrecisionName, multiplying
from atcl.core.seeds import forked_rng
from atcl.engine.fused_layers import FUSED, LIBRARY, FusedConv, ReluMaxPool, form_of, is_pool_by_two

DTYPES: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}  # all else is fp32
# Through a model in fp16, a gradient starts with this length: far from underflow to 0, and far from overflow.
FP16_LENGTH = 1024
# How far the logits and the gradients of the copy may be from the model's, relative to their norm. Low
# precision turns some ReLUs on or off: in bf16, gradients of trained networks differ by 0.1 to 0.3.
TOLERANCES: dict[str, tuple[float, float]] = {"bf16": (0.1, 0.5), "fp16": (0.02, 0.2)}


class AttackModel(Module):
    """A copy in eval mode that follows a model, takes and returns fp32, and gives its weights no gradient.

    Args:
        model: the model to copy and to follow.
        kind: the precision in which the copy computes.
        fuse: whether to replace convolutions by `FusedConv`, in the form that is fastest on a GPU.
        compiles: whether the copy will be compiled. Some forms are fast only if a compiler merges their
            operations; without one, library kernels that do several operations at once are faster.
        traces: whether to trace a fused copy that will not be compiled, to move more ReLUs and sums into its
            convolutions.
    """

    def __init__(
        self,
        model: Module,
        kind: PrecisionName | Lower = "fp32",
        *,
        fuse: bool = False,
        compiles: bool = True,
        traces: bool = True,
    ) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.kind = kind
        self.dtype = DTYPES.get(kind, torch.float32)
        if kind in DTYPES:
            _lower_precision(self.model, self.dtype)
        self.fused: list[FusedConv] = []
        if fuse:
            self.fused = _fuse(self.model, model, self.dtype, compiles)
            if traces and not compiles:
                self.model = _with_traced_relus(self.model)
        self.pairs = _by_dtype(self.model, model)
        self.follow()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x.to(self.dtype))
        if self.kind == "fp16" and logits.dtype != torch.float32:
            # `_agrees` catches this, and the caller uses fp32 instead
            raise TypeError("attacks compare logits that differ by less than fp16 can represent")
        return logits.float()

    @torch.no_grad()
    def follow(self) -> None:
        """Copy the present weights and statistics of the model."""
        for ours, theirs in self.pairs:
            torch._foreach_copy_(ours, theirs)  # one kernel for many tensors
        for convolution in self.fused:
            convolution.derive()


def faithful_attack_model(
    model: Module,
    kind: PrecisionName | Lower,
    x: Tensor,
    notify: Notify = print,
    *,
    compiles: bool = True,
) -> AttackModel:
    """Return the fastest copy that agrees with the model; on a CPU in fp32 a plain copy.

    Args:
        model: the model to copy.
        kind: the precision wanted; where the copy disagrees in it, fp32 is used.
        x: images on which logits and gradients are compared.
        notify: receives a message if the precision is not used.
        compiles: whether the copy will be compiled.
    """
    if not x.is_cuda and kind not in DTYPES:
        return AttackModel(model, kind)
    candidates = [
        {"fuse": True, "compiles": compiles, "traces": traces}
        for traces in ([False] if compiles else [True, False])
    ]
    options = next((each for each in candidates if _agrees(model, x, "fp32", **each)), {"fuse": False})
    if kind in DTYPES and not _agrees(model, x, kind, **options):
        notify(f"the model does not compute in {kind}: the attack uses a copy in fp32")
        kind = "fp32"
    return AttackModel(model, kind, **options)


def takes_channels_last(model: Module, x: Tensor) -> bool:
    """Whether a model trains in channels_last, the memory layout in which convolutions are fastest.

    Some models depend on their own layout.
    """
    with forked_rng(), torch.enable_grad():
        try:
            tried: Module = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            for images in (x, x.contiguous(memory_format=torch.channels_last)):
                tried.eval()(images.clone().requires_grad_()).sum().backward()
        except Exception:  # whatever a model raises in the other layout
            return False
    return True


def _agrees(
    model: Module,
    x: Tensor,
    kind: PrecisionName | Lower,
    *,
    fuse: bool,
    compiles: bool = True,
    traces: bool = True,
) -> bool:
    """Whether a copy gives the model's logits and gradients.

    Both get random weights and statistics: those of a new model, such as zeros and ones, would hide mistakes.
    """
    with forked_rng(), torch.no_grad():
        torch.manual_seed(0)
        probe = copy.deepcopy(model).eval()
        for tensor in tensors_of(probe):
            if not tensor.is_floating_point():
                continue
            tensor.mul_(0.8 + 0.4 * torch.rand_like(tensor))
            # a layer that is all zero would hide everything before it
            tensor.add_(0.1 * torch.rand_like(tensor) * (tensor == 0).all())
            if tensor.ndim < 2:  # biases and statistics; variances stay positive
                tensor.add_(0.1 * torch.rand_like(tensor))
    outputs = []
    # the caller may have switched gradients off; a traced model that fails prints its code: not wanted here
    with multiplying("fp32"), torch.enable_grad(), redirect_stderr(io.StringIO()):
        for copied in (False, True):
            images = x.detach().clone().requires_grad_()
            try:
                tested = (
                    AttackModel(probe, kind, fuse=fuse, compiles=compiles, traces=traces) if copied else probe
                )
                logits: Tensor = tested(images)
                weights = torch.linspace(-FP16_LENGTH, FP16_LENGTH, logits.shape[1], device=x.device)
                (gradient,) = torch.autograd.grad((logits * weights).sum(), images)
            except Exception:  # a copy that does not run cannot be used
                return False
            outputs.append((logits.detach(), gradient))
    tolerances = TOLERANCES.get(kind, (0.01, 0.01))
    return all(
        bool((theirs - ours).norm() <= tolerance * theirs.norm() + 1e-6)
        for tolerance, theirs, ours in zip(tolerances, *outputs, strict=True)
    )


def tensors_of(model: Module) -> list[Tensor]:
    """Return the parameters and buffers of a model."""
    return [*model.parameters(), *model.buffers()]


def _by_dtype(ours: Module, theirs: Module) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Return the tensors that both models have, as pairs of lists; the tensors of a list share a dtype."""
    groups: dict[tuple[torch.dtype, torch.dtype], tuple[list[Tensor], list[Tensor]]] = defaultdict(
        lambda: ([], [])
    )
    others = {
        **dict(theirs.named_parameters(remove_duplicate=False)),
        **dict(theirs.named_buffers(remove_duplicate=False)),
    }
    fused = {name for name, module in ours.named_modules() if isinstance(module, FusedConv)}
    for name, own in (*ours.named_parameters(), *ours.named_buffers()):
        # tracing turns constant tensors into buffers, which the model does not have
        if name.rpartition(".")[0] not in fused and name in others:
            group = groups[own.dtype, others[name].dtype]
            group[0].append(own)
            group[1].append(others[name])
    return list(groups.values())


def _lower_precision(model: Module, dtype: torch.dtype) -> None:
    """Convert parameters to 16 bits, except those of normalisations.

    Their statistics need the digits of fp32, and they accept inputs of 16 bits.
    """
    for module in model.modules():
        if dtype == torch.float16 and isinstance(module, nn.Linear):  # the last one returns the logits
            module.register_forward_pre_hook(_to_fp32)
        elif not isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm):
            for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
                if tensor.is_floating_point():
                    tensor.data = tensor.data.to(dtype)


def _to_fp32(module: Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0].float(), *inputs[1:])


def _fuse(ours: Module, theirs: Module, dtype: torch.dtype, compiles: bool) -> list[FusedConv]:
    """Replace convolutions by `FusedConv`, and ReLUs before a pooling by two by `ReluMaxPool`.

    A convolution is replaced if a normalisation follows it or if a faster form of it exists.
    """
    followers, fused = _followers(ours), []
    names = Counter(module for _, module in ours.named_modules(remove_duplicate=False))
    for name, module in list(ours.named_modules()):
        pool = followers.get(name)
        if compiles and type(module) is nn.ReLU and pool and is_pool_by_two(ours.get_submodule(pool)):
            ours.set_submodule(name, nn.Identity())
            ours.set_submodule(pool, ReluMaxPool())
    for name, module in list(ours.named_modules()):
        # a module with several names would be replaced under one of them only
        if type(module) is not nn.Conv2d or module.padding_mode != "zeros" or names[module] > 1:
            continue
        norm = _follower(ours, followers, name, nn.BatchNorm2d)
        norm = norm if norm and ours.get_submodule(norm).running_var is not None else None
        relu = _follower(ours, followers, norm or name, nn.ReLU)
        form = form_of(module) if compiles else LIBRARY if isinstance(module.padding, str) else FUSED
        if norm is None and form is LIBRARY:
            continue
        source: Any = theirs.get_submodule(norm) if norm else None
        layer = FusedConv(theirs.get_submodule(name), source, form, relu is not None, dtype)  # type: ignore[arg-type]
        fused.append(layer)
        ours.set_submodule(name, layer)
        for absorbed in (norm, relu):
            if absorbed is not None:
                ours.set_submodule(absorbed, nn.Identity())
    return fused


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        return isinstance(m, FusedConv) or super().is_leaf_module(m, module_qualified_name)


def _with_traced_relus(model: Module) -> Module:
    """Return a fused model whose convolutions also compute the ReLU that follows, and a sum in between.

    The code of the model may write ReLU and sum in any way: they are found by tracing. A model that cannot be
    traced is returned unchanged.
    """
    try:
        graph = _Tracer().trace(model)
    except Exception:  # as in `_followers`
        return model
    identities = [
        node
        for node in graph.nodes
        if node.op == "call_module" and node.args and type(model.get_submodule(node.target)) is nn.Identity
    ]
    for node in identities:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")

    def fused(node: Any) -> FusedConv | None:
        """Return the fused convolution of a node, if it is called once and has one user."""
        if (
            not isinstance(node, fx.Node)
            or node.op != "call_module"
            or calls[node.target] > 1
            or len(node.users) > 1
            or not node.args
        ):
            return None
        module = model.get_submodule(str(node.target))
        return module if isinstance(module, FusedConv) and module.form is FUSED and not module.relu else None

    for relu in [node for node in graph.nodes if node.args and _is_relu(model, node)]:
        summed = relu.args[0]
        for convolution, *added in ((summed,), *_summands(summed)):
            layer = fused(convolution)
            if layer is not None:
                layer.relu = True
                with graph.inserting_before(relu):
                    inputs = (convolution.args[0], *added)
                    relu.replace_all_uses_with(graph.call_module(convolution.target, inputs))
                for node in dict.fromkeys((relu, summed, convolution)):  # each was the only user of the next
                    graph.erase_node(node)
                break
    return fx.GraphModule(model, graph)


def _is_relu(model: Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return type(model.get_submodule(str(node.target))) is nn.ReLU
    relus = (F.relu, torch.relu, "relu", "relu_")
    return node.op in ("call_function", "call_method") and node.target in relus


def _summands(node: Any) -> list[tuple[Any, Any]]:
    """Return the two terms of a sum that one other node alone uses, in each order in which they may be added.

    The target of a sum in place always comes first.
    """
    plain, in_place = (operator.add, torch.add, "add"), (operator.iadd, "add_")
    if (
        not isinstance(node, fx.Node)
        or len(node.users) > 1
        or node.target not in plain + in_place
        or node.kwargs
        or len(node.args) != 2
    ):
        return []
    first, second = node.args
    if not isinstance(first, fx.Node) or not isinstance(second, fx.Node) or first is second:
        return []
    return [(first, second)] if node.target in in_place else [(first, second), (second, first)]


def _follower(model: Module, followers: dict[str, str], name: str, kind: type[Module]) -> str | None:
    """Return the name of the module that follows, if it is exactly of this type."""
    follower = followers.get(name)
    return follower if follower and type(model.get_submodule(follower)) is kind else None


def _followers(model: Module) -> dict[str, str]:
    """Return, for each module that is called once and has one name, the only module that uses its output.

    The name is "" where several modules use the output, or where the user is no such module.
    """
    try:
        nodes = list(fx.symbolic_trace(model).graph.nodes)
    except Exception:  # a model whose control flow depends on values cannot be traced
        return {}
    calls = Counter(node.target for node in nodes if node.op == "call_module")
    names = Counter(module for _, module in model.named_modules(remove_duplicate=False))

    def is_called_once(node: fx.Node) -> bool:
        return (
            node.op == "call_module"
            and calls[node.target] == 1
            and names[model.get_submodule(str(node.target))] == 1
        )

    followers = {}
    for node in filter(is_called_once, nodes):
        users = list(node.users)
        only = len(users) == 1 and is_called_once(users[0])
        followers[str(node.target)] = str(users[0].target) if only else ""
    return followers
