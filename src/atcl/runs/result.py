"""The result of a run: the chosen model, what it withstands, and what it was made with."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from atcl.core import checkpoints
from atcl.core.device import environment
from atcl.core.files import read_json, write_json, write_whole
from atcl.core.settings import digest, to_data
from atcl.engine.engines import Engine
from atcl.evaluation.evaluate import measure
from atcl.runs import layout
from atcl.runs.problem import Problem
from atcl.runs.run import REPORTED, Run
from atcl.training.learner import Learner
from atcl.training.selection import Best
from atcl.training.weak_validation import judge


def write_result(
    run: Run, problem: Problem, learner: Learner, best: Best, *, stage: int, engine: Engine, together: int
) -> None:
    """Write the chosen model and the result; where a rule chose another epoch, the last one is measured too."""
    model, device = learner.refresh(), problem.train.device
    last = _measured(run, problem, model) if best.weights else None
    if best.weights:
        model.load_state_dict(best.weights)
    chosen = _measured(run, problem, model, run.folder / layout.EVALUATION)
    weights = checkpoints.to_bytes(model.state_dict())
    write_whole(run.folder / layout.MODEL, weights)
    records, started = run.journal, read_json(run.folder / layout.RECIPE)
    rule = "last" if best.rule and not best.weights else run.recipe.selection  # no epoch competed
    attacked = best.rule and best.rule.on == "test" and best.rule.metric != "natural" and records
    crafted = {"crafted": records[-1]["crafted"]} if attacked else {}
    estimates = {} if problem.held is None else judge(model, problem.held, run.recipe.threat)
    result = {
        "name": run.name,
        "digest": digest(run.recipe),
        "seed": run.seed,
        "selection": {"rule": rule, "stage": stage, "epoch": best.epoch or learner.epoch, **crafted},
        "metrics": chosen,
        "flags": None,
        "held": {name: asdict(one) for name, one in estimates.items()},
        "last_epoch": {
            "metrics": chosen if last is None else last,
            "journal": records[-1] if records else None,
        },
        "data": {name: started[name] for name in ("data", "held", "test")},
        "model": {"sha256": hashlib.sha256(weights).hexdigest(), "bytes": len(weights)},
        "training_seconds": sum(record["seconds"] for record in records),
        "engine": _engine(device, engine, together),
        "environment": environment(device),
        "recipe": to_data(run.recipe),
    }
    write_json(run.folder / layout.RESULT, result)


def _measured(
    run: Run, problem: Problem, model: Module, keep: Path | None = None
) -> dict[str, dict[str, Any]]:
    if problem.test is None:
        return {}
    found = measure(model, problem.test, run.recipe.threat, REPORTED, keep=keep)
    return {name: asdict(one) for name, one in found.items()}


def _engine(device: torch.device, engine: Engine, together: int) -> dict[str, Any]:
    """Return what carried the run out, and the most memory that the process took of a GPU."""
    return {
        "name": engine.name,
        "compiled": engine.compiles and not engine.failures,
        "together": together,
        "peak_gpu_bytes": torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None,
    }
