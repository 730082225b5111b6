"""A frozen model that is replayed from CUDA graphs, which makes attacks fast without changing their code.

An attack calls the model thousands of times, with batches that shrink as images are broken. Each batch is
padded to one of a few sizes. For each size the forward pass and the gradient of the input are recorded once
and then replayed: one launch takes the place of some thirty kernel launches.
"""

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from atcl.core.modules import evaluating
from atcl.core.precisions import Lower, PrecisionName
from atcl.core.seeds import forked_rng
from atcl.engine.attack_model import faithful_attack_model, takes_channels_last
from atcl.engine.cuda_graphs import GraphPool, ModelGraph, Replay, agrees, play, random_like, record

SMALLEST = 32  # images in the smallest batch that is recorded
# How far the logits of an image in fp16 may be from the model's own, relative to the norm of the latter, or
# to their mean norm where that is larger.
FP16_TOLERANCE = 0.05
OFTEN = 100  # calls after which it pays to record a size; until then the graph of a larger size is used

Key = tuple[Any, ...]  # precision, number of images, shape of each


class Replayed(Module):
    """A model in eval mode that returns what the given model returns, replayed from CUDA graphs on a GPU.

    Args:
        model: the model to copy.
        largest: the largest number of images in a batch.
        half: whether to compute in fp16 where that is as good.
    """

    def __init__(self, model: Module, largest: int, half: bool = False) -> None:
        super().__init__()
        self.fp16_works = half  # as far as is known
        self.kind: PrecisionName | Lower = "fp32"  # the precision in which graphs compute at present
        self.model: Module = copy.deepcopy(model)
        # the memory layout of images and weights; None until the first images
        self.layout: torch.memory_format | None = None
        # the copy that is recorded in each precision, with normalisations and ReLUs inside its convolutions
        self.fused: dict[str, Module] = {}
        self.pools: dict[str, GraphPool] = {}
        self.sizes = sizes(largest)
        self.graphs: dict[Key, ModelGraph | None] = {}
        self.calls: Counter[Key] = Counter()  # in this batch
        self.in_use: set[Key] = set()  # in this batch
        self.is_faithful = True  # whether the graphs return what the model returns
        self.left_fp16 = False  # whether this batch was begun in fp16 and continued in fp32
        self.begin()

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, K), from a graph where there is one for so many images."""
        if self.layout is None:
            channels_last = takes_channels_last(self.model, x[:2].detach())
            self.layout = torch.channels_last if channels_last else torch.contiguous_format
            self.model.to(memory_format=self.layout)  # type: ignore[call-overload]
        graph = self._graph_for(x) if self.is_faithful and self._fits(x) else None
        if graph is None:
            plain: Tensor = self.model(x)
            return plain
        if torch.is_grad_enabled() and x.requires_grad:
            logits: Tensor = Replay.apply(x, graph)  # type: ignore[no-untyped-call]
            return logits
        return play(graph, x)[: len(x)].clone()

    def _fits(self, x: Tensor) -> bool:
        return x.is_cuda and x.dtype == torch.float32 and 0 < len(x) <= self.sizes[-1]

    def begin(self) -> None:
        """Begin a batch: forget the calls of earlier ones.

        Which graphs a batch uses then depends on that batch alone, so that an interrupted evaluation gives
        the same numbers.
        """
        self._use("fp16" if self.fp16_works else "fp32")
        self.left_fp16 = False
        for graph in filter(None, self.graphs.values()):  # the rows of an earlier batch may overflow
            graph.x.copy_(random_like(graph.x.shape, graph.x.device))
            graph.upstream.zero_()
        for pool in self.pools.values():
            if pool.overflow is not None:
                pool.overflow.zero_()

    def strayed(self, ours: Tensor, theirs: Tensor) -> bool:
        """Return whether this batch must be attacked again, since fp16 was not good enough for it.

        If so, the batch continues in fp32.

        Args:
            ours: (n, K) logits of this model for the images that the attack returned.
            theirs: (n, K) logits of the model itself.
        """
        pool, left_fp16 = self.pools.get("fp16"), self.left_fp16
        self.left_fp16 = False
        if self.kind != "fp16" or pool is None or pool.overflow is None:
            return left_fp16
        distance, length = (_centred(logits).norm(dim=1) for logits in (ours - theirs, theirs))
        near = distance <= FP16_TOLERANCE * length.clamp(min=length.mean())  # False for NaN
        if not bool(pool.overflow | ~near.all()):
            return False
        self._use("fp32")
        return True

    def _give_up_fp16(self) -> None:
        """Compute in fp32 from now on, and free the memory of fp16, in which no graph can be recorded."""
        self._leave_fp16()
        self.fp16_works = False
        for key in [key for key in self.graphs if key[0] == "fp16"]:
            del self.graphs[key]
        self.fused.pop("fp16", None)
        self.pools.pop("fp16", None)

    def _leave_fp16(self) -> None:
        """Compute in fp32 for the rest of the batch; if any of its logits came from fp16, attack it again."""
        self.left_fp16 = any(self.graphs.get(key) for key in self.in_use)
        self._use("fp32")

    def _use(self, kind: PrecisionName | Lower) -> None:
        self.kind = kind
        self.calls.clear()
        self.in_use.clear()

    def _graph_for(self, x: Tensor) -> ModelGraph | None:
        key = (self.kind, next(size for size in self.sizes if size >= len(x)), *x.shape[1:])
        if key not in self.in_use:
            self.calls[key] += 1
            larger = min(
                (other for other in self.in_use if other > key and other[2:] == key[2:]), default=None
            )
            if larger and self.calls[key] < OFTEN and self.graphs.get(larger):
                return self.graphs[larger]
            self.in_use.add(key)
        if key not in self.graphs:
            with torch.cuda.device(x.device):  # graphs are recorded on the current device
                graph = self._recorded(self._laid_out(random_like(key[1:], x.device)))
            if self.kind == "fp16" and graph is None:
                self._give_up_fp16()
                return self._graph_for(x)
            if graph and not agrees(graph, self.model):
                graph = None
                if self.kind != "fp16":
                    self.is_faithful = self.fp16_works = False
                    self.graphs.clear()
                    self._use("fp32")
                    return None
            self.graphs[key] = graph
        if self.kind == "fp16" and not self.graphs[key]:  # in fp16 this size disagrees, in whatever batch
            self._leave_fp16()
            return self._graph_for(x)
        return self.graphs[key]

    def _laid_out(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=self.layout or torch.contiguous_format)

    def _recorded(self, like: Tensor) -> ModelGraph | None:
        """Return the graphs for a batch like this one in the present precision, or None if there are none."""
        if self.kind not in self.fused:
            attack_model = faithful_attack_model(
                self.model, self.kind, like[:2].clone(), lambda line: None, compiles=False
            )
            # without a convolution, a copy would gain nothing
            self.fused[self.kind] = attack_model if attack_model.fused else self.model
            fp16 = self.kind == "fp16"
            if fp16 and (attack_model.kind != "fp16" or not attack_model.fused):
                return None
            overflow = torch.zeros((), dtype=torch.bool, device=like.device) if fp16 else None
            self.pools[self.kind] = GraphPool(torch.cuda.Stream(like.device), overflow)
        return record(self.fused[self.kind], like, self.pools[self.kind])


def sizes(largest: int) -> list[int]:
    """Return the sizes to which batches are padded, each about a quarter larger than the one before."""
    padded = [min(SMALLEST, largest)]
    while padded[-1] < largest:
        padded.append(min(largest, (padded[-1] * 5 // 4 + 7) // 8 * 8))
    return padded


@contextmanager
def replayed(model: Module, batch_size: int, half: bool = False) -> Iterator[Module]:
    """Yield the model replayed from CUDA graphs if it is on a GPU, else the model itself.

    Meanwhile its parameters require no gradient.

    Args:
        model: in eval mode.
        batch_size: the largest number of images in a batch.
        half: whether to compute in fp16 where that is as good.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not any(parameter.is_cuda for parameter in model.parameters()):
        yield model
        return
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        fast = _replayed_or_none(model, batch_size, half)
        try:
            # backward in the calling thread: handing over the gradient of a single node to another thread
            # costs time
            with torch.autograd.set_multithreading_enabled(False):
                yield fast or model
        finally:
            if fast:
                fast.graphs.clear()
            torch.cuda.empty_cache()  # nothing else can use the memory of graphs until then
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def _replayed_or_none(model: Module, batch_size: int, half: bool) -> Replayed | None:
    try:
        return Replayed(model, batch_size, half)
    except Exception:  # the model cannot be copied: it holds a lock, or tensors computed from its parameters
        return None


def activation_bytes(model: Module, x: Tensor) -> int:
    """Return the size of the outputs of all layers for images x, which an attack keeps for the backward pass.

    0 for a model whose layers cannot be observed.
    """
    total = 0

    def count(module: Module, inputs: Any, output: Any) -> None:
        nonlocal total
        total += output.nbytes if isinstance(output, Tensor) else 0

    hooks: list[Any] = []
    try:
        for module in model.modules():
            if not any(True for _ in module.children()):
                hooks.append(module.register_forward_hook(count))
        with evaluating(model), torch.no_grad(), forked_rng():
            model(x)
    except RuntimeError:  # TorchScript accepts no hook
        return 0
    finally:
        for hook in hooks:
            hook.remove()
    return total


def _centred(logits: Tensor) -> Tensor:
    return logits - logits.mean(1, keepdim=True)
