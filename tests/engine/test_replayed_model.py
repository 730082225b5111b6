"""AutoAttack may use a copy of the model in fp16 that CUDA graphs replay: it is as good, or that is noticed.

A CPU emulates the graphs here; tests/gpu records them.
"""

import gc
import json
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atcl.attacks.threat import Threat
from atcl.datasets.sources import digits
from atcl.engine import cuda_graphs, replayed_model
from atcl.engine.attack_model import AttackModel, faithful_attack_model
from atcl.engine.cuda_graphs import GraphPool, ModelGraph, agrees, gradient_of, note
from atcl.engine.replayed_model import Replayed
from atcl.evaluation import evaluate as evaluation
from atcl.evaluation.attacks import ATTACKS, Attack
from atcl.evaluation.cache import EvaluationCache
from atcl.evaluation.evaluate import attacks_in_fp16, measure, withstood
from atcl.models import MODELS

THREAT = Threat(0.05, 0.01)


class Headed(nn.Module):
    """A convolution with a head of one's choice."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 8, 3, padding=1), head

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.body(x).relu().mean((2, 3), keepdim=True)
        out: Tensor = self.head(pooled.flatten(1) if isinstance(self.head, nn.Linear) else pooled)
        return out.flatten(1)


def test_convolutions_compute_in_fp16_and_the_logits_keep_their_digits() -> None:
    torch.manual_seed(0)
    model, x = MODELS["resnet18"](10, (3, 32, 32)).eval(), torch.rand(64, 3, 32, 32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        attack_model = faithful_attack_model(model, "fp16", x[:2], compiles=False)
        ours, theirs = attack_model(x), model(x)
    assert attack_model.kind == "fp16"
    assert {one.forward_weight.dtype for one in attack_model.fused} == {torch.float16}
    assert float((ours - theirs).norm() / theirs.norm()) < 5e-3
    assert not torch.equal(ours, ours.half().float())


@pytest.mark.parametrize(("head", "kind"), [(nn.Linear(8, 4), "fp16"), (nn.Conv2d(8, 4, 1), "fp32")])
def test_a_model_whose_logits_would_be_fp16_is_attacked_in_fp32(head: nn.Module, kind: str) -> None:
    model, x, messages = Headed(head), torch.rand(2, 1, 8, 8), list[str]()
    assert faithful_attack_model(model, "fp16", x, messages.append, compiles=False).kind == kind
    message = "the model does not compute in fp16: the attack uses a copy in fp32"
    assert messages == ([] if kind == "fp16" else [message])


def test_each_image_has_its_gradient_however_large_those_of_others_are() -> None:
    model = net()
    x, weights = torch.rand(12, 1, 8, 8).requires_grad_(), torch.randn(12, 10)
    lengths = torch.tensor([*(10.0**power for power in range(-30, 12, 4)), 1e-43])[:, None]
    attack_model = AttackModel(model, "fp16", fuse=True, compiles=False)
    pool = GraphPool(None, torch.tensor(False))  # type: ignore[arg-type]
    found = gradient_of(attack_model(x), x, weights * lengths, pool)
    note(found, pool)
    assert not bool(pool.overflow)
    (plain,) = torch.autograd.grad(model(x), x, weights)
    # a unit that fp16 rounds across zero turns its part on or off
    apart = (found[:-1] / lengths[:-1, :, None, None] - plain[:-1]).flatten(1).norm(dim=1)
    assert bool((apart < 0.15 * plain[:-1].flatten(1).norm(dim=1)).all())
    note(gradient_of(attack_model(x), x, weights * torch.inf, pool), pool)
    assert bool(pool.overflow)


def test_an_overflow_or_logits_far_from_the_models_own_turn_a_batch_to_fp32_and_no_other() -> None:
    logits = 3 * torch.randn(20, 10)
    moved, lost = logits.clone(), logits.clone()
    moved[7, 3] += 5
    lost[7, 3] = torch.nan
    for ours, overflow, expected in [
        (logits + 0.01, False, False),
        (logits + 100, False, False),
        (logits, True, True),
        (moved, False, True),
        (lost, False, True),
    ]:
        quick = Replayed(nn.Linear(2, 2), 20, half=True)
        quick.pools["fp16"] = GraphPool(None, torch.tensor(overflow))  # type: ignore[arg-type]
        assert (quick.kind, quick.strayed(ours, logits)) == ("fp16", expected)
        assert quick.kind == ("fp32" if expected else "fp16")
        assert quick.strayed(lost, logits) == (not expected)  # there is nothing after fp32
        quick.begin()
        assert (quick.kind, bool(quick.pools["fp16"].overflow)) == ("fp16", False)


class Emulated(Replayed):
    """Graphs on a CPU: each replay computes anew, from the tensors that a CUDA graph would read."""

    def _fits(self, x: Tensor) -> bool:
        return 0 < len(x) <= self.sizes[-1]


@dataclass
class Graph:
    replay: Callable[[], None]


@pytest.fixture
def _emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(model: nn.Module, like: Tensor, pool: GraphPool) -> ModelGraph:
        live: list[Tensor] = []

        def forward() -> None:
            with torch.enable_grad():
                live[:] = [leaf := made.x.detach().clone().requires_grad_(), model(leaf)]
            note(live[1], pool)
            made.logits.copy_(live[1].detach())

        def backward() -> None:
            found = gradient_of(live[1], live[0], made.upstream, pool)
            note(found, pool)
            made.gradient.copy_(found)

        logits = model(like).detach()
        made = ModelGraph(
            like.clone(),
            logits,
            torch.zeros_like(logits),
            torch.zeros_like(like),
            Graph(forward),  # type: ignore[arg-type]
            Graph(backward),  # type: ignore[arg-type]
            pool,
        )
        return made

    monkeypatch.setattr(replayed_model, "record", record)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())


def net(name: str = "tiny_cnn") -> nn.Module:
    torch.manual_seed(0)
    made = MODELS[name](10, (1, 8, 8)).eval().requires_grad_(False)
    for parameter in made.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def slope(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(model(x).logsumexp(1).sum(), x)
    return found


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize(("name", "kind"), [("tiny_cnn", "fp16"), ("mlp", "fp32")])
def test_graphs_give_the_logits_of_the_model_in_fp16_where_there_are_convolutions(
    name: str, kind: str
) -> None:
    model = net(name)
    quick = Emulated(model, 100, half=True)
    for n in (100, 20, 70, 100):
        x = torch.rand(n, 1, 8, 8)
        assert float((quick(x) - model(x)).norm() / model(x).norm()) < 5e-3
        assert float((slope(quick, x) - slope(model, x)).norm() / slope(model, x).norm()) < 0.1
        assert not quick.strayed(quick(x), model(x))
    assert (quick.kind, {precision for precision, *_ in quick.graphs}) == (kind, {kind})


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("in_gradient", [False, True])
def test_an_overflow_of_fp16_is_noticed_once_for_its_batch(in_gradient: bool) -> None:
    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x: Tensor) -> Tensor:
            if in_gradient:  # logits stay small where the gradient does not
                x = torch.where(x > 1, (x - 1.5) * 1e6 + 0.5, x)
            out: Tensor = self.inner(x)
            return out

    model = Steep()
    quick, x, more = Emulated(model, 40, half=True), torch.rand(20, 1, 8, 8), torch.rand(30, 1, 8, 8)
    # more images than in the next batch: the overflow also lies in rows that the next does not fill
    odd = torch.where(torch.rand_like(more) < 0.5, 1.5, more) if in_gradient else 1e5 * more
    for _ in range(2):
        quick.begin()
        slope(quick, x)
        assert not quick.strayed(quick(x), model(x))
        slope(quick, odd)
        slope(quick, x)
        assert quick.strayed(quick(x), model(x))
        torch.testing.assert_close(quick(odd), model(odd), rtol=1e-3, atol=1e-4)
        assert {precision for precision, *_ in quick.in_use} == {"fp32"}
    assert {precision for precision, *_ in quick.graphs} == {"fp16", "fp32"}


def images(rows: int) -> Tensor:
    return torch.rand(rows, 1, 8, 8)


def batch(quick: Replayed, model: nn.Module, *rows: int) -> tuple[str, bool]:
    """Attack a batch in parts of such sizes; return its last precision, and whether it must start again."""
    quick.begin()
    for number in rows:
        x = images(number)
        torch.testing.assert_close(quick(x), model(x), rtol=1e-2, atol=1e-2)
    return quick.kind, quick.strayed(quick(x), model(x))


@pytest.mark.usefixtures("_emulated")
def test_fp16_is_given_up_where_recording_fails_and_a_batch_begun_in_it_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replayed_model, "OFTEN", 1)
    recorded: Any = vars(replayed_model)["record"]
    monkeypatch.setattr(
        replayed_model,
        "record",
        lambda *given: None if given[2].overflow is not None and len(given[1]) > 40 else recorded(*given),
    )
    model = net()
    quick = Emulated(model, 100, half=True)
    assert batch(quick, model, 20) == ("fp16", False)
    assert batch(quick, model, 20, 90) == ("fp32", True)
    recorded_in = [precision for precision, *_ in quick.graphs]
    assert {*recorded_in, *quick.fused, *quick.pools} == {"fp32"}  # no memory of fp16 is kept
    assert batch(quick, model, 20, 90) == ("fp32", False)
    # nothing was computed in fp16 yet
    assert batch(Emulated(model, 100, half=True), model, 90, 20) == ("fp32", False)


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("later", [False, True])
def test_a_size_that_disagrees_in_fp16_turns_every_batch_of_it_to_fp32_whatever_came_before(
    later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayed_model, "OFTEN", 1)
    made: list[weakref.ref[ModelGraph]] = []

    def agreeing(one: ModelGraph, model: nn.Module) -> bool:
        return agrees(one, model) and not (one.pool.overflow is not None and (not later or len(one.x) > 40))

    def recording(*given: Any) -> Any:
        gc.collect()  # the emulated graph refers to itself
        assert given[2].overflow is not None or not any(one() for one in made)  # its memory is free again
        found = recorded(*given)
        made.extend([weakref.ref(found)] if given[2].overflow is not None and len(found.x) > 40 else [])
        return found

    recorded: Any = vars(replayed_model)["record"]
    monkeypatch.setattr(replayed_model, "record", recording)
    monkeypatch.setattr(replayed_model, "agrees", agreeing)
    model = net()
    batches = [(20,), (20, 90), (90,), (20,), (20, 90)]
    expected = [
        ("fp16" if later and 90 not in rows else "fp32", later and rows == (20, 90)) for rows in batches
    ]
    quick = Emulated(model, 100, half=True)
    assert [batch(quick, model, *rows) for rows in batches] == expected
    # a new copy for each, as after an interruption
    assert [batch(Emulated(model, 100, half=True), model, *rows) for rows in batches] == expected
    assert len(made) > 1


@pytest.mark.usefixtures("_emulated")
def test_a_batch_begun_in_fp16_begins_again_also_where_fp32_cannot_be_recorded_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replayed_model, "OFTEN", 1)
    monkeypatch.setattr(replayed_model, "agrees", lambda one, model: agrees(one, model) and len(one.x) <= 40)
    model = net()
    quick = Emulated(model, 100, half=True)
    assert batch(quick, model, 20, 90) == ("fp32", True)
    assert not quick.graphs


class Viewing(nn.Module):
    """A model that works in one memory layout alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6 * 6 * 6, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).relu().view(-1, 6 * 6 * 6))
        return out


