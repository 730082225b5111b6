import json
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atcl
from atcl.core import checkpoints
from atcl.core.device import resolve
from atcl.core.errors import AtclError
from atcl.datasets.labels import Biased, Complementary, weaken
from atcl.recipes.schema import Recipe
from atcl.runs import start as running
from atcl.runs.problem import Build, Problem
from atcl.runs.result import Selection
from atcl.runs.run import Run, folder_of, name_of, open_run
from atcl.runs.spec import Execution
from atcl.runs.start import train
from atcl.runs.watcher import Watcher
from atcl.training.schedules import LinearFall, StepDecay
from atcl.training.supervision import PseudoLabels
from tests import tiny

RECIPE = tiny.RECIPES["digits/warmup-pla"]
PAPER = tiny.RECIPES["mnist/warmup-pla"]


def go(
    folder: Path,
    recipe: Recipe = RECIPE,
    seed: int = 1,
    problem: Problem | None = None,
    watcher: Watcher | None = None,
) -> Run:
    return train(
        recipe,
        seed=seed,
        out=folder,
        problem=problem or tiny.problem(recipe.labels),
        build=tiny.TinyNet,
        watcher=watcher,
        execution=tiny.ON_CPU,
    )


def test_a_run_leaves_its_files_and_its_result(tmp_path: Path) -> None:
    run = go(tmp_path)
    files = {".lock", "recipe.json", "journal.jsonl", "model.safetensors", "result.json"}
    assert {path.name for path in tmp_path.iterdir()} == files | {"checkpoints", "evaluation"}
    result = run.result
    assert result.selection == Selection("last", stage=0, epoch=5)
    assert set(result.metrics) == {"natural", "pgd20", "cw30", "worst"}
    assert result.environment["torch"] == torch.__version__
    assert len(run.journal) == 5
    assert open_run(tmp_path).recipe == run.recipe
    loaded = run.model(build=tiny.TinyNet)
    assert not loaded.training


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    go(tmp_path)

    def times() -> dict[Path, int]:
        files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]
        return {path: path.stat().st_mtime_ns for path in files}

    before = times()

    class Failing(Watcher):
        def epoch(self, record: object) -> None:
            pytest.fail("trained again")

    go(tmp_path, watcher=Failing())
    assert before == times()


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    go(tmp_path)
    with pytest.raises(AtclError, match=r"differs in recipe.threat.epsilon"):
        go(tmp_path, replace(RECIPE, threat=replace(RECIPE.threat, epsilon=0.5)))
    with pytest.raises(AtclError, match="differs in seed"):
        go(tmp_path, seed=2)
    with pytest.raises(AtclError, match="differs in data"):
        go(tmp_path, problem=tiny.problem(Complementary(2)))


def test_the_papers_selection_reports_the_best_epoch_on_the_test_set(tmp_path: Path) -> None:
    run = go(tmp_path, PAPER)
    scores = [record["test_pgd20"] for record in run.journal]
    chosen = run.result.selection
    assert chosen.rule == "test_pgd20"
    assert scores[chosen.epoch - 1] == max(scores) == run.result.metrics["pgd20"].accuracy


def test_an_estimated_transition_matrix_is_used_made_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tiny.RECIPES["digits/direct-forward"]
    wanted = replace(plain, transition="estimated")
    go(tmp_path / "real", wanted)
    real = torch.tensor(json.loads((tmp_path / "real/transition.json").read_text(encoding="utf-8"))["matrix"])
    torch.testing.assert_close(real.sum(1), torch.ones(tiny.CLASSES))
    odd = torch.eye(tiny.CLASSES).roll(1, 1) * 0.9 + 0.1 / tiny.CLASSES
    monkeypatch.setattr(running, "estimated_transition", lambda *_, **__: odd)
    run = go(tmp_path / "odd", wanted)
    assert run.journal[-1]["loss"] != go(tmp_path / "plain", plain).journal[-1]["loss"]
    with pytest.raises(AtclError, match="differs in data"):
        go(tmp_path / "odd", wanted, problem=tiny.problem(Biased("weak")))
    monkeypatch.setattr(running, "estimated_transition", lambda *_, **__: pytest.fail("estimated again"))
    before = run.result.metrics["pgd20"].correct
    (tmp_path / "odd/result.json").unlink()
    assert go(tmp_path / "odd", wanted).result.metrics["pgd20"].correct == before
    given_up = tmp_path / "given up"
    given_up.mkdir()
    (given_up / "transition.json").write_bytes((tmp_path / "odd/transition.json").read_bytes())
    monkeypatch.setattr(running, "estimated_transition", lambda *_, **__: real)
    # a start that was killed early left the matrix of other data
    go(given_up, wanted, problem=tiny.problem(Biased("weak")))
    assert json.loads((given_up / "transition.json").read_text(encoding="utf-8"))["matrix"] == real.tolist()


