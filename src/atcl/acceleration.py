"""A frozen model, replayed from CUDA graphs: what attacks of others spend most of their time on, made cheap without touching them.

An attack calls the model thousands of times with batches that shrink as images fall. Each batch is padded to one of a few sizes, and for each size
the forward pass, and the gradient of the input, are recorded once and replayed; the launch of some thirty kernels becomes one.
"""

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from atcl.attacks import evaluating
from atcl.precisions import Kind, Lower
from atcl.seeds import forked_rng
from atcl.twins import STEEP, Twin, faithful_twin

SMALLEST = 32
OFTEN = 100  # calls of a size after which a recording of its own pays; until then a larger one serves


@dataclass
class Tape:
    """What the recordings of one model share: the memory between forward and backward pass, which holds the last play alone."""

    stream: torch.cuda.Stream  # to record on: libraries write a stream's workspace into the recording
    overflow: Tensor | None = None  # () bool, of a model in fp16: whether any number that it gave was not finite
    plays: int = 0  # forward passes so far
    pool: Any = None


@dataclass
class Recording:
    """The graphs of one size, and the tensors that they read and write."""

    x: Tensor
    logits: Tensor
    upstream: Tensor  # gradient of the logits
    gradient: Tensor  # gradient of x
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    tape: Tape


class Replayed(Module):
    """A model in eval mode that answers as the given one does, on the GPU, from recordings; with `half`, these compute in fp16."""

    def __init__(self, model: Module, largest: int, half: bool = False) -> None:
        super().__init__()
        self.kind: Kind | Lower = "fp16" if half else "fp32"
        # in channels_last convolutions run without a detour
        self.model: Module = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.folded: Module | None = None  # what is recorded: the model with normalisations and ReLUs inside its convolutions
        self.sizes = sizes(largest)
        self.recordings: dict[tuple[int, ...], Recording | None] = {}
        self.asked: Counter[tuple[int, ...]] = Counter()
        self.serving: set[tuple[int, ...]] = set()
        self.tape: Tape | None = None
        self.faithful = True  # whether recordings answer as the model does

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, K), from a recording where there is one for so many images."""
        fits = x.is_cuda and x.dtype == torch.float32 and 0 < len(x) <= self.sizes[-1]
        recording = self._recording(x) if fits and self.faithful else None
        if recording is None:
            out: Tensor = self.model(x)
            return out
        if torch.is_grad_enabled() and x.requires_grad:
            answered: Tensor = _Replay.apply(x, recording)  # type: ignore[no-untyped-call]
            return answered
        return _play(recording, x)[: len(x)].clone()

    def begin(self) -> None:
        """Forget which sizes were asked for: what serves a batch follows from that batch alone, so that an interruption changes nothing."""
        self.asked.clear()
        self.serving.clear()

    def overflowed(self) -> bool:
        """Tell whether fp16 was too narrow for any number since the last time, and go on in fp32 if so."""
        if self.tape is None or self.tape.overflow is None or not bool(self.tape.overflow):
            return False
        self.kind, self.folded, self.tape = "fp32", None, None
        self.recordings.clear()
        self.begin()
        return True

    def _recording(self, x: Tensor) -> Recording | None:
        key = (next(size for size in self.sizes if size >= len(x)), *x.shape[1:])
        if key not in self.serving:
            self.asked[key] += 1
            larger = min((other for other in self.serving if other > key and other[1:] == key[1:]), default=None)
            if larger and self.asked[key] < OFTEN and self.recordings.get(larger):
                return self.recordings[larger]
            self.serving.add(key)
        if key not in self.recordings:
            with torch.cuda.device(x.device):  # graphs are recorded on the current one
                self.folded = self.folded or _folded(self.model, x, self.kind)
                low = isinstance(self.folded, Twin) and self.folded.kind == "fp16"
                narrow = torch.zeros((), dtype=torch.bool, device=x.device) if low else None
                self.tape = self.tape or Tape(torch.cuda.Stream(x.device), narrow)
                found = self.recordings[key] = _record(self.folded, _channels_last(torch.rand(key, device=x.device)), self.tape)
            if found and not _agrees(found, self.model):
                self.faithful = False
                self.recordings.clear()
                self.begin()
        return self.recordings.get(key)


def sizes(largest: int) -> list[int]:
    """Return the sizes that batches are padded to, each larger by about a quarter than the one before."""
    found = [min(SMALLEST, largest)]
    while found[-1] < largest:
        found.append(min(largest, (found[-1] * 5 // 4 + 7) // 8 * 8))
    return found


@contextmanager
def replayed(model: Module, batch_size: int, half: bool = False) -> Iterator[Module]:
    """Yield the model replayed where it lies on a GPU, and as it is elsewhere; its parameters ask for no gradient meanwhile."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not any(parameter.is_cuda for parameter in model.parameters()):
        yield model
        return
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        quick = _replaying(model, batch_size, half)
        try:
            with torch.autograd.set_multithreading_enabled(False):  # a gradient of one call needs no thread to hand it to
                yield quick or model
        finally:
            if quick:
                quick.recordings.clear()
            torch.cuda.empty_cache()  # what recordings took serves nothing else until then
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def _replaying(model: Module, batch_size: int, half: bool) -> Replayed | None:
    try:
        return Replayed(model, batch_size, half)
    except RuntimeError:  # a model that cannot be copied, such as one with tensors worked out from its parameters
        return None


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, recording: Recording) -> Tensor:
        logits = _play(recording, x)
        ctx.save_for_backward(x)
        ctx.recording, ctx.play = recording, recording.tape.plays
        return logits[: len(x)].clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        (x,), recording = ctx.saved_tensors, ctx.recording
        if ctx.play != recording.tape.plays:  # another batch came in between
            _play(recording, x)
            ctx.play = recording.tape.plays
        recording.upstream[: len(x)].copy_(upstream[0])  # as with the images, rows behind are of an older batch
        recording.backward.replay()
        return recording.gradient[: len(x)].clone(), None


