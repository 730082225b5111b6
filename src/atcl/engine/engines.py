"""How a training step runs: as written, compiled, or replayed from a CUDA graph.

The training loop does not know which.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor
from torch.nn import Module

from atcl.core.errors import AtclError, Notify, pick
from atcl.core.seeds import host_random
from atcl.engine.cuda_graphs import host_sync

# index, attack steps, whether to update the memory
# -> (loss, predictions inside the candidates, agreeing with the guess, images), each summed over the batch
Step = Callable[[Tensor, int, bool], Tensor]
Part = TypeVar("Part", bound=Callable[..., Any])

# Before a step is recorded it runs this often as written: libraries choose their kernels, the optimiser
# creates its state.
PLAIN = 2


@dataclass(frozen=True)
class Engine:
    """How to run the parts of a step that are functions of tensors alone, and how to run the whole step.

    An engine holds no memory of a run, so several runs may use the same one. Whatever it records belongs to
    the function that `whole` or `repeated` returns, and so to one run.
    """

    name: str = "eager"
    compiles: bool = False
    records: bool = False
    notify: Notify = print
    failures: list[str] = field(default_factory=list)  # messages of parts that could not be compiled

    @property
    def about(self) -> str:
        """The name; where the engine records but does not compile, that too."""
        return self.name + (", not compiled" if self.records and not self.compiles else "")

    def part(self, function: Part) -> Part:
        """Return a part of the step as this engine runs it."""

        def report_failure(message: str) -> None:
            self.failures.append(message)
            self.notify(message)

        return compiled(function, report_failure) if self.compiles else function

    def whole(self, step: Step, rng: Generator) -> Step:
        """Return the step, which draws from `rng`, as this engine runs it."""
        return recorded_step(step, rng) if self.records else step

    def repeated(self, function: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
        """Return a function, to be called many times with tensors of the same shapes, as this engine runs it.

        Args:
            function: draws no random numbers.
            device: of its tensors.
        """
        return replayed_function(function, device) if self.records else function


EAGER = Engine()

ENGINES: dict[str, tuple[bool, bool, str]] = {  # whether it compiles, whether it records, what it does
    "eager": (False, False, "the step as it is written"),
    "compiled": (True, False, "torch.compile for the parts of the step"),
    "captured": (True, True, "the same, and one CUDA graph around the whole step"),
}

AUTO = "auto"  # picks one of them

# Compiling takes half a minute: on a GPU it pays from this many passes through the model on.
WORTH = 50_000


def engine_of(
    name: str,
    device: torch.device,
    passes: int,
    *,
    deterministic: bool = False,
    waits: bool = False,
    notify: Notify = print,
) -> Engine:
    """Return the engine of that name; "auto" picks the fastest that works.

    Args:
        name: a key of `ENGINES`, or "auto".
        device: where the model trains.
        passes: how many passes through the model the training takes.
        deterministic: whether the same run must give the same bits each time.
        waits: whether the model makes the host wait for the GPU, which no CUDA graph can record.
        notify: receives a message for each part that could not be compiled.

    Raises:
        AtclError: for an unknown name, and for an engine that cannot run this job.
    """
    if name == AUTO:
        if device.type != "cuda":
            return Engine("eager", notify=notify)
        compiles = passes >= WORTH and not deterministic
        fastest = "captured" if not waits else "compiled" if compiles else "eager"
        return Engine(fastest, compiles, not waits, notify)
    compiles, records, _ = pick({**ENGINES, AUTO: (False, False, "")}, name, "engine")
    if compiles and not records and deterministic:
        raise AtclError(
            "compiled code may differ in its last bits each time: "
            "with --deterministic give --engine auto, eager or captured"
        )
    if records and device.type != "cuda":
        raise AtclError(
            f"the engine {name} records CUDA graphs, and the device is {device.type}: "
            "give --engine auto, eager or compiled"
        )
    if records and waits:
        raise AtclError(
            f"the engine {name} cannot record a step that makes the host wait for the GPU: "
            "give --engine auto, eager or compiled"
        )
    return Engine(name, compiles and not deterministic, records, notify)


def compiled(function: Part, notify: Notify = print, backend: str = "inductor") -> Part:
    """Return the function, compiled for each shape that it receives; if that fails, it runs as written."""
    # fallback_random: the same random numbers as the other engines, not those of the compiler's own generator
    options: dict[str, Any] | None = {"fallback_random": True} if backend == "inductor" else None
    fast = torch.compile(function, dynamic=False, backend=backend, options=options)
    failed = False

    def run(*arguments: Any) -> Any:
        nonlocal failed
        if failed:
            return function(*arguments)
        try:
            return fast(*arguments)
        except Exception as error:  # of any kind: the function as written is right, or raises its own error
            failed = True
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
            notify(f"not compiled, which is slower and nothing else: {reason}")
            return function(*arguments)

    return run  # type: ignore[return-value]


@contextmanager
def room_to_compile(runs: int) -> Iterator[None]:
    """Let this many runs be compiled in one process.

    The compiler counts the compiled versions of a function over all runs, and gives up after a few.
    """
    torch.compiler.reset()  # versions compiled for earlier runs would count too
    before = torch._dynamo.config.recompile_limit
    torch._dynamo.config.recompile_limit = before * runs
    try:
        yield
    finally:
        torch._dynamo.config.recompile_limit = before


def recorded_step(step: Step, rng: Generator) -> Step:
    """Return a step that runs a few times as written and is then replayed from a CUDA graph.

    Each kind of batch has a graph of its own.
    """
    stream_for = cache(recording_stream)  # one side stream for all graphs of this step
    plays: Counter[tuple[int, int, bool]] = Counter()
    graphs: dict[tuple[int, int, bool], StepGraph] = {}

    def run(index: Tensor, steps: int, remember: bool) -> Tensor:
        kind = (len(index), steps, remember)
        if plays[kind] < PLAIN:
            plays[kind] += 1
            return step(index, steps, remember)
        if kind not in graphs:
            for old in [other for other in graphs if other[1:] != kind[1:]]:  # of an epoch that is over
                del graphs[old]
            stream = stream_for(torch.cuda.current_stream(rng.device))
            graphs[kind] = StepGraph(lambda index: step(index, steps, remember), (index,), stream, rng)
        return graphs[kind].play(index)

    return run


def replayed_function(function: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """Return a function that runs a few times as written and is then replayed from a CUDA graph.

    The next call overwrites the tensor that a call returned.
    """
    plays, graph = 0, None

    def run(*inputs: Tensor) -> Tensor:
        nonlocal plays, graph
        plays += 1
        if plays <= PLAIN:
            return function(*inputs)
        if graph is None:
            graph = StepGraph(function, inputs, recording_stream(torch.cuda.current_stream(device)))
        return graph.play(*inputs)

    return run


def own_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream on which no evaluation records.

    PyTorch hands out 32 streams of each priority in turn; evaluations use those of ordinary priority.
    """
    return torch.cuda.Stream(device, priority=-1)


