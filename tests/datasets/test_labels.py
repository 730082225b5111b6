import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Generator

from atcl.core.errors import AtclError
from atcl.core.settings import from_data, to_data
from atcl.data.weak import WeakData, rule_out
from atcl.datasets.labels import (
    LABELS,
    Biased,
    Complementary,
    Drawn,
    FromFile,
    LabelSource,
    Ordinary,
    RandomSets,
    weaken,
)
from atcl.datasets.truth import Split, Truth
from atcl.recipes.catalogue import recipe
from atcl.recipes.schema import kinds
from tests.tiny import split

TRUE = torch.arange(10).repeat(3000)
FIRST = [1, 7, 9, 9, 9, 0, 3, 3, 1, 4, 1, 5]  # of seed 7, as the first release drew them
LABELS_DRAWN = 1_000_000

EXAMPLES: dict[str, list[Drawn]] = {
    "ordinary": [Ordinary()],
    "complementary": [
        Complementary(),
        Complementary(3),
        Complementary(wrong=0.1),
        Complementary(3, wrong=0.25),
        Complementary(9, wrong=1.0),
    ],
    "random-sets": [RandomSets()],
    "biased": [Biased("weak"), Biased("strong"), Biased("strong", matrix_seed=5), Biased("clcifar10")],
}
DRAWN = [
    pytest.param(source, id=f"{kind}-{place}")
    for kind, sources in EXAMPLES.items()
    for place, source in enumerate(sources)
]


def test_every_source_that_draws_has_examples_here_and_the_others_have_a_file() -> None:
    assert {*EXAMPLES, "from-file"} == set(LABELS)  # tests/datasets/test_label_files.py covers from-file
    assert all(isinstance(source, LABELS[kind]) for kind, sources in EXAMPLES.items() for source in sources)


@pytest.mark.parametrize("source", DRAWN)
def test_a_million_labels_follow_the_requested_matrix(source: Drawn, rng: Generator) -> None:
    expected = source.shares(10)
    each = round(LABELS_DRAWN / float(expected.sum()))  # images of each class
    true = torch.arange(10).repeat(each)
    found = (~source(true, 10, rng)).view(each, 10, 10).double().mean(0)  # (true, ruled out)
    error = (expected * (1 - expected) / each).clamp(min=0).sqrt()
    assert ((found - expected).abs() <= 4.5 * error + 1e-7).all()


@pytest.mark.parametrize("source", DRAWN)
def test_the_true_class_is_ruled_out_only_at_the_rate_that_the_source_declares(
    source: Drawn, rng: Generator
) -> None:
    candidates = source(TRUE, 10, rng)
    kept = candidates.gather(1, TRUE[:, None])
    assert bool(kept.all()) == bool((source.shares(10).diagonal() == 0).all())
    assert candidates.any(1).all()
    assert (candidates.sum(1) < 10).all()


@pytest.mark.parametrize("source", DRAWN)
def test_what_a_source_declares_holds_for_its_data(source: Drawn) -> None:
    truth = Truth(torch.arange(10).repeat(40), 10)
    data = weaken(Split(torch.zeros(400, 1, 2, 2), truth), source, 0)
    assert data.single == source.single
    declared = source.declared(10)
    assert (data.transition is None) == (declared is None)
    if declared is not None and data.transition is not None:
        assert torch.equal(data.transition, source.shares(10).float())


@pytest.mark.parametrize("source", DRAWN)
def test_labels_follow_from_the_seed_alone(source: Drawn) -> None:
    truth = Truth(torch.arange(10).repeat(40), 10)
    state = torch.get_rng_state()
    one, two, other = (
        weaken(Split(torch.zeros(400, 1, 2, 2), truth), source, seed).candidates for seed in (1, 1, 2)
    )
    assert torch.equal(one, two)
    assert torch.equal(one, other) == isinstance(source, Ordinary)
    assert torch.equal(state, torch.get_rng_state())


