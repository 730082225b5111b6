"""Models that come with the package: found by name, checked, and backed by a result in the ledger."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

from atcl import load
from atcl.cli.list import LISTED
from atcl.core.errors import AtclError
from atcl.core.files import read_json, write_json
from atcl.core.settings import digest, overridden
from atcl.datasets.sources import DATASETS
from atcl.evaluation.evaluate import evaluate
from atcl.recipes.catalogue import recipe, with_derived_weights
from atcl.runs.pretrained import LARGEST, SHELF, cards, keep
from atcl.runs.run import Run
from atcl.runs.start import train

ROOT = Path(__file__).parents[1]
SMALL = [
    "--model",
    "mlp",
    "--stages.0.epochs",
    "1",
    "--stages.0.batch-size",
    "700",
    "--stages.0.budget.steps",
    "1",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    wanted = overridden(recipe("digits/direct-log"), SMALL, "test")
    return train(wanted, name="digits/direct-log", out=tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("name", cards())
def test_each_model_is_the_one_that_the_ledger_speaks_of(name: str) -> None:
    card = cards()[name]
    dataset, _, method = card["name"].partition("/")
    settings = {
        recipe(name),
        with_derived_weights(recipe(name)),
    }  # a model of before is as good, and the page tells which it is
    places = [
        ROOT / "results" / dataset / f"{method}-{digest(wanted)}" / f"seed-{card['seed']}" / "result.json"
        for wanted in settings
    ]
    (told,) = [
        found
        for found in map(read_json, filter(Path.exists, places))
        if found["model"]["sha256"] == card["sha256"]
    ]
    assert card["name"] == name
    assert card["accuracy"] == {attack: one["accuracy"] for attack, one in told["metrics"].items()}
    assert not load(name).training


def test_the_digits_model_is_as_good_as_its_card_says() -> None:
    test, card = DATASETS["digits"](None).test, cards()["digits/warmup-pla"]
    found = evaluate(
        load("digits/warmup-pla"),
        test.x,
        test.truth.labels,
        epsilon=0.15,
        step_size=0.015,
        attacks=("natural", "pgd20"),
        checks=False,
    )
    assert found["natural"].accuracy == pytest.approx(card["accuracy"]["natural"], abs=0.3)
    assert found["pgd20"].accuracy == pytest.approx(card["accuracy"]["pgd20"], abs=0.6)


def test_an_installed_package_has_them() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"][
        "atcl"
    ]
    kept = [path.relative_to(ROOT / "src/atcl").as_posix() for path in SHELF.rglob("*") if path.is_file()]
    assert kept
    assert all(any(fnmatch(path, pattern) for pattern in patterns) for path in kept)
    assert set(LISTED["weights"]) == set(cards())


def test_a_model_is_kept_and_found_again(run: Run, tmp_path: Path) -> None:
    path = keep(run, tmp_path)
    name = path.relative_to(tmp_path).with_suffix("").as_posix()
    assert name.startswith("digits/direct-log-")  # with a digest: its settings are not those of the recipe
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(load(name, shelf=tmp_path)(x), run.model()(x))
    assert torch.equal(load(run.folder)(x), run.model()(x))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(AtclError, match="install the package again"):
        load(name, shelf=tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("svhn/oracle", "`atcl train svhn/oracle` makes them"),
        ("digits/warmup-pls", "did you mean 'digits/warmup-pla'?"),
    ],
)
def test_what_is_not_there_is_told_with_the_way_to_it(name: str, message: str) -> None:
    with pytest.raises(AtclError) as said:
        load(name)
    assert message in str(said.value)
    assert "\n" not in str(said.value)


def test_a_large_model_is_refused(run: Run, tmp_path: Path) -> None:
    told = read_json(run.folder / "result.json")
    write_json(run.folder / "result.json", {**told, "model": {**told["model"], "bytes": LARGEST + 1}})
    try:
        with pytest.raises(AtclError, match="takes none above 2,000,000"):
            keep(run, tmp_path)
    finally:
        write_json(run.folder / "result.json", told)
    assert not list(tmp_path.iterdir())
