"""Scores from held-out complementary labels, compared with those from true labels."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from atcl.attacks.threat import Threat
from atcl.core.errors import AtclError
from atcl.data.weak import WeakData, rule_out
from atcl.datasets.labels import Complementary, LabelSource, Ordinary, RandomSets, weaken
from atcl.evaluation.evaluate import measure
from atcl.runs.result import Selection
from atcl.runs.start import train
from atcl.training.selection import RULES, Best, Rule, chosen_epoch
from atcl.training.weak_validation import accuracy, inside_candidates, judge, scel, unbiased_accuracy, ure
from tests import tiny

CLASSES = 5
THREAT = Threat(0.1, 0.02)


def weak(candidates: Tensor, transition: Tensor | None = None) -> WeakData:
    return WeakData(torch.zeros(len(candidates), 1, 1, 1, dtype=torch.uint8), candidates, transition)


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("true", range(CLASSES))
def test_over_all_sets_of_labels_the_estimate_is_the_loss_of_the_true_class(
    true: int, number: int, rng: Generator
) -> None:
    sets = list(itertools.combinations([label for label in range(CLASSES) if label != true], number))
    loss = torch.rand(1, CLASSES, generator=rng).expand(len(sets), -1)
    estimates = unbiased_accuracy(loss, weak(rule_out(len(sets), CLASSES, sets)))
    torch.testing.assert_close(estimates.mean(), loss[0, true])


@pytest.mark.parametrize("true", range(3))
def test_under_a_transition_matrix_too(true: int, rng: Generator) -> None:
    transition = torch.tensor([[0.1, 0.3, 0.6], [0.5, 0.0, 0.5], [0.7, 0.25, 0.05]])
    loss = torch.rand(1, 3, generator=rng).expand(3, -1)
    estimates = unbiased_accuracy(loss, weak(rule_out(3, 3, [0, 1, 2]), transition))
    torch.testing.assert_close(transition[true] @ estimates, loss[0, true])


def test_scores_by_hand() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]])
    held = weak(rule_out(2, 3, [0, 0]))
    p = logits.softmax(1)
    assert inside_candidates(logits, held).tolist() == [1, 0]
    torch.testing.assert_close(scel(logits, held), -(1 - p[:, 0]).log())
    torch.testing.assert_close(ure(logits, held), -p.log().sum(1) + 2 * p[:, 0].log())
    assert accuracy(logits, held).tolist() == [1, -1]  # a label that is hit counts K - 1 times


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """A network that has learnt a part of the images."""
    torch.manual_seed(0)
    net = tiny.TinyNet()
    train = tiny.split(60, seed=7)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(net(train.x.float() / 255), train.truth.labels).backward()
        optimizer.step()
    return net.eval()


@pytest.mark.parametrize("labels", [Complementary(), Complementary(3), RandomSets(), Ordinary()])
def test_the_estimated_accuracy_is_the_true_one_up_to_chance(model: nn.Module, labels: LabelSource) -> None:
    split = tiny.split(3000, seed=8)
    found = judge(model, weaken(split, labels, seed=1), THREAT)["accuracy_natural"]
    (true,) = measure(model, split, THREAT, ["natural"]).values()
    assert 30 < true.accuracy < 99.9
    error = 0 if labels == Ordinary() else 100 * (found.error or 0)
    assert abs(100 * found.mean - true.accuracy) <= 4 * error + 1e-9
    assert found.images == 3000


def test_an_attack_of_radius_zero_changes_no_score(model: nn.Module) -> None:
    found = judge(model, weaken(tiny.split(100, seed=9), Complementary(), 0), Threat(0.0, 0.1))
    for score in ("inside", "scel", "ure", "accuracy"):
        assert found[f"{score}_natural"] == found[f"{score}_attacked"]
    assert found["withstands"] == found["inside_natural"]
    assert found["robust"] == found["accuracy_natural"]


def test_no_miss_among_a_few_images_is_no_certainty_and_one_image_no_error() -> None:
    class Right(tiny.TinyNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 0 + 9 * F.one_hot(x.mean((1, 3)).argmax(1), tiny.CLASSES)

    few = judge(Right().eval(), weaken(tiny.split(30), Complementary(), 0), Threat(0.0, 0.05))
    assert few["accuracy_natural"].mean == 1
    assert 0.05 < (few["accuracy_natural"].error or 0) < 0.3
    one = judge(Right().eval(), weaken(tiny.split(1), Complementary(), 0), Threat(0.0, 0.05))
    assert one["scel_natural"].error is None


def test_a_model_that_always_predicts_the_same_withstands_but_is_not_robust() -> None:
    class Stubborn(tiny.TinyNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 0 + torch.eye(tiny.CLASSES)[0]

    found = judge(Stubborn().eval(), weaken(tiny.split(2000, seed=9), Complementary(), 0), Threat(0.1, 0.05))
    assert found["withstands"].mean == pytest.approx(0.8, abs=0.05)
    assert found["robust"].mean == pytest.approx(0.2, abs=4 * (found["robust"].error or 0))


def test_a_stronger_attack_lowers_what_withstands(model: nn.Module) -> None:
    held = weaken(tiny.split(200, seed=9), Complementary(), 0)
    shares = [judge(model, held, Threat(epsilon, 0.1))["withstands"].mean for epsilon in (0.0, 0.1, 0.5)]
    assert shares[0] > shares[1] > shares[2]


def test_the_model_is_left_as_it_was_and_the_batch_size_does_not_matter_to_natural_scores(
    model: nn.Module,
) -> None:
    held = weaken(tiny.split(50, seed=9), Complementary(), 0)
    model.train()
    before, state = [tensor.clone() for tensor in model.state_dict().values()], torch.get_rng_state()
    one, two = judge(model, held, THREAT, batch_size=50), judge(model, held, THREAT, batch_size=7)
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(old, new) for old, new in zip(before, model.state_dict().values(), strict=True))
    assert one["scel_natural"].mean == pytest.approx(two["scel_natural"].mean)
    model.eval()


def test_a_model_that_returns_nan_is_refused(model: nn.Module) -> None:
    class Broken(tiny.TinyNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * torch.nan

    with pytest.raises(AtclError, match="not finite"):
        judge(Broken(), weaken(tiny.split(10), Complementary(), 0), THREAT)


PLAIN = replace(tiny.RECIPES["digits/warmup-pla"], holdout=0.3)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule])
def test_every_rule_keeps_the_epoch_that_its_journal_shows_as_best(name: str, tmp_path: Path) -> None:
    rule = RULES[name]
    assert rule
    run = train(
        replace(PLAIN, selection=name),
        out=tmp_path,
        problem=tiny.problem(PLAIN.labels),
        build=tiny.TinyNet,
        execution=tiny.ON_CPU,
    )
    measured = {record["epoch"]: record[rule.key] for record in run.journal}
    competing = {epoch: value for epoch, value in measured.items() if rule.on == "test" or epoch >= 4}
    assert [PLAIN.stages[0].grown(epoch) for epoch in measured] == [False, False, False, True, True]
    result = run.result
    precision = "fp32" if name == "test_pgd20" else None
    assert result.selection == Selection(name, 0, chosen_epoch(rule, competing), precision)
    assert result.held["withstands"].images == 6
    if rule.on == "held":  # the kept weights are those of that epoch
        assert result.held[rule.metric].mean == pytest.approx(measured[result.selection.epoch])
    else:
        assert result.metrics[rule.metric].accuracy == max(measured.values())


def test_a_teacher_can_be_chosen_without_truth(tmp_path: Path) -> None:
    plain = tiny.RECIPES["digits/two-stage"]
    stages = (replace(plain.stages[0], epochs=6), replace(plain.stages[1], teacher="held_scel_natural"))
    wanted = replace(plain, stages=stages, holdout=0.3)
    assert wanted.needs == {"held"}
    assert not wanted.uses_test_truth
    run = train(
        wanted, out=tmp_path, problem=tiny.problem(plain.labels), build=tiny.TinyNet, execution=tiny.ON_CPU
    )
    assert run.result.selection.rule == "last"


def test_held_out_images_are_not_trained_on_and_follow_from_the_seed() -> None:
    problem = tiny.problem(Complementary())
    one, two, other = (problem.held_out(0.25, seed) for seed in (1, 1, 2))
    assert one.held is not None
    assert other.held is not None
    assert one.truth is not None
    assert (len(one.train), len(one.held), len(one.truth.labels)) == (15, 5, 15)
    assert one.fingerprints() == two.fingerprints() != other.fingerprints()
    everything = torch.cat([one.train.x, one.held.x]).flatten(1).tolist()
    assert sorted(everything) == sorted(problem.train.x.flatten(1).tolist())
    stripe = one.train.x.float().mean((1, 3)).argmax(1)  # the brightest row is the true class
    assert torch.equal(stripe, one.truth.labels)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"holdout": 0.0, "selection": "held_scel_natural"}, "set holdout"),
        ({"holdout": 0.01}, "leave some on both sides"),
        ({"holdout": 0.99}, "leave some on both sides"),
        ({"holdout": 1.0}, r"in \[0, 1\)"),
        ({"selection": "held_scel"}, "did you mean"),
    ],
)
def test_a_holdout_that_cannot_be_is_refused(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(AtclError, match=message):
        train(
            replace(PLAIN, **changes),  # type: ignore[arg-type]
            out=tmp_path / "run",
            problem=tiny.problem(PLAIN.labels),
            build=tiny.TinyNet,
            execution=tiny.ON_CPU,
        )
    assert not (tmp_path / "run").exists()


def test_best_keeps_the_first_of_equals_and_minds_the_direction() -> None:
    net = nn.Linear(1, 1)
    for smallest, epoch in ((False, 2), (True, 3)):
        best = Best(Rule("held", "scel_natural", "", smallest))
        for number, value in enumerate([0.5, 0.9, 0.1, 0.9, 0.1], 1):
            best.see(value, number, net)
        assert best.epoch == epoch
