import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import atcl
from atcl import checkpoints
from atcl.environment import resolve
from atcl.errors import AtclError
from atcl.labels import Complementary
from atcl.recipes import Recipe
from atcl.runs import Problem, Run, Watcher, folder_of, name_of, open_run, train
from atcl.schedules import Constant
from tests import tiny

RECIPE = tiny.RECIPES["digits/warmup-pla"]
PAPER = tiny.RECIPES["mnist/warmup-pla"]


def go(folder: Path, recipe: Recipe = RECIPE, seed: int = 1, problem: Problem | None = None, watcher: Watcher | None = None) -> Run:
    return train(recipe, seed=seed, out=folder, device="cpu", problem=problem or tiny.problem(recipe.labels), build=tiny.TinyNet, watcher=watcher)


def test_a_run_leaves_what_the_design_says(tmp_path: Path) -> None:
    run = go(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "recipe.json", "journal.jsonl", "checkpoints", "model.safetensors", "result.json"}
    result = run.result
    assert result["selection"] == {"rule": "last", "epoch": 5}
    assert set(result["metrics"]) == {"natural", "pgd20", "cw30"}
    assert result["environment"]["torch"] == torch.__version__
    assert len(run.journal) == 5
    assert open_run(tmp_path).recipe == run.recipe
    loaded = run.model(build=tiny.TinyNet)
    assert not loaded.training


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    go(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}

    class Loud(Watcher):
        def epoch(self, record: object) -> None:
            pytest.fail("trained again")

    go(tmp_path, watcher=Loud())
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    go(tmp_path)
    with pytest.raises(AtclError, match="another recipe"):
        go(tmp_path, replace(RECIPE, labels=Complementary(2)), problem=tiny.problem(RECIPE.labels))
    with pytest.raises(AtclError, match="another seed"):
        go(tmp_path, seed=2)
    with pytest.raises(AtclError, match="another data"):
        go(tmp_path, problem=tiny.problem(Complementary(2)))


def test_the_papers_selection_reports_the_best_epoch_on_the_test_set(tmp_path: Path) -> None:
    run = go(tmp_path, PAPER)
    scores = [record["test_pgd20"] for record in run.journal]
    chosen = run.result["selection"]
    assert chosen["rule"] == "test_pgd20"
    assert scores[chosen["epoch"] - 1] == max(scores) == run.result["metrics"]["pgd20"]["accuracy"]


def test_evaluating_again_adds_to_the_result(tmp_path: Path) -> None:
    problem = tiny.problem(RECIPE.labels)
    run = go(tmp_path)
    first = run.result
    measured = run.evaluate(["pgd20"], device="cpu", seed=3, batch_size=4, test=problem.test, build=tiny.TinyNet)
    assert run.result["metrics"]["pgd20"]["seed"] == 3
    assert run.result["metrics"]["pgd20"]["accuracy"] == measured["pgd20"].accuracy
    assert run.result["metrics"]["natural"] == first["metrics"]["natural"]


def test_own_arrays_own_model_and_no_truth_at_all(tmp_path: Path) -> None:
    x, complementary = torch.rand(30, 3, 4, 4), [i % 4 for i in range(30)]
    data = atcl.WeakData(x, atcl.rule_out(30, classes=4, complementary=complementary))

    def linear() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(48, 4))

    run = train(RECIPE, seed=1, out=tmp_path, device="cpu", problem=Problem(data), build=linear)
    assert run.result["metrics"] == {}
    assert run.recipe.model == "linear"
    assert "pseudo_label_accuracy" not in run.journal[-1]
    assert run.model(build=linear)(x).shape == (30, 4)


def test_a_rule_that_needs_a_test_set_says_so(tmp_path: Path) -> None:
    recipe = tiny.RECIPES["digits/two-stage-test-teacher"]
    with pytest.raises(AtclError, match="there is none"):
        go(tmp_path / "teacher", recipe, problem=replace(tiny.problem(recipe.labels), test=None))
    with pytest.raises(AtclError, match="there is none"):
        go(tmp_path / "selection", PAPER, problem=replace(tiny.problem(PAPER.labels), test=None))


def test_a_loss_that_breaks_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    wild = replace(RECIPE, stages=(replace(RECIPE.stages[0], lr=Constant(1e38)),))
    with pytest.raises(AtclError, match="no longer finite"):
        go(tmp_path, wild)
    assert not (tmp_path / "result.json").exists()
    for path in (tmp_path / "checkpoints").glob("*"):
        state = checkpoints.unpacked(path.read_bytes(), path)
        assert all(tensor.isfinite().all() for tensor in state.values())


def test_names_and_folders_of_variants_never_collide() -> None:
    plain = atcl.recipe("digits/warmup-pla")
    variant = replace(plain, labels=Complementary(3))
    assert name_of(plain) == "digits/warmup-pla"
    assert name_of(variant) == "digits/custom"
    assert folder_of("digits/warmup-pla", plain) == ("digits", "warmup-pla")
    assert folder_of("digits/warmup-pla", variant)[1].startswith("warmup-pla-")


def test_devices() -> None:
    assert resolve("cpu").type == "cpu"
    with pytest.raises(AtclError, match="unknown device"):
        resolve("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(AtclError, match="no CUDA GPU"):
            resolve("cuda")


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(AtclError, match="not the folder of a run"):
        open_run(tmp_path)
    (tmp_path / "recipe.json").write_text("{")
    with pytest.raises(AtclError, match="cannot be read"):
        open_run(tmp_path)
    (tmp_path / "recipe.json").write_text(json.dumps({"name": "x"}))
    with pytest.raises(AtclError, match="it lacks 'recipe'"):
        open_run(tmp_path)
