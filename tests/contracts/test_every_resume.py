"""Every recipe, killed at random moments and resumed, ends with the same weights, memory and journal."""

import json
import random
import signal
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from atcl.core import checkpoints
from atcl.core.journal import Record
from atcl.recipes.schema import Recipe
from atcl.runs.start import train
from atcl.training.schedules import Constant
from atcl.training.stage import Stage
from tests import tiny
from tests.children import CONTEXT, FORKS, needs_fork_server


def with_plain_loss(stage: Stage) -> Stage:
    lr = Constant(1.0) if isinstance(stage.lr, Constant) else stage.lr
    return replace(stage, objective=replace(cast(Any, stage.objective), loss="log"), lr=lr)


def names() -> list[str]:
    """Return the recipes that differ in more than the loss and its constant learning rate.

    A checkpoint holds neither of the two.
    """
    found: dict[str, Recipe] = {}
    for name, wanted in tiny.ALL.items():
        alike = replace(wanted, stages=tuple(map(with_plain_loss, wanted.stages)))
        if alike not in found.values():
            found[name] = alike
    return list(found)


def start(name: str, folder: Path) -> BaseProcess:
    child = CONTEXT.Process(target=run, args=(name, folder), daemon=True)
    child.start()
    return child


def run(name: str, folder: Path) -> None:
    torch.set_num_threads(1)
    wanted = tiny.ALL[name]
    train(
        wanted,
        name=name,
        seed=5,
        out=folder,
        problem=tiny.problem(wanted.labels),
        build=tiny.TinyNet,
        execution=tiny.ON_CPU,
    )


@pytest.fixture(scope="module", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start the server of child processes: the first measured run does not wait for PyTorch to load."""
    if FORKS:
        finish(next(iter(tiny.RECIPES)), tmp_path_factory.mktemp("warm"))


def await_epoch(child: BaseProcess, journal: Path, epoch: int) -> None:
    while child.is_alive() and (not journal.exists() or journal.read_bytes().count(b"\n") < epoch):
        time.sleep(0.001)


def finish(name: str, folder: Path) -> float:
    began = time.perf_counter()
    child = start(name, folder)
    child.join(120)
    assert child.exitcode == 0
    return time.perf_counter() - began


def outcome(folder: Path) -> tuple[list[Record], dict[str, torch.Tensor], bytes]:
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text(encoding="utf-8").splitlines()]
    state = checkpoints.newest(folder / "checkpoints", pytest.fail)
    assert state is not None
    return (
        [{key: value for key, value in line.items() if key != "seconds"} for line in lines],
        state,
        (folder / "model.safetensors").read_bytes(),
    )


@needs_fork_server
@pytest.mark.parametrize("name", names())
def test_killed_at_random_moments_ends_the_same(name: str, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    seconds = finish(name, whole)
    epochs = len((whole / "journal.jsonl").read_text(encoding="utf-8").splitlines())
    dice = random.Random(name)
    cut_short = 0
    for reached in sorted(dice.sample(range(epochs), 3)):
        child = start(name, killed)
        await_epoch(child, killed / "journal.jsonl", reached)
        time.sleep(dice.uniform(0, seconds / epochs))
        child.kill()
        child.join()
        cut_short += child.exitcode == -signal.SIGKILL
    finish(name, killed)
    journal, state, model = outcome(whole)
    journal_again, state_again, model_again = outcome(killed)
    assert journal == journal_again
    assert state.keys() == state_again.keys()
    assert all(torch.equal(state[key], state_again[key]) for key in state)
    assert model == model_again
    assert {key.split(".")[0] for key in state} >= {"model", "optimizer", "memory", "epoch", "stage"}
    assert cut_short, "no kill came in time: the test shows nothing"