def recording_stream(current: torch.cuda.Stream) -> torch.cuda.Stream:
    """Return the stream on which to record a graph that will play on the current stream.

    That is the current stream, or a new one if the current stream is the default stream, which cannot record.

    Libraries keep one workspace for each stream, and write its address into the graph. Two graphs that were
    recorded on the same stream must therefore never play at the same time. They cannot: a graph plays only on
    the stream where it was made, and one stream plays one graph after the other.
    """
    is_default = current == torch.cuda.default_stream(current.device)
    return own_stream(current.device) if is_default else current


class StepGraph:
    """A function in a CUDA graph.

    Each play reads the function's inputs, the learner's own tensors and the state of the random generator.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        inputs: tuple[Tensor, ...],
        stream: torch.cuda.Stream,
        rng: Generator | None = None,
    ) -> None:
        self.inputs = tuple(tensor.clone() for tensor in inputs)
        self.plays_on = torch.cuda.current_stream(stream.device)
        self.graph = torch.cuda.CUDAGraph()
        if rng is not None:
            self.graph.register_generator_state(rng)
        # thread_local: other threads may use the GPU meanwhile, and only the work of this one is recorded
        with (
            torch.cuda.device(stream.device),
            torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"),
        ):
            self.output = function(*self.inputs)

    def play(self, *inputs: Tensor) -> Tensor:
        """Return the function's output for other tensors of the same shapes.

        Raises:
            RuntimeError: on another stream than that where the graph was recorded.
        """
        if torch.cuda.current_stream(self.plays_on.device) != self.plays_on:
            raise RuntimeError(
                "a recording plays only on the stream where it was made: "
                "another run may be using its workspace"
            )
        for own, new in zip(self.inputs, inputs, strict=True):
            own.copy_(new)
        self.graph.replay()
        return self.output


def waits(model: Module, x: Tensor) -> bool:
    """Whether a model makes the host wait for the GPU or draw random numbers, in training or in eval mode.

    A CUDA graph can record neither.
    """
    if not x.is_cuda:
        return False
    try:
        for train in (True, False):
            model.train(train)(x).sum().backward()  # the first pass may create state
            state = host_random()
            try:
                with host_sync("error"):
                    model(x).sum().backward()
            except RuntimeError:
                return True
            if state != host_random():
                return True
    finally:
        model.zero_grad()
    return False
