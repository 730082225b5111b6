"""The method works, on a small scale: a quarter of a minute that fails where no robustness appears."""

from dataclasses import replace
from pathlib import Path

import pytest

from atcl.recipes.defaults import DEFAULTS
from atcl.recipes.methods import METHODS
from atcl.runs.spec import Execution
from atcl.runs.start import train

DIGITS = DEFAULTS["digits"]
BUDGET = replace(DIGITS.budget, steps=4, step_size=0.06)
QUICK = replace(DIGITS, model="mlp", epochs=40, opening=14, scheduling=14, budget=BUDGET)


@pytest.mark.parametrize(
    ("method", "at_least", "at_most"), [("warmup-pla", 35, 75), ("direct-log", 0, 20), ("oracle", 60, 100)]
)
def test_robustness_appears_where_the_paper_finds_it(
    method: str, at_least: float, at_most: float, tmp_path: Path
) -> None:
    run = train(METHODS[method](QUICK), seed=1, out=tmp_path, execution=Execution(device="cpu"))
    pgd20 = run.result.metrics["pgd20"].accuracy
    assert at_least <= pgd20 <= at_most
    if method == "warmup-pla":
        assert run.journal[-1]["pseudo_label_accuracy"] > 0.5  # one in nine by chance
