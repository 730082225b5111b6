"""Every recipe: data that round-trips, a schedule for each epoch, settings that can be overridden."""

import json
from dataclasses import replace
from typing import Any

import pytest

from atcl.cli.catalogue import LISTED
from atcl.core.errors import AtclError
from atcl.core.settings import digest, from_data, overridden, to_data
from atcl.datasets.labels import Given, RandomSets
from atcl.datasets.sources import DATASETS, RELEASES
from atcl.recipes.catalogue import RECIPES, recipe
from atcl.recipes.defaults import DEFAULTS
from atcl.recipes.methods import METHODS
from atcl.recipes.names import OWN
from atcl.recipes.schema import kinds
from atcl.runs.execute import blind
from atcl.training.schedules import Constant


@pytest.mark.parametrize("name", RECIPES)
def test_round_trips_through_json(name: str) -> None:
    wanted = recipe(name)
    again = from_data(json.loads(json.dumps(to_data(wanted))), kinds())
    assert again == wanted
    assert hash(again) == hash(wanted)
    assert digest(again) == digest(wanted)


@pytest.mark.parametrize("name", RECIPES)
def test_every_epoch_has_a_valid_phase(name: str) -> None:
    for stage in recipe(name).stages:
        for epoch in range(1, stage.epochs + 1):
            phase = stage.phase(epoch)
            assert 0 <= phase.budget.epsilon <= stage.budget.epsilon
            assert 0 <= phase.gamma <= 1
            assert phase.lr > 0


@pytest.mark.parametrize("name", RECIPES)
def test_no_epoch_trains_on_pseudo_labels_that_were_never_updated(name: str) -> None:
    assert blind(recipe(name).stages) == []


@pytest.mark.parametrize(
    "name", [name for name in RECIPES if name.partition("/")[2].startswith(("warmup", "oracle", "direct"))]
)
def test_adversarial_recipes_end_at_the_full_budget_of_the_threat(name: str) -> None:
    wanted = recipe(name)
    last = wanted.stages[-1]
    assert last.phase(last.epochs).budget == last.budget
    assert last.budget.epsilon == wanted.threat.epsilon


def test_every_method_exists_for_every_dataset_whose_labels_are_drawn() -> None:
    assert set(DEFAULTS) == {*DATASETS, OWN} - set(RELEASES)
    drawn = set(DATASETS) - set(RELEASES)
    expected = {f"{dataset}/{method}" for dataset in drawn for method in METHODS}
    assert {name for name in RECIPES if not name.startswith("own/")} == expected
    assert set(LISTED["recipes"]) == set(RECIPES)


def test_evaluation_of_digits_cannot_be_faked_by_a_small_step() -> None:
    threat = DEFAULTS["digits"].threat
    assert threat.step_size >= threat.epsilon / 10


def test_overrides_change_what_they_name_and_nothing_else() -> None:
    plain = recipe("kuzushiji/warmup-pla")
    changed = overridden(
        plain, ["--stages.0.strength.over", "7", "--labels.number", "3", "--stages.0.grow", "steps"], "test"
    )
    strength: Any = plain.stages[0].strength
    labels: Any = plain.labels
    stage = replace(plain.stages[0], strength=replace(strength, over=7), grow=("steps",))
    assert changed == replace(plain, labels=replace(labels, number=3), stages=(stage,))
    assert digest(changed) != digest(plain)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stages.0.strength.ovr", "7"], "--stages.0.strength.over"),
        (["--stages.0.epochs", "many"], "--stages.0.epochs"),
        (["--stages.0.epochs", "2.5"], "--stages.0.epochs"),
        (["--stages.0.budget.epsilon", "-0.1"], "epsilon"),
        (["--stages.0.budget.epsilon", "nan"], "epsilon"),
        (["--stages.0.budget.steps", "0"], "0 steps"),
        (["--stages.0.budget.step-size", "0"], "length 0"),
        (["--stages.0.epochs", "0"], "at least 1 epoch"),
        (["--stages.0.batch-size", "0"], "1 image"),
        (["--stages.0.grow", "epsilom"], "did you mean 'epsilon'"),
        (["--stages.0.objective.loss", "lgo"], "did you mean 'log'"),
        (["--stages.0.objective.loss", "free"], "no form with pseudo-labels"),
        (["--stages.0.budget.norm", "l3"], "unknown norm"),
        (["--stages.0.gamma.start", "2"], "gamma"),
        (["--stages.0.supervision.beta", "1"], "beta"),
        (["--stages.0.lr.value", "-1"], "learning rate"),
        (["--stages.0.strength.over", "-1"], "negative"),
        (["--stages.0.fresh", "False"], "first stage"),
        (["--selection", "best"], "selection"),
        (["--threat.step-size", "0"], "step_size"),
    ],
)
def test_wrong_overrides_are_refused_in_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(AtclError) as refused:
        overridden(recipe("kuzushiji/warmup-pla"), arguments, "test")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "│" not in str(refused.value)


def test_contradictions_are_refused() -> None:
    free = recipe("digits/direct-free")
    with pytest.raises(AtclError, match="exactly one complementary label"):
        replace(free, labels=RandomSets())
    with pytest.raises(AtclError, match="no pseudo-labels"):
        replace(free.stages[0], gamma=Constant(0.5))
    with pytest.raises(AtclError, match="at least one stage"):
        replace(free, stages=())
    first, second = recipe("mnist/two-stage").stages
    with pytest.raises(AtclError, match="keeps its optimiser"):
        replace(free, stages=(first, replace(second, fresh=False)))


def test_foreign_settings_are_refused() -> None:
    data = to_data(recipe("digits/oracle"))
    with pytest.raises(AtclError, match="not of this version"):
        from_data({**data, "surprise": 1}, kinds())
    with pytest.raises(AtclError, match="not of this version"):
        from_data({"kind": "Popen", "args": "x"}, kinds())


def test_the_one_use_of_test_truth_is_declared() -> None:
    drawn = [name for name in DATASETS if name not in RELEASES]
    assert [name for name in RECIPES if recipe(name).uses_test_truth] == [
        f"{name}/two-stage-test-teacher" for name in drawn
    ]


def test_on_data_of_ones_own_no_recipe_requires_the_truth() -> None:
    own = {name.removeprefix("own/"): recipe(name) for name in RECIPES if name.startswith("own/")}
    requiring = {"oracle", "two-stage-test-teacher"} | {
        method for method in METHODS if method.endswith(("-mcl", "-rules"))
    }
    assert set(METHODS) - set(own) == requiring
    for wanted in own.values():
        assert wanted.needs == {"held"}
        assert wanted.holdout > 0
        assert wanted.labels == Given()
