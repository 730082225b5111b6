"""All engines compute the same attacks, losses and gradients, and draw the same random numbers."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atcl.attacks.norms import NORMS
from atcl.attacks.pgd import pgd_step
from atcl.core.errors import AtclError
from atcl.core.precisions import InBf16, Precision
from atcl.data.images import as_float
from atcl.engine import engines
from atcl.engine.attack_model import AttackModel
from atcl.engine.engines import EAGER, ENGINES, PLAIN, Engine, Part, StepGraph, compiled, engine_of
from atcl.engine.interleaving import Lane
from atcl.losses import Targets
from atcl.recipes.costs import passes
from atcl.recipes.schema import Recipe
from atcl.training.learner import Learner
from atcl.training.loop import fit, fitting, loss_and_tally
from atcl.training.objectives import Objective
from atcl.training.stage import Stage
from atcl.training.supervision import PseudoLabels, blank_memory, guesses
from tests import tiny

CPU = torch.device("cpu")

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's compiler uses what PyTorch deprecates


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch.compiler.reset()


def kinds() -> dict[str, tuple[Recipe, Stage]]:
    """Return one stage for each kind of step: each objective, each supervision, each norm."""
    stages: dict[tuple[Objective, bool, str], tuple[str, Recipe, Stage]] = {}
    for name, recipe in tiny.RECIPES.items():
        for stage in recipe.stages:
            has_pseudo_labels = isinstance(stage.supervision, PseudoLabels)
            kind = (stage.objective, has_pseudo_labels, stage.budget.norm)
            stages.setdefault(kind, (name, recipe, stage))
    return {
        f"{name}-{number}": (recipe, stage) for number, (name, recipe, stage) in enumerate(stages.values())
    }


KINDS = kinds()


def prepared(
    recipe: Recipe, stage: Stage, device: torch.device = CPU
) -> tuple[nn.Module, AttackModel, Tensor, Targets]:
    """Return a model, its copy, images and their targets, as a step of the stage would receive them."""
    torch.manual_seed(0)
    data = tiny.problem(recipe.labels).train.to(device)
    model = tiny.TinyNet().to(device)
    x, candidates = as_float(data.x[:8]), data.candidates[:8]
    targets = Targets(candidates, prior=data.prior(), transition=data.transition)
    if isinstance(stage.supervision, PseudoLabels):
        targets = Targets(
            candidates, torch.tensor(0.5, device=device), guesses(blank_memory(candidates), candidates)
        )
    return model, AttackModel(model), x, targets


def check_parts(recipe: Recipe, stage: Stage, device: torch.device, run: Callable[[Any], Any]) -> None:
    """Check that a step of the attack and the training loss compute the same where `run` wraps them."""
    model, attack_model, x, targets = prepared(recipe, stage, device)
    attack_loss = stage.objective.attack_loss(attack_model, x, targets)
    epsilon, step_size = torch.tensor(0.3, device=device), torch.tensor(0.01, device=device)
    adv, norm = (x + 0.05).clamp(0, 1), NORMS[stage.budget.norm]
    arguments = (attack_model, x, adv, attack_loss, epsilon, step_size, norm)
    plain, fast = pgd_step(*arguments), run(pgd_step)(*arguments)
    assert (plain == fast).float().mean() >= 0.98  # the sign amplifies rounding
    assert not torch.equal(plain, x)
    results = []
    for function in (loss_and_tally, run(loss_and_tally)):
        torch.manual_seed(1)  # dropout
        model.zero_grad()
        loss, tally = function(stage.objective, model, x, plain, targets)
        loss.backward()
        gradient = torch.cat(
            [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        )
        results.append((loss.detach(), tally, gradient))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(results[0][1][1:], results[1][1][1:])
    assert (results[0][2] - results[1][2]).norm() <= 1e-4 * results[0][2].norm() + 1e-8


def compiled_or_fail(function: Part, backend: str = "inductor") -> Part:
    """Return the function compiled; a failure to compile fails the test."""

    def fail(message: str) -> None:
        raise AssertionError(message)

    return compiled(function, fail, backend)


@pytest.mark.parametrize("name", KINDS)
def test_compiled_parts_compute_what_they_do_as_written(name: str) -> None:
    # building C++ takes long: three kinds stand for all
    builds = name.startswith(("digits/warmup-pla", "digits/trades-1", "digits/direct-free"))
    check_parts(*KINDS[name], CPU, partial(compiled_or_fail, backend="inductor" if builds else "aot_eager"))


def test_positive_control_a_part_that_computes_something_else_is_caught() -> None:
    def other(function: Part) -> Part:
        return lambda *arguments: function(*arguments) if len(arguments) == 5 else arguments[1]  # type: ignore[return-value]

    with pytest.raises(AssertionError):
        check_parts(*next(iter(KINDS.values())), CPU, other)


def test_a_compiled_run_learns_what_the_eager_one_learns() -> None:
    recipe = tiny.RECIPES["digits/warmup-pla"]
    (stage,) = recipe.stages
    weights = []
    for name, seed, epochs in (("eager", 0, 0), ("eager", 0, 5), ("compiled", 0, 5), ("eager", 1, 5)):
        data = tiny.problem(recipe.labels).train
        torch.manual_seed(0)
        learner = Learner(tiny.TinyNet(), data, stage)
        if epochs:
            fit(learner, data, stage, seed=seed, engine=engine_of(name, CPU, 0))
        weights.append(torch.cat([parameter.detach().flatten() for parameter in learner.model.parameters()]))
    start, *others = weights
    eager, compiled, other_seed = (weight - start for weight in others)
    assert (eager - compiled).norm() < 0.1 * eager.norm()
    assert (eager - other_seed).norm() > 0.3 * eager.norm()


def test_a_function_that_cannot_be_compiled_runs_as_written_and_the_user_is_notified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages: list[str] = []

    def failing(x: Tensor) -> Tensor:
        raise ValueError("not in a compiler")

    monkeypatch.setattr(torch, "compile", lambda function, **options: failing)
    run: Callable[[Tensor], Tensor] = compiled(lambda x: x + 1, messages.append)
    assert [run(torch.tensor(1.0)).item() for _ in range(2)] == [2.0, 2.0]
    assert len(messages) == 1
    assert messages[0].startswith("not compiled, which is slower and nothing else")


def test_auto_picks_by_device_and_size_and_an_engine_that_cannot_run_is_refused() -> None:
    cuda = torch.device("cuda")
    assert engine_of("auto", CPU, 10**9).about == "eager"
    assert engine_of("auto", cuda, 10**9).about == "captured"
    assert engine_of("auto", cuda, 10).about == "captured, not compiled"
    assert engine_of("auto", cuda, 10**9, deterministic=True).about == "captured, not compiled"
    assert engine_of("auto", cuda, 10**9, waits=True).about == "compiled"
    assert engine_of("auto", cuda, 10, waits=True).about == "eager"
    with pytest.raises(AtclError, match="records CUDA graphs, and the device is cpu"):
        engine_of("captured", CPU, 0)
    with pytest.raises(AtclError, match="makes the host wait"):
        engine_of("captured", cuda, 0, waits=True)
    with pytest.raises(AtclError, match="may differ in its last bits"):
        engine_of("compiled", cuda, 0, deterministic=True)
    with pytest.raises(AtclError, match="unknown engine 'fast'"):
        engine_of("fast", CPU, 0)
    assert [engine_of(name, cuda, 0).name for name in ENGINES] == list(ENGINES)


def test_the_size_of_a_job_is_counted_in_passes() -> None:
    recipe = tiny.RECIPES["digits/oracle"]
    # epochs, batches, the update, two attack steps forward and backward
    assert passes(recipe, 20) == 5 * 3 * (3 + 2 * 2)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(AtclError, match="one of fp32, tf32, bf16, not 'fp16'"):
        Precision("fp16")  # type: ignore[arg-type]


def test_a_cpu_computes_in_fp32() -> None:
    assert Precision("bf16", "tf32").on(CPU) == Precision()
    assert Precision("bf16", "tf32").on(torch.device("cuda")) == Precision("bf16", "tf32")


def test_the_update_in_bf16_returns_fp32_and_gradients_for_fp32_weights() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    logits = InBf16(model)(torch.rand(3, 1, 2, 2))
    logits.sum().backward()
    assert logits.dtype == torch.float32
    gradients = [parameter.grad for parameter in model.parameters()]
    assert {gradient.dtype for gradient in gradients if gradient is not None} == {torch.float32}


@dataclass(frozen=True)
class FakeStream:
    """A stream of a GPU, as far as an engine uses it."""

    name: str
    device: torch.device = CPU


class EmulatedGraph(StepGraph):
    """A recording on a CPU: each replay calls the function on the tensors that a CUDA graph would read."""

    def __init__(
        self,
        function: Callable[..., Tensor],
        inputs: tuple[Tensor, ...],
        stream: Any,
        rng: torch.Generator | None = None,
    ) -> None:
        self.inputs = tuple(tensor.clone() for tensor in inputs)
        self.stream, self.plays_on = stream, torch.cuda.current_stream(stream.device)
        self.graph: Any = SimpleNamespace(replay=lambda: setattr(self, "output", function(*self.inputs)))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Emulate the streams and graphs of a GPU; `graphs` collects all that are recorded."""
    number = count()
    fake = SimpleNamespace(default=FakeStream("default"), current=FakeStream("default"), graphs=[])

    class CollectedGraph(EmulatedGraph):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            fake.graphs.append(self)

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: fake.current)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: fake.default)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: FakeStream(f"side {next(number)}"))
    monkeypatch.setattr(engines, "StepGraph", CollectedGraph)
    return fake


