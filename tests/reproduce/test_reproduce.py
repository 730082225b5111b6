"""`atcl reproduce`: each missing run is made once, by any number of processes; a stopped command goes on."""

import io
import json
import multiprocessing
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from atcl.cli.entry import main
from atcl.core.errors import AtclError
from atcl.core.files import read_json, write_json
from atcl.recipes.catalogue import RECIPES, recipe
from atcl.recipes.schema import Recipe
from atcl.reproduce import published
from atcl.reproduce.experiments import EXPERIMENTS, narrowed
from atcl.reproduce.launch import working
from atcl.reproduce.launch.on_local import Local, ParentWatcher
from atcl.reproduce.launch.options import LaunchOptions
from atcl.reproduce.launch.working import run_job
from atcl.reproduce.ledger import Job, attacks_of, entries, jobs_of, store
from atcl.reproduce.missing import fill, plan_lines
from atcl.reproduce.published import RecipeRef
from atcl.runs.run import Run

SMALL = tuple(
    shlex.split("--model mlp --stages.0.epochs 1 --stages.0.batch-size 700 --stages.0.budget.steps 1")
)
SCHEMA = read_json(Path(__file__).parents[2] / "docs/result.schema.json")


def small(wanted: Recipe) -> Recipe:
    stages = []
    for stage in wanted.stages:
        budget = replace(stage.budget, steps=min(stage.budget.steps, 1))
        stages.append(replace(stage, epochs=1, batch_size=700, budget=budget))
    return replace(wanted, model="mlp", stages=tuple(stages))


