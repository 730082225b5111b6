"""The observations of a run made afterwards, on the checkpoints that it has left."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from atcl.analysis.observers import OBSERVATIONS, ObserverContext, Observers, seed_of
from atcl.core import checkpoints, journal
from atcl.core.device import resolve
from atcl.core.errors import AtclError
from atcl.core.files import read_json, sole_writer
from atcl.runs import layout
from atcl.runs.problem import Build, Problem
from atcl.runs.run import Run
from atcl.runs.start import problem_of
from atcl.training.learner import evaluated_weights
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
    """Make observations on the checkpoints of a run, and add what is new to its `analysis.jsonl`.

    Args:
        run: the run, with at least one checkpoint (a run keeps those of its last two epochs).
        names: names from `atcl list observations`.
        problem: the data of the run; None: they are loaded as its recipe says.
        data_dir: where the dataset's files lie.
        device: auto, cpu or cuda.
        build: makes the model, where it is one of your own.

    Returns:
        A record for each checkpoint, the earlier one first.

    Raises:
        AtclError: there is no checkpoint, a name is unknown, or the data are not those of the run.
    """
    stored = checkpoints.stored(run.folder / layout.CHECKPOINTS)
    if not stored:
        raise AtclError(f"{run.folder} holds no checkpoint to observe")
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
            model.load_state_dict(evaluated_weights(state))
            stage, data = run.recipe.stages[number], whole.train
            if "relabelled" in state:
                data = with_sole_candidate(data, state["relabelled"])
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