def test_without_noise_the_draw_is_the_one_that_committed_results_rest_on() -> None:
    order = torch.rand(200, 10, generator=torch.Generator().manual_seed(7)).scatter(1, TRUE[:200, None], 2.0)
    for number in (1, 4):
        candidates = Complementary(number)(TRUE[:200], 10, torch.Generator().manual_seed(7))
        assert torch.equal(candidates, order.argsort(1).argsort(1) >= number)
    assert Complementary()(TRUE[:12], 10, torch.Generator().manual_seed(7)).int().argmin(1).tolist() == FIRST


def test_noise_puts_the_true_class_into_a_set_and_leaves_the_other_sets_as_they_are() -> None:
    clean, noisy = (
        Complementary(3, wrong)(TRUE, 10, torch.Generator().manual_seed(1)) for wrong in (0.0, 0.2)
    )
    mistaken = ~noisy.gather(1, TRUE[:, None])[:, 0]
    assert torch.equal(clean[~mistaken], noisy[~mistaken])
    assert ((~noisy).sum(1) == 3).all()


def test_weak_and_strong_are_the_matrices_of_libcll() -> None:
    # its first rows for ten classes and seed 1126
    assert Biased("weak").shares(10)[0].tolist() == pytest.approx(
        [0, 0.25 / 3, 0.1, 0.1, 0.25 / 3, 0.15, 0.15, 0.15, 0.25 / 3, 0.1]
    )
    assert Biased("strong").shares(10)[0].tolist() == pytest.approx(
        [0, 0.01 / 3, 0.08, 0.08, 0.01 / 3, 0.25, 0.25, 0.25, 0.01 / 3, 0.08]
    )
    assert not torch.equal(Biased("strong", matrix_seed=1).shares(10), Biased("strong").shares(10))


@pytest.mark.parametrize("classes", [4, 5, 6, 7, 10, 100])
def test_each_third_of_the_classes_has_its_share_for_any_number_of_classes(classes: int) -> None:
    matrix = Biased("strong").shares(classes)
    assert matrix.diagonal().eq(0).all()
    assert torch.allclose(matrix.sum(1), torch.ones(classes, dtype=torch.float64))
    for row in matrix:
        values, counts = row[row > 0].unique(return_counts=True)
        assert sorted((values * counts).tolist()) == pytest.approx([0.01, 0.24, 0.75])
        assert int(counts.max()) - int(counts.min()) <= 1


def test_the_labels_of_people_are_in_the_package_with_their_source() -> None:
    matrix = Biased("clcifar10").shares(10)
    assert matrix.diagonal().tolist() == pytest.approx(
        [0.0576, 0.0596, 0.0414, 0.0386, 0.035, 0.0328, 0.0404, 0.03, 0.0328, 0.0376]
    )
    assert float(matrix[3, 1]) == pytest.approx(0.1728)


def write_matrix(path: Path, rows: list[list[float]]) -> None:
    if path.suffix == ".npy":
        np.save(path, np.array(rows))
    elif path.suffix == ".json":
        path.write_text(
            json.dumps({"T": rows, "classes": ["a", "b", "c"]} if path.stem == "named" else rows),
            encoding="utf-8",
        )
    else:
        separator = "," if path.suffix == ".csv" else "  "
        path.write_text("\n".join(separator.join(map(str, row)) for row in rows) + "\n", encoding="utf-8")


ROWS = [[0.0, 0.75, 0.25], [0.5, 0.0, 0.5], [0.9, 0.05, 0.05]]


