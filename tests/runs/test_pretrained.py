"""Models that come with the package: found by name, checked, and backed by a result in the ledger."""

import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch

from atcl import load
from atcl.cli.catalogue import LISTED
from atcl.core.errors import AtclError
from atcl.core.files import read_json, write_json
from atcl.core.settings import digest, overridden
from atcl.datasets.sources import DATASETS
from atcl.evaluation.evaluate import evaluate
from atcl.recipes.catalogue import recipe, with_derived_weights
from atcl.runs.pretrained import LARGEST, WEIGHTS, cards, keep
from atcl.runs.run import Run
from atcl.runs.start import train

ROOT = Path(__file__).parents[2]
SMALL = shlex.split("--model mlp --stages.0.epochs 1 --stages.0.batch-size 700 --stages.0.budget.steps 1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    wanted = overridden(recipe("digits/direct-log"), SMALL, "test")
    return train(wanted, name="digits/direct-log", out=tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("name", cards())
def test_each_model_is_that_of_its_result_in_the_ledger(name: str) -> None:
    card = cards()[name]
    dataset, _, method = card["name"].partition("/")
    # an earlier model, with derived first weights, counts too: its page names them
    settings = {recipe(name), with_derived_weights(recipe(name))}
    folders = [ROOT / "results" / dataset / f"{method}-{digest(wanted)}" for wanted in settings]
    paths = [folder / f"seed-{card['seed']}" / "result.json" for folder in folders]
    results = map(read_json, filter(Path.exists, paths))
    (result,) = [found for found in results if found["model"]["sha256"] == card["sha256"]]
    assert card["name"] == name
    assert card["accuracy"] == {attack: one["accuracy"] for attack, one in result["metrics"].items()}
    assert not load(name).training


def test_the_digits_model_has_the_accuracy_on_its_card() -> None:
    test, card = DATASETS["digits"](None).test, cards()["digits/warmup-pla"]
    model, attacks = load("digits/warmup-pla"), ("natural", "pgd20")
    budget: dict[str, Any] = {"epsilon": 0.15, "step_size": 0.015}
    found = evaluate(model, test.x, test.truth.labels, attacks=attacks, checks=False, **budget)
    assert found["natural"].accuracy == pytest.approx(card["accuracy"]["natural"], abs=0.3)
    assert found["pgd20"].accuracy == pytest.approx(card["accuracy"]["pgd20"], abs=0.6)


def test_an_installed_package_has_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["atcl"]
    kept = [path.relative_to(ROOT / "src/atcl").as_posix() for path in WEIGHTS.rglob("*") if path.is_file()]
    assert kept
    assert all(any(fnmatch(path, pattern) for pattern in patterns) for path in kept)
    assert set(LISTED["weights"]) == set(cards())


def test_a_model_is_kept_and_found_again(run: Run, tmp_path: Path) -> None:
    path = keep(run, tmp_path)
    name = path.relative_to(tmp_path).with_suffix("").as_posix()
    assert name.startswith("digits/direct-log-")  # with a digest: its settings are not those of the recipe
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(load(name, folder=tmp_path)(x), run.model()(x))
    assert torch.equal(load(run.folder)(x), run.model()(x))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(AtclError, match="install the package again"):
        load(name, folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("svhn/oracle", "`atcl train svhn/oracle` makes them"),
        ("digits/warmup-pls", "did you mean 'digits/warmup-pla'?"),
    ],
)
def test_an_unknown_model_is_refused_with_the_way_to_get_it(name: str, message: str) -> None:
    with pytest.raises(AtclError) as refused:
        load(name)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_large_model_is_refused(run: Run, tmp_path: Path) -> None:
    result = read_json(run.folder / "result.json")
    write_json(run.folder / "result.json", {**result, "model": {**result["model"], "bytes": LARGEST + 1}})
    try:
        with pytest.raises(AtclError, match="takes none above 2,000,000"):
            keep(run, tmp_path)
    finally:
        write_json(run.folder / "result.json", result)
    assert not list(tmp_path.iterdir())
