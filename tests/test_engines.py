"""Engines are held to each other: the same attack, the same loss, the same gradients, the same random draws."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from atcl.attacks.norms import NORMS
from atcl.attacks.pgd import pgd_step
from atcl.core.errors import AtclError
from atcl.core.precisions import InBf16, Precision
from atcl.data.images import as_float
from atcl.engine import engines
from atcl.engine.attack_model import AttackModel, _agrees, faithful_attack_model, takes_channels_last
from atcl.engine.engines import EAGER, ENGINES, PLAIN, Engine, Part, StepGraph, compiled, engine_of
from atcl.engine.fused_layers import FUSED, STENCIL, TURNED, ReluMaxPool
from atcl.engine.interleaving import Lane
from atcl.losses import Targets
from atcl.models import MODELS, SmallCNN, preact_resnet18, resnet18
from atcl.recipes.costs import passes
from atcl.recipes.schema import Recipe
from atcl.training.learner import Learner
from atcl.training.loop import fit, fitting, loss_and_tally
from atcl.training.objectives import Objective
from atcl.training.stage import Stage
from atcl.training.supervision import PseudoLabels, blank_memory, guesses
from tests import tiny

CPU = torch.device("cpu")

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns of its own compiler


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch.compiler.reset()


def kinds() -> dict[str, tuple[Recipe, Stage]]:
    """One recipe for each kind of step: what is attacked and descended, and how it is supervised."""
    found: dict[tuple[Objective, bool, str], tuple[str, Recipe, Stage]] = {}
    for name, recipe in tiny.RECIPES.items():
        for stage in recipe.stages:
            found.setdefault(
                (stage.objective, isinstance(stage.supervision, PseudoLabels), stage.budget.norm),
                (name, recipe, stage),
            )
    return {
        f"{name}-{number}": (recipe, stage) for number, (name, recipe, stage) in enumerate(found.values())
    }


KINDS = kinds()


def prepared(
    recipe: Recipe, stage: Stage, device: torch.device = CPU
) -> tuple[nn.Module, AttackModel, Tensor, Targets]:
    """A model, its twin, images, and what they are fitted to, as a step of the stage would have them."""
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


def hold_parts(recipe: Recipe, stage: Stage, device: torch.device, run: Callable[[Any], Any]) -> None:
    """One ascent and one descent, run otherwise, do what is written."""
    model, attack_model, x, targets = prepared(recipe, stage, device)
    attack_loss = stage.objective.attack_loss(attack_model, x, targets)
    epsilon, step_size = torch.tensor(0.3, device=device), torch.tensor(0.01, device=device)
    arguments = (
        attack_model,
        x,
        (x + 0.05).clamp(0, 1),
        attack_loss,
        epsilon,
        step_size,
        NORMS[stage.budget.norm],
    )
    plain, quick = pgd_step(*arguments), run(pgd_step)(*arguments)
    assert (plain == quick).float().mean() >= 0.98  # the sign amplifies rounding
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


def said(function: Part, backend: str = "inductor") -> Part:
    """Compile, and fail where that fails."""

    def complain(text: str) -> None:
        raise AssertionError(text)

    return compiled(function, complain, backend)


@pytest.mark.parametrize("name", KINDS)
def test_compiled_parts_do_what_is_written(name: str) -> None:
    whole = name.startswith(
        ("digits/warmup-pla", "digits/trades-1", "digits/direct-free")
    )  # C++ takes long to build
    hold_parts(*KINDS[name], CPU, partial(said, backend="inductor" if whole else "aot_eager"))


def test_positive_control_a_part_that_does_something_else_is_caught() -> None:
    def other(function: Part) -> Part:
        return lambda *arguments: function(*arguments) if len(arguments) == 5 else arguments[1]  # type: ignore[return-value]

    with pytest.raises(AssertionError):
        hold_parts(*next(iter(KINDS.values())), CPU, other)


def test_a_compiled_run_learns_what_the_written_one_learns() -> None:
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
    written, compiled, other = (weight - start for weight in others)
    assert (written - compiled).norm() < 0.1 * written.norm()
    assert (written - other).norm() > 0.3 * written.norm()  # as far as another seed leads


def test_what_cannot_be_compiled_runs_as_it_is_written_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def failing(x: Tensor) -> Tensor:
        raise ValueError("not in a compiler")

    monkeypatch.setattr(torch, "compile", lambda function, **options: failing)
    run: Callable[[Tensor], Tensor] = compiled(lambda x: x + 1, said.append)
    assert [run(torch.tensor(1.0)).item() for _ in range(2)] == [2.0, 2.0]
    assert len(said) == 1
    assert said[0].startswith("not compiled, which is slower and nothing else")


def test_auto_goes_by_device_and_size_and_an_impossible_wish_is_refused() -> None:
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


def test_the_size_of_a_job_counts_passes() -> None:
    recipe = tiny.RECIPES["digits/oracle"]
    assert passes(recipe, 20) == 5 * 3 * (
        3 + 2 * 2
    )  # epochs, batches, update and two attack steps forth and back


class Odd(nn.Module):
    """Convolutions of few and many channels, with and without bias, before normalisations, shared, and on their own."""

    def __init__(self) -> None:
        super().__init__()
        self.few, self.norm = nn.Conv2d(3, 8, (3, 2), padding=(2, 1), bias=False), nn.BatchNorm2d(8)
        self.many, self.plain = nn.Conv2d(8, 8, 3, stride=2), nn.BatchNorm2d(8, affine=False)
        self.twice, self.shared = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.pool, self.last = nn.MaxPool2d(2), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.norm(self.few(x)).relu())
        x = self.plain(self.many(x)).relu()
        x = self.shared(self.twice(x)) + self.shared(self.twice(x + 1))
        return self.last(x.mean((2, 3)))  # type: ignore[no-any-return]


def lived_in(model: nn.Module) -> nn.Module:
    """A model with statistics that no fresh one has."""
    for _ in range(3):
        model.train()(torch.rand(8, 3, 17, 19))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.01)
    return model.eval()


@pytest.mark.parametrize("compiles", [True, False])
@pytest.mark.parametrize(
    "build", [Odd, lambda: resnet18(4), lambda: preact_resnet18(4), lambda: SmallCNN(4, (3, 17, 19))]
)
def test_a_settled_twin_is_its_model(build: Callable[[], nn.Module], compiles: bool) -> None:
    torch.manual_seed(0)
    model = build()
    attack_model = AttackModel(model, settle=True, compiles=compiles)
    lived_in(model)
    attack_model.follow()
    x = torch.rand(2, 3, 17, 19, requires_grad=True)
    ours, theirs = attack_model(x), model(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        *(torch.autograd.grad(out.square().sum(), x)[0] for out in (ours, theirs)), rtol=1e-3, atol=1e-3
    )
    assert len(attack_model.settled) >= 2


@pytest.mark.parametrize("size", [(6, 8), (5, 8), (6, 7)])
def test_relu_and_pooling_as_one_give_the_librarys_values_and_slopes(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x = torch.randint(-2, 3, (3, 5, *size)).float().requires_grad_()  # whole numbers: many are equal
    ours, theirs = ReluMaxPool()(x), F.max_pool2d(F.relu(x), 2)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    upstream = torch.randn_like(ours)
    torch.testing.assert_close(
        *(torch.autograd.grad(out, x, upstream)[0] for out in (ours, theirs)), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    ("pool", "same"), [(nn.MaxPool2d(2), True), (nn.MaxPool2d((2, 2), stride=2), True), (nn.MaxPool2d(2, 1), False), (nn.MaxPool2d(3, 2), False),
                       (nn.MaxPool2d(2, padding=1), False), (nn.MaxPool2d(2, ceil_mode=True), False), (nn.AvgPool2d(2), False)],
)  # fmt: skip
def test_only_pooling_by_two_is_drawn_together_with_its_relu(pool: nn.Module, same: bool) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), pool, nn.Flatten(), nn.LazyLinear(3))
    x = torch.rand(2, 1, 11, 11)
    model(x)
    attack_model = AttackModel(model, settle=True)
    assert any(isinstance(module, ReluMaxPool) for module in attack_model.modules()) == same
    torch.testing.assert_close(attack_model(x), model(x))


def test_the_network_of_the_paper_is_settled_as_a_whole() -> None:
    attack_model = AttackModel(SmallCNN(10), settle=True)
    assert [(one.form, one.relu) for one in attack_model.settled] == [
        (STENCIL, True),
        (TURNED, False),
        (TURNED, True),
    ]
    assert sum(isinstance(module, ReluMaxPool) for module in attack_model.modules()) == 2


def test_a_twin_is_compared_with_its_model_whether_or_not_gradients_are_asked_for() -> None:
    model, x = resnet18(4), torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        assert _agrees(model, x, "fp32", settle=True, compiles=False)


def test_without_a_compiler_kernels_of_the_library_do_as_much_as_they_can() -> None:
    """Of the 20 convolutions of a ResNet-18 only the three of shortcuts are left without a ReLU, and no sum and no normalisation stands alone."""
    attack_model = AttackModel(resnet18(4), settle=True, compiles=False)
    assert {one.form for one in attack_model.settled} == {FUSED}
    assert [one.relu for one in attack_model.settled].count(False) == 3
    assert not any(isinstance(module, nn.BatchNorm2d) for module in attack_model.modules())
    assert isinstance(attack_model.model, fx.GraphModule)
    left = [node.target for node in attack_model.model.graph.nodes if node.op != "call_module"]
    assert left == ["x", torch.mean, "output"]
    assert all(one.relu for one in AttackModel(SmallCNN(10), settle=True, compiles=False).settled)


class Summing(nn.Module):
    """Sums before ReLUs, written in every way, of which some must stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(8))
        self.relu, self.last = nn.ReLU(), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        one, two, three, four, five, six, seven, eight = self.layers
        x = torch.relu(x + one(x))  # joined, the convolution last
        out = two(x)
        out += x
        x = self.relu(out)  # joined, in place
        left = x.clone()
        left.add_(three(x))  # in place of what is used again
        x = left.relu() + left
        x = F.relu(four(x)) + four(x + 1)  # one layer, twice
        out = five(x)
        x = F.relu(out + x) - out  # needed once more
        out = six(x)
        x = (out + out).relu()  # with itself
        x = torch.add(seven(x), x, alpha=2).relu()  # not a plain sum
        x = self.relu(eight(x) + 1)  # with a number
        return self.last(x.mean((2, 3)))  # type: ignore[no-any-return]


