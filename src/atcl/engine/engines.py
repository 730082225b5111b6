"""How a training step is carried out: as it is written, compiled, or recorded in a CUDA graph. The loop does not know which."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor
from torch.nn import Module

from atcl.core.errors import AtclError, pick
from atcl.core.seeds import host_random
from atcl.engine.cuda_graphs import host_sync

Step = Callable[
    [Tensor, int, bool], Tensor
]  # index, attack steps, remember -> (loss, inside, agreeing, images), summed over the batch
Part = TypeVar("Part", bound=Callable[..., Any])
Notify = Callable[[str], None]

PLAIN = 2  # times that a step runs as it is written before it is recorded: libraries choose their kernels, the optimiser makes its state


@dataclass(frozen=True)
class Engine:
    """What becomes of the parts of a step that are functions of tensors alone, and of the step as a whole."""

    name: str = "eager"
    compiles: bool = False
    records: bool = False
    notify: Notify = print
    failures: list[str] = field(default_factory=list)  # of compiling

    @property
    def about(self) -> str:
        """Its name, and that it leaves compiling out where it does."""
        return self.name + (", not compiled" if self.records and not self.compiles else "")

    def part(self, function: Part) -> Part:
        """Return a part of the step as this engine runs it."""

        def tell(text: str) -> None:
            self.failures.append(text)
            self.notify(text)

        return compiled(function, tell) if self.compiles else function

    def whole(self, step: Step, rng: Generator) -> Step:
        """Return the step, which draws from `rng`, as this engine runs it."""
        return recorded_step(step, rng) if self.records else step

    def repeated(self, function: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
        """Return a function that draws nothing, and is called with tensors of the same shapes again and again, as this engine runs it."""
        return replayed_function(function, device) if self.records else function


EAGER = Engine()

ENGINES: dict[str, tuple[bool, bool, str]] = {  # compiles, records
    "eager": (False, False, "the step as it is written"),
    "compiled": (True, False, "torch.compile for the parts of the step"),
    "captured": (True, True, "the same, and one CUDA graph around the whole step"),
}

AUTO = "auto"  # picks one of them

WORTH = 50_000  # passes through the model from which compiling, which takes half a minute, pays on a GPU


def engine_of(
    name: str,
    device: torch.device,
    passes: int,
    *,
    deterministic: bool = False,
    waits: bool = False,
    notify: Notify = print,
) -> Engine:
    """Return the engine of a name; `auto` picks by the device, the size of the job, and whether the model makes the host wait."""
    if name == AUTO:
        if device.type != "cuda":
            return Engine("eager", notify=notify)
        compiles = passes >= WORTH and not deterministic
        return Engine(
            "captured" if not waits else "compiled" if compiles else "eager", compiles, not waits, notify
        )
    compiles, records, _ = pick({**ENGINES, AUTO: (False, False, "")}, name, "engine")
    if compiles and not records and deterministic:
        raise AtclError(
            "what is compiled may differ in its last bits each time: with --deterministic give --engine auto, eager or captured"
        )
    if records and device.type != "cuda":
        raise AtclError(
            f"the engine {name} records CUDA graphs, and the device is {device.type}: give --engine auto, eager or compiled"
        )
    if records and waits:
        raise AtclError(
            f"the engine {name} cannot record a step that makes the host wait for the GPU: give --engine auto, eager or compiled"
        )
    return Engine(name, compiles and not deterministic, records, notify)


def compiled(function: Part, notify: Notify = print, backend: str = "inductor") -> Part:
    """Return the function compiled for the shapes that it meets; where that fails, the function as it is written."""
    # the same random numbers as in the other engines, not those of the compiler's own generator
    quick = torch.compile(
        function,
        dynamic=False,
        backend=backend,
        options={"fallback_random": True} if backend == "inductor" else None,
    )
    failed = False

    def run(*arguments: Any) -> Any:
        nonlocal failed
        if failed:
            return function(*arguments)
        try:
            return quick(*arguments)
        except (
            Exception
        ) as error:  # whatever it is: as it is written, the function is right, or raises an error of its own
            failed = True
            notify(
                f"not compiled, which is slower and nothing else: {type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
            )
            return function(*arguments)

    return run  # type: ignore[return-value]


@contextmanager
def room_to_compile(runs: int) -> Iterator[None]:
    """Let so many runs be compiled side by side: the compiler counts the forms of a function over all of them, and gives up after a few."""
    torch.compiler.reset()  # what was compiled for runs before would count against these
    before = torch._dynamo.config.recompile_limit
    torch._dynamo.config.recompile_limit = before * runs
    try:
        yield
    finally:
        torch._dynamo.config.recompile_limit = before


def recorded_step(step: Step, rng: Generator) -> Step:
    """Return a step that is replayed from a CUDA graph, one for each kind of batch, after it was run a few times as it is written."""
    stream = cache(lambda: recording_stream(rng.device))
    plays: Counter[tuple[int, int, bool]] = Counter()
    recordings: dict[tuple[int, int, bool], StepGraph] = {}

    def run(index: Tensor, steps: int, remember: bool) -> Tensor:
        kind = (len(index), steps, remember)
        if plays[kind] < PLAIN:
            plays[kind] += 1
            return step(index, steps, remember)
        if kind not in recordings:
            for old in [other for other in recordings if other[1:] != kind[1:]]:  # of an epoch that is over
                del recordings[old]
            recordings[kind] = StepGraph(lambda index: step(index, steps, remember), (index,), stream(), rng)
        return recordings[kind].play(index)

    return run


def replayed_function(function: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """Return a function that is replayed from a CUDA graph after it was run a few times as it is written; its answer lasts until the next call."""
    plays, recording = 0, None

    def run(*given: Tensor) -> Tensor:
        nonlocal plays, recording
        plays += 1
        if plays <= PLAIN:
            return function(*given)
        recording = recording or StepGraph(function, given, recording_stream(device))
        return recording.play(*given)

    return run


def own_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream that no evaluation records on: PyTorch hands out 32 of each priority in turn, and others take the ordinary ones."""
    return torch.cuda.Stream(device, priority=-1)


