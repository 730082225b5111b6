"""The README's commands exist, and its numbers are those of the committed results."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from atcl.cli import main
from atcl.experiments import EXPERIMENTS, missing, result_path, with_table
from atcl.files import read_json
from atcl.losses import LOSSES
from atcl.recipes import KINDS, RECIPES, recipe
from atcl.settings import digest, from_data

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
RESULTS = ROOT / "results"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_tables_follow_from_the_committed_results(name: str) -> None:
    assert not missing(EXPERIMENTS[name], RESULTS)
    page = (ROOT / EXPERIMENTS[name].page).read_text()
    assert with_table(page, name, EXPERIMENTS[name].table(EXPERIMENTS[name], RESULTS)) == page


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("result.json")), ids=lambda path: "-".join(path.parts[-4:-1]))
def test_each_result_lies_where_its_settings_say(path: Path) -> None:
    result = read_json(path)
    settings = from_data(result["recipe"], KINDS)
    assert digest(settings) == result["digest"]
    assert settings == recipe(result["name"])
    assert path == result_path(RESULTS, result["name"], result["seed"])
    for one in result["metrics"].values():
        assert one["accuracy"] == pytest.approx(100 * one["correct"] / one["images"])
        assert (one["seed"], one["batch_size"]) == (0, 500)
    assert result["name"].partition("/")[0] != "digits" or {one["images"] for one in result["metrics"].values()} == {397}


def accuracy(name: str, metric: str) -> float:
    values: list[float] = [read_json(result_path(RESULTS, name, seed))["metrics"][metric]["accuracy"] for seed in (1, 2, 3)]
    return sum(values) / 3


def test_direct_training_fails_and_ours_does_not() -> None:
    assert accuracy("digits/direct-log", "pgd20") <= 20
    assert accuracy("digits/warmup-pla", "pgd20") >= 50
    assert accuracy("digits/oracle", "pgd20") >= accuracy("digits/warmup-pla", "pgd20")


@pytest.fixture
def _shrunk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The default recipe, in moments instead of minutes, in an empty folder."""
    plain = recipe("digits/warmup-pla")
    small = replace(plain, model="mlp", stages=(replace(plain.stages[0], epochs=2, batch_size=350),))
    monkeypatch.setitem(RECIPES, "digits/warmup-pla", lambda: small)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_shrunk")
def test_python_of_the_readme_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)

    class MyNet(torch.nn.Sequential):
        def __init__(self) -> None:
            super().__init__(torch.nn.Flatten(), torch.nn.Linear(27, 10))

    names = {"images": torch.rand(40, 3, 3, 3), "not_this": [i % 10 for i in range(40)], "MyNet": MyNet, "torch": torch}
    exec(block, names)
    assert names["model"](names["images"]).shape == (40, 10)  # type: ignore[operator]
    del LOSSES["mine"]


@pytest.mark.usefixtures("_shrunk")
def test_train_and_evaluate_of_the_readme_run() -> None:
    commands = [line.partition("  #")[0].split()[1:] for line in README.splitlines() if re.match("atcl (train|evaluate|reproduce)", line)]
    assert len(commands) == 5
    assert main(["train"]) == 0
    for words in commands:
        if "digits" in " ".join(words):
            assert main([*words, "--dry-run"] if words[0] == "reproduce" else words) == 0, words


def test_commands_of_the_readme_are_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^atcl ((?:show|list) .*?)(?:  +#.*)?$", README, re.M)
    assert commands
    for command in commands:
        assert main(command.split()) == 0, command
    targets = set(re.findall(r"^make ([\w-]+)", README, re.M))
    assert {"run", "test"} <= targets
    assert targets <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))


def test_files_that_the_readme_points_to_exist() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link