def test_held_out_images_that_the_user_brings_are_taken(tmp_path: Path) -> None:
    problem = tiny.problem(RECIPE.labels).held_out(0.2, 0)
    run = go(tmp_path, replace(RECIPE, holdout=0.5, selection="held_scel_natural"), problem=problem)
    assert problem.held is not None
    assert run.result.held["scel_natural"].images == len(problem.held) == 4


def test_under_a_rule_that_no_epoch_qualified_for_the_last_is_reported_as_such(tmp_path: Path) -> None:
    stages = (replace(RECIPE.stages[0], epochs=2),)
    short = replace(RECIPE, holdout=0.2, selection="held_scel_natural", stages=stages)
    assert go(tmp_path, short).result.selection == Selection("last", stage=0, epoch=2)


def test_two_stages_under_a_matrix_that_never_gives_a_class_go_on(tmp_path: Path) -> None:
    rows = [[0, 0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0, 0], *[[0.5, 0.5, 0, 0, 0]] * 3]
    candidates = atcl.rule_out(20, 5, [0, 1] * 10)
    plain = tiny.problem(RECIPE.labels).train
    data = replace(plain, candidates=candidates, transition=torch.tensor(rows))
    assert go(tmp_path, tiny.RECIPES["digits/two-stage"], problem=Problem(data)).journal


def test_a_test_set_of_ones_own_never_overwrites_the_result(tmp_path: Path) -> None:
    run = go(tmp_path)
    first = run.result
    assert run.evaluate(["pgd20"], device="cpu", test=tiny.split(5), build=tiny.TinyNet)["pgd20"].images == 5
    assert run.result == first
    with pytest.raises(AtclError, match="give `test`"):
        run.evaluate(["natural"], build=tiny.TinyNet)


def test_evaluating_again_adds_to_the_result(tmp_path: Path) -> None:
    small = replace(atcl.recipe("digits/oracle"), model="mlp")
    run = train(
        replace(small, stages=(replace(small.stages[0], epochs=1, batch_size=700),)),
        out=tmp_path,
        execution=tiny.ON_CPU,
    )
    first = run.result.metrics
    measured = open_run(tmp_path).evaluate(["cw30"], device="cpu", seed=3, batch_size=100)
    assert run.result.metrics["cw30"].seed == 3
    assert run.result.metrics["cw30"].accuracy == measured["cw30"].accuracy
    assert run.result.metrics["natural"] == first["natural"]


def test_a_folder_of_a_run_without_its_recipe_is_refused(tmp_path: Path) -> None:
    go(tmp_path)
    (tmp_path / "recipe.json").unlink()
    with pytest.raises(AtclError, match=r"no recipe.json to say which"):
        go(tmp_path)


def test_a_start_that_failed_does_not_block_the_folder(tmp_path: Path) -> None:
    wild = replace(RECIPE, stages=(replace(RECIPE.stages[0], lr=StepDecay(1e38)),))
    with pytest.raises(AtclError, match="no longer finite in epoch 1"):
        go(tmp_path, wild)
    assert go(tmp_path).result.seed == 1


def test_evaluating_on_another_test_set_than_the_runs_is_refused(tmp_path: Path) -> None:
    pixels = np.zeros((20, 4, 4), np.uint8)
    for name, first in (("one", 0), ("two", 1)):
        (tmp_path / name).mkdir()
        arrays: dict[str, Any] = {"x_train": pixels, "y_train": np.arange(20) % 10}
        arrays |= {"x_test": pixels[:5], "y_test": np.arange(5) + first}
        np.savez(tmp_path / name / "mnist.npz", **arrays)
    plain = atcl.recipe("mnist/oracle")
    small = replace(plain, model="mlp", stages=(replace(plain.stages[0], epochs=1),), shape=(1, 4, 4))
    run = train(small, out=tmp_path / "run", execution=Execution(device="cpu", data_dir=tmp_path / "one"))
    assert run.evaluate(["natural"], device="cpu", data_dir=tmp_path / "one")["natural"].images == 5
    with pytest.raises(AtclError, match="not the one that the run was made with"):
        run.evaluate(["natural"], device="cpu", data_dir=tmp_path / "two")