def _folded(model: Module, x: Tensor, kind: Kind | Lower) -> Module:
    """Return the twin of a model in a precision, without normalisations of its own where it can do without; else the model."""
    twin = faithful_twin(model, kind, _channels_last(x[:2].detach().clone()), lambda line: None, compiles=False)
    return twin if twin.settled or twin.kind == "fp16" else model


def activation_bytes(model: Module, x: Tensor) -> int:
    """Return how many bytes the layers of a model give for images x, which an attack keeps until the gradient is known; 0 where none can be seen."""
    given = 0

    def count(module: Module, inputs: Any, output: Any) -> None:
        nonlocal given
        given += output.nbytes if isinstance(output, Tensor) else 0

    hooks: list[Any] = []
    try:
        for module in model.modules():
            if not any(True for _ in module.children()):
                hooks.append(module.register_forward_hook(count))
        with evaluating(model), torch.no_grad(), forked_rng():
            model(x)
    except RuntimeError:  # TorchScript takes no hook
        return 0
    finally:
        for hook in hooks:
            hook.remove()
    return given


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def _play(recording: Recording, x: Tensor) -> Tensor:
    recording.x[: len(x)].copy_(x.detach())  # rows behind are of an older batch, and no row looks at another in eval mode
    recording.forward.replay()
    recording.tape.plays += 1
    return recording.logits


def _record(model: Module, like: Tensor, tape: Tape) -> Recording | None:
    """Return the recordings for one size, or None for a model that cannot be recorded, such as one that looks at values on the host."""
    side = tape.stream
    side.wait_stream(torch.cuda.current_stream(like.device))
    with torch.cuda.stream(side), torch.enable_grad():  # before recording, libraries choose their kernels
        for mode in ("default", "default", "error"):
            if not _passes(model, like.clone().requires_grad_(), mode):
                return None
    torch.cuda.current_stream(like.device).wait_stream(side)
    forward, backward, x = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(), like.clone().requires_grad_()
    with torch.enable_grad():
        with torch.cuda.graph(forward, pool=tape.pool, stream=side):
            logits = model(x)
            _note(logits, tape)
        tape.pool = forward.pool()
        upstream = torch.zeros_like(logits)
        with torch.cuda.graph(backward, pool=tape.pool, stream=side):
            gradient = _gradient(logits, x, upstream, tape)
            _note(gradient, tape)
    # the graphs' own tensors, without the history that only recording needed
    return Recording(x.detach(), logits.detach(), upstream, gradient, forward, backward, tape)


def _gradient(logits: Tensor, x: Tensor, upstream: Tensor, tape: Tape) -> Tensor:
    """Return the gradient of x; through a model in fp16 each image's starts at one length and is brought back to its own behind it."""
    if tape.overflow is None:
        (plain,) = torch.autograd.grad(logits, x, upstream, retain_graph=True)
        return plain
    _, exponent = torch.frexp(upstream.abs().amax(1, keepdim=True))
    length = torch.ldexp(torch.ones_like(upstream[:, :1]), exponent) / STEEP  # powers of two: no digit is lost
    (steep,) = torch.autograd.grad(logits, x, upstream / length, retain_graph=True)
    return steep * length.view(-1, *[1] * (steep.ndim - 1))


def _note(numbers: Tensor, tape: Tape) -> None:
    if tape.overflow is not None:
        tape.overflow.logical_or_(~numbers.detach().isfinite().all())


def _agrees(recording: Recording, model: Module) -> bool:
    """Tell whether a recording answers as the model does; that of one whose rows look at each other does not."""
    x = recording.x[: len(recording.x) // 2 + 1].clone()
    recording.x.zero_()
    with torch.no_grad():
        ours, theirs = _play(recording, x)[: len(x)], model(x)
    return float((ours - theirs).norm()) <= 0.05 * float(theirs.norm()) + 1e-6


def _passes(model: Module, x: Tensor, mode: str) -> bool:
    """Go through the model and back; in mode "error", tell whether the host never waited, which a recording that fails half-way would not forgive."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        logits = model(x)
        torch.autograd.grad(logits, x, torch.zeros_like(logits))
    except torch.OutOfMemoryError:  # the plain way may still fit
        return False
    except RuntimeError:
        if mode != "error":
            raise
        return False
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return True
