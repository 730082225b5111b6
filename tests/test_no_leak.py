"""True labels never reach training: another truth behind the same labels gives the same weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atcl.core import checkpoints
from atcl.datasets.labels import Ordinary
from atcl.datasets.truth import Split, Truth
from atcl.recipes.schema import Recipe
from atcl.runs.problem import Problem
from atcl.runs.start import train
from atcl.training import supervision
from tests import tiny

BLIND = {
    name: recipe
    for name, recipe in tiny.RECIPES.items()
    if not isinstance(recipe.labels, Ordinary) and not recipe.uses_test_truth
}


def permuted(problem: Problem) -> Problem:
    """The same images and candidates; another truth for the training and for the test images."""
    assert problem.truth is not None
    assert problem.test is not None
    other = Truth((problem.truth.labels + 1) % tiny.CLASSES, tiny.CLASSES)
    test = Truth((problem.test.truth.labels + 2) % tiny.CLASSES, tiny.CLASSES)
    return replace(problem, truth=other, test=Split(problem.test.x, test))


def last_weights(recipe: Recipe, problem: Problem, folder: Path) -> dict[str, Tensor]:
    train(recipe, seed=2, out=folder, problem=problem, build=tiny.TinyNet, execution=tiny.ON_CPU)
    state = checkpoints.newest(folder / "checkpoints", pytest.fail)
    assert state is not None
    return {name: tensor for name, tensor in state.items() if name.startswith("model.")}


def depends_on_truth(recipe: Recipe, folder: Path) -> bool:
    problem = tiny.problem(recipe.labels)
    one = last_weights(recipe, problem, folder / "one")
    two = last_weights(recipe, permuted(problem), folder / "two")
    return not all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("name", BLIND)
def test_weights_do_not_depend_on_the_truth(name: str, tmp_path: Path) -> None:
    assert not depends_on_truth(BLIND[name], tmp_path)


def test_all_but_the_oracle_and_the_declared_exception_are_checked() -> None:
    left_out = {name.partition("/")[2] for name in tiny.RECIPES if name not in BLIND}
    assert left_out == {"oracle", "two-stage-test-teacher"}


def test_positive_control_a_leaky_guess_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny.RECIPES["digits/warmup-pla"]
    problem = tiny.problem(recipe.labels)

    def weights(given: Problem, folder: Path) -> dict[str, Tensor]:
        assert given.truth is not None
        truth = given.truth.labels
        monkeypatch.setattr(supervision, "guesses", lambda memory, candidates: truth[: len(memory)])
        return last_weights(recipe, given, folder)

    one = weights(problem, tmp_path / "one")
    two = weights(permuted(problem), tmp_path / "two")
    assert not all(torch.equal(one[name], two[name]) for name in one)


def test_positive_control_the_papers_teacher_is_caught(tmp_path: Path) -> None:
    # more epochs to choose among, so that another truth chooses another one
    recipe = tiny.RECIPES["digits/two-stage-test-teacher"]
    longer = replace(recipe, stages=(replace(recipe.stages[0], epochs=12), recipe.stages[1]))
    assert depends_on_truth(longer, tmp_path)