def test_a_finished_run_and_a_cut_warm_up_are_reported(tmp_path: Path) -> None:
    messages: list[str] = []

    class Listening(Watcher):
        def notify(self, text: str) -> None:
            messages.append(text)

    short = replace(RECIPE, stages=(replace(RECIPE.stages[0], epochs=3),))
    for _ in range(2):
        go(tmp_path, short, watcher=Listening())
    assert messages == [
        "note: training ends in epoch 3, before the attack has grown to its full strength",
        "this run is finished: nothing is trained again",
    ]


def test_seeds_are_whole_numbers_of_at_least_zero(tmp_path: Path) -> None:
    with pytest.raises(AtclError, match="at least 0"):
        go(tmp_path, seed=-1)


def test_a_lost_model_or_result_is_written_again(tmp_path: Path) -> None:
    run = go(tmp_path)
    model, result = (tmp_path / "model.safetensors").read_bytes(), run.result
    for name in ("model.safetensors", "result.json"):
        (tmp_path / name).unlink()
        with pytest.raises(AtclError, match="the same `atcl train` command goes on"):
            run.evaluate(["natural"], build=tiny.TinyNet, test=tiny.split())
        go(tmp_path)
        assert (tmp_path / "model.safetensors").read_bytes() == model
        again = run.result
        assert (again.selection, again.digest) == (result.selection, result.digest)
        assert again.recipe == result.recipe
        assert again.training_seconds == result.training_seconds


@pytest.mark.parametrize("content", ["{}", "[]", "3", '{"metrics": 1}'])
def test_a_file_that_is_not_a_result_is_refused(tmp_path: Path, content: str) -> None:
    run = go(tmp_path)
    (tmp_path / "result.json").write_text(content, encoding="utf-8")
    with pytest.raises(AtclError, match="not the result of a run"):
        run.evaluate(["natural"], build=tiny.TinyNet, test=tiny.split())


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    run = go(tmp_path)
    with pytest.raises(AtclError, match="another model"):
        run.model(build=lambda: nn.Linear(2, 2))


