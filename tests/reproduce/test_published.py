"""The paper's numbers, as they are typed in, against those read from its source; and the runs behind them."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atcl.recipes.catalogue import RECIPES, recipe
from atcl.reproduce.experiments import EXPERIMENTS, Experiment, narrowed, published_at
from atcl.reproduce.published import (
    ATTACKED,
    EPOCHS,
    PUBLISHED,
    VARIANTS,
    RecipeRef,
    card,
    published,
    recipe_ref,
)

FACTS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "reference/paper.json").read_text(encoding="utf-8")
)
TABLES = {"table1": "exp_1", "ablation": "app_exp_d4", "mcl": "app_exp_mcl"}
NAMES = {"mnist": "MNIST", "kuzushiji": "Kuzushiji", "cifar10": "CIFAR10", "svhn": "SVHN"}
SLOW, RAPID = "app_exp_pl_acc", "app_exp_pl_acc_1"


def title_of(title: str) -> str:
    """Return a row's title as the paper writes it."""
    short = title.partition(" (")[0].partition(",")[0].replace("*", "").replace(" ", "")
    return short.replace("warm-up", "Warm-up").replace("oracle", "Oracle").replace("two-stage", "Two-stage")


@pytest.mark.parametrize("name", TABLES)
def test_each_cell_is_what_the_paper_prints(name: str) -> None:
    experiment = EXPERIMENTS[name]
    cells = [(dataset, title, row) for dataset in experiment.datasets for title, row in experiment.rows]
    facts = FACTS[TABLES[name]]
    assert experiment.columns == ATTACKED
    assert [(NAMES[dataset], title_of(title)) for dataset, title, _ in cells] == [
        (fact[0].removesuffix("-MCLs"), fact[1]) for fact in facts
    ]
    for (dataset, _, row), (_, _, *numbers) in zip(cells, facts, strict=True):
        values = published_at(experiment, dataset, row).values()
        assert [list(value) for value in values] == numbers, (dataset, row)


def test_the_tables_of_pseudo_labels_are_what_the_paper_prints() -> None:
    experiment = EXPERIMENTS["pseudo-labels"]
    assert experiment.columns == EPOCHS
    for (_, row), label in zip(experiment.rows, (SLOW, SLOW, RAPID, RAPID), strict=True):
        assert [list(value) for value in published_at(experiment, "kuzushiji", row).values()] == FACTS[label]


def test_nothing_is_called_published_that_no_table_prints() -> None:
    shown = {
        f"{dataset}/{row}"
        for name in (*TABLES, "pseudo-labels")
        for dataset in EXPERIMENTS[name].datasets
        for _, row in EXPERIMENTS[name].rows
    }
    assert shown == set(PUBLISHED)


_NUMBER = re.compile(r"(\d+\.\d+)\(\$\\pm\$(\d+\.\d+)\)")
_COMMANDS = re.compile(r"~?\\citep\{.*?\}|\\textbf|\\(?:cmidrule\{.*?\}|midrule|toprule)|[{}]")


def read_tables(source: str) -> dict[str, Any]:
    """Return the numbers of the paper's five tables, as the fact file has them, from its LaTeX source."""
    found: dict[str, Any] = {}
    for label in (*TABLES.values(), SLOW, RAPID):
        body = source.split(f"\\label{{{label}}}")[1].split("\\end{tabular}")[0]
        rows: list[Any] = []
        dataset, loss = "Kuzushiji", ""
        for line in body.split("\\\\"):
            numbers = [[float(mean), float(deviation)] for mean, deviation in _NUMBER.findall(line)]
            words = _COMMANDS.sub("", line).replace("\\_", "_").split("&")
            if group := re.search(r"\\multirow\d+\*(\S+)", words[0]):
                dataset = group[1]
            if not numbers:
                continue
            if label in (SLOW, RAPID):
                rows += numbers
                continue
            method = words[0 if label == "app_exp_d4" else 1].strip()
            loss = loss if method.startswith("+") else method
            rows.append([dataset, method if method == loss else loss + method, *numbers])
        found[label] = rows
    return found


