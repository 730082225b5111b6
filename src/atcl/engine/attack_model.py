"""The frozen copy of a model that attacks look at: in the attack's precision, and in the form that runs fastest on a GPU."""

import copy
import io
import operator
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import redirect_stderr
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import Module
from torch.nn import functional as F

from atcl.core.precisions import Lower, PrecisionName, multiplying
from atcl.core.seeds import forked_rng
from atcl.engine.fused_layers import FUSED, LIBRARY, FusedConv, ReluMaxPool, form_of, is_pool_by_two

DTYPES: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}  # all else is fp32
STEEP = 1024  # length at which a gradient starts through a model in fp16: far from what that takes for 0, and from what it takes for infinite
# How far the logits of a twin, and its gradients, may lie from the model's. Low precision turns some ReLUs on or off: in bf16, gradients of trained
# networks lie 0.1 to 0.3 apart.
WITHIN: dict[str, tuple[float, float]] = {"bf16": (0.1, 0.5), "fp16": (0.02, 0.2)}


class AttackModel(Module):
    """A model in eval mode that follows another, takes and returns fp32, and asks for no gradient of its weights."""

    def __init__(
        self,
        model: Module,
        kind: PrecisionName | Lower = "fp32",
        *,
        settle: bool = False,
        compiles: bool = True,
        joins: bool = True,
    ) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.kind = kind
        self.dtype = DTYPES.get(kind, torch.float32)
        if kind in DTYPES:
            _lower(self.model, self.dtype)
        self.settled: list[FusedConv] = []
        if settle:
            # some forms pay only where a compiler draws their parts together; without one, kernels that do more at once
            self.settled = _settle(self.model, model, self.dtype, compiles)
            if joins and not compiles:
                self.model = _joined(self.model)
        self.pairs = _by_type(self.model, model)
        self.follow()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x.to(self.dtype))
        if self.kind == "fp16" and logits.dtype != torch.float32:
            raise TypeError(
                "judges compare logits that differ by less than fp16 can tell"
            )  # whoever asks for such a twin takes another
        return logits.float()

    @torch.no_grad()
    def follow(self) -> None:
        """Take over the weights and statistics of the other as they are now."""
        for ours, theirs in self.pairs:
            torch._foreach_copy_(ours, theirs)  # one kernel for many tensors
        for convolution in self.settled:
            convolution.derive()


def faithful_attack_model(
    model: Module,
    kind: PrecisionName | Lower,
    x: Tensor,
    notify: Callable[[str], None] = print,
    *,
    compiles: bool = True,
) -> AttackModel:
    """Return the twin that is fastest, compiled or not, and says what the model says of images `x`, and of their gradient; on a CPU the plain one."""
    if not x.is_cuda and kind not in DTYPES:
        return AttackModel(model, kind)
    ways = [
        {"settle": True, "compiles": compiles, "joins": joins}
        for joins in ([False] if compiles else [True, False])
    ]
    way = next((way for way in ways if _agrees(model, x, "fp32", **way)), {"settle": False})
    if kind in DTYPES and not _agrees(model, x, kind, **way):
        notify(f"the model does not compute in {kind}: the attack looks at it in fp32")
        kind = "fp32"
    return AttackModel(model, kind, **way)


def takes_channels_last(model: Module, x: Tensor) -> bool:
    """Tell whether a model trains in the layout in which convolutions run without a detour; some look at the layout themselves."""
    with forked_rng(), torch.enable_grad():
        try:
            tried: Module = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            for images in (x, x.contiguous(memory_format=torch.channels_last)):
                tried.eval()(images.clone().requires_grad_()).sum().backward()
        except Exception:  # whatever it raises to say so
            return False
    return True


def _agrees(
    model: Module,
    x: Tensor,
    kind: PrecisionName | Lower,
    *,
    settle: bool,
    compiles: bool = True,
    joins: bool = True,
) -> bool:
    """Tell whether a twin answers as the model does, both with other weights and statistics than a new model's, which hide mistakes."""
    with forked_rng(), torch.no_grad():
        torch.manual_seed(0)
        probe = copy.deepcopy(model).eval()
        for tensor in tensors_of(probe):
            if tensor.is_floating_point():
                tensor.mul_(0.8 + 0.4 * torch.rand_like(tensor))
                tensor.add_(
                    0.1 * torch.rand_like(tensor) * (tensor == 0).all()
                )  # a layer that starts at zero says nothing
            if (
                tensor.is_floating_point() and tensor.ndim < 2
            ):  # biases and statistics; variances stay positive
                tensor.add_(0.1 * torch.rand_like(tensor))
    answers = []
    # whoever asks may not need a gradient; a traced model that fails prints its code
    with multiplying("fp32"), torch.enable_grad(), redirect_stderr(io.StringIO()):
        for settled in (False, True):
            at = x.detach().clone().requires_grad_()
            try:
                logits: Tensor = (
                    AttackModel(probe, kind, settle=settle, compiles=compiles, joins=joins)(at)
                    if settled
                    else probe(at)
                )
                weights = torch.linspace(-STEEP, STEEP, logits.shape[1], device=x.device)
                (gradient,) = torch.autograd.grad((logits * weights).sum(), at)
            except Exception:  # a twin that does not run is none
                return False
            answers.append((logits.detach(), gradient))
    within = WITHIN.get(kind, (0.01, 0.01))
    return all(
        bool((theirs - ours).norm() <= far * theirs.norm() + 1e-6)
        for far, theirs, ours in zip(within, *answers, strict=True)
    )


def tensors_of(model: Module) -> list[Tensor]:
    """Return all that a model computes with."""
    return [*model.parameters(), *model.buffers()]


