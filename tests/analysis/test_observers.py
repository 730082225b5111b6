"""Observers record, and change nothing."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from atcl.analysis.observe_checkpoints import observe_checkpoints
from atcl.analysis.observers import OBSERVATIONS, ON_GPU, SHARE, Observers, observed_epochs, planned_epochs
from atcl.core import journal
from atcl.core.errors import AtclError
from atcl.engine.engines import EAGER, Engine, Step
from atcl.recipes.catalogue import RECIPES
from atcl.recipes.schema import Recipe
from atcl.runs.layout import ANALYSIS
from atcl.runs.problem import Problem
from atcl.runs.run import Run
from atcl.runs.spec import Execution
from atcl.runs.start import train
from atcl.runs.watcher import Watcher
from atcl.training.optimizers import Sgd
from atcl.training.schedules import Constant
from tests import tiny

ALL = tuple(OBSERVATIONS)
WATCHED = (
    "digits/warmup-pla",
    "digits/two-stage",
    "digits/trades",
    "cifar10/oracle",
    "mnist/direct-nn",
    *tiny.CUSTOM,
)


def go(
    folder: Path,
    recipe: Recipe,
    observe: tuple[str, ...],
    every: int | None = 1,
    watcher: Watcher | None = None,
) -> Run:
    return train(
        recipe,
        out=folder,
        problem=tiny.problem(recipe.labels),
        build=tiny.TinyNet,
        watcher=watcher,
        execution=Execution(device="cpu", observing=Observers(observe, every)),
    )


def without_seconds(run: Run) -> list[journal.Record]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in run.journal]


def observed(run: Run) -> list[journal.Record]:
    return journal.read(run.folder / ANALYSIS)


@pytest.mark.parametrize("name", WATCHED)
def test_a_run_is_the_same_to_the_last_bit_with_and_without_observers(name: str, tmp_path: Path) -> None:
    recipe = tiny.ALL[name]
    alone, watched = go(tmp_path / "alone", recipe, ()), go(tmp_path / "watched", recipe, ALL)
    weights = [(run.folder / "model.safetensors").read_bytes() for run in (alone, watched)]
    assert weights[0] == weights[1]
    assert without_seconds(alone) == without_seconds(watched)
    assert not (alone.folder / ANALYSIS).exists()
    records = observed(watched)
    assert [(one["stage"], one["epoch"]) for one in records] == [
        (one["stage"], one["epoch"]) for one in watched.journal
    ]
    for one in records:
        assert one["gradient.first_norm"] > 0
        assert 0 <= one["gradient.variance"] <= 1
        assert 0 <= one["test_pgd20"] <= one["test_natural"] <= 100
        attacked = recipe.stages[one["stage"]].budget.steps > 0
        assert ("attack.log.cosine" in one) == attacked
        if attacked:
            assert 0 <= one["attack.log.lowered"] <= 1
            assert len(one["instance.pla.drop"]) == 4


class Stop(Watcher):
    def epoch(self, record: journal.Record) -> None:
        if record["epoch"] == 2:
            raise KeyboardInterrupt


def test_a_run_that_was_stopped_records_what_it_would_have_recorded(tmp_path: Path) -> None:
    recipe = tiny.RECIPES["digits/warmup-pla"]
    whole = go(tmp_path / "whole", recipe, ALL)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "stopped", recipe, ALL, watcher=Stop())
    # of an epoch that no checkpoint holds
    journal.append(tmp_path / "stopped" / ANALYSIS, {"stage": 0, "epoch": 3})
    assert observed(go(tmp_path / "stopped", recipe, ALL)) == observed(whole)


@pytest.mark.parametrize("name", ["digits/warmup-pla", "digits/two-stage", *tiny.CUSTOM])
def test_observing_a_checkpoint_afterwards_gives_what_observers_recorded(name: str, tmp_path: Path) -> None:
    recipe = tiny.ALL[name]
    watched, alone = go(tmp_path / "watched", recipe, ALL), go(tmp_path / "alone", recipe, ())
    problem = tiny.problem(recipe.labels)
    found = observe_checkpoints(alone, ALL, problem=problem, device="cpu", build=tiny.TinyNet)
    assert observed(alone) == found
    assert [one["epoch"] for one in found] == [one["epoch"] for one in alone.journal[-2:]]
    for then, now in zip(observed(watched)[-2:], found, strict=True):
        # a checkpoint has no steps: its norms are those of one batch
        steps = {"gradient.first_norm", "gradient.last_norm"}
        batch = {"gradient.batch_first_norm", "gradient.batch_last_norm"}
        assert now.keys() - batch == then.keys() - steps
        for key in now.keys() - batch:  # training uses another memory layout: the last digits differ
            assert now[key] == pytest.approx(then[key], rel=1e-3, abs=1e-4), key
        assert all(now[key] > 0 for key in batch)
        assert all(then[key] > 0 for key in steps)
    observe_checkpoints(alone, ALL, problem=problem, device="cpu", build=tiny.TinyNet)
    assert observed(alone) == found  # nothing twice
    with pytest.raises(AtclError, match="differs in data"):
        observe_checkpoints(
            alone,
            ("gradients",),
            problem=replace(problem, train=problem.train.take(torch.arange(19)), truth=None),
            build=tiny.TinyNet,
        )


def test_the_norm_that_is_noted_is_that_of_the_step_which_was_taken(tmp_path: Path) -> None:
    recipe = tiny.RECIPES["digits/direct-log"]
    stage = replace(recipe.stages[0], epochs=1, batch_size=20, optimizer=Sgd(momentum=0.0), lr=Constant(0.5))
    recipe = replace(recipe, stages=(stage,))
    run = go(tmp_path, recipe, ("gradients",))
    untrained = train_nothing(tmp_path / "untrained", recipe)
    pairs = zip(run.model(build=tiny.TinyNet).parameters(), untrained, strict=True)
    moved = [after.detach() - before for after, before in pairs]
    (record,) = observed(run)
    for key, parts in (("gradient.first_norm", moved[:2]), ("gradient.last_norm", moved[-2:])):
        norm = float(torch.cat([part.flatten() for part in parts]).norm())
        assert record[key] == pytest.approx(norm / 0.5, rel=1e-3)


def train_nothing(folder: Path, recipe: Recipe) -> list[torch.Tensor]:
    """The weights that the run begins with: those after an epoch at learning rate 0."""
    still = replace(recipe, stages=(replace(recipe.stages[0], lr=Constant(0.0)),))
    return [parameter.detach() for parameter in go(folder, still, ()).model(build=tiny.TinyNet).parameters()]


def test_observed_epochs_are_spread_from_the_first_to_the_last() -> None:
    assert observed_epochs(10, 100) == set(range(1, 11))
    assert observed_epochs(10, 4) == {1, 4, 7, 10}
    assert observed_epochs(10, 1) == {10}
    assert observed_epochs(10, 0) == set()
    assert observed_epochs(1, 5) == {1}


def test_what_a_short_run_does_not_observe_is_reported(tmp_path: Path) -> None:
    messages: list[str] = []

    class Listening(Watcher):
        def notify(self, text: str) -> None:
            messages.append(text)

    run = go(tmp_path, tiny.RECIPES["digits/oracle"], ("attacks",), every=None, watcher=Listening())
    assert not observed(run)
    assert "attacks is not observed in stage 1" in messages[-1]
    assert "--observe-every" in messages[-1]


@pytest.mark.parametrize(("device", "weight", "fewest"), [("cpu", 1, 20), ("cuda", ON_GPU, 9)])
@pytest.mark.parametrize("name", ["kuzushiji/oracle", "kuzushiji/warmup-pla", "cifar10/warmup-pla"])
def test_by_default_all_observers_together_take_at_most_their_share_of_the_work(
    name: str, device: str, weight: float, fewest: int
) -> None:
    stage, sizes = RECIPES[name]().stages[0], {"kuzushiji": 60_000, "cifar10": 50_000}
    images = sizes[name.partition("/")[0]]
    problem = tiny.problem(RECIPES[name]().labels)

    class Sized(list[int]):
        def __len__(self) -> int:
            return images

    sized = Problem.__new__(Problem)
    object.__setattr__(sized, "train", Sized())
    object.__setattr__(sized, "test", problem.test and Sized())
    work = images * sum(3 + stage.phase(epoch).budget.steps for epoch in range(1, stage.epochs + 1))
    plan = planned_epochs(ALL, stage, sized, torch.device(device))
    assert min(map(len, plan.values())) >= fewest, "too few to draw a curve from"
    passes = sum(OBSERVATIONS[each].passes(stage, sized) * len(epochs) for each, epochs in plan.items())
    assert weight * passes <= SHARE * work
    for each in ALL:
        assert len(planned_epochs([each], stage, sized, torch.device(device))[each]) >= 20


@pytest.mark.parametrize(
    "name",
    ["digits/warmup-pla", "digits/direct-forward", "digits/trades", "cifar10/oracle", "digits/warmup-pla-k"],
)
def test_a_function_recorded_at_the_first_observation_gives_later_epochs_their_own_numbers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine always runs the function that it received first, as a CUDA graph does."""

    @dataclass(frozen=True)
    class First(Engine):
        records: bool = True

        def repeated(self, function: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
            return function

        def whole(self, step: Step, rng: Generator) -> Step:
            return step

    recipe, found = tiny.changing(tiny.RECIPES[name]), []
    for engine in (First(), EAGER):
        monkeypatch.setattr("atcl.runs.start.engine_of", lambda *names, engine=engine, **more: engine)
        found.append(observed(go(tmp_path / type(engine).__name__, recipe, ALL)))
    assert len(found[0]) == 8 * len(recipe.stages)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("observe", "every", "missing", "message"),
    [
        (("gradient",), 1, {}, "did you mean 'gradients'"),
        (("attacks",), 1, {"truth": None}, "takes the true classes of the training images"),
        (("test",), 1, {"test": None}, "takes a test set"),
        (("gradients",), 0, {}, "not every 0"),
    ],
)
def test_what_cannot_be_observed_is_refused_before_anything_is_written(
    observe: tuple[str, ...], every: int, missing: dict[str, None], message: str, tmp_path: Path
) -> None:
    recipe = tiny.RECIPES["digits/warmup-pla"]
    problem = replace(tiny.problem(recipe.labels), **missing)  # type: ignore[arg-type]
    with pytest.raises(AtclError, match=message):
        train(
            recipe,
            out=tmp_path / "run",
            problem=problem,
            build=tiny.TinyNet,
            execution=Execution(observing=Observers(observe, every)),
        )
    assert not (tmp_path / "run").exists()
