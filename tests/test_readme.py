"""The README's commands exist, and its numbers are those of the committed results."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from atcl.cli.entry import main
from atcl.core.files import read_json
from atcl.core.settings import digest, from_data
from atcl.losses import LOSSES
from atcl.recipes.catalogue import RECIPES, recipe, with_derived_weights
from atcl.recipes.schema import kinds
from atcl.reproduce.experiments import EXPERIMENTS, narrowed
from atcl.reproduce.figures.catalogue import FIGURES
from atcl.reproduce.figures.plan import PAPER_SETTING, needs
from atcl.reproduce.ledger import jobs_of, result_path
from atcl.reproduce.published import RecipeRef, card
from atcl.reproduce.tables import places, rewritten

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "results"


SHOWN = {
    (
        with_derived_weights(job.what.recipe),
        job.seed,
    )  # tables show runs with other initial weights too, and say so
    for experiment in EXPERIMENTS.values()
    for job in jobs_of(narrowed(experiment, (*experiment.datasets, *experiment.stand_ins)), RESULTS)
}
DRAWN = {(with_derived_weights(need.recipe), need.seed) for need in needs(FIGURES.values(), PAPER_SETTING)}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_follow_from_the_committed_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- table: ") == text.count("<!-- end -->") == len(places(text))
    assert rewritten(text, RESULTS) == text, (
        f"stale: atcl reproduce {places(text)[0]} --no-fill --write {page.name}"
    )


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_its_place(name: str) -> None:
    assert name in places((ROOT / EXPERIMENTS[name].page).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["digits", "selection"])
def test_what_the_text_speaks_of_was_run_with_every_seed(name: str) -> None:
    assert not [str(job) for job in jobs_of(EXPERIMENTS[name], RESULTS) if job.lacks]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/methods.md", "docs/results.md"])
def test_no_measured_number_stands_outside_a_generated_table(page: str) -> None:
    prose = re.sub(r"<!-- table: .*?<!-- end -->", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.S)
    assert not re.findall(r"\d ± \d", prose)


@pytest.mark.parametrize(
    "path", sorted(RESULTS.rglob("result.json")), ids=lambda path: "-".join(path.parts[-4:-1])
)
def test_each_result_lies_where_its_settings_say(path: Path) -> None:
    result = read_json(path)
    settings = from_data(result["recipe"], kinds())
    dataset, _, method = result["name"].partition("/")
    assert digest(settings) == result["digest"]
    assert (
        path == RESULTS / dataset / f"{method}-{digest(settings)}" / f"seed-{result['seed']}" / "result.json"
    )
    assert (with_derived_weights(settings), result["seed"]) in SHOWN | DRAWN, (
        "no table and no figure shows it"
    )
    assert result["published"] == card(settings)
    for one in result["metrics"].values():
        assert one["accuracy"] == pytest.approx(100 * one["correct"] / one["images"])
        assert one["seed"] == 0
    assert {
        one["batch_size"] for name, one in result["metrics"].items() if name not in ("autoattack", "worst")
    } == {500}
    assert result["name"].partition("/")[0] != "digits" or {
        one["images"] for one in result["metrics"].values()
    } == {397}


def accuracy(name: str, metric: str) -> float:
    values: list[float] = [
        read_json(result_path(RESULTS, RecipeRef(name), seed))["metrics"][metric]["accuracy"]
        for seed in (1, 2, 3)
    ]
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
def test_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    exec(block, {})
    assert re.findall(r"^(\w+): [\d.]+%$", capsys.readouterr().out, re.M) == [
        "natural",
        "pgd20",
        "cw30",
        "worst",
    ]


@pytest.mark.usefixtures("_shrunk")
@pytest.mark.parametrize(("page", "number"), [("README.md", 3), ("docs/quickstart.md", 10)])
def test_train_and_evaluate_of_the_page_run(page: str, number: int) -> None:
    commands = [
        line.partition("  #")[0].split()[1:]
        for line in (ROOT / page).read_text(encoding="utf-8").splitlines()
        if re.match("atcl (train|evaluate|reproduce|report)", line)
    ]
    assert len(commands) == number
    assert main(["train"]) == 0
    for words in commands:
        if "digits" in " ".join(words):
            assert main([*words, "--dry-run"] if words[0] == "reproduce" else words) == 0, words


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 130


def test_python_of_the_page_about_extending_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The examples that need no change of the package, but for those that write into the repository."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/extending.md").read_text(encoding="utf-8"), re.S
    )
    runnable = [block for block in blocks if not block.startswith("# src/") and "write_text" not in block]
    assert len(runnable) == 2
    for block in runnable:
        exec(block, {})
    del LOSSES["mine"]


@pytest.mark.usefixtures("_shrunk")
def test_the_quick_start_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 0  # what `make run` does
    for language, block in re.findall(
        r"```(python)?\n(.*?)```", (ROOT / "docs/quickstart.md").read_text(encoding="utf-8"), re.S
    ):
        if language:
            exec(block, {})
        elif block.startswith("atcl "):
            assert main(block.split()[1:]) == 0, block
    assert (
        capsys.readouterr().out.count("pictures/1500-is-a-1.png") == 2
    )  # once by the command, once from Python


def test_commands_of_the_readme_are_understood(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^atcl ((?:show|list) .*?)(?:  +#.*)?$", README, re.M)
    assert commands
    for command in commands:
        assert main(command.split()) == 0, command
    targets = set(re.findall(r"^make ([\w-]+)", README, re.M))
    assert {"run", "test"} <= targets
    assert targets <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def test_files_that_the_readme_points_to_exist() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link