class Wrong(nn.Module):
    """Logits for another number of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x.flatten(1))
        return out


def weight_normed(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """A model whose first layer keeps its weight as a length and a direction."""
    with warnings.catch_warnings(action="ignore"):  # the older form is on its way out
        model = tiny.TinyNet()
        norm(model.layers[0])
    return model


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Wrong, "5 classes"),
        (lambda: nn.Linear(99, 5), "does not take images of shape"),
        (nn.Flatten, "no parameters"),
        (lambda: weight_normed(nn.utils.weight_norm), "cannot be copied.*parametrizations"),
    ],
    ids=["logits", "images", "parameters", "copies"],
)
def test_a_model_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, build: Build, message: str
) -> None:
    problem = tiny.problem(RECIPE.labels)
    with pytest.raises(AtclError, match=message):
        train(RECIPE, out=tmp_path / "run", problem=problem, build=build, execution=tiny.ON_CPU)
    assert not (tmp_path / "run").exists()


def test_a_model_with_parametrized_weights_trains_and_loads(tmp_path: Path) -> None:
    build = lambda: weight_normed(nn.utils.parametrizations.weight_norm)  # noqa: E731
    run = train(RECIPE, out=tmp_path, problem=tiny.problem(RECIPE.labels), build=build, execution=tiny.ON_CPU)
    assert "layers.0.parametrizations.weight.original0" in run.model(build=build).state_dict()


def sized(batch_size: int) -> Recipe:
    stages = [replace(stage, batch_size=batch_size, epochs=3) for stage in RECIPE.stages]
    return replace(RECIPE, stages=tuple(stages))


@pytest.mark.parametrize(
    ("batch_size", "images", "remedy"),
    [
        (19, 20, "--stages.0.batch-size 20, or one image more"),
        (8, 17, "batch-size 9, "),
        (1, 20, "batch-size 2, "),
        (2, 1, "give more images"),
    ],
)
def test_a_batch_of_one_is_refused_where_batch_statistics_need_more(
    tmp_path: Path, batch_size: int, images: int, remedy: str
) -> None:
    shared = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 5))
    before = [tensor.clone() for tensor in shared.state_dict().values()]
    problem = Problem(tiny.problem(RECIPE.labels).train.take(torch.arange(images)))
    wanted, state = sized(batch_size), torch.get_rng_state()
    with pytest.raises(AtclError, match=remedy) as caught:
        train(wanted, out=tmp_path / "run", problem=problem, build=lambda: shared, execution=tiny.ON_CPU)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert all(torch.equal(old, new) for old, new in zip(before, shared.state_dict().values(), strict=True))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(("images", "refused"), [(66, True), (65, True), (68, False)])
def test_the_halves_that_a_transition_matrix_is_estimated_from_leave_no_batch_of_one(
    images: int, refused: bool, tmp_path: Path
) -> None:
    wanted = replace(sized(images), transition="estimated")
    split = tiny.split(images)
    problem = Problem(weaken(split, RECIPE.labels, seed=3))

    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))

    with pytest.raises(AtclError, match="two images less") if refused else nullcontext():
        train(wanted, out=tmp_path / "run", problem=problem, build=build, execution=tiny.ON_CPU)
    assert (tmp_path / "run").exists() is not refused


@pytest.mark.parametrize(
    ("batch_size", "layers"),
    [
        # one image has 16 values of each channel
        (19, (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5))),
        (18, (nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))),
        (19, (nn.Flatten(), nn.Linear(36, 8), nn.LayerNorm(8), nn.Linear(8, 5))),
    ],
    ids=["maps", "two images", "no batch statistics"],
)
def test_a_last_batch_that_can_be_learnt_from_is_taken(
    tmp_path: Path, batch_size: int, layers: tuple[nn.Module, ...]
) -> None:
    run = train(
        sized(batch_size),
        out=tmp_path,
        problem=tiny.problem(RECIPE.labels),
        build=lambda: nn.Sequential(*layers),
        execution=tiny.ON_CPU,
    )
    assert run.result


def test_problems_that_do_not_fit_together_are_refused() -> None:
    problem = tiny.problem(RECIPE.labels)
    with pytest.raises(AtclError, match="20 training images but 10 true labels"):
        replace(problem, truth=tiny.split(10).truth)
    none, two = (atcl.Truth(torch.zeros(number, dtype=torch.int64), 5) for number in (0, 2))
    with pytest.raises(AtclError, match="the test set is empty"):
        replace(problem, test=atcl.Split(tiny.split().x[:0], none))
    with pytest.raises(AtclError, match="training and test set differ"):
        replace(problem, test=atcl.Split(torch.zeros(2, 1, 3, 3), two))


def test_another_transition_matrix_or_test_set_is_other_data(tmp_path: Path) -> None:
    recipe = tiny.RECIPES["mnist/warmup-forward"]
    problem = tiny.problem(recipe.labels)
    go(tmp_path, recipe, problem=problem)
    skewed = replace(problem.train, transition=torch.full((5, 5), 0.2))
    with pytest.raises(AtclError, match="differs in data"):
        go(tmp_path, recipe, problem=replace(problem, train=skewed))
    with pytest.raises(AtclError, match="differs in test"):
        go(tmp_path, recipe, problem=replace(problem, test=tiny.split(10, seed=8)))


def test_own_arrays_own_model_and_no_truth_at_all(tmp_path: Path) -> None:
    x, complementary = torch.rand(30, 3, 4, 4), [i % 4 for i in range(30)]
    data = atcl.WeakData(x, atcl.rule_out(30, classes=4, complementary=complementary))

    def linear() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(48, 4))

    run = train(RECIPE, seed=1, out=tmp_path, problem=Problem(data), build=linear, execution=tiny.ON_CPU)
    assert run.result.metrics == {}
    assert run.recipe.model == "linear"
    assert "pseudo_label_accuracy" not in run.journal[-1]
    assert run.model(build=linear)(x).shape == (30, 4)


def test_a_rule_that_needs_a_test_set_is_refused_without_one(tmp_path: Path) -> None:
    recipe = tiny.RECIPES["digits/two-stage-test-teacher"]
    with pytest.raises(AtclError, match="there is none"):
        go(tmp_path / "teacher", recipe, problem=replace(tiny.problem(recipe.labels), test=None))
    with pytest.raises(AtclError, match="there is none"):
        go(tmp_path / "selection", PAPER, problem=replace(tiny.problem(PAPER.labels), test=None))


def test_a_loss_that_breaks_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    wild = replace(RECIPE, stages=(replace(RECIPE.stages[0], lr=StepDecay(0.05, at=(4,), factor=1e39)),))
    for _ in range(2):  # and the same command finds it, and breaks at the same place
        with pytest.raises(AtclError, match="no longer finite in epoch 4"):
            go(tmp_path, wild)
        assert not (tmp_path / "result.json").exists()
        kept = checkpoints.stored(tmp_path / "checkpoints")
        states = [checkpoints.from_bytes(path.read_bytes(), path) for path in kept]
        assert [int(state["epoch"]) for state in states] == [3, 2]
        assert all(tensor.isfinite().all() for state in states for tensor in state.values())


def test_a_model_with_tied_weights_can_be_saved(tmp_path: Path) -> None:
    class Tied(tiny.TinyNet):
        def __init__(self) -> None:
            super().__init__()
            self.again = self.layers[-1]

    run = train(RECIPE, out=tmp_path, problem=tiny.problem(RECIPE.labels), build=Tied, execution=tiny.ON_CPU)
    assert run.model(build=Tied)(torch.rand(2, *tiny.SHAPE)).shape == (2, 5)


@pytest.mark.parametrize("garbage", [b"", b"no json\n", None], ids=["empty", "garbage", "gone"])
def test_a_lost_journal_does_not_lose_the_run(tmp_path: Path, garbage: bytes | None) -> None:
    model = (go(tmp_path).folder / "model.safetensors").read_bytes()
    (tmp_path / "result.json").unlink()
    (tmp_path / "journal.jsonl").unlink()
    if garbage is not None:
        (tmp_path / "journal.jsonl").write_bytes(garbage)
    messages: list[str] = []

    class Listening(Watcher):
        def notify(self, text: str) -> None:
            messages.append(text)

    go(tmp_path, watcher=Listening())
    assert messages == ["journal.jsonl holds 0 of the 5 epochs that are done; going on without the others"]
    assert (tmp_path / "model.safetensors").read_bytes() == model


def test_the_papers_selection_also_reports_the_last_epoch(tmp_path: Path) -> None:
    result = go(tmp_path, PAPER).result
    assert result.last_record
    assert result.last_metrics["pgd20"].accuracy == result.last_record["test_pgd20"]
    assert set(result.last_metrics) == set(result.metrics)


def test_names_and_folders_of_variants_never_collide() -> None:
    plain = atcl.recipe("digits/warmup-pla")
    variant = replace(plain, labels=Complementary(3))
    assert name_of(plain) == "digits/warmup-pla"
    assert name_of(variant) == "digits/custom"
    assert folder_of("digits/warmup-pla", plain) == ("digits", "warmup-pla")
    assert folder_of("digits/warmup-pla", variant)[1].startswith("warmup-pla-")


def test_devices() -> None:
    assert resolve("cpu").type == "cpu"
    for name in ("gpu", "meta", "cuda:x"):
        with pytest.raises(AtclError, match="unknown device"):
            resolve(name)
    if not torch.cuda.is_available():
        with pytest.raises(AtclError, match="no CUDA GPU"):
            resolve("cuda")


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(AtclError, match="not the folder of a run"):
        open_run(tmp_path)
    (tmp_path / "result.json").write_text("{}", encoding="utf-8")
    with pytest.raises(AtclError, match="an entry of a ledger, which has a result and no model"):
        open_run(tmp_path)
    (tmp_path / "recipe.json").write_text("{", encoding="utf-8")
    with pytest.raises(AtclError, match="cannot be read"):
        open_run(tmp_path)
    (tmp_path / "recipe.json").write_text("[]", encoding="utf-8")
    with pytest.raises(AtclError, match="not of a run"):
        open_run(tmp_path)
    (tmp_path / "recipe.json").write_text(json.dumps({"name": "x"}), encoding="utf-8")
    with pytest.raises(AtclError, match="not of a run: KeyError"):
        open_run(tmp_path)


@pytest.mark.parametrize(("first", "warned"), [(1, False), (2, False), (3, True)])
def test_training_on_pseudo_labels_that_were_never_updated_gives_a_warning(
    first: int, warned: bool, tmp_path: Path
) -> None:
    recipe = tiny.RECIPES["digits/warmup-pla"]
    gamma, supervision = LinearFall(1.0, over=1, after=1), PseudoLabels(first=first)
    stage = replace(recipe.stages[0], epochs=3, gamma=gamma, supervision=supervision)
    messages: list[str] = []

    class Listener(Watcher):
        def notify(self, text: str) -> None:
            messages.append(text)

    go(tmp_path, replace(recipe, stages=(stage,)), watcher=Listener())
    assert any("before the memory holds any prediction" in line for line in messages) == warned
