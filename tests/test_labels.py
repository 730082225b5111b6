import math

import numpy as np
import pytest
import torch
from torch import Generator

from atcl.batches import WeakData, rule_out
from atcl.errors import AtclError
from atcl.labels import LABELS, Complementary, Ordinary, RandomSets, weaken
from tests.tiny import split

TRUE = torch.arange(10).repeat(3000)


@pytest.mark.parametrize("kind", LABELS)
def test_the_true_class_is_never_ruled_out(kind: str, rng: Generator) -> None:
    candidates = LABELS[kind]()(TRUE, 10, rng)
    assert candidates.gather(1, TRUE[:, None]).all()
    assert (candidates.sum(1) < 10).all()


@pytest.mark.parametrize("number", [1, 3, 9])
def test_each_wrong_class_is_ruled_out_equally_often(number: int, rng: Generator) -> None:
    candidates = Complementary(number)(TRUE, 10, rng)
    assert (candidates.sum(1) == 10 - number).all()
    for true in range(10):
        share = (~candidates[true == TRUE]).float().mean(0)
        expected = number / 9
        error = math.sqrt(expected * (1 - expected) / 3000)
        wrong = torch.arange(10) != true
        assert ((share[wrong] - expected).abs() <= 4.5 * error + 1e-9).all()


def test_sizes_of_random_sets_follow_the_official_code(rng: Generator) -> None:
    size = (~RandomSets()(TRUE, 10, rng)).sum(1)
    for number in range(1, 10):
        expected = math.comb(10, number) / (2**10 - 2)
        assert abs(float((size == number).float().mean()) - expected) <= 4.5 * math.sqrt(expected * (1 - expected) / len(TRUE))
    assert float(size.float().mean()) == pytest.approx(5.0, abs=0.05)


def test_ordinary_labels_leave_one_candidate(rng: Generator) -> None:
    assert torch.equal(Ordinary()(TRUE, 10, rng).int().argmax(1), TRUE)


def test_labels_follow_from_the_seed_alone() -> None:
    state = torch.get_rng_state()
    one, two, other = (weaken(split(), Complementary(), seed).candidates for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("number", [0, -1, 5, 6])
def test_as_many_labels_as_classes_are_refused(number: int) -> None:
    with pytest.raises(AtclError, match="give 1 to 4"):
        weaken(split(), Complementary(number), 0)


def test_rule_out_one_or_several() -> None:
    assert rule_out(2, 3, [0, 2]).tolist() == [[False, True, True], [True, True, False]]
    assert rule_out(2, 3, torch.tensor([0, 2])).tolist() == [[False, True, True], [True, True, False]]
    assert rule_out(2, 3, np.array([0, 2])).tolist() == [[False, True, True], [True, True, False]]
    assert rule_out(2, 3, [np.int64(0), np.uint8(2)]).tolist() == [[False, True, True], [True, True, False]]
    assert rule_out(2, 4, np.array([[0, 1], [3, 3]])).tolist() == [[False, False, True, True], [True, True, True, False]]
    assert rule_out(2, 4, [[0, 1], [3]]).tolist() == [[False, False, True, True], [True, True, True, False]]
    with pytest.raises(AtclError, match="image 1 has complementary label 3"):
        rule_out(2, 3, [0, 3])
    for nonsense in ([0, 1.5], [0, "1"], [0, None]):
        with pytest.raises(AtclError, match="image 1 has complementary label"):
            rule_out(2, 3, nonsense)
    with pytest.raises(AtclError, match="3 images"):
        rule_out(3, 3, [0, 1])


X = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
GOOD = rule_out(2, 3, [0, 1])


@pytest.mark.parametrize(
    ("x", "candidates", "message"),
    [
        (X[:1], GOOD, r"candidates are \(1, K\)"),
        (X[:, 0], GOOD, r"shape \(n, C, H, W\)"),
        (X, GOOD.float(), "of type bool"),
        (X.float() + 2, GOOD, r"floats in \[0, 1\]"),
        (X.long(), GOOD, r"got torch.int64"),
        ([["a"]], GOOD, "array of numbers"),
        (X.float() * torch.nan, GOOD, r"floats in \[0, 1\]"),
        (X, torch.tensor([[True, False, True], [False, False, False]]), "image 1 has every class ruled out"),
        (X, torch.tensor([[True, True, True], [False, True, True]]), "image 0 has no class ruled out"),
        (X[:0], GOOD[:0], "nothing to train on"),
    ],
)
def test_bad_training_data_are_refused(x: torch.Tensor, candidates: torch.Tensor, message: str) -> None:
    with pytest.raises(AtclError, match=message):
        WeakData(x, candidates)


@pytest.mark.parametrize(
    ("transition", "message"),
    [
        (torch.ones(2, 2) / 2, r"is \(3, 3\)"),
        (torch.tensor([[0, 2.0, -1], [0.5, 0, 0.5], [0.5, 0.5, 0]]), "no negative"),
        (torch.ones(3, 3), "sums to 1"),
        (torch.tensor([[0, 0, 1.0], [0, 0, 1], [0, 0, 1]]), "class 0 is a complementary label"),
    ],
)
def test_bad_transition_matrices_are_refused(transition: torch.Tensor, message: str) -> None:
    with pytest.raises(AtclError, match=message):
        WeakData(X, GOOD, transition)


def test_arrays_are_taken_for_tensors() -> None:
    data = WeakData(X.numpy(), GOOD.numpy(), np.array([[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]))  # type: ignore[arg-type]
    assert torch.equal(data.x, X)
    assert data.transition is not None
    assert data.transition.dtype == torch.float32


def test_prior_is_the_share_of_each_complementary_label() -> None:
    data = WeakData(X.repeat(2, 1, 1, 1), rule_out(4, 3, [0, 0, 1, 0]))
    assert data.prior().tolist() == pytest.approx([0.75, 0.25, 0])
