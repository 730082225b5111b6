"""Onlookers after the fact: the same observations of the checkpoints that a run has left."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

from atcl.analysis.observers import OBSERVATIONS, ObserverContext, Observers, seed_of
from atcl.core import checkpoints, journal
from atcl.core.device import resolve
from atcl.core.errors import AtclError
from atcl.core.files import read_json, sole_writer
from atcl.runs import layout
from atcl.runs.problem import Build, Problem
from atcl.runs.run import Run, open_run
from atcl.runs.start import problem_of
from atcl.training.supervision import with_sole_candidate


def observe_checkpoints(
    run: Run,
    names: Sequence[str],
    *,
    problem: Problem | None = None,
    data_dir: Path | None = None,
    device: str = "auto",
    build: Build | None = None,
) -> list[journal.Record]:
    """Observe the checkpoints of a run, the last two epochs; what `analysis.jsonl` lacks of it is added there."""
    stored = checkpoints.stored(run.folder / layout.CHECKPOINTS)
    if not stored:
        raise AtclError(f"{run.folder} holds no checkpoint to look at")
    whole = (problem or problem_of(run.recipe, run.seed, data_dir)).to(resolve(device))
    Observers(tuple(names)).check(whole)
    found = []
    with sole_writer(run.folder):
        run.claim(whole)  # refuses other data than the run's
        if (path := run.folder / layout.TRANSITION).exists():
            estimated = torch.tensor(read_json(path)["matrix"], device=whole.train.device)
            whole = replace(whole, train=replace(whole.train, transition=estimated))
        known = {
            (one["stage"], one["epoch"], key)
            for one in journal.read(run.folder / layout.ANALYSIS)
            for key in one
        }
        for path in reversed(stored):
            state = checkpoints.to_device(checkpoints.from_bytes(path.read_bytes(), path), whole.train.device)
            number, epoch = int(state["stage"]), int(state["epoch"])
            model = run.fresh_model(build).to(whole.train.device)
            model.load_state_dict(
                {
                    name.removeprefix("model."): tensor
                    for name, tensor in state.items()
                    if name.startswith("model.")
                }
            )
            stage = run.recipe.stages[number]
            data = (
                with_sole_candidate(whole.train, state["relabelled"])
                if "relabelled" in state
                else whole.train
            )
            context = ObserverContext(
                model.eval().requires_grad_(False),
                state["memory"],
                stage.phase(epoch),
                stage,
                data,
                whole,
                run.recipe.threat,
                seed_of(run, number),
            )
            values = {key: value for name in names for key, value in OBSERVATIONS[name].of(context).items()}
            found.append({"stage": number, "epoch": epoch, **values})
            lacking = {key: value for key, value in values.items() if (number, epoch, key) not in known}
            if lacking:
                journal.append(run.folder / layout.ANALYSIS, {"stage": number, "epoch": epoch, **lacking})
    return found


@dataclass(frozen=True)
class Observe:
    """Look at the checkpoints of a run as onlookers do while it trains, and add what they see to analysis.jsonl"""

    run_folder: Annotated[Path, tyro.conf.Positional]
    """folder of a run"""
    observe: tuple[str, ...] = ("gradients", "attacks", "test")
    """names from `atcl list observations`"""
    device: str = "auto"
    data_dir: Path | None = None

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        run = open_run(self.run_folder)
        for record in observe_checkpoints(run, self.observe, data_dir=self.data_dir, device=self.device):
            console.print(f"stage {record['stage'] + 1}, epoch {record['epoch']}", highlight=False)
            for key, value in record.items():
                if isinstance(value, float):
                    print(f"  {key:28} {value:.4f}")
        console.print(f"kept in {run.folder / layout.ANALYSIS}", highlight=False, markup=False)
