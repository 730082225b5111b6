"""What only a GPU can show; without one these tests skip."""

from pathlib import Path

import pytest
import torch

from atcl.running import train
from tests import tiny

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and this machine has none")]


@pytest.mark.parametrize("name", tiny.RECIPES)
def test_every_recipe_trains_on_the_gpu_and_its_checkpoint_loads_on_the_cpu(name: str, tmp_path: Path) -> None:
    recipe = tiny.RECIPES[name]
    problem = tiny.problem(recipe.labels)
    run = train(recipe, seed=1, out=tmp_path, device="cuda", problem=problem, build=tiny.TinyNet)
    assert len(run.journal) == sum(stage.epochs for stage in recipe.stages)
    assert run.model("cpu", build=tiny.TinyNet)(torch.rand(2, *tiny.SHAPE)).isfinite().all()
    measured = run.evaluate(["natural"], device="cpu", test=problem.test, build=tiny.TinyNet)
    assert measured["natural"].correct == run.result["metrics"]["natural"]["correct"]


def test_a_stopped_run_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    recipe = tiny.RECIPES["cifar10/warmup-pla"]
    problem = tiny.problem(recipe.labels)

    class Stop(Exception):
        pass

    from atcl.running import Watcher

    class Stopper(Watcher):
        def epoch(self, record: dict[str, object]) -> None:
            if record["epoch"] == 3:
                raise Stop

    torch.backends.cudnn.deterministic = True
    whole = train(recipe, seed=1, out=tmp_path / "whole", device="cuda", problem=problem, build=tiny.TinyNet)
    with pytest.raises(Stop):
        train(recipe, seed=1, out=tmp_path / "cut", device="cuda", problem=problem, build=tiny.TinyNet, watcher=Stopper())
    cut = train(recipe, seed=1, out=tmp_path / "cut", device="cuda", problem=problem, build=tiny.TinyNet)
    losses = [[record["loss"] for record in run.journal] for run in (whole, cut)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