def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream that the caller works on, or a new one where that is the default stream, on which nothing can be recorded.

    Libraries keep a workspace for each stream, and its address goes into the recording. Two recordings of one stream may therefore never play at the
    same time. They cannot: a recording plays only on the stream that its maker works on, and what is played on one stream plays in turn.
    """
    current = torch.cuda.current_stream(device)
    return own_stream(device) if current == torch.cuda.default_stream(device) else current


class StepGraph:
    """A function in a CUDA graph: it reads what it is given, the learner's own tensors, and the generator's state at each play."""

    def __init__(
        self,
        function: Callable[..., Tensor],
        given: tuple[Tensor, ...],
        stream: torch.cuda.Stream,
        rng: Generator | None = None,
    ) -> None:
        self.given = tuple(tensor.clone() for tensor in given)
        self.plays_on = torch.cuda.current_stream(stream.device)
        self.graph = torch.cuda.CUDAGraph()
        if rng is not None:
            self.graph.register_generator_state(rng)
        # others may use the GPU meanwhile: only what this thread does is recorded
        with (
            torch.cuda.device(stream.device),
            torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"),
        ):
            self.answer = function(*self.given)

    def play(self, *given: Tensor) -> Tensor:
        """Carry the function out for other tensors of the same shapes, on the stream where the recording was made."""
        if torch.cuda.current_stream(self.plays_on.device) != self.plays_on:
            raise RuntimeError(
                "a recording plays only on the stream where it was made: another run may be using its workspace"
            )
        for own, other in zip(self.given, given, strict=True):
            own.copy_(other)
        self.graph.replay()
        return self.answer


def waits(model: Module, x: Tensor) -> bool:
    """Tell whether a model, training or not, makes the host wait for the GPU or decide by lot: neither can be recorded."""
    if not x.is_cuda:
        return False
    try:
        for train in (True, False):
            model.train(train)(x).sum().backward()  # the first pass may set things up
            drawn = host_random()
            try:
                with host_sync("error"):
                    model(x).sum().backward()
            except RuntimeError:
                return True
            if drawn != host_random():
                return True
    finally:
        model.zero_grad()
    return False
