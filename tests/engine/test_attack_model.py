"""Copies that attacks use give the logits and gradients of their model, fused or not, in every precision."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from atcl.engine.attack_model import AttackModel, _agrees, faithful_attack_model, takes_channels_last
from atcl.engine.fused_layers import FLIPPED, FUSED, STENCIL, ReluMaxPool
from atcl.models import MODELS, SmallCNN, preact_resnet18, resnet18
from tests import tiny


class Odd(nn.Module):
    """Convolutions of few and many channels, with and without bias and normalisation, shared or not."""

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


def with_statistics(model: nn.Module) -> nn.Module:
    """Return the model in eval mode, with other weights and statistics than a new one has."""
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
def test_a_fused_copy_gives_the_logits_and_gradients_of_its_model(
    build: Callable[[], nn.Module], compiles: bool
) -> None:
    torch.manual_seed(0)
    model = build()
    attack_model = AttackModel(model, fuse=True, compiles=compiles)
    with_statistics(model)
    attack_model.follow()
    x = torch.rand(2, 3, 17, 19, requires_grad=True)
    ours, theirs = attack_model(x), model(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        *(torch.autograd.grad(out.square().sum(), x)[0] for out in (ours, theirs)), rtol=1e-3, atol=1e-3
    )
    assert len(attack_model.fused) >= 2


@pytest.mark.parametrize("size", [(6, 8), (5, 8), (6, 7)])
def test_relu_and_pooling_in_one_give_the_librarys_values_and_gradients(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x = torch.randint(-2, 3, (3, 5, *size)).float().requires_grad_()  # whole numbers: many pixels are equal
    ours, theirs = ReluMaxPool()(x), F.max_pool2d(F.relu(x), 2)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    upstream = torch.randn_like(ours)
    torch.testing.assert_close(
        *(torch.autograd.grad(out, x, upstream)[0] for out in (ours, theirs)), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    ("pool", "merged"),
    [
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d((2, 2), stride=2), True),
        (nn.MaxPool2d(2, 1), False),
        (nn.MaxPool2d(3, 2), False),
        (nn.MaxPool2d(2, padding=1), False),
        (nn.MaxPool2d(2, ceil_mode=True), False),
        (nn.AvgPool2d(2), False),
    ],
)
def test_only_max_pooling_by_two_is_merged_with_its_relu(pool: nn.Module, merged: bool) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), pool, nn.Flatten(), nn.LazyLinear(3))
    x = torch.rand(2, 1, 11, 11)
    model(x)
    attack_model = AttackModel(model, fuse=True)
    assert any(isinstance(module, ReluMaxPool) for module in attack_model.modules()) == merged
    torch.testing.assert_close(attack_model(x), model(x))


def test_every_layer_of_the_papers_small_network_is_fused() -> None:
    attack_model = AttackModel(SmallCNN(10), fuse=True)
    assert [(layer.form, layer.relu) for layer in attack_model.fused] == [
        (STENCIL, True),
        (FLIPPED, False),
        (FLIPPED, True),
    ]
    assert sum(isinstance(module, ReluMaxPool) for module in attack_model.modules()) == 2


def test_a_copy_is_compared_with_its_model_even_where_gradients_are_switched_off() -> None:
    model, x = resnet18(4), torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        assert _agrees(model, x, "fp32", fuse=True, compiles=False)


def test_without_a_compiler_the_librarys_kernels_compute_relus_and_sums_too() -> None:
    """Of the 20 convolutions of a ResNet-18, only those of the three shortcuts compute no ReLU."""
    attack_model = AttackModel(resnet18(4), fuse=True, compiles=False)
    assert {layer.form for layer in attack_model.fused} == {FUSED}
    assert [layer.relu for layer in attack_model.fused].count(False) == 3
    assert not any(isinstance(module, nn.BatchNorm2d) for module in attack_model.modules())
    assert isinstance(attack_model.model, fx.GraphModule)
    others = [node.target for node in attack_model.model.graph.nodes if node.op != "call_module"]
    assert others == ["x", torch.mean, "output"]  # no sum and no normalisation is left
    assert all(layer.relu for layer in AttackModel(SmallCNN(10), fuse=True, compiles=False).fused)


class Summing(nn.Module):
    """Sums before ReLUs, written in every way; some of them no convolution may compute."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(8))
        self.relu, self.last = nn.ReLU(), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        one, two, three, four, five, six, seven, eight = self.layers
        x = torch.relu(x + one(x))  # fused, the convolution comes last
        out = two(x)
        out += x
        x = self.relu(out)  # fused, in place
        left = x.clone()
        left.add_(three(x))  # in place, and used again
        x = left.relu() + left
        x = F.relu(four(x)) + four(x + 1)  # one layer, twice
        out = five(x)
        x = F.relu(out + x) - out  # the convolution's output is used again
        out = six(x)
        x = (out + out).relu()  # with itself
        x = torch.add(seven(x), x, alpha=2).relu()  # not a plain sum
        x = self.relu(eight(x) + 1)  # with a number
        return self.last(x.mean((2, 3)))  # type: ignore[no-any-return]


class Constant(nn.Module):
    """Tensors that are neither parameters nor buffers; tracing turns them into buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.layer, self.last = torch.full((1, 3, 1, 1), 0.3), nn.Conv2d(3, 4, 3), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.layer((x - self.mean) * torch.tensor(2.0)))
        return self.last(out.mean((2, 3)))  # type: ignore[no-any-return]


class Optional(nn.Module):
    """A branch that tracing takes and no call does; without tracing, the normalisation can still be fused."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x if mask is None else x * mask
        return self.last(F.relu(self.norm(self.layer(x))).mean((2, 3)))  # type: ignore[no-any-return]


