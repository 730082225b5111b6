"""A frozen model, replayed from CUDA graphs: what attacks of others spend most of their time on, made cheap without touching them.

An attack calls the model thousands of times with batches that shrink as images fall. Each batch is padded to one of a few sizes, and for each size
the forward pass, and the gradient of the input, are recorded once and replayed; the launch of some thirty kernels becomes one.
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

SMALLEST = 32
APART = 0.05  # how far an image's logits in fp16 may be from the model's own, in shares of their length, or of the mean length where that is more
OFTEN = 100  # calls of a size after which a recording of its own pays; until then a larger one serves

Key = tuple[Any, ...]  # precision, number of images, shape of each


class Replayed(Module):
    """A model in eval mode that answers as the given one does, on the GPU, from recordings; with `half` in fp16, where that is as good."""

    def __init__(self, model: Module, largest: int, half: bool = False) -> None:
        super().__init__()
        self.narrow = half  # whether fp16 is as good, as far as is known
        self.kind: PrecisionName | Lower = "fp32"  # what recordings compute in for now
        self.model: Module = copy.deepcopy(model)
        self.layout: torch.memory_format | None = None  # of images and weights; known once images were seen
        self.folded: dict[
            str, Module
        ] = {}  # what is recorded in each precision: the model with normalisations and ReLUs inside its convolutions
        self.tapes: dict[str, GraphPool] = {}
        self.sizes = sizes(largest)
        self.recordings: dict[Key, ModelGraph | None] = {}
        self.asked: Counter[Key] = Counter()
        self.serving: set[Key] = set()
        self.faithful = True  # whether recordings answer as the model does
        self.mixed = False  # whether fp16 was given up after it had answered
        self.begin()

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, K), from a recording where there is one for so many images."""
        if self.layout is None:
            self.layout = (
                torch.channels_last
                if takes_channels_last(self.model, x[:2].detach())
                else torch.contiguous_format
            )
            self.model.to(memory_format=self.layout)  # type: ignore[call-overload]
        recording = self._recording(x) if self.faithful and self._fits(x) else None
        if recording is None:
            out: Tensor = self.model(x)
            return out
        if torch.is_grad_enabled() and x.requires_grad:
            answered: Tensor = Replay.apply(x, recording)  # type: ignore[no-untyped-call]
            return answered
        return play(recording, x)[: len(x)].clone()

    def _fits(self, x: Tensor) -> bool:
        return x.is_cuda and x.dtype == torch.float32 and 0 < len(x) <= self.sizes[-1]

    def begin(self) -> None:
        """Forget what was asked before: what serves a batch follows from that batch alone, so that an interruption changes nothing."""
        self._turn("fp16" if self.narrow else "fp32")
        self.mixed = False
        for recording in filter(
            None, self.recordings.values()
        ):  # what overflowed in another batch is none of this one's
            recording.x.copy_(random_like(recording.x.shape, recording.x.device))
            recording.upstream.zero_()
        for tape in self.tapes.values():
            if tape.overflow is not None:
                tape.overflow.zero_()

    def strayed(self, ours: Tensor, theirs: Tensor) -> bool:
        """Tell whether fp16 was too narrow in this batch, which ended with our logits and the model's own; if so, fp32 serves the rest of it."""
        tape, mixed = self.tapes.get("fp16"), self.mixed
        self.mixed = False
        if self.kind != "fp16" or tape is None or tape.overflow is None:
            return mixed
        apart, length = (_centred(one).norm(dim=1) for one in (ours - theirs, theirs))
        if not bool(
            tape.overflow | ~(apart <= APART * length.clamp(min=length.mean())).all()
        ):  # what is not a number is not near
            return False
        self._turn("fp32")
        return True

    def _give_up_fp16(self) -> None:
        """Compute in fp32 from now on: in fp16 nothing can be recorded, or there is no memory for it, and what it took is given back."""
        self._leave_fp16()
        self.narrow = False
        for key in [key for key in self.recordings if key[0] == "fp16"]:
            del self.recordings[key]
        for kept in (self.folded, self.tapes):
            kept.pop("fp16", None)

    def _leave_fp16(self) -> None:
        """Compute in fp32 for the rest of the batch, which is attacked again if fp16 has answered in it."""
        self.mixed = any(self.recordings.get(key) for key in self.serving)
        self._turn("fp32")

    def _turn(self, kind: PrecisionName | Lower) -> None:
        self.kind = kind
        self.asked.clear()
        self.serving.clear()

    def _recording(self, x: Tensor) -> ModelGraph | None:
        key = (self.kind, next(size for size in self.sizes if size >= len(x)), *x.shape[1:])
        if key not in self.serving:
            self.asked[key] += 1
            larger = min(
                (other for other in self.serving if other > key and other[2:] == key[2:]), default=None
            )
            if larger and self.asked[key] < OFTEN and self.recordings.get(larger):
                return self.recordings[larger]
            self.serving.add(key)
        if key not in self.recordings:
            with torch.cuda.device(x.device):  # graphs are recorded on the current one
                found = self._recorded(self._laid_out(random_like(key[1:], x.device)))
            if self.kind == "fp16" and found is None:
                self._give_up_fp16()
                return self._recording(x)
            if found and not agrees(found, self.model):
                found = None
                if self.kind != "fp16":
                    self.faithful = self.narrow = False
                    self.recordings.clear()
                    self._turn("fp32")
                    return None
            self.recordings[key] = found
        if (
            self.kind == "fp16" and not self.recordings[key]
        ):  # fp16 answers so many images otherwise, in whatever batch
            self._leave_fp16()
            return self._recording(x)
        return self.recordings[key]

    def _laid_out(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=self.layout or torch.contiguous_format)

    def _recorded(self, like: Tensor) -> ModelGraph | None:
        """Return recordings for as many images as these, in the present precision; None where there can be none."""
        if self.kind not in self.folded:
            attack_model = faithful_attack_model(
                self.model, self.kind, like[:2].clone(), lambda line: None, compiles=False
            )
            self.folded[self.kind] = (
                attack_model if attack_model.settled else self.model
            )  # without a convolution, nothing is gained
            low = self.kind == "fp16"
            if low and (attack_model.kind != "fp16" or not attack_model.settled):
                return None
            narrow = torch.zeros((), dtype=torch.bool, device=like.device) if low else None
            self.tapes[self.kind] = GraphPool(torch.cuda.Stream(like.device), narrow)
        return record(self.folded[self.kind], like, self.tapes[self.kind])


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
            with torch.autograd.set_multithreading_enabled(
                False
            ):  # a gradient of one call needs no thread to hand it to
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
    except Exception:  # a model that cannot be copied, such as one with tensors worked out from its parameters, or with a lock
        return None


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


def _centred(logits: Tensor) -> Tensor:
    return logits - logits.mean(1, keepdim=True)