def _by_type(ours: Module, theirs: Module) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Return the tensors that both have, in pairs of lists, each list of one type: copied at once."""
    groups: dict[tuple[torch.dtype, torch.dtype], tuple[list[Tensor], list[Tensor]]] = defaultdict(
        lambda: ([], [])
    )
    others = {
        **dict(theirs.named_parameters(remove_duplicate=False)),
        **dict(theirs.named_buffers(remove_duplicate=False)),
    }
    settled = {name for name, module in ours.named_modules() if isinstance(module, FusedConv)}
    for name, own in (*ours.named_parameters(), *ours.named_buffers()):
        if (
            name.rpartition(".")[0] not in settled and name in others
        ):  # tracing makes buffers of tensors that were none: constants
            group = groups[own.dtype, others[name].dtype]
            group[0].append(own)
            group[1].append(others[name])
    return list(groups.values())


def _lower(model: Module, dtype: torch.dtype) -> None:
    """Turn parameters to 16 bits, but leave normalisations: their statistics need the digits, and they take images in 16 bits as they are."""
    for module in model.modules():
        if dtype == torch.float16 and isinstance(module, nn.Linear):  # the last one gives the logits
            module.register_forward_pre_hook(_widened)
        elif not isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm):
            for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
                if tensor.is_floating_point():
                    tensor.data = tensor.data.to(dtype)


def _widened(module: Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0].float(), *inputs[1:])


def _settle(ours: Module, theirs: Module, dtype: torch.dtype, compiles: bool) -> list[FusedConv]:
    """Put a `Settled` in the place of each convolution that has a normalisation behind it or a faster form, and `Halved` for poolings."""
    behind, found = _behind(ours), []
    names = Counter(module for _, module in ours.named_modules(remove_duplicate=False))
    for name, module in list(ours.named_modules()):
        follower = behind.get(name)
        if compiles and type(module) is nn.ReLU and follower and is_pool_by_two(ours.get_submodule(follower)):
            ours.set_submodule(name, nn.Identity())
            ours.set_submodule(follower, ReluMaxPool())
    for name, module in list(ours.named_modules()):
        if (
            type(module) is not nn.Conv2d or module.padding_mode != "zeros" or names[module] > 1
        ):  # under its other names it would stay as it was
            continue
        norm = _next(ours, behind, name, nn.BatchNorm2d)
        norm = norm if norm and ours.get_submodule(norm).running_var is not None else None
        relu = _next(ours, behind, norm or name, nn.ReLU)
        form = form_of(module) if compiles else LIBRARY if isinstance(module.padding, str) else FUSED
        if norm is None and form is LIBRARY:
            continue
        source: Any = theirs.get_submodule(norm) if norm else None
        found.append(FusedConv(theirs.get_submodule(name), source, form, relu is not None, dtype))  # type: ignore[arg-type]
        ours.set_submodule(name, found[-1])
        for part in (norm, relu):
            if part is not None:
                ours.set_submodule(part, nn.Identity())
    return found


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        return isinstance(m, FusedConv) or super().is_leaf_module(m, module_qualified_name)


def _joined(model: Module) -> Module:
    """Return a settled model whose fused convolutions take in the ReLU behind them, and a sum in between, however its code writes them."""
    try:
        graph = _Tracer().trace(model)
    except Exception:  # as in `_behind`
        return model
    for node in [
        node
        for node in graph.nodes
        if node.op == "call_module" and node.args and type(model.get_submodule(node.target)) is nn.Identity
    ]:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")

    def fused(node: Any) -> FusedConv | None:
        """Return the fused convolution, called once, that gives what one other node alone takes."""
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
        taken = relu.args[0]
        for convolution, *added in ((taken,), *_summands(taken)):
            layer = fused(convolution)
            if layer is not None:
                layer.relu = True
                with graph.inserting_before(relu):
                    relu.replace_all_uses_with(
                        graph.call_module(convolution.target, (convolution.args[0], *added))
                    )
                for done in dict.fromkeys((relu, taken, convolution)):  # each the only one to take the next
                    graph.erase_node(done)
                break
    return fx.GraphModule(model, graph)


def _is_relu(model: Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return type(model.get_submodule(str(node.target))) is nn.ReLU
    return node.op in ("call_function", "call_method") and node.target in (
        F.relu,
        torch.relu,
        "relu",
        "relu_",
    )


def _summands(node: Any) -> list[tuple[Any, Any]]:
    """Return the two parts of a sum that one other node alone takes, each part first where it may be: what is added to in place stays first."""
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
    both = isinstance(first, fx.Node) and isinstance(second, fx.Node) and first is not second
    return (
        []
        if not both
        else [(first, second)]
        if node.target in in_place
        else [(first, second), (second, first)]
    )


def _next(model: Module, behind: dict[str, str], name: str, kind: type[Module]) -> str | None:
    """Return the module that takes what a module gives, where it is of one kind exactly."""
    follower = behind.get(name)
    return follower if follower and type(model.get_submodule(follower)) is kind else None


def _behind(model: Module) -> dict[str, str]:
    """Return, for each module that is used once and has one name, the module that alone takes what it gives, or "" where that is none such."""
    try:
        nodes = list(fx.symbolic_trace(model).graph.nodes)
    except Exception:  # a model that looks at values, or whose course depends on them
        return {}
    calls = Counter(node.target for node in nodes if node.op == "call_module")
    names = Counter(module for _, module in model.named_modules(remove_duplicate=False))

    def once(node: fx.Node) -> bool:
        return (
            node.op == "call_module"
            and calls[node.target] == 1
            and names[model.get_submodule(str(node.target))] == 1
        )

    found = {}
    for node in filter(once, nodes):
        users = list(node.users)
        found[str(node.target)] = str(users[0].target) if len(users) == 1 and once(users[0]) else ""
    return found
