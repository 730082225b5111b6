"""A model replayed from CUDA graphs gives the logits of the model itself, for every size, in any order."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from atcl.datasets.truth import Split, Truth
from atcl.engine import replayed_model
from atcl.engine.attack_model import AttackModel
from atcl.engine.replayed_model import Replayed, activation_bytes, replayed, sizes
from atcl.evaluation.attacks import ATTACKS
from atcl.evaluation.evaluate import batch_of, evaluate
from atcl.models import MODELS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and this machine has none"),
]


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another batch size takes other kernels; in tf32 they would differ by what tf32 leaves out."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def model(name: str = "small_cnn") -> nn.Module:
    torch.manual_seed(0)
    net = MODELS[name](10, (1, 28, 28)).cuda().eval().requires_grad_(False)
    for parameter in net.parameters():
        parameter.add_(0.02 * torch.randn_like(parameter))
    return net


def gradient(net: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(net(x).logsumexp(1).sum(), x)
    return found


@pytest.mark.parametrize("name", ["small_cnn", "resnet18", "preact_resnet18", "mlp"])
def test_logits_and_gradients_are_the_models_own_for_every_size(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayed_model, "OFTEN", 1)
    net = model(name)
    quick = Replayed(net, 100)
    for n in (100, 1, 33, 99, 48, 49, 100, 7, 101):  # the last is too many: the model itself computes it
        x = torch.rand(n, 1, 28, 28, device="cuda")
        torch.testing.assert_close(quick(x), net(x), rtol=1e-3, atol=1e-4)
        ours, theirs = gradient(quick, x), gradient(net, x)
        # a unit that another kernel rounds across zero turns its part on or off
        assert float((ours - theirs).norm() / theirs.norm()) < 2e-2
        with torch.no_grad():
            torch.testing.assert_close(quick(x), net(x), rtol=1e-3, atol=1e-4)
    assert {size for _, size, *_ in quick.graphs} == {32, 40, 56, 100} < {*sizes(100)}


def test_a_graph_of_a_larger_size_serves_a_rare_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed_model, "OFTEN", 3)
    net = model()
    quick, kept = Replayed(net, 100), []
    for n in (70, 33, 20, 100, 33, 33, 33):
        x = torch.rand(n, 1, 28, 28, device="cuda")
        torch.testing.assert_close(quick(x), net(x), rtol=1e-3, atol=1e-4)
        kept.append(sorted(size for _, size, *_ in quick.graphs))
    assert kept == [[72], [72], [72], [72, 100], [72, 100], [40, 72, 100], [40, 72, 100]]


def test_what_serves_a_batch_does_not_depend_on_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed_model, "OFTEN", 3)
    quick = Replayed(model(), 100)
    played: list[list[int]] = []
    for before in ([], [40, 40, 40, 40, 72, 72, 72, 100]):
        for n in before:
            quick(torch.rand(n, 1, 28, 28, device="cuda"))
        quick.begin()
        sizes_now = []
        for n in (100, 40, 40, 40, 40):
            found = quick._graph_for(torch.rand(n, 1, 28, 28, device="cuda"))
            assert found is not None
            sizes_now.append(len(found.x))
        played.append(sizes_now)
    assert played == [[100, 100, 100, 40, 40]] * 2


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("name", ["small_cnn", "resnet18"])
def test_fused_kernels_read_nothing_of_the_memory_that_they_write_to(
    name: str, tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    net = model(name)
    attack_model = AttackModel(net, fuse=True, compiles=False)
    x = torch.rand(64, 1, 28, 28, device="cuda").contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(3):
            spoilt = [torch.full((2**size,), torch.nan, device="cuda") for size in range(8, 26)]
            del spoilt  # the allocator hands these out next
            assert attack_model(x).isfinite().all()


def test_normalisations_go_into_the_convolutions_of_what_is_recorded() -> None:
    quick = Replayed(model("resnet18"), 64)
    with torch.no_grad():  # as AutoAttack begins
        quick(torch.rand(8, 1, 28, 28, device="cuda"))
    assert quick.graphs
    assert not any(isinstance(module, nn.BatchNorm2d) for module in quick.fused["fp32"].modules())
    assert any(isinstance(module, nn.BatchNorm2d) for module in quick.model.modules())


@pytest.mark.parametrize("name", ["small_cnn", "resnet18", "preact_resnet18", "mlp"])
def test_graphs_in_fp16_give_the_logits_of_the_model(name: str) -> None:
    net = model(name)
    quick = Replayed(net, 64, half=True)
    for n in (64, 20, 64):
        x = torch.rand(n, 1, 28, 28, device="cuda")
        assert float((quick(x) - net(x)).norm() / net(x).norm()) < 5e-3
        ours, theirs = gradient(quick, x), gradient(net, x)
        assert float((ours - theirs).norm() / theirs.norm()) < 0.2
        assert not quick.strayed(quick(x), net(x))
    assert quick.kind == ("fp32" if name == "mlp" else "fp16")  # fp16 speeds up convolutions alone
    assert {kind for kind, *_ in quick.graphs} == {quick.kind}


def test_gradients_through_fp16_may_be_of_any_length() -> None:
    quick = Replayed(model("resnet18"), 64, half=True)
    x = torch.rand(20, 1, 28, 28, device="cuda").requires_grad_()
    lengths = torch.logspace(-30, 12, 20, device="cuda")
    plain, scaled = (
        torch.autograd.grad((factor * quick(x).logsumexp(1)).sum(), x)[0] for factor in (1, lengths)
    )
    apart = (scaled / lengths.view(-1, 1, 1, 1) - plain).flatten(1).norm(dim=1) / plain.flatten(1).norm(dim=1)
    assert float(apart.max()) < 0.05
    assert quick.kind == "fp16"
    assert not bool(quick.pools["fp16"].overflow)


@pytest.mark.parametrize("in_gradient", [False, True])
@pytest.mark.parametrize("name", ["small_cnn", "resnet18"])
def test_an_overflow_of_fp16_is_noticed_and_the_batch_goes_on_in_fp32(name: str, in_gradient: bool) -> None:
    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model(name)

        def forward(self, x: Tensor) -> Tensor:
            if in_gradient:  # logits stay small where gradients do not
                x = torch.where(x > 1, (x - 1.5) * 1e6 + 0.5, x)
            out: Tensor = self.inner(x)
            return out

    net = Steep().requires_grad_(False)
    quick = Replayed(net, 64, half=True)
    x = torch.rand(20, 1, 28, 28, device="cuda")
    odd = torch.where(torch.rand_like(x) < 0.5, 1.5, x) if in_gradient else 1e5 * x
    for _ in range(2):  # each batch anew
        quick.begin()
        gradient(quick, x)
        assert quick.kind == "fp16"
        assert not quick.strayed(quick(x), net(x))
        gradient(quick, odd)
        gradient(quick, x)  # it is not forgotten meanwhile
        assert quick.strayed(quick(x), net(x))
        torch.testing.assert_close(quick(odd), net(odd), rtol=2e-3, atol=1e-3 * float(net(odd).abs().max()))
    assert {kind for kind, *_ in quick.graphs} == {"fp16", "fp32"}


def test_weights_for_which_fp16_is_too_narrow_are_recorded_in_fp32() -> None:
    net = model("resnet18")
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.fill_(1e-5)  # type: ignore[union-attr]
    quick = Replayed(net, 64, half=True)
    x = torch.rand(20, 1, 28, 28, device="cuda")
    torch.testing.assert_close(quick(x), net(x), rtol=1e-2, atol=1e-2 * float(net(x).abs().max()))
    assert quick.kind == "fp32"
    quick.begin()
    assert quick.kind == "fp32"  # once is enough


def test_autoattack_uses_fp16_and_its_result_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ATTACKS["autoattack"]
    # Square's 5,000 queries take a minute
    monkeypatch.setitem(ATTACKS, "autoattack", replace(whole, passes={"apgd-ce": whole.passes["apgd-ce"]}))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    net = model("resnet18")
    x = torch.rand(100, 1, 28, 28)
    y = net(x.cuda()).argmax(1).cpu()
    found = evaluate(net, x, y, epsilon=0.003, attacks=["natural", "autoattack"], keep=tmp_path, checks=False)
    assert found["autoattack"].attack["crafted"] == "fp16"
    assert "crafted" not in found["natural"].attack
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    plain = evaluate(net, x, y, epsilon=0.003, attacks=["autoattack"], checks=False)["autoattack"]
    assert "crafted" not in plain.attack
    assert 0 < plain.correct < 100
    assert abs(plain.correct - found["autoattack"].correct) <= 3


def test_autoattack_takes_as_many_images_at_a_time_as_there_is_room_for() -> None:
    test = Split(torch.zeros(2, 1, 28, 28, dtype=torch.uint8), Truth(torch.zeros(2, dtype=torch.long), 10))
    few, more, many = (batch_of(model(name), test) for name in ("resnet18", "small_cnn", "mlp"))
    assert 500 <= few <= more <= many == 10_000
    assert not any(size % 500 for size in (few, more, many))
    each = activation_bytes(model("resnet18"), torch.zeros(1, 1, 28, 28, device="cuda"))
    assert few in (500, int(torch.cuda.get_device_properties(0).total_memory / 8 / each) // 500 * 500)


@pytest.mark.parametrize("others", [40, 64, 10])
def test_a_gradient_taken_late_or_twice_is_that_of_its_own_batch(others: int) -> None:
    net = model()
    quick = Replayed(net, 64)
    one, two = (torch.rand(rows, 1, 28, 28, device="cuda").requires_grad_() for rows in (40, others))
    late = quick(one)
    between = quick(two)
    for _ in range(2):
        (found,) = torch.autograd.grad(late.logsumexp(1).sum(), one, retain_graph=True)
        torch.testing.assert_close(found, gradient(net, one.detach()), rtol=1e-3, atol=1e-5)
    (found,) = torch.autograd.grad(between.logsumexp(1).sum(), two)
    torch.testing.assert_close(found, gradient(net, two.detach()), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("half", [False, True])
def test_a_model_that_cannot_be_recorded_is_used_itself(half: bool) -> None:
    class Waiting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x) * (2 if float(x.detach().sum()) > 0 else 1)
            return out

    net = Waiting()
    with replayed(net, 64, half) as quick:
        x = torch.rand(5, 1, 28, 28, device="cuda")
        torch.testing.assert_close(quick(x), net(x))
    assert torch.rand(3, device="cuda").isfinite().all()  # the device goes on


def test_a_model_that_cannot_be_copied_is_used_itself() -> None:
    with warnings.catch_warnings(action="ignore"):  # the older form of this norm is on its way out
        net = nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(9, 3))).cuda()
    with replayed(net, 8) as quick:
        assert quick is net


def test_parameters_are_left_as_they_were_and_numbers_agree() -> None:
    net = model().requires_grad_(True)
    x, y = torch.rand(300, 1, 28, 28), torch.arange(300) % 10
    found = evaluate(net, x, y, epsilon=0.1, batch_size=128)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in net.parameters())
    plain = evaluate(net.cpu(), x, y, epsilon=0.1, batch_size=128)
    for name, one in plain.items():
        assert abs(found[name].correct - one.correct) <= 3, name


@pytest.mark.parametrize("half", [False, True])
def test_a_model_that_mixes_the_images_of_a_batch_is_used_itself(half: bool) -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x - x.mean(0, keepdim=True))
            return out

    net = Mixing()
    quick = Replayed(net, 64, half)
    for rows in (20, 50, 20):
        x = torch.rand(rows, 1, 28, 28, device="cuda")
        torch.testing.assert_close(quick(x), net(x))
    assert not quick.graphs