@pytest.fixture
def _small_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each recipe of digits, in moments instead of minutes."""
    for name in [name for name in RECIPES if name.startswith("digits/")]:
        monkeypatch.setitem(RECIPES, name, partial(small, recipe(name)))


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Console:
    """A console that no one reads, and evaluations without a search for signs of false robustness."""
    plain = Run.evaluate

    def without_checks(run: Run, *arguments: Any, **options: Any) -> Any:
        return plain(run, *arguments, **{**options, "checks": False})

    monkeypatch.setattr(Run, "evaluate", without_checks)
    return Console(file=io.StringIO())


def here(jobs: Sequence[Job], console: Console, workers: int = 1) -> None:
    with Local().open(LaunchOptions(workers=workers)) as pool:
        fill(jobs, console, pool)


def job(
    tmp_path: Path,
    seed: int = 1,
    words: tuple[str, ...] = SMALL,
    name: str = "digits/direct-log",
    **more: Any,
) -> Job:
    folder, path = tmp_path / "runs" / f"{name}-{seed}", tmp_path / f"results/{name}-{seed}/result.json"
    return Job(RecipeRef(name, words), seed, ("natural", "pgd20", "cw30"), path, folder, **more)


@pytest.mark.usefixtures("_small_digits", "quiet")
def test_the_stand_in_for_table_1_fills_every_row_and_is_not_run_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    words = ["reproduce", "table1", "--datasets", "digits", "--seeds", "1", "--workers", "1", *places]
    page = tmp_path / "page.md"
    page.write_text("<!-- table: table1 datasets=digits -->\n<!-- end -->\n", encoding="utf-8")
    assert main([*words, "--write", str(page)]) == 0
    printed = capsys.readouterr().out
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith("| ")][1:]
    titles = [title.strip("*") for title, _ in EXPERIMENTS["table1"].rows]
    assert [row[0].strip("| *") for row in rows] == titles
    assert all(len(row) == 5 and row[-1] == "1 |" and "—" not in row for row in rows)
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    assert page.read_text(encoding="utf-8").splitlines()[1:-1] == lines
    found = sorted((tmp_path / "results").rglob("result.json"))
    assert len(found) == len(list((tmp_path / "results").rglob("journal.jsonl"))) == len(rows)
    before = {path: path.stat().st_mtime_ns for path in found}
    assert main(words) == 0
    assert "epoch" not in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in found} == before


@pytest.mark.usefixtures("_small_digits")
def test_a_command_that_is_stopped_goes_on_without_what_is_done(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = narrowed(EXPERIMENTS["table1"], ["digits"], ["oracle", "direct-log", "warmup-pla"], [1])
    stored: list[str] = []

    def stopping(run: Run, path: Path) -> None:
        if len(stored) == 1:
            raise KeyboardInterrupt
        stored.append(run.name)
        store(run, path)

    with monkeypatch.context() as patch:
        patch.setattr(working, "store", stopping)
        with pytest.raises(KeyboardInterrupt):
            here(jobs_of(experiment, tmp_path / "results", tmp_path / "runs"), quiet)
    left = [one for one in jobs_of(experiment, tmp_path / "results", tmp_path / "runs") if one.lacks]
    assert stored == ["digits/oracle"]
    assert [one.what.name for one in left] == ["digits/direct-log", "digits/warmup-pla"]
    trained = (left[0].folder / "model.safetensors").stat().st_mtime_ns
    here(left, quiet)
    # it was finished, and only not in the ledger yet
    assert (left[0].folder / "model.safetensors").stat().st_mtime_ns == trained
    assert not [one for one in jobs_of(experiment, tmp_path / "results", tmp_path / "runs") if one.lacks]


def test_a_run_that_fails_beside_others_is_named_in_one_line(tmp_path: Path, quiet: Console) -> None:
    endless = job(tmp_path, 2, (*SMALL, "--stages.0.epochs", "100000"))
    jobs = [job(tmp_path, name="kuzushiji/oracle", words=(), data_dir=tmp_path / "nowhere"), endless]
    with pytest.raises(AtclError, match=r"^kuzushiji/oracle, seed 1: .*nowhere") as refused:
        here(jobs, quiet, workers=2)
    assert "\n" not in str(refused.value)
    assert not endless.path.exists()


def test_a_run_does_not_outlive_the_command_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = multiprocessing.Process()
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    monkeypatch.setattr(parent, "is_alive", lambda: True)
    ParentWatcher().epoch({})
    monkeypatch.setattr(parent, "is_alive", lambda: False)
    with pytest.raises(SystemExit):
        ParentWatcher().epoch({})


def test_a_result_keeps_what_the_paper_prints_for_its_settings(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(tmp_path)
    monkeypatch.setattr(published, "PUBLISHED", {"digits/here": {"pgd20": published.Value(10.0, 0.5)}})
    monkeypatch.setitem(published.VARIANTS, "here", ("direct-log", SMALL))
    run_job(one)
    assert read_json(one.path)["published"] == {"pgd20": {"mean": 10.0, "deviation": 0.5}}
    for path in (one.path, one.folder / "result.json"):
        jsonschema.validate(read_json(path), SCHEMA)


def test_what_lacks_an_attack_is_measured_only_where_its_model_is(tmp_path: Path, quiet: Console) -> None:
    plain = job(tmp_path)
    assert plain.lacks
    run_job(plain)
    assert not plain.lacks
    more = replace(plain, attacks=(*plain.attacks, "pgd20_restarts"))
    assert (more.lacks, more.possible) == (("pgd20_restarts",), True)
    elsewhere = replace(more, folder=tmp_path / "elsewhere")
    assert not elsewhere.possible
    here([elsewhere], quiet)
    assert f"remove {plain.path} to run it again" in str(quiet.file.getvalue())  # type: ignore[attr-defined]
    here([more], quiet)
    assert not more.lacks
    (more.folder / "model.safetensors").rename(tmp_path / "away")
    # it is not trained again for another attack
    assert not replace(more, attacks=(*more.attacks, "autoattack")).possible
    (tmp_path / "away").rename(more.folder / "model.safetensors")
    write_json(plain.path, {**read_json(plain.path), "model": {"sha256": "0" * 64, "bytes": 1}})
    assert not replace(plain, attacks=(*plain.attacks, "autoattack")).possible


def test_autoattack_waits_for_a_gpu_or_for_its_name() -> None:
    table = EXPERIMENTS["table1"]
    assert "autoattack" in attacks_of(table, "kuzushiji", strong=True)
    assert "autoattack" not in attacks_of(table, "kuzushiji", strong=False)
    assert "autoattack" not in attacks_of(table, "digits", strong=True)
    assert "autoattack" not in attacks_of(EXPERIMENTS["trades"], "kuzushiji", strong=True)
    assert attacks_of(table, "digits", False, ["autoattack"])[-1] == "autoattack"


def test_times_come_from_runs_like_it_on_such_a_device(tmp_path: Path, quiet: Console) -> None:
    run_job(job(tmp_path))
    path = job(tmp_path).path
    result = read_json(path)
    result["training_seconds"] = 40.0
    metrics = result["metrics"].items()
    result["metrics"] = {name: {**one, "seconds": 20.0} for name, one in metrics if name != "worst"}
    write_json(path, result)
    device = result["environment"]["device"]

    def line(one: Job, device: str = device) -> str:
        return plan_lines([one], tmp_path / "results", device)[0]

    assert line(job(tmp_path, seed=2)).endswith("--seed 2  # about 1:40")
    # ten times the passes, the same evaluation
    longer = job(tmp_path, 2, (*SMALL, "--stages.0.epochs", "10"))
    assert line(longer).endswith("# about 7:40")
    other_model = line(job(tmp_path, 2, (*SMALL, "--model", "tiny_cnn")))
    assert other_model.endswith("# unknown for training, natural, pgd20, cw30")
    other_batches = line(job(tmp_path, 2, (*SMALL, "--stages.0.batch-size", "70")))
    assert other_batches.endswith("# about 1:00, unknown for training")
    assert "unknown" in line(longer, "another device")
    assert plan_lines([], tmp_path, device) == ["nothing is missing"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--datasets", "kmnist"], "unknown dataset of this experiment"),
        (["--rows", "orakle"], "did you mean 'oracle'?"),
        (["--seeds", "-1"], "at least 0"),
        (["--format", "html"], "unknown format 'html'"),
        (["--attacks", "autoatack"], "did you mean 'autoattack'?"),
        (["--workers", "-1"], "at least one run"),
    ],
)
def test_a_mistake_is_refused_before_anything_runs(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "table1", *words]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--results", "--runs"])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    words = {"--results": str(tmp_path / "results"), "--runs": str(tmp_path / "runs")}
    words[option] = str(tmp_path / "file")
    assert main(["reproduce", "digits", *(word for pair in words.items() for word in pair)]) == 2
    assert f"give {option} " in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    words[option] = str(tmp_path / "file" / "inside")
    assert main(["reproduce", "digits", *(word for pair in words.items() for word in pair)]) == 2
    assert f"give {option} " in capsys.readouterr().err


@pytest.mark.usefixtures("_small_digits")
def test_where_nothing_is_missing_nothing_needs_to_be_written(
    tmp_path: Path, quiet: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    words = ["reproduce", "digits", "--rows", "direct-log", "--seeds", "1"]
    words += ["--results", str(tmp_path / "results"), "--runs"]
    assert main([*words, str(tmp_path / "runs")]) == 0
    assert main([*words, str(tmp_path / "file")]) == 0
    assert "direct" in capsys.readouterr().out


def test_a_ledger_that_closes_meanwhile_loses_nothing(tmp_path: Path, quiet: Console) -> None:
    one = job(tmp_path)
    one.path.parents[2].mkdir(parents=True)
    one.path.parents[1].write_text("", encoding="utf-8")  # in the way
    message = r"cannot be written \(.*\): the run lies whole in .*, and the same command stores it"
    with pytest.raises(AtclError, match=message):
        run_job(one)
    one.path.parents[1].unlink()
    run_job(one)
    assert one.path.exists()


def test_what_a_program_reads_stands_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table1", "--no-fill", "--format", "json", "--results", str(tmp_path)]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 4 * 10 * 7


def test_a_command_of_the_plan_gives_the_run_of_the_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--seeds", "1", "--rows", "warmup-pla-es-20", "--dry-run", "--results", str(tmp_path)]
    assert main(["reproduce", "scheduling", *words]) == 0
    command = capsys.readouterr().out.splitlines()[0].partition("  #")[0]
    lengths = "--stages.0.strength.over 20 --stages.0.gamma.over 20 --stages.0.supervision.last 20"
    assert command == f"atcl train kuzushiji/warmup-pla {lengths} --seed 1"
    assert not entries(EXPERIMENTS["scheduling"], tmp_path, RecipeRef("kuzushiji/warmup-pla"))