class Constant(nn.Module):
    """Tensors that are neither parameters nor buffers, which tracing makes buffers of."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.layer, self.last = torch.full((1, 3, 1, 1), 0.3), nn.Conv2d(3, 4, 3), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.layer((x - self.mean) * torch.tensor(2.0)))
        return self.last(out.mean((2, 3)))  # type: ignore[no-any-return]


class Optional(nn.Module):
    """A branch that tracing takes, and no call does; without it the normalisation can still be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x if mask is None else x * mask
        return self.last(F.relu(self.norm(self.layer(x))).mean((2, 3)))  # type: ignore[no-any-return]


class Wide(nn.Module):
    """Sums with what has another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.shift, self.last = nn.Parameter(torch.ones(1, 3, 1, 1)), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x) + self.shift)
        x = F.relu(self.two(x) + x.mean((2, 3), keepdim=True))
        x = F.relu(self.three(x.mean((2, 3), keepdim=True)) + x)  # the convolution is the smaller
        return self.last(x.mean((2, 3)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("build", "joins"), [(Constant, True), (Optional, False), (Wide, True)])
def test_a_model_that_tracing_changes_is_still_asked_in_its_own_way(
    build: Callable[[], nn.Module], joins: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model, x = build().eval(), torch.rand(2, 3, 6, 6, requires_grad=True)
    assert _agrees(model, x, "fp32", settle=True, compiles=False, joins=True) == joins
    assert _agrees(model, x, "fp32", settle=True, compiles=False, joins=False)
    assert capsys.readouterr().err == ""
    attack_model = AttackModel(model, settle=True, compiles=False, joins=joins)
    ours, theirs = attack_model(x), model(x)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), x)[0] for out in (ours, theirs)))


def test_sums_are_drawn_into_convolutions_only_where_nothing_else_needs_them() -> None:
    torch.manual_seed(0)
    model, x = Summing().eval(), torch.rand(2, 3, 6, 6, requires_grad=True)
    attack_model = AttackModel(model, settle=True, compiles=False)
    assert [one.relu for one in attack_model.settled] == [True, True, *[False] * 6]
    ours, theirs = attack_model(x), model(x)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), x)[0] for out in (ours, theirs)))


def test_what_cannot_be_traced_or_folded_stays_as_it_is() -> None:
    model = Odd()
    assert {
        name
        for name, module in AttackModel(model, settle=True).named_modules()
        if isinstance(module, nn.BatchNorm2d)
    } == {"model.shared"}

    class Looking(Odd):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if float(x.sum()) > 0 else super().forward(-x)

    looking = Looking()
    attack_model = AttackModel(looking, settle=True)
    assert all(one.sources[1] is None for one in attack_model.settled)
    x = torch.rand(2, 3, 9, 9)
    torch.testing.assert_close(attack_model(x), looking.eval()(x))


class Aliased(Odd):
    """One convolution under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.again = self.few

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.norm(self.again(x)).relu())
        return self.last(self.plain(self.many(x)).mean((2, 3)))  # type: ignore[no-any-return]