class Asserting(Viewing):
    """The same, with an assertion instead of an error of `view`."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.is_contiguous()
        return super().forward(x)


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    "build", [Viewing, Asserting, lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.Flatten(), nn.Linear(216, 10))]
)
def test_a_model_that_depends_on_its_memory_layout_keeps_it(
    build: Callable[[], nn.Module], half: bool
) -> None:
    torch.manual_seed(0)
    model, x = build().eval().requires_grad_(False), torch.rand(20, 3, 8, 8)
    quick = Emulated(model, 40, half)
    with torch.no_grad():
        quick(x)
    assert float((slope(quick, x) - slope(model, x)).norm() / slope(model, x).norm()) < 0.1
    name, *_ = dict(model.named_parameters())
    first = quick.model.get_parameter(name)
    channels_last = first.is_contiguous(memory_format=torch.channels_last)
    assert channels_last is (not isinstance(model, Viewing))
    assert all(one is not None for one in quick.graphs.values())


def test_a_model_that_draws_random_numbers_on_the_host_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Random(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flip(1) if random.random() < 0.5 else x

    monkeypatch.setattr(cuda_graphs, "host_sync", lambda mode: nullcontext())
    x, pool = torch.rand(2, 3).requires_grad_(), GraphPool(None)  # type: ignore[arg-type]
    models = (nn.Identity(), Random(), nn.Dropout().eval())
    assert [cuda_graphs._passes(model, x, "error", pool) for model in models] == [True, False, True]


def test_a_model_that_cannot_be_copied_is_used_itself() -> None:
    class Locked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    assert replayed_model._replayed_or_none(Locked(), 10, False) is None
    assert replayed_model._replayed_or_none(nn.Identity(), 10, False) is not None


@pytest.mark.usefixtures("_emulated")
def test_a_gradient_taken_late_or_twice_is_that_of_its_own_batch_and_logits_stay() -> None:
    model = net()
    quick, one, two = Emulated(model, 64), images(40).requires_grad_(), images(30).requires_grad_()
    late, expected = quick(one), model(one)
    kept = late.detach().clone()
    between = quick(two)
    with torch.no_grad():
        alone = quick(images(20))
        seen = alone.clone()
        quick(images(20))
    assert torch.equal(alone, seen)
    assert torch.equal(late, kept)
    for _ in range(2):
        (found,), (plain,) = (
            torch.autograd.grad(logits.logsumexp(1).sum(), one, retain_graph=True)
            for logits in (late, expected)
        )
        torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-5)
    before = found.clone()
    torch.autograd.grad(between.logsumexp(1).sum(), two)
    assert torch.equal(found, before)


@pytest.mark.usefixtures("_emulated")
def test_weights_whose_gradients_vanish_in_fp16_are_recorded_in_fp32() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8)
    first, second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3)
    model = nn.Sequential(first, nn.ReLU(), second, norm, nn.Flatten(), nn.Linear(128, 10))
    model.eval().requires_grad_(False)
    norm.weight.fill_(1e-7)
    norm.bias.fill_(1.0)  # logits that hardly depend on the images: only their gradient shows it
    # the check with other weights notices nothing
    assert faithful_attack_model(model, "fp16", torch.rand(2, 1, 8, 8), compiles=False).kind == "fp16"
    quick, x = Emulated(model, 40, half=True), torch.rand(20, 1, 8, 8)
    torch.testing.assert_close(slope(quick, x), slope(model, x), rtol=1e-3, atol=1e-11)
    assert quick.kind == "fp32"


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("largest", [40, 1000])
def test_a_model_that_mixes_the_images_of_a_batch_is_used_itself(half: bool, largest: int) -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x - x.mean(0, keepdim=True))
            return out

    model = Mixing()
    quick = Emulated(model, largest, half)
    for rows in (largest, 20, 30):
        x = torch.rand(rows, 1, 8, 8)
        torch.testing.assert_close(quick(x), model(x), rtol=1e-4, atol=1e-5)
    assert not quick.graphs
    assert quick.kind == "fp32"


class Narrow(Replayed):
    """Stands in for CUDA graphs: in fp16 the logits of images with a bright corner are NaN."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, 10, half=True)
        self.pools["fp16"] = GraphPool(None, torch.tensor(False))  # type: ignore[arg-type]
        self.seen: list[tuple[str, int]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((self.kind, len(x)))
        logits: Tensor = self.model(x)
        return torch.where((x[:, :, 0, 0] > 0.99) & (self.kind == "fp16"), torch.nan, logits)


@pytest.mark.parametrize("name", ["natural", "pgd20"])
def test_a_batch_that_fp16_fails_on_is_attacked_again_in_fp32(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    test = digits().test.take(slice(30))
    test.x[:, :, 0, 0], test.x[13, :, 0, 0] = 0, 255  # the second batch of three
    quick = Narrow(model)

    @contextmanager
    def stand_in(*_: Any) -> Iterator[nn.Module]:
        yield quick

    monkeypatch.setattr(evaluation, "replayed", stand_in)
    monkeypatch.setattr(evaluation, "attacks_in_fp16", lambda attack, device: attack.half)
    attack, threat = replace(ATTACKS[name], half=True), replace(THREAT, epsilon=0.005)
    cache = EvaluationCache(tmp_path, {"attack": name})
    found, _ = withstood(model, test, threat, name, attack, 0, 10, cache)
    monkeypatch.undo()
    attack, nowhere = replace(attack, half=False), EvaluationCache(None, {})
    plain, _ = withstood(model, test, threat, name, attack, 0, 10, nowhere)
    assert torch.equal(found, plain)
    assert [cache.lines[name, number]["crafted"] for number in range(3)] == ["fp16", "fp32", "fp16"]
    assert cache.attack_precision == "fp16 and fp32"
    assert {kind for kind, number in quick.seen} == {"fp16", "fp32"}


def test_evaluations_in_fp16_are_cached_apart_and_earlier_ones_still_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    test, number = digits().test.take(slice(6)), 0

    def half(attack: Attack, device: torch.device) -> bool:
        return attack.half

    def passes(attack: Attack) -> Attack:
        def counting(*given: Any) -> Tensor:
            nonlocal number
            number += 1
            out: Tensor = given[1]
            return out

        return replace(attack, passes={"one": counting})

    monkeypatch.setitem(ATTACKS, "autoattack", passes(ATTACKS["autoattack"]))
    old = measure(model, test, THREAT, ["autoattack"], keep=tmp_path)["autoattack"]
    assert ("crafted" in old.attack, number) == (False, 1)
    monkeypatch.setattr(evaluation, "attacks_in_fp16", half)
    found = measure(model, test, THREAT, ["natural"], keep=tmp_path, extend=True)
    assert (set(found), number) == ({"natural", "autoattack", "worst"}, 1)
    assert "crafted" not in found["autoattack"].attack
    new = measure(model, test, THREAT, ["autoattack"], keep=tmp_path)["autoattack"]
    assert (new.attack["crafted"], number) == ("fp32", 2)  # a CPU has no CUDA graphs
    tops = [
        json.loads(path.read_text(encoding="utf-8").splitlines()[0])
        for path in sorted(tmp_path.glob("autoattack-*"))
    ]
    assert sorted("half" in top for top in tops) == [False, True]
    again = measure(model, test, THREAT, ["natural"], keep=tmp_path, extend=True)
    assert (again["autoattack"].attack.get("crafted"), number) == ("fp32", 2)


def test_only_autoattack_uses_fp16_and_no_attack_does_on_a_cpu() -> None:
    assert [name for name, attack in ATTACKS.items() if attack.half] == ["autoattack"]
    assert not any(attacks_in_fp16(attack, torch.device("cpu")) for attack in ATTACKS.values())
