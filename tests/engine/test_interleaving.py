"""Several runs at once: each draws what it would draw alone, and one that fails does not stop the others."""

import weakref
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atcl.core.errors import AtclError
from atcl.engine.interleaving import LANES, interleave
from atcl.runs.result import EngineUse
from atcl.runs.spec import RunSpec
from atcl.runs.start import train, train_together
from atcl.runs.watcher import Watcher
from atcl.training.learner import Learner
from atcl.training.loop import fitting
from tests import tiny

CPU = torch.device("cpu")
RECIPE = tiny.RECIPES["cifar10/warmup-pla"]


def drawing(seed: int, times: int) -> Generator[None, None, list[float]]:
    """Seed the global generator, and draw from it between pauses."""
    torch.manual_seed(seed)
    drawn = []
    for _ in range(times):
        yield
        drawn.append(torch.rand(()).item())
    return drawn


def test_each_draws_from_a_global_state_of_its_own_and_the_common_one_stays() -> None:
    before = torch.get_rng_state()
    alone = [interleave([drawing(seed, times)], CPU)[0] for seed, times in ((1, 3), (2, 5))]
    assert interleave([drawing(1, 3), drawing(2, 5)], CPU) == alone
    assert torch.equal(before, torch.get_rng_state())
    assert alone[0] != alone[1][:3]


def learning(seed: int) -> Generator[None, None, Tensor]:
    """Train a model with dropout, augmentation and random starts, and return its weights."""
    (stage,) = RECIPE.stages
    data = tiny.problem(RECIPE.labels).train
    torch.manual_seed(seed)
    learner = Learner(tiny.TinyNet(), data, stage)
    yield from fitting(learner, data, stage, seed=seed)
    return torch.cat([tensor.flatten() for tensor in learner.state().values()]).double()


def test_models_that_take_turns_are_those_trained_alone() -> None:
    alone = [interleave([learning(seed)], CPU)[0] for seed in (1, 2, 3)]
    together = interleave([learning(seed) for seed in (1, 2, 3)], CPU)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
    assert not torch.equal(alone[0], alone[1])


def test_no_more_share_a_gpu_than_there_are_streams_for() -> None:
    with pytest.raises(AtclError, match=f"at most {LANES} runs"):
        interleave([drawing(number, 1) for number in range(LANES + 1)], torch.device("cuda"))


def failing(at: int) -> Generator[None, None, list[float]]:
    for number in range(5):
        if number == at:
            raise AtclError("this one fails")
        yield
    return []


def test_one_that_fails_later_lets_the_others_end() -> None:
    ended: list[int] = []

    def ending(number: int) -> Generator[None, None, list[float]]:
        found = yield from drawing(number, 4)
        ended.append(number)
        return found

    with pytest.raises(AtclError, match="this one fails"):
        interleave([ending(1), failing(2), ending(3)], CPU)
    assert ended == [1, 3]


def test_one_that_fails_at_once_stops_all() -> None:
    closed: list[bool] = []

    def watched() -> Generator[None, None, list[float]]:
        try:
            yield
            yield
        finally:
            closed.append(True)
        return []

    task = watched()  # kept, so that nothing else closes it
    with pytest.raises(AtclError, match="this one fails"):
        interleave([task, failing(0)], CPU)
    assert closed == [True]


def test_memory_of_a_failed_run_is_free_while_the_others_go_on() -> None:
    seen: list[bool] = []

    class Large:
        pass

    def holding() -> Generator[None, None, list[float]]:
        large = Large()
        large_ones.append(weakref.ref(large))
        yield
        raise AtclError("this one fails")

    def checking() -> Generator[None, None, list[float]]:
        for _ in range(2):
            yield
        seen.append(large_ones[0]() is None)
        return []

    large_ones: list[weakref.ref[Large]] = []
    with pytest.raises(AtclError, match="this one fails"):
        interleave([holding(), checking()], CPU)
    assert seen == [True]


def test_runs_of_several_seeds_are_those_of_each_seed(tmp_path: Path) -> None:
    class Counter(Watcher):
        def __init__(self) -> None:
            self.epochs: list[int] = []

        def epoch(self, record: dict[str, object]) -> None:
            self.epochs.append(int(str(record["epoch"])))

    problem, watchers = tiny.problem(RECIPE.labels), [Counter(), Counter()]
    outs = [tmp_path / "one", tmp_path / "two"]
    specs = [
        RunSpec.of(RECIPE, seed=seed, out=out, problem=problem, build=tiny.TinyNet)
        for seed, out in zip([4, 7], outs, strict=True)
    ]
    runs = train_together(specs, tiny.ON_CPU, watchers)
    alone = train(
        RECIPE, seed=7, out=tmp_path / "alone", problem=problem, build=tiny.TinyNet, execution=tiny.ON_CPU
    )
    assert [run.seed for run in runs] == [4, 7]
    assert [watcher.epochs for watcher in watchers] == [[1, 2, 3, 4, 5]] * 2
    assert runs[1].result.model == alone.result.model
    assert runs[0].result.model != alone.result.model
    assert runs[1].result.engine == EngineUse("eager", compiled=False, together=2)


def test_runs_of_different_recipes_are_those_that_they_would_be_alone(tmp_path: Path) -> None:
    names = ("digits/direct-log", "digits/direct-exp", "mnist/two-stage", "digits/warmup-pla")
    problem = tiny.problem(RECIPE.labels)
    specs = [RunSpec(tiny.RECIPES[name], name, 3, tmp_path / name, problem, tiny.TinyNet) for name in names]
    runs = train_together(specs, tiny.ON_CPU)
    for name, run in zip(names, runs, strict=True):
        alone = train(
            tiny.RECIPES[name],
            name=name,
            seed=3,
            out=tmp_path / "alone" / name,
            problem=problem,
            build=tiny.TinyNet,
            execution=tiny.ON_CPU,
        )
        assert (run.name, run.result.model) == (alone.name, alone.result.model)
        assert run.result.engine
        assert run.result.engine.together == len(names)
    assert len({run.result.model["sha256"] for run in runs}) == len(names)


def test_the_one_of_several_recipes_that_fails_is_named(tmp_path: Path) -> None:
    problem, names = tiny.problem(RECIPE.labels), ("digits/direct-log", "digits/oracle")
    specs = [RunSpec(tiny.RECIPES[name], name, 3, tmp_path / name, problem, tiny.TinyNet) for name in names]
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits/oracle").write_text("in the way", encoding="utf-8")
    with pytest.raises(AtclError, match="digits/oracle, seed 3: cannot write"):
        train_together(specs, tiny.ON_CPU)


@pytest.mark.parametrize("seeds", [[], [1, 1], [1, -2]])
def test_seeds_that_make_no_sense_are_refused(seeds: list[int], tmp_path: Path) -> None:
    with pytest.raises(AtclError, match="seed"):
        train_together(
            [RunSpec.of(RECIPE, seed=seed, out=tmp_path / str(number)) for number, seed in enumerate(seeds)],
            tiny.ON_CPU,
        )
    assert not list(tmp_path.iterdir())
