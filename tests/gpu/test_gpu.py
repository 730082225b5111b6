"""What only a GPU can show; without one these tests skip."""

from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from atcl.datasets.labels import Ordinary
from atcl.engine.engines import Engine, Step
from atcl.runs.spec import Execution
from atcl.runs.start import train
from atcl.runs.watcher import Watcher
from atcl.training.learner import Learner
from atcl.training.loop import fit
from atcl.training.optimizers import Adam
from atcl.training.schedules import Constant
from atcl.training.stage import Stage
from atcl.training.supervision import relabel
from atcl.training.transitions import estimated_transition
from atcl.training.weak_validation import judge
from tests import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and this machine has none"),
]


@pytest.mark.parametrize("name", tiny.ALL)
def test_every_recipe_trains_on_the_gpu_and_its_checkpoint_loads_on_the_cpu(
    name: str, tmp_path: Path
) -> None:
    recipe = tiny.ALL[name]
    problem = tiny.problem(recipe.labels)
    run = train(
        recipe, seed=1, out=tmp_path, problem=problem, build=tiny.TinyNet, execution=Execution(device="cuda")
    )
    assert len(run.journal) == sum(stage.epochs for stage in recipe.stages)
    assert run.model("cpu", build=tiny.TinyNet)(torch.rand(2, *tiny.SHAPE)).isfinite().all()
    measured = run.evaluate(["natural"], device="cpu", test=problem.test, build=tiny.TinyNet)
    assert measured["natural"].correct == run.result.metrics["natural"].correct


def unsynchronised(step: Step) -> Step:
    """Run the step so that waiting for the GPU is an error, once the optimiser has made its state."""
    calls = 0

    def run(index: Tensor, steps: int, remember: bool) -> Tensor:
        nonlocal calls
        calls += 1
        torch.cuda.set_sync_debug_mode("error" if calls > 1 else "default")
        try:
            return step(index, steps, remember)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return run


class Unsynchronised(Engine):
    def whole(self, step: Step, rng: Generator) -> Step:
        return unsynchronised(step)


def test_positive_control_a_step_that_waits_is_caught() -> None:
    waits = unsynchronised(lambda index, steps, remember: index + index.sum().item())
    waits(torch.ones(2, device="cuda"), 0, False)
    with pytest.raises(RuntimeError, match="synchroniz"):
        waits(torch.ones(2, device="cuda"), 0, False)


@pytest.mark.parametrize("name", tiny.ALL)
def test_a_step_never_waits_for_the_gpu(name: str) -> None:
    recipe = tiny.ALL[name]
    for stage in recipe.stages:
        labels = Ordinary() if stage.teacher != "none" else recipe.labels
        data = tiny.problem(labels).train.to(torch.device("cuda"))
        fit(Learner(tiny.TinyNet(), data, stage), data, stage, seed=0, engine=Unsynchronised())


def test_a_stopped_run_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    recipe = tiny.RECIPES["cifar10/warmup-pla"]
    problem = tiny.problem(recipe.labels)

    class Stop(Exception):
        pass

    class Stopper(Watcher):
        def epoch(self, record: dict[str, object]) -> None:
            if record["epoch"] == 3:
                raise Stop

    torch.backends.cudnn.deterministic = True
    whole = train(
        recipe,
        seed=1,
        out=tmp_path / "whole",
        problem=problem,
        build=tiny.TinyNet,
        execution=Execution(device="cuda"),
    )
    with pytest.raises(Stop):
        train(
            recipe,
            seed=1,
            out=tmp_path / "cut",
            problem=problem,
            build=tiny.TinyNet,
            watcher=Stopper(),
            execution=Execution(device="cuda"),
        )
    cut = train(
        recipe,
        seed=1,
        out=tmp_path / "cut",
        problem=problem,
        build=tiny.TinyNet,
        execution=Execution(device="cuda"),
    )
    losses = [[record["loss"] for record in run.journal] for run in (whole, cut)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("name", ["cifar10/warmup-pla", "digits/two-stage"])
def test_images_too_many_for_the_gpu_wait_in_pinned_memory_and_train_the_same(name: str) -> None:
    recipe = tiny.ALL[name]
    (first, *_) = recipe.stages
    torch.backends.cudnn.deterministic = True
    weights = []
    for room in (0, None):
        data = tiny.problem(recipe.labels).train.to(torch.device("cuda"), room)
        assert (data.x.is_pinned(), data.x.is_cuda) == (room == 0, room is None)
        assert data.device.type == "cuda"
        torch.manual_seed(0)
        learner = Learner(tiny.TinyNet(), data, first)
        fit(learner, data, first, seed=0)
        assert relabel(data, learner.model).candidates.is_cuda
        assert judge(learner.model, data, recipe.threat)["robust"].images == len(data)
        short = Stage(1, 8, Adam(), Constant(1e-3))
        assert estimated_transition(data, tiny.TinyNet, seed=0, stage=short).is_cuda
        weights.append(torch.cat([parameter.flatten() for parameter in learner.model.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)
