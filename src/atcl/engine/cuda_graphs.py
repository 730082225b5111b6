"""CUDA graphs of a frozen model for one batch size: the forward pass, and the gradient of the input."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from atcl.core.seeds import generator, host_random
from atcl.engine.attack_model import FP16_LENGTH, TOLERANCES


@dataclass
class GraphPool:
    """What all graphs of one model share.

    They share the memory that a forward pass leaves for the backward pass, so it holds the last forward pass
    alone.

    Args:
        stream: on which to record; libraries write the address of its workspace into the graph.
        overflow: () bool, of a model in fp16: whether any logit or gradient was not finite; else None.
        plays: the number of forward passes so far.
        memory: the handle of the memory pool, once a graph was recorded.
    """

    stream: torch.cuda.Stream
    overflow: Tensor | None = None
    plays: int = 0
    memory: Any = None


@dataclass
class ModelGraph:
    """The two graphs of one batch size, and the tensors that they read and write."""

    x: Tensor
    logits: Tensor
    upstream: Tensor  # gradient with respect to the logits
    gradient: Tensor  # gradient with respect to x
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    pool: GraphPool


class Replay(torch.autograd.Function):
    """The model as a differentiable function of images, both passes replayed from one recording."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: ModelGraph) -> Tensor:
        logits = play(graph, x)
        ctx.save_for_backward(x)
        ctx.graph, ctx.play = graph, graph.pool.plays
        return logits[: len(x)].clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        (x,), graph = ctx.saved_tensors, ctx.graph
        if ctx.play != graph.pool.plays:  # another forward pass has overwritten the memory
            play(graph, x)
            ctx.play = graph.pool.plays
        graph.upstream[: len(x)].copy_(upstream[0])  # as in `play`, the remaining rows are of an older batch
        graph.backward.replay()
        return graph.gradient[: len(x)].clone(), None


def play(graph: ModelGraph, x: Tensor) -> Tensor:
    """Return the logits of images, and those of the rows that remain; the next play overwrites them."""
    # the remaining rows are of an older batch; in eval mode no row depends on another
    graph.x[: len(x)].copy_(x.detach())
    graph.forward.replay()
    graph.pool.plays += 1
    return graph.logits


def record(model: Module, like: Tensor, pool: GraphPool) -> ModelGraph | None:
    """Return the graphs of one batch size, or None for a model that cannot be recorded.

    A model whose control flow depends on values on the host, for example, cannot be.

    Args:
        model: the frozen model.
        like: images of the batch size, shape and layout to record.
        pool: what the graphs of this model share.
    """
    side = pool.stream
    side.wait_stream(torch.cuda.current_stream(like.device))
    with torch.cuda.stream(side), torch.enable_grad():  # before recording, libraries choose their kernels
        for mode in ("default", "default", "error"):
            if not _passes(model, like.clone().requires_grad_(), mode, pool):
                return None
    torch.cuda.current_stream(like.device).wait_stream(side)
    current = torch.cuda.current_stream(like.device)
    try:
        return _recorded(model, like, pool)
    except RuntimeError:  # no memory is left, or the model draws from a generator of its own
        torch.cuda.set_stream(current)  # a recording that fails at its end leaves its own stream current
        return None


def _recorded(model: Module, like: Tensor, pool: GraphPool) -> ModelGraph:
    forward, backward, x = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(), like.clone().requires_grad_()
    with torch.enable_grad():
        with torch.cuda.graph(forward, pool=pool.memory, stream=pool.stream):
            logits = model(x)
            note(logits, pool)
        pool.memory = forward.pool()
        upstream = torch.zeros_like(logits)
        with torch.cuda.graph(backward, pool=pool.memory, stream=pool.stream):
            gradient = gradient_of(logits, x, upstream, pool)
            note(gradient, pool)
    # detached: autograd's history was needed for recording alone
    return ModelGraph(x.detach(), logits.detach(), upstream, gradient, forward, backward, pool)


def gradient_of(logits: Tensor, x: Tensor, upstream: Tensor, pool: GraphPool) -> Tensor:
    """Return the gradient with respect to x.

    Through a model in fp16, the gradient of each image starts with the same length and is scaled back at the
    end.
    """
    if pool.overflow is None:
        (plain,) = torch.autograd.grad(logits, x, upstream, retain_graph=True)
        return plain
    _, exponent = torch.frexp(upstream.abs().amax(1, keepdim=True))
    # powers of two: scaling by them loses no digit
    length = torch.ldexp(torch.ones_like(upstream[:, :1]), exponent.clamp(min=-100)) / FP16_LENGTH
    (scaled,) = torch.autograd.grad(logits, x, upstream / length, retain_graph=True)
    return scaled * length.view(-1, *[1] * (scaled.ndim - 1))


def note(numbers: Tensor, pool: GraphPool) -> None:
    """For a model in fp16, record in `pool.overflow` whether any of these numbers is not finite."""
    if pool.overflow is not None:
        pool.overflow.logical_or_(~numbers.detach().isfinite().all())


def agrees(graph: ModelGraph, model: Module) -> bool:
    """Whether a graph gives the model's logits; it does not if the model's rows depend on each other.

    In fp16 the gradients are compared too.
    """
    fp16, x = graph.pool.overflow is not None, graph.x[: len(graph.x) // 2 + 1].clone()
    # the remaining rows are darker: the logits of a model whose rows depend on each other change
    graph.x.copy_(0.1 * random_like(graph.x.shape, x.device, 1))
    with torch.set_grad_enabled(fp16):
        x.requires_grad_(fp16)
        outputs: tuple[Tensor, Tensor] = (Replay.apply(x, graph), model(x))  # type: ignore[no-untyped-call]
        pairs = [(0.05, 1e-6, *outputs)]
        if fp16:
            # `faithful_attack_model` compared other weights; with these, gradients may underflow in fp16
            weights = torch.linspace(-1, 1, outputs[0].shape[1], device=x.device)
            ours, theirs = (torch.autograd.grad((logits * weights).sum(), x)[0] for logits in outputs)
            # no absolute tolerance: an attack uses the direction of a gradient, however short it is
            pairs.append((TOLERANCES["fp16"][1], 0.0, ours, theirs))
    return all(
        bool((ours - theirs).norm() <= relative * theirs.norm() + absolute)
        for relative, absolute, ours, theirs in pairs
    )


def random_like(shape: Any, device: torch.device, seed: int = 0) -> Tensor:
    """Return random images that depend on their shape and the seed alone."""
    return torch.rand(shape, device=device, generator=generator(device, seed))


def _passes(model: Module, x: Tensor, mode: str, pool: GraphPool) -> bool:
    """Run the model forward and backward, and return whether it can still be recorded.

    In mode "error" it cannot be if the host waited for the GPU or drew random numbers.
    """
    state = host_random()
    try:
        with host_sync(mode):
            logits = model(x)
            note(logits, pool)
            note(gradient_of(logits, x, torch.zeros_like(logits), pool), pool)
    except torch.OutOfMemoryError:  # without a recording the model may still fit
        return False
    except RuntimeError:
        if mode != "error" and pool.overflow is None:  # fp16: a library may lack a kernel that it has in fp32
            raise
        return False
    return mode != "error" or state == host_random()


@contextmanager
def host_sync(mode: str) -> Iterator[None]:
    """Let the host wait for the GPU ("default"), or raise a RuntimeError where it would ("error")."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(action="ignore"):  # PyTorch warns that this mode is a prototype
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
