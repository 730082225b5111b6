"""Averaged weights: what they are, and that they are observed, chosen, written, exported and resumed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from atcl.core import checkpoints
from atcl.core.errors import AtclError
from atcl.runs import layout
from atcl.runs.export import export
from atcl.runs.start import train
from atcl.training.learner import Learner, evaluated_weights
from atcl.training.loop import Snapshot, fit
from atcl.training.stage import Stage
from tests import tiny

AVERAGED = tiny.CUSTOM["digits/averaged"]
DECAY = AVERAGED.stages[0].average


def learner_of(stage: Stage) -> Learner:
    torch.manual_seed(0)
    return Learner(tiny.TinyNet(), tiny.problem(AVERAGED.labels).train, stage)


def floats(model: nn.Module) -> list[Tensor]:
    tensors = [*model.parameters(), *model.buffers()]
    return [tensor.detach().clone() for tensor in tensors if tensor.is_floating_point()]


def test_the_average_weighs_the_weights_after_each_step_by_powers_of_the_decay() -> None:
    (stage,) = AVERAGED.stages
    data = tiny.problem(AVERAGED.labels).train
    stage = replace(stage, batch_size=len(data))  # one step an epoch, so that observers see each of them
    learner = learner_of(stage)
    history: list[list[Tensor]] = []

    def watch(snapshot: Snapshot) -> None:
        history.append(floats(learner.model))
        powers = torch.tensor([DECAY**age for age in reversed(range(len(history)))])
        for number, found in enumerate(floats(snapshot.model)):
            past = torch.stack([weights[number] for weights in history], -1)
            torch.testing.assert_close(found, (past * powers).sum(-1) / powers.sum())

    fit(learner, data, stage, seed=1, observers=[watch])
    assert len(history) == stage.epochs
    assert not all(map(torch.equal, floats(learner.refresh()), history[-1]))


def test_averaging_changes_nothing_of_what_is_trained() -> None:
    (stage,) = AVERAGED.stages
    data = tiny.problem(AVERAGED.labels).train
    plain, averaged = learner_of(replace(stage, average=0.0)), learner_of(stage)
    for learner, settings in ((plain, replace(stage, average=0.0)), (averaged, stage)):
        fit(learner, data, settings, seed=1)
    assert all(map(torch.equal, floats(plain.model), floats(averaged.model)))
    assert torch.equal(plain.memory, averaged.memory)


def test_the_averaged_weights_are_written_evaluated_and_exported(tmp_path: Path) -> None:
    problem = tiny.problem(AVERAGED.labels)
    run = train(AVERAGED, seed=1, out=tmp_path, problem=problem, build=tiny.TinyNet, execution=tiny.ON_CPU)
    state = checkpoints.newest(tmp_path / layout.CHECKPOINTS, pytest.fail)
    assert state is not None
    kept, trained = run.model(build=tiny.TinyNet).state_dict(), tiny.TinyNet().state_dict()
    for name in trained:
        assert torch.equal(kept[name], state[f"averaged.{name}"])
    assert not torch.equal(kept["layers.0.weight"], state["model.layers.0.weight"])
    assert evaluated_weights(state).keys() == kept.keys()
    assert problem.test is not None
    right = run.model(build=tiny.TinyNet)(problem.test.x / 255).argmax(1) == problem.test.truth.labels
    assert run.result.metrics["natural"].correct == int(right.sum())
    path = tmp_path / "exported.safetensors"
    export(run.model(build=tiny.TinyNet), tiny.SHAPE, run.class_names, path, "safetensors")
    exported = checkpoints.from_bytes(path.read_bytes(), path)
    assert all(torch.equal(exported[name], kept[name]) for name in kept)


def test_the_epoch_is_chosen_by_the_averaged_weights(tmp_path: Path) -> None:
    recipe = replace(AVERAGED, selection="test_pgd20")
    problem = tiny.problem(recipe.labels)
    run = train(recipe, seed=1, out=tmp_path, problem=problem, build=tiny.TinyNet, execution=tiny.ON_CPU)
    scores = [record["test_pgd20"] for record in run.journal]
    assert run.result.metrics["pgd20"].accuracy == max(scores)


def test_a_stage_that_continues_starts_its_average_anew_only_if_the_one_before_kept_none() -> None:
    (stage,) = AVERAGED.stages
    data = tiny.problem(AVERAGED.labels).train
    learner = learner_of(stage)
    fit(learner, data, stage, seed=1)
    before = float(learner.average_norm)
    learner.begin(stage)
    assert float(learner.average_norm) == before > 1
    learner.begin(replace(stage, average=0.0))
    assert learner.averaged is None
    learner.begin(stage)
    assert float(learner.average_norm) == 0
    assert learner.epoch == 0


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_outside_its_range_is_refused(decay: float) -> None:
    with pytest.raises(AtclError, match=r"average is a decay in \[0, 1\)"):
        replace(AVERAGED.stages[0], average=decay)