class Hooked(Odd):
    """A hook on a layer, which a layer in its place would not have."""

    def __init__(self) -> None:
        super().__init__()
        self.few.register_forward_hook(lambda module, inputs, out: out * 3)


class Inspecting(Odd):
    """A forward pass that looks at the weights of its layers."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.few.weight.abs().sum() * self.norm.weight.sum()


class Viewing(Odd):
    """A forward pass that counts on one layout."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.few(x))
        return self.last(out.view(len(x), -1)[:, :8])  # type: ignore[no-any-return]


@pytest.mark.parametrize("build", [Odd, Aliased, Hooked, Inspecting, Viewing])
def test_whatever_a_model_does_its_faithful_twin_does_too(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = build(), torch.rand(4, 3, 17, 19)
    settled = _agrees(model, x, "fp32", settle=True)
    assert settled or build not in (Odd, Aliased)
    assert not settled or build not in (Hooked, Inspecting)
    assert _agrees(model, x, "fp32", settle=False)
    attack_model = AttackModel(model, settle=settled)
    lived_in(model)
    attack_model.follow()
    torch.testing.assert_close(attack_model(x), model(x), rtol=1e-3, atol=1e-3)
    assert takes_channels_last(model, x) == (build is not Viewing)


@pytest.mark.parametrize("name", ["tiny_cnn", "small_cnn", "resnet18", "preact_resnet18", "mlp"])
def test_the_networks_of_the_paper_get_the_fastest_twin(name: str) -> None:
    torch.manual_seed(0)
    shape = (1, 28, 28) if name == "small_cnn" else (3, 16, 16)
    model, x = MODELS[name](10, shape), torch.rand(4, *shape)
    assert _agrees(model, x, "fp32", settle=True)
    assert _agrees(model, x, "bf16", settle=True)
    assert takes_channels_last(model, x)


class Constant32(nn.Module):
    """Constants of its own in fp32, which bf16 layers do not take."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mean = nn.Linear(12, 4), torch.full((), 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer((x - self.mean.expand(1)).flatten(1))  # type: ignore[no-any-return]


def test_a_model_that_does_not_compute_in_bf16_is_looked_at_in_fp32_and_that_is_said() -> None:
    heard: list[str] = []
    attack_model = faithful_attack_model(Constant32(), "bf16", torch.rand(2, 3, 2, 2), heard.append)
    assert (attack_model.kind, attack_model.dtype) == ("fp32", torch.float32)
    assert heard == ["the model does not compute in bf16: the attack looks at it in fp32"]
    assert (
        faithful_attack_model(tiny.TinyNet(), "bf16", torch.rand(2, *tiny.SHAPE), heard.append).dtype
        == torch.bfloat16
    )
    assert len(heard) == 1


def test_a_twin_follows_in_its_own_precision_and_leaves_statistics_whole() -> None:
    model = tiny.TinyNet()
    attack_model = AttackModel(model, "bf16")
    x = torch.rand(8, *tiny.SHAPE)
    for _ in range(2):
        model.train()(x).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        attack_model.follow()
        logits = attack_model(x)
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, model.eval()(x), rtol=0.05, atol=0.05)
    assert {tensor.dtype for tensor in attack_model.parameters()} == {torch.bfloat16, torch.float32}
    assert {name: tensor.dtype for name, tensor in attack_model.named_buffers()}[
        "model.layers.1.running_var"
    ] == torch.float32
    assert not any(tensor.requires_grad for tensor in attack_model.parameters())


def test_a_precision_that_is_none_is_refused() -> None:
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
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {
        torch.float32
    }


@dataclass(frozen=True)
class FakeStream:
    """What a stream of a GPU is for an engine: a name and a device."""

    name: str
    device: torch.device = CPU


class Emulated(StepGraph):
    """A recording on a CPU: where a graph would be replayed, the function is called anew on the tensors that the recording reads."""

    def __init__(
        self,
        function: Callable[..., Tensor],
        given: tuple[Tensor, ...],
        stream: Any,
        rng: torch.Generator | None = None,
    ) -> None:
        self.given = tuple(tensor.clone() for tensor in given)
        self.stream, self.plays_on = stream, torch.cuda.current_stream(stream.device)
        self.graph: Any = SimpleNamespace(replay=lambda: setattr(self, "answer", function(*self.given)))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A device with streams as PyTorch tells of them; `made` are the recordings of a test."""
    number = count()
    fake = SimpleNamespace(default=FakeStream("default"), current=FakeStream("default"), made=[])

    class Noted(Emulated):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            fake.made.append(self)

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: fake.current)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: fake.default)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: FakeStream(f"side {next(number)}"))
    monkeypatch.setattr(engines, "StepGraph", Noted)
    return fake


