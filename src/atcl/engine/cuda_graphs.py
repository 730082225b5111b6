"""CUDA graphs of a frozen model for one number of images: its forward pass, and the gradient of its input."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from atcl.core.seeds import generator, host_random
from atcl.engine.attack_model import STEEP, WITHIN


@dataclass
class GraphPool:
    """What the recordings of one model share: the memory between forward and backward pass, which holds the last play alone."""

    stream: torch.cuda.Stream  # to record on: libraries write a stream's workspace into the recording
    overflow: Tensor | None = (
        None  # () bool, of a model in fp16: whether any logit or gradient was not finite
    )
    plays: int = 0  # forward passes so far
    pool: Any = None


@dataclass
class ModelGraph:
    """The graphs of one size, and the tensors that they read and write."""

    x: Tensor
    logits: Tensor
    upstream: Tensor  # gradient of the logits
    gradient: Tensor  # gradient of x
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    tape: GraphPool


class Replay(torch.autograd.Function):
    """The model as a function of images that has a gradient, both from one recording."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, recording: ModelGraph) -> Tensor:
        logits = play(recording, x)
        ctx.save_for_backward(x)
        ctx.recording, ctx.play = recording, recording.tape.plays
        return logits[: len(x)].clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        (x,), recording = ctx.saved_tensors, ctx.recording
        if ctx.play != recording.tape.plays:  # another batch came in between
            play(recording, x)
            ctx.play = recording.tape.plays
        recording.upstream[: len(x)].copy_(
            upstream[0]
        )  # as with the images, rows behind are of an older batch
        recording.backward.replay()
        return recording.gradient[: len(x)].clone(), None


def play(recording: ModelGraph, x: Tensor) -> Tensor:
    """Return the logits of images, and of the rows behind them; they last until the next play."""
    recording.x[: len(x)].copy_(
        x.detach()
    )  # rows behind are of an older batch, and no row looks at another in eval mode
    recording.forward.replay()
    recording.tape.plays += 1
    return recording.logits


def record(model: Module, like: Tensor, tape: GraphPool) -> ModelGraph | None:
    """Return the recordings for one size, or None for a model that cannot be recorded, such as one that looks at values on the host."""
    side = tape.stream
    side.wait_stream(torch.cuda.current_stream(like.device))
    with torch.cuda.stream(side), torch.enable_grad():  # before recording, libraries choose their kernels
        for mode in ("default", "default", "error"):
            if not _passes(model, like.clone().requires_grad_(), mode, tape):
                return None
    torch.cuda.current_stream(like.device).wait_stream(side)
    current = torch.cuda.current_stream(like.device)
    try:
        return _recorded(model, like, tape)
    except RuntimeError:  # there is no memory left, or the model draws from a generator of its own
        torch.cuda.set_stream(current)  # a recording that fails at its end leaves its own
        return None


def _recorded(model: Module, like: Tensor, tape: GraphPool) -> ModelGraph:
    forward, backward, x = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(), like.clone().requires_grad_()
    with torch.enable_grad():
        with torch.cuda.graph(forward, pool=tape.pool, stream=tape.stream):
            logits = model(x)
            note(logits, tape)
        tape.pool = forward.pool()
        upstream = torch.zeros_like(logits)
        with torch.cuda.graph(backward, pool=tape.pool, stream=tape.stream):
            gradient = gradient_of(logits, x, upstream, tape)
            note(gradient, tape)
    # the graphs' own tensors, without the history that only recording needed
    return ModelGraph(x.detach(), logits.detach(), upstream, gradient, forward, backward, tape)


def gradient_of(logits: Tensor, x: Tensor, upstream: Tensor, tape: GraphPool) -> Tensor:
    """Return the gradient of x; through a model in fp16 each image's starts at one length and is brought back to its own behind it."""
    if tape.overflow is None:
        (plain,) = torch.autograd.grad(logits, x, upstream, retain_graph=True)
        return plain
    _, exponent = torch.frexp(upstream.abs().amax(1, keepdim=True))
    length = (
        torch.ldexp(torch.ones_like(upstream[:, :1]), exponent.clamp(min=-100)) / STEEP
    )  # powers of two: no digit is lost
    (steep,) = torch.autograd.grad(logits, x, upstream / length, retain_graph=True)
    return steep * length.view(-1, *[1] * (steep.ndim - 1))


def note(numbers: Tensor, tape: GraphPool) -> None:
    """Remember, of a model in fp16, whether any of these numbers is not finite."""
    if tape.overflow is not None:
        tape.overflow.logical_or_(~numbers.detach().isfinite().all())


def agrees(recording: ModelGraph, model: Module) -> bool:
    """Tell whether a recording answers as the model does; that of one whose rows look at each other does not."""
    narrow, x = recording.tape.overflow is not None, recording.x[: len(recording.x) // 2 + 1].clone()
    recording.x.copy_(
        0.1 * random_like(recording.x.shape, x.device, 1)
    )  # darker: a model that looks at the rows behind notices
    with torch.set_grad_enabled(narrow):
        x.requires_grad_(narrow)
        answers: tuple[Tensor, Tensor] = (Replay.apply(x, recording), model(x))  # type: ignore[no-untyped-call]
        pairs = [(0.05, 1e-6, *answers)]
        if narrow:  # with these very weights, which may be such that fp16 takes much for 0
            weights = torch.linspace(-1, 1, answers[0].shape[1], device=x.device)
            ours, theirs = (torch.autograd.grad((logits * weights).sum(), x)[0] for logits in answers)
            pairs.append(
                (WITHIN["fp16"][1], 0.0, ours, theirs)
            )  # however short it is: an attack asks for its direction
    return all(
        bool((ours - theirs).norm() <= far * theirs.norm() + more) for far, more, ours, theirs in pairs
    )


def random_like(shape: Any, device: torch.device, seed: int = 0) -> Tensor:
    """Return images that follow from their shape, and a seed, alone."""
    return torch.rand(shape, device=device, generator=generator(device, seed))


def _passes(model: Module, x: Tensor, mode: str, tape: GraphPool) -> bool:
    """Go through the model and back; in mode "error", tell whether the host neither waited, which a recording would not forgive, nor drew lots."""
    drawn = host_random()
    try:
        with host_sync(mode):
            logits = model(x)
            note(logits, tape)
            note(gradient_of(logits, x, torch.zeros_like(logits), tape), tape)
    except torch.OutOfMemoryError:  # the plain way may still fit
        return False
    except RuntimeError:
        if (
            mode != "error" and tape.overflow is None
        ):  # in fp16 a library may know no way, and has none to tell of in fp32
            raise
        return False
    return mode != "error" or drawn == host_random()


@contextmanager
def host_sync(mode: str) -> Iterator[None]:
    """Let the host wait for the GPU ("default"), or raise a RuntimeError where it would ("error")."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(action="ignore"):  # that the mode is young
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