def learning(seed: int, engine: Engine) -> Generator[None, None, Tensor]:
    """Train a model with dropout, augmentation and random starts, and return its state."""
    recipe = tiny.RECIPES["cifar10/warmup-pla"]
    (stage,) = recipe.stages
    data = tiny.problem(recipe.labels).train
    torch.manual_seed(seed)
    learner = Learner(tiny.TinyNet(), data, replace(stage, epochs=PLAIN + 3))
    yield from fitting(learner, data, replace(stage, epochs=PLAIN + 3), seed=seed, engine=engine)
    return torch.cat([tensor.flatten() for tensor in learner.state().values()]).double()


def in_turn(engines_of_runs: Sequence[Engine], gpu: SimpleNamespace) -> list[Tensor]:
    """Train one model with each engine, each on a stream of its own, and return their states."""
    lanes = [Lane(learning(seed, engine), None) for seed, engine in enumerate(engines_of_runs, 1)]
    streams = [FakeStream(f"lane {number}") for number in range(len(lanes))]
    active = list(zip(lanes, streams, strict=True))
    while active:
        for lane, stream in list(active):
            gpu.current = stream
            if not lane.advance():
                active.remove((lane, stream))
    gpu.current = gpu.default
    outcomes = [lane.outcome for lane in lanes]
    return [outcome for outcome in outcomes if outcome is not None]