def learning(seed: int, engine: Engine) -> Generator[None, None, Tensor]:
    """Train a model with dropout, augmentation and random starts, and return all that it has learnt."""
    recipe = tiny.RECIPES["cifar10/warmup-pla"]
    (stage,) = recipe.stages
    data = tiny.problem(recipe.labels).train
    torch.manual_seed(seed)
    learner = Learner(tiny.TinyNet(), data, replace(stage, epochs=PLAIN + 3))
    yield from fitting(learner, data, replace(stage, epochs=PLAIN + 3), seed=seed, engine=engine)
    return torch.cat([tensor.flatten() for tensor in learner.state().values()]).double()


def taking_turns(engines_of_runs: Sequence[Engine], gpu: SimpleNamespace) -> list[Tensor]:
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


def test_one_engine_may_serve_several_runs_at_once(gpu: SimpleNamespace) -> None:
    shared = Engine("captured", records=True)
    together = taking_turns([shared, shared, shared], gpu)
    used = {recording.plays_on.name: recording.stream.name for recording in gpu.made}
    assert used == {
        f"lane {number}": f"lane {number}" for number in range(3)
    }  # no two share a stream, and so no workspace
    alone = [taking_turns([EAGER] * number, gpu)[-1] for number in (1, 2, 3)]
    assert all(torch.equal(one, other) for one, other in zip(together, alone, strict=True))
    assert not torch.equal(alone[0], alone[1])


def test_a_run_alone_records_beside_the_default_stream(gpu: SimpleNamespace) -> None:
    list(learning(1, Engine("captured", records=True)))
    assert {recording.plays_on.name for recording in gpu.made} == {"default"}
    assert len(gpu.made) > 1
    assert len({recording.stream.name for recording in gpu.made}) == 1
    assert gpu.made[0].stream.name.startswith("side")


def test_a_recording_plays_on_no_other_stream(gpu: SimpleNamespace) -> None:
    repeated = Engine("captured", records=True).repeated(lambda x: x + 1, CPU)
    for _ in range(PLAIN + 2):
        repeated(torch.zeros(1))
    gpu.current = FakeStream("of another run")
    with pytest.raises(RuntimeError, match="only on the stream where it was made"):
        repeated(torch.zeros(1))