class Wide(nn.Module):
    """Sums with tensors of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.shift, self.last = nn.Parameter(torch.ones(1, 3, 1, 1)), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x) + self.shift)
        x = F.relu(self.two(x) + x.mean((2, 3), keepdim=True))
        x = F.relu(self.three(x.mean((2, 3), keepdim=True)) + x)  # the convolution is the smaller
        return self.last(x.mean((2, 3)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("build", "traces"), [(Constant, True), (Optional, False), (Wide, True)])
def test_a_model_that_tracing_would_change_is_not_traced(
    build: Callable[[], nn.Module], traces: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model, x = build().eval(), torch.rand(2, 3, 6, 6, requires_grad=True)
    assert _agrees(model, x, "fp32", fuse=True, compiles=False, traces=True) == traces
    assert _agrees(model, x, "fp32", fuse=True, compiles=False, traces=False)
    assert capsys.readouterr().err == ""
    attack_model = AttackModel(model, fuse=True, compiles=False, traces=traces)
    ours, theirs = attack_model(x), model(x)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), x)[0] for out in (ours, theirs)))


def test_a_convolution_computes_a_sum_only_where_nothing_else_uses_its_terms() -> None:
    torch.manual_seed(0)
    model, x = Summing().eval(), torch.rand(2, 3, 6, 6, requires_grad=True)
    attack_model = AttackModel(model, fuse=True, compiles=False)
    assert [layer.relu for layer in attack_model.fused] == [True, True, *[False] * 6]
    ours, theirs = attack_model(x), model(x)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), x)[0] for out in (ours, theirs)))


def test_layers_that_cannot_be_traced_or_fused_stay_unchanged() -> None:
    model = Odd()
    modules = AttackModel(model, fuse=True).named_modules()
    assert {name for name, module in modules if isinstance(module, nn.BatchNorm2d)} == {"model.shared"}

    class Branching(Odd):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if float(x.sum()) > 0 else super().forward(-x)

    branching = Branching()
    attack_model = AttackModel(branching, fuse=True)
    assert all(layer.sources[1] is None for layer in attack_model.fused)
    x = torch.rand(2, 3, 9, 9)
    torch.testing.assert_close(attack_model(x), branching.eval()(x))


class Aliased(Odd):
    """One convolution under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.again = self.few

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.norm(self.again(x)).relu())
        return self.last(self.plain(self.many(x)).mean((2, 3)))  # type: ignore[no-any-return]


class Hooked(Odd):
    """A layer with a hook, which a fused layer in its place would not have."""

    def __init__(self) -> None:
        super().__init__()
        self.few.register_forward_hook(lambda module, inputs, out: out * 3)


class Inspecting(Odd):
    """A forward pass that reads the weights of its layers."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.few.weight.abs().sum() * self.norm.weight.sum()


class Viewing(Odd):
    """A forward pass that works in one memory layout alone."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.few(x))
        return self.last(out.view(len(x), -1)[:, :8])  # type: ignore[no-any-return]


@pytest.mark.parametrize("build", [Odd, Aliased, Hooked, Inspecting, Viewing])
def test_a_copy_is_fused_only_where_it_agrees_with_its_model(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = build(), torch.rand(4, 3, 17, 19)
    fuses = _agrees(model, x, "fp32", fuse=True)
    assert fuses or build not in (Odd, Aliased)
    assert not fuses or build not in (Hooked, Inspecting)
    assert _agrees(model, x, "fp32", fuse=False)
    attack_model = AttackModel(model, fuse=fuses)
    with_statistics(model)
    attack_model.follow()
    torch.testing.assert_close(attack_model(x), model(x), rtol=1e-3, atol=1e-3)
    assert takes_channels_last(model, x) == (build is not Viewing)


@pytest.mark.parametrize("name", ["tiny_cnn", "small_cnn", "resnet18", "preact_resnet18", "mlp"])
def test_the_networks_of_the_paper_get_the_fastest_copy(name: str) -> None:
    torch.manual_seed(0)
    shape = (1, 28, 28) if name == "small_cnn" else (3, 16, 16)
    model, x = MODELS[name](10, shape), torch.rand(4, *shape)
    assert _agrees(model, x, "fp32", fuse=True)
    assert _agrees(model, x, "bf16", fuse=True)
    assert takes_channels_last(model, x)


class Constant32(nn.Module):
    """A constant in fp32, which bf16 layers do not accept."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mean = nn.Linear(12, 4), torch.full((), 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer((x - self.mean.expand(1)).flatten(1))  # type: ignore[no-any-return]


def test_a_model_that_does_not_compute_in_bf16_is_attacked_in_fp32_and_the_user_is_notified() -> None:
    messages: list[str] = []
    attack_model = faithful_attack_model(Constant32(), "bf16", torch.rand(2, 3, 2, 2), messages.append)
    assert (attack_model.kind, attack_model.dtype) == ("fp32", torch.float32)
    assert messages == ["the model does not compute in bf16: the attack uses a copy in fp32"]
    attack_model = faithful_attack_model(tiny.TinyNet(), "bf16", torch.rand(2, *tiny.SHAPE), messages.append)
    assert attack_model.dtype == torch.bfloat16
    assert len(messages) == 1


def test_a_copy_follows_its_model_in_its_own_precision_and_keeps_statistics_in_fp32() -> None:
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
    statistics = dict(attack_model.named_buffers())["model.layers.1.running_var"]
    assert statistics.dtype == torch.float32
    assert not any(tensor.requires_grad for tensor in attack_model.parameters())
