"""AutoAttack may look at a copy of the model in fp16: what is as good as the model, and what is noticed where it is not. Recordings: tests/gpu."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atcl import verdicts
from atcl.acceleration import Replayed
from atcl.attacks import Threat
from atcl.books import Book
from atcl.data import digits
from atcl.evaluation import ATTACKS, Attack
from atcl.models import MODELS
from atcl.recordings import Tape, gradient_of, note
from atcl.twins import Twin, faithful_twin
from atcl.verdicts import looks_at_half, measure, withstood

THREAT = Threat(0.05, 0.01)


class Headed(nn.Module):
    """A convolution with a head of one's choice."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 8, 3, padding=1), head

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).relu().mean((2, 3), keepdim=True).flatten(1 if isinstance(self.head, nn.Linear) else 4))
        return out.flatten(1)


def test_convolutions_compute_in_fp16_and_the_logits_keep_their_digits() -> None:
    torch.manual_seed(0)
    model, x = MODELS["resnet18"](10, (3, 32, 32)).eval(), torch.rand(64, 3, 32, 32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        twin = faithful_twin(model, "fp16", x[:2], compiles=False)
        ours, theirs = twin(x), model(x)
    assert (twin.kind, {one.forth.dtype for one in twin.settled}) == ("fp16", {torch.float16})
    assert float((ours - theirs).norm() / theirs.norm()) < 5e-3
    assert not torch.equal(ours, ours.half().float())


@pytest.mark.parametrize(("head", "kind"), [(nn.Linear(8, 4), "fp16"), (nn.Conv2d(8, 4, 1), "fp32")])
def test_a_model_that_would_answer_in_fp16_is_looked_at_in_fp32(head: nn.Module, kind: str) -> None:
    heard: list[str] = []
    assert faithful_twin(Headed(head), "fp16", torch.rand(2, 1, 8, 8), heard.append, compiles=False).kind == kind
    assert heard == ([] if kind == "fp16" else ["the model does not compute in fp16: the attack looks at it in fp32"])


def test_each_image_has_its_gradient_however_long_those_of_others_are() -> None:
    torch.manual_seed(0)
    net = MODELS["tiny_cnn"](10, (1, 8, 8)).eval().requires_grad_(False)
    for parameter in net.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    x, weights = torch.rand(12, 1, 8, 8).requires_grad_(), torch.randn(12, 10)
    lengths = torch.tensor([*(10.0**power for power in range(-30, 12, 4)), 1e-43])[:, None]
    twin = Twin(net, "fp16", settle=True, compiles=False)
    tape = Tape(None, torch.tensor(False))  # type: ignore[arg-type]
    found = gradient_of(twin(x), x, weights * lengths, tape)
    note(found, tape)
    assert not bool(tape.overflow)
    (plain,) = torch.autograd.grad(net(x), x, weights)
    # a unit that fp16 rounds across zero turns its part on or off
    apart = (found[:-1] / lengths[:-1, :, None, None] - plain[:-1]).flatten(1).norm(dim=1)
    assert bool((apart < 0.15 * plain[:-1].flatten(1).norm(dim=1)).all())
    note(gradient_of(twin(x), x, weights * torch.inf, tape), tape)
    assert bool(tape.overflow)


def test_an_overflow_or_logits_far_from_the_models_own_turn_a_batch_to_fp32_and_no_other() -> None:
    logits = 3 * torch.randn(20, 10)
    moved, lost = logits.clone(), logits.clone()
    moved[7, 3] += 5
    lost[7, 3] = torch.nan
    for ours, overflow, expected in [
        (logits + 0.01, False, False), (logits + 100, False, False), (logits, True, True), (moved, False, True), (lost, False, True),
    ]:  # fmt: skip
        quick = Replayed(nn.Linear(2, 2), 20, half=True)
        quick.tapes["fp16"] = Tape(None, torch.tensor(overflow))  # type: ignore[arg-type]
        assert (quick.kind, quick.strayed(ours, logits)) == ("fp16", expected)
        assert quick.kind == ("fp32" if expected else "fp16")
        assert quick.strayed(lost, logits) == (not expected)  # there is nothing after fp32
        quick.begin()
        assert (quick.kind, bool(quick.tapes["fp16"].overflow)) == ("fp16", False)


def test_a_batch_in_which_fp16_was_given_up_half_way_is_attacked_again() -> None:
    quick, logits = Replayed(nn.Linear(2, 2), 20, half=True), torch.randn(4, 10)
    quick._give_up_fp16()
    assert not quick.strayed(logits, logits)  # it had answered nothing yet
    quick = Replayed(nn.Linear(2, 2), 20, half=True)
    quick.recordings["fp16", 20, 2] = quick.recordings["fp32", 20, 2] = None
    quick._give_up_fp16()
    assert list(quick.recordings) == [("fp32", 20, 2)]
    assert (quick.kind, [quick.strayed(logits, logits) for _ in range(2)]) == ("fp32", [True, False])
    quick.begin()
    assert quick.kind == "fp32"


class Narrow(Replayed):
    """Stands in for recordings: in fp16 it answers nonsense to pictures with a bright corner."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, 10, half=True)
        self.tapes["fp16"] = Tape(None, torch.tensor(False))  # type: ignore[arg-type]
        self.seen: list[tuple[str, int]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((self.kind, len(x)))
        logits: Tensor = self.model(x)
        return torch.where((x[:, :, 0, 0] > 0.99) & (self.kind == "fp16"), torch.nan, logits)


@pytest.mark.parametrize("name", ["natural", "pgd20"])
def test_a_batch_that_fp16_led_astray_is_attacked_again_in_fp32(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    test = digits().test.take(slice(30))
    test.x[:, :, 0, 0], test.x[13, :, 0, 0] = 0, 255  # the second batch of three
    quick = Narrow(model)

    @contextmanager
    def stand_in(*_: Any) -> Iterator[nn.Module]:
        yield quick

    monkeypatch.setattr(verdicts, "replayed", stand_in)
    monkeypatch.setattr(verdicts, "looks_at_half", lambda attack, device: attack.half)
    attack = replace(ATTACKS[name], half=True)
    book = Book(tmp_path, {"attack": name})
    found, _ = withstood(model, test, replace(THREAT, epsilon=0.005), name, attack, 0, 10, book)
    monkeypatch.undo()
    plain, _ = withstood(model, test, replace(THREAT, epsilon=0.005), name, replace(attack, half=False), 0, 10, Book(None, {}))
    assert torch.equal(found, plain)
    assert [book.lines[name, number]["crafted"] for number in range(3)] == ["fp16", "fp32", "fp16"]
    assert book.crafted == "fp16 and fp32"
    assert {kind for kind, number in quick.seen} == {"fp16", "fp32"}


def test_verdicts_in_fp16_lie_apart_from_others_and_those_of_before_still_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(verdicts, "looks_at_half", half)
    found = measure(model, test, THREAT, ["natural"], keep=tmp_path, extend=True)
    assert (set(found), number) == ({"natural", "autoattack", "worst"}, 1)
    assert "crafted" not in found["autoattack"].attack
    new = measure(model, test, THREAT, ["autoattack"], keep=tmp_path)["autoattack"]
    assert (new.attack["crafted"], number) == ("fp32", 2)  # a CPU has no recordings
    tops = [json.loads(path.read_text().splitlines()[0]) for path in sorted(tmp_path.glob("autoattack-*"))]
    assert sorted("half" in top for top in tops) == [False, True]
    again = measure(model, test, THREAT, ["natural"], keep=tmp_path, extend=True)
    assert (again["autoattack"].attack.get("crafted"), number) == ("fp32", 2)


def test_only_autoattack_looks_at_fp16_and_nothing_does_on_a_cpu() -> None:
    assert [name for name, attack in ATTACKS.items() if attack.half] == ["autoattack"]
    assert not any(looks_at_half(attack, torch.device("cpu")) for attack in ATTACKS.values())
