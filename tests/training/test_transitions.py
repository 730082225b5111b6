"""Estimating the transition matrix from weak labels alone, where the classes can be learnt."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor, nn

from atcl.core.errors import AtclError
from atcl.data.weak import WeakData
from atcl.datasets.labels import Biased, Complementary, Drawn, RandomSets, weaken
from atcl.datasets.truth import Split, Truth
from atcl.losses import uniform_transition
from atcl.training.optimizers import Adam
from atcl.training.schedules import Constant
from atcl.training.stage import Stage
from atcl.training.transitions import crossed, estimated_transition, soft_counts

CLASSES = 5
STAGE = Stage(epochs=12, batch_size=100, optimizer=Adam(), lr=Constant(0.2))


def stripes(n: int = 2000) -> Split:
    """Images of five pixels, the one of the class brighter than the noise."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % CLASSES
    x = 0.5 * torch.rand(n, 1, 1, CLASSES, generator=rng)
    x[torch.arange(n), 0, 0, labels] += 0.5
    return Split(x, Truth(labels, CLASSES))


def build() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(CLASSES, CLASSES))


def weak(source: Drawn, n: int = 2000) -> WeakData:
    return replace(weaken(stripes(n), source, 1), transition=None)


def error(estimate: Tensor, source: Drawn) -> float:
    return float((estimate - source.shares(CLASSES)).abs().mean())


@pytest.fixture
def biased(tmp_path: Path) -> Biased:
    """A bias that still lets every class be learnt: the labels of a class fall off around the circle."""
    rows = [torch.tensor([0.0, 0.4, 0.3, 0.2, 0.1]).roll(true).tolist() for true in range(CLASSES)]
    (tmp_path / "matrix.json").write_text(
        json.dumps([[round(share, 1) for share in row] for row in rows]), encoding="utf-8"
    )
    return Biased(str(tmp_path / "matrix.json"))


def test_the_estimate_is_far_nearer_to_the_matrix_than_the_uniform_one(biased: Biased) -> None:
    uniform = error(uniform_transition(CLASSES), biased)
    first, refined = (
        estimated_transition(weak(biased), build, seed=0, stage=STAGE, refinements=number)
        for number in (0, 2)
    )
    assert error(first, biased) < 0.5 * uniform
    assert error(refined, biased) < 0.25 * uniform
    for estimate in (first, refined):
        assert torch.allclose(estimate.sum(1), torch.ones(CLASSES))
        assert estimate.diagonal().eq(0).all()


def test_uniform_labels_are_found_to_be_uniform() -> None:
    estimate = estimated_transition(weak(Complementary()), build, seed=0, stage=STAGE)
    assert error(estimate, Complementary()) < 0.01


def test_wrong_labels_show_on_the_diagonal_where_they_are_allowed() -> None:
    data = weak(Complementary(wrong=0.05))
    estimate = estimated_transition(data, build, seed=0, stage=STAGE, noisy=True)
    # too high rather than too low: classes that the models cannot separate count as noise
    assert 0.02 < float(estimate.diagonal().mean()) < 0.15
    assert estimated_transition(data, build, seed=0, stage=STAGE).diagonal().eq(0).all()


def test_the_estimate_follows_from_the_seed_alone_and_fits_the_data(biased: Biased) -> None:
    data = weak(biased, 300)
    state = torch.get_rng_state()
    one, two, other = (estimated_transition(data, build, seed=seed, stage=STAGE) for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(state, torch.get_rng_state())
    replace(data, transition=one)


def test_no_image_is_predicted_by_a_model_trained_on_its_label() -> None:
    data = weak(Complementary(), 40)
    plain = crossed(data, build, STAGE, seed=0)
    half = torch.randperm(40, generator=Generator().manual_seed(0)).chunk(2)[0]
    label = data.candidates.clone()
    label[half] = label[half].roll(1, dims=1)
    changed = crossed(replace(data, candidates=label), build, STAGE, seed=0)
    same = (plain == changed).all(1)
    assert same[half].all()
    assert not same.all()


def test_soft_counts_add_up_to_the_labels() -> None:
    data = weak(Complementary(), 100)
    predicted = torch.rand(100, CLASSES, generator=Generator().manual_seed(0)).softmax(1)
    counts = soft_counts(predicted, data.candidates, uniform_transition(CLASSES))
    assert torch.allclose(counts.sum(0), data.candidates.logical_not().sum(0).float())
    assert counts.diagonal().eq(0).all()
    sure = data.candidates.logical_not().float()  # a model that is sure of the class that was ruled out
    assert soft_counts(sure, data.candidates, uniform_transition(CLASSES)).isfinite().all()


def test_several_labels_and_bad_settings_are_refused() -> None:
    with pytest.raises(AtclError, match="exactly one complementary label"):
        estimated_transition(weak(RandomSets(), 50), build, seed=0)
    with pytest.raises(AtclError, match="at least 2 images and 0 refinements"):
        estimated_transition(weak(Complementary(), 50), build, seed=0, refinements=-1)