def addresses(graph: EmulatedGraph) -> set[int]:
    return {tensor.data_ptr() for tensor in (*graph.inputs, graph.output)}


def test_several_runs_may_use_one_engine_at_once(gpu: SimpleNamespace) -> None:
    shared = Engine("captured", records=True)
    together = in_turn([shared, shared, shared], gpu)
    streams = {graph.plays_on.name: graph.stream.name for graph in gpu.graphs}
    assert streams == {name: name for name in ("lane 0", "lane 1", "lane 2")}  # and so no common workspace
    for one, other in combinations(gpu.graphs, 2):
        assert one.plays_on == other.plays_on or not addresses(one) & addresses(other)
    alone = [in_turn([EAGER] * number, gpu)[-1] for number in (1, 2, 3)]
    assert all(torch.equal(one, other) for one, other in zip(together, alone, strict=True))
    assert not torch.equal(alone[0], alone[1])


def test_functions_that_one_engine_records_for_two_runs_share_no_memory(gpu: SimpleNamespace) -> None:
    engine = Engine("captured", records=True)
    functions = [engine.repeated(lambda x: 2 * x, CPU) for _ in range(2)]
    for _ in range(PLAIN + 1):
        outputs: list[Tensor] = []
        for number, function in enumerate(functions, 1):
            gpu.current = FakeStream(f"lane {number}")
            outputs.append(function(torch.full((3,), float(number))))
    # the second left the output of the first alone
    assert [output.tolist() for output in outputs] == [[2.0] * 3, [4.0] * 3]
    one, other = gpu.graphs
    assert not addresses(one) & addresses(other)
    assert one.stream != other.stream


def test_a_run_on_the_default_stream_records_on_one_stream_of_its_own(gpu: SimpleNamespace) -> None:
    list(learning(1, Engine("captured", records=True)))
    assert {graph.plays_on.name for graph in gpu.graphs} == {"default"}
    assert len(gpu.graphs) > 1
    assert len({graph.stream.name for graph in gpu.graphs}) == 1
    assert gpu.graphs[0].stream.name.startswith("side")


def test_a_graph_is_never_recorded_with_the_workspace_of_a_stream_where_it_does_not_play(
    gpu: SimpleNamespace,
) -> None:
    step = Engine("captured", records=True).whole(
        lambda index, steps, remember: index + steps, torch.Generator()
    )
    streams = [gpu.default, FakeStream("lane 1"), gpu.default]
    for steps, gpu.current in enumerate(streams):
        for _ in range(PLAIN + 1):
            step(torch.zeros(1), steps, False)
    recorded = [(graph.plays_on.name, graph.stream.name) for graph in gpu.graphs]
    assert recorded == [("default", "side 0"), ("lane 1", "lane 1"), ("default", "side 0")]


def test_a_graph_plays_on_no_other_stream(gpu: SimpleNamespace) -> None:
    repeated = Engine("captured", records=True).repeated(lambda x: x + 1, CPU)
    for _ in range(PLAIN + 2):
        repeated(torch.zeros(1))
    gpu.current = FakeStream("of another run")
    with pytest.raises(RuntimeError, match="only on the stream where it was made"):
        repeated(torch.zeros(1))