@pytest.mark.skipif(
    "ATCL_PAPER" not in os.environ, reason="ATCL_PAPER names no file with the paper's LaTeX source"
)
def test_the_facts_are_those_of_the_source() -> None:
    assert read_tables(Path(os.environ["ATCL_PAPER"]).read_text(encoding="utf-8")) == FACTS


def test_the_reader_of_the_source_can_fail() -> None:
    first = r"\multirow{2}*{MNIST} & \textbf{Warm-up+PLA} & \textbf{99.22($\pm$0.02)} & 1.00($\pm$0.10) \\"
    line = first + r" & SCL\_NL~\citep{x} & 3.00($\pm$0.30) \\"
    source = "".join(
        f"\\label{{{label}}} {line} \\end{{tabular}}" for label in (*TABLES.values(), SLOW, RAPID)
    )
    assert read_tables(source)["exp_1"] == [
        ["MNIST", "Warm-up+PLA", [99.22, 0.02], [1.0, 0.1]],
        ["MNIST", "SCL_NL", [3.0, 0.3]],
    ]
    assert read_tables(source)[SLOW] == [[99.22, 0.02], [1.0, 0.1], [3.0, 0.3]]
    assert read_tables(source) != FACTS


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=list(EXPERIMENTS))
def test_every_cell_is_a_run_of_its_own(experiment: Experiment) -> None:
    for dataset in experiment.datasets:
        recipes = [recipe_ref(f"{dataset}/{row}").recipe for _, row in experiment.rows]
        assert len(set(recipes)) == len(recipes)
        assert {wanted.dataset for wanted in recipes} == {dataset}
    names = [f"{dataset}/{row}" for dataset in experiment.stand_ins for _, row in experiment.rows]
    assert all(recipe_ref(name).name in RECIPES for name in names)


def test_a_variant_has_the_name_of_no_method_and_is_used() -> None:
    used = {row for experiment in EXPERIMENTS.values() for _, row in experiment.rows}
    assert set(VARIANTS) <= used
    assert not [name for name in VARIANTS if f"kuzushiji/{name}" in RECIPES]


def test_published_numbers_follow_the_settings_and_not_the_name() -> None:
    plain = recipe("kuzushiji/warmup-pla")
    assert (card(plain) or {})["pgd20"] == {"mean": 85.88, "deviation": 0.48}
    changed = RecipeRef("kuzushiji/two-stage-mcl", ("--stages.1.teacher", "test_natural")).recipe
    assert published(changed) is PUBLISHED["kuzushiji/two-stage-mcl-test-teacher"]
    assert published(recipe("kuzushiji/two-stage")) is None  # the paper chose its teacher on the test set
    assert published(replace(plain, selection="last")) is None
    assert card(recipe("digits/warmup-pla")) is None


def test_other_lengths_of_scheduling_keep_the_rule_for_the_memory() -> None:
    for epochs in (20, 70):
        (stage,) = recipe_ref(f"kuzushiji/warmup-pla-es-{epochs}").recipe.stages
        assert stage.phase(10 + epochs).budget == stage.budget
        assert stage.phase(10 + epochs).gamma == 0
        halves = [epoch for epoch in range(1, 101) if stage.phase(epoch).remember]
        assert stage.phase(halves[-1]).budget.epsilon == pytest.approx(stage.budget.epsilon / 2)


def test_a_part_of_an_experiment() -> None:
    part = narrowed(EXPERIMENTS["table1"], ["digits"], ["warmup-pla", "oracle"], [2, 2])
    assert part.runs() == [
        ("digits", RecipeRef("digits/oracle"), 2),
        ("digits", RecipeRef("digits/warmup-pla"), 2),
    ]
    assert narrowed(part) == part