@pytest.mark.parametrize("name", ["m.npy", "m.json", "named.json", "m.csv", "m.txt"])
def test_a_matrix_can_come_from_a_file(name: str, tmp_path: Path) -> None:
    write_matrix(tmp_path / name, ROWS)
    assert Biased(str(tmp_path / name)).shares(3).tolist() == pytest.approx(np.array(ROWS))
    write_matrix(tmp_path / name, [[0, 0.2, 0.8], [0.6, 0, 0.3], [1, 0, 0]])
    with pytest.raises(AtclError, match=r"row 1 of .* sums to 0.9"):
        Biased(str(tmp_path / name)).check(3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.csv", "0,1\n1,0\n", r"holds a \(2, 2\) matrix; for 3 classes it is \(3, 3\)"),
        ("m.csv", "0,1,0\n1,0,0\n-0.5,1,0.5\n", "row 2 of .* negative or empty"),
        ("m.csv", "0,1,0\n1,,0\n0,1,0\n", "row 1 of .* negative or empty"),
        ("m.csv", "a,b,c\n1,2,3\n", "cannot be read as a table of numbers: it has a heading"),
        ("m.csv", "", "where a table of numbers is needed"),
        ("m.json", "{", "cannot be read as a table of numbers"),
        ("m.json", '{"a": 1, "b": 2}', "it holds a, b, but no T"),
        ("m.json", '[["a"]]', "row 0 has 'a', which is no number"),
        ("m.npy", "no array", "cannot be read as a table of numbers"),
        ("m.pkl", "", "ends in none of .npy, .json, .csv, .txt"),
        ("m.txt", None, "does not exist"),
        ("stong", None, "unknown matrix '.*stong'"),
    ],
)
def test_a_bad_matrix_is_refused_in_one_line(
    name: str, content: str | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(AtclError, match=message) as caught:
        Biased(str(tmp_path / name)).check(3)
    assert "\n" not in str(caught.value)


def test_an_array_of_objects_is_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.array([{}, None], dtype=object), allow_pickle=True)
    with pytest.raises(AtclError, match="cannot be read as a table of numbers"):
        Biased(str(tmp_path / "m.npy")).check(2)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda: Complementary(wrong=-0.1), r"a number in \[0, 1\]"),
        (lambda: Complementary(wrong=float("nan")), r"a number in \[0, 1\]"),
        (lambda: Biased("strnog").check(10), "did you mean 'strong'"),
        (lambda: Biased("strong").check(3), "use 4 or more"),
        (lambda: Biased("clcifar10").check(100), r"it is \(100, 100\)"),
    ],
)
def test_bad_settings_of_a_source_are_refused(bad: Callable[[], object], message: str) -> None:
    with pytest.raises(AtclError, match=message):
        bad()


@pytest.mark.parametrize(
    ("labels", "allowed"),
    [(Biased("weak"), True), (FromFile("a.npy"), True), (FromFile("a.npy", rounds=2), False)],
)
def test_losses_for_a_single_label_take_every_source_that_gives_one(
    labels: LabelSource, allowed: bool
) -> None:
    plain = recipe("digits/direct-forward")
    if not allowed:
        with pytest.raises(AtclError, match="exactly one complementary label"):
            replace(plain, labels=labels)
        return
    wanted = replace(plain, labels=labels)
    assert from_data(json.loads(json.dumps(to_data(wanted))), kinds()) == wanted


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
        error = math.sqrt(expected * (1 - expected) / len(TRUE))
        assert abs(float((size == number).float().mean()) - expected) <= 4.5 * error
    assert float(size.float().mean()) == pytest.approx(5.0, abs=0.05)


def test_ordinary_labels_leave_one_candidate(rng: Generator) -> None:
    assert torch.equal(Ordinary()(TRUE, 10, rng).int().argmax(1), TRUE)


@pytest.mark.parametrize("number", [0, -1, 5, 6])
def test_as_many_labels_as_classes_are_refused(number: int) -> None:
    with pytest.raises(AtclError, match="give 1 to 4"):
        weaken(split(), Complementary(number), 0)


def test_rule_out_one_or_several() -> None:
    for labels in ([0, 2], torch.tensor([0, 2]), np.array([0, 2]), [np.int64(0), np.uint8(2)]):
        assert rule_out(2, 3, labels).tolist() == [[False, True, True], [True, True, False]]
    for several in (np.array([[0, 1], [3, 3]]), [[0, 1], [3]]):
        assert rule_out(2, 4, several).tolist() == [[False, False, True, True], [True, True, True, False]]
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
