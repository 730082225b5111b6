"""Evaluate the chosen model of a run: at the end of training, and again later under more attacks."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import Module

from atcl.core import checkpoints
from atcl.core.device import environment, precision
from atcl.core.errors import AtclError, pick
from atcl.core.files import read_json, sole_writer, write_json, write_whole
from atcl.core.settings import digest, to_data
from atcl.datasets.sources import DATASETS
from atcl.datasets.truth import Split
from atcl.engine.engines import Engine
from atcl.evaluation.attacks import WORST
from atcl.evaluation.cache import fingerprint_of
from atcl.evaluation.evaluate import Measurement, Watch, flagged, measure
from atcl.evaluation.masking import suspicions
from atcl.evaluation.reported import REPORTED
from atcl.recipes.names import OWN
from atcl.runs import layout
from atcl.runs.problem import Build, Problem
from atcl.runs.result import EngineUse, Result, Selection
from atcl.training.learner import Learner
from atcl.training.selection import Best
from atcl.training.weak_validation import judge

if TYPE_CHECKING:
    from atcl.runs.run import Run  # which imports this module


def write_result(
    run: "Run", problem: Problem, learner: Learner, best: Best, *, stage: int, engine: Engine, together: int
) -> None:
    """Write the chosen model and the result.

    Args:
        run: the run, with its whole journal.
        problem: what it learnt from, with a test set where there is one.
        learner: holds the weights of the last epoch, which are evaluated too where another one was chosen.
        best: the model that a rule chose, empty without a rule.
        stage: the number of the last stage.
        engine: what executed the steps.
        together: how many runs shared the device.
    """
    model, device = learner.refresh(), problem.train.device
    last = _measured(run, problem, model) if best.weights else None
    if best.weights:
        model.load_state_dict(best.weights)
    chosen = _measured(run, problem, model, run.folder / layout.EVALUATION)
    weights = checkpoints.to_bytes(model.state_dict())
    write_whole(run.folder / layout.MODEL, weights)
    records, started = run.journal, read_json(run.folder / layout.RECIPE)
    # if the rule admitted no epoch, the last one was chosen
    rule = "last" if best.rule and not best.weights else run.recipe.selection
    attacked = best.rule and best.rule.on == "test" and best.rule.metric != "natural" and records
    attack_precision = str(records[-1]["crafted"]) if attacked else None
    estimates = {} if problem.held is None else judge(model, problem.held, run.recipe.threat)
    result = Result(
        name=run.name,
        digest=digest(run.recipe),
        seed=run.seed,
        selection=Selection(rule, stage, best.epoch or learner.epoch, attack_precision),
        metrics=chosen,
        last_metrics=chosen if last is None else last,
        last_record=records[-1] if records else None,
        data={name: started[name] for name in ("data", "held", "test")},
        model={"sha256": hashlib.sha256(weights).hexdigest(), "bytes": len(weights)},
        training_seconds=sum(record["seconds"] for record in records),
        environment=environment(device),
        recipe=to_data(run.recipe),
        held=estimates,
        engine=_engine(device, engine, together),
    )
    write_json(run.folder / layout.RESULT, result.to_json())


@dataclass(frozen=True)
class Measuring:
    """How a run is evaluated: the arguments of `Run.evaluate`."""

    attacks: Sequence[str]
    device: str = "auto"
    seed: int = 0
    batch_size: int | None = None
    build: Build | None = None
    data_dir: Path | None = None
    checks: bool = True
    strict_fp32: bool = False
    watch: Watch | None = None


def measure_run(run: "Run", how: Measuring, test: Split | None = None) -> dict[str, Measurement]:
    """Evaluate the chosen model of a run.

    Args:
        run: a finished run.
        how: attacks, device and more.
        test: your own images; their accuracies are returned and not kept. None: the recipe's test set, whose
            accuracies are added to the result.

    Returns:
        The measurement under each attack and, of several, under the worst of them for each image.
    """
    model = run.model(how.device, how.build)
    _ = run.result  # raises where training has not ended
    threat = run.recipe.threat
    options = {"seed": how.seed, "batch_size": how.batch_size, "watch": how.watch}
    with precision(how.strict_fp32):
        if test is not None:
            found = measure(model, test, threat, how.attacks, **options)  # type: ignore[arg-type]
            if not how.checks:
                return found
            signs = suspicions(model, test.x, test.truth.labels, threat)
            return flagged(found, [sign.name for sign in signs])
        if run.recipe.dataset == OWN:
            raise AtclError(
                "this run learnt from data of your own: give `test` to evaluate on "
                "(in the shell: --images FOLDER --labels FILE.csv)"
            )
        with sole_writer(run.folder):
            result = run.result
            official = _official_test_set(run, how.data_dir)
            folder = run.folder / layout.EVALUATION
            found = measure(model, official, threat, how.attacks, keep=folder, extend=True, **options)  # type: ignore[arg-type]
            flags = result.flags
            if how.checks:
                flags = tuple(suspicions(model, official.x, official.truth.labels, threat))
            if flags is not None:  # signs that were found once stay, even if this call does not check
                found = flagged(found, [flag.name for flag in flags])
            result = replace(result, metrics={**result.metrics, **found}, flags=flags)
            write_json(run.folder / layout.RESULT, result.to_json())
    return {name: one for name, one in found.items() if name in (*how.attacks, WORST)}


def _measured(
    run: "Run", problem: Problem, model: Module, keep: Path | None = None
) -> dict[str, Measurement]:
    if problem.test is None:
        return {}
    return measure(model, problem.test, run.recipe.threat, REPORTED, keep=keep)


def _engine(device: torch.device, engine: Engine, together: int) -> EngineUse:
    peak = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
    return EngineUse(engine.name, engine.compiles and not engine.failures, together, peak)


def _official_test_set(run: "Run", data_dir: Path | None) -> Split:
    """Return the test set of the run's dataset; refuse one that differs from that of the run."""
    official = pick(DATASETS, run.recipe.dataset, "dataset")(data_dir).test
    started = read_json(run.folder / layout.RECIPE)
    if not isinstance(started, dict) or fingerprint_of(official) != started.get("test"):
        raise AtclError(
            "this test set is not the one that the run was made with: give its folder with --data-dir"
        )
    return official
