"""Estimates of how long a run takes, from runs that were measured on the same kind of device."""

import statistics
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from atcl.core.errors import AtclError
from atcl.core.settings import from_data
from atcl.evaluation.attacks import WORST
from atcl.recipes.costs import costs
from atcl.recipes.schema import Recipe, kinds
from atcl.reproduce.cells import Table
from atcl.reproduce.experiments import Experiment
from atcl.reproduce.ledger import Job, entries, read_result
from atcl.reproduce.published import recipe_ref
from atcl.runs import layout
from atcl.runs.result import Measurements, Result

HEADINGS = (
    "dataset",
    "runs",
    "training, minutes",
    "attacks, minutes",
    "both",
    "GPU memory, largest share of a run, GiB",
)


def measured_on(results: Path, device: str) -> list[Result]:
    """Return the results of a ledger that were made on a device of this name."""
    return [result for result in _readable(results) if result.environment.get("device") == device]


def likely(results: Path) -> str:
    """Return the GPU that most results of a ledger were made on, to estimate for a GPU that is not known."""
    names = [str(result.environment.get("device", "")) for result in _readable(results)]
    return statistics.mode([name for name in names if name and " CPU, " not in name] or ["a GPU"])


def seconds(job: Job, known: Sequence[Result]) -> tuple[float, list[str]]:
    """Return the seconds of the parts of a job that can be estimated, and the names of the other parts.

    A part is training, or an attack.
    """
    wanted = job.what.recipe
    recipes = [(result, from_data(result.recipe, kinds())) for result in known]
    alike = [
        (result, made)
        for result, made in recipes
        if (made.dataset, made.model) == (wanted.dataset, wanted.model)
    ]
    times = [_attack_seconds(result, result.metrics) for result, _ in alike]
    parts = {"training": _training(wanted, alike)} if job.new else {}
    parts |= {name: _mean([time[name] for time in times if name in time]) for name in job.attacks}
    unknown = [name for name, part in parts.items() if part is None]
    return sum(part for part in parts.values() if part is not None), unknown


def spent(experiment: Experiment, results: Path) -> list[Table]:
    """Return a table of what the runs of each dataset took on a GPU: training, attacks, memory.

    A run that trained with others counts with its share of the time.
    """
    data = [_spent_on(experiment, results, dataset) for dataset in experiment.datasets]
    data = [one for one in data if one["runs"]]
    if data:
        sums = {
            name: sum(one[name] for one in data) for name in ("runs", "training_seconds", "attack_seconds")
        }
        largest = max(one["largest_share_bytes"] for one in data)
        data.append({"dataset": "all", **sums, "largest_share_bytes": largest})
    return [Table("times", HEADINGS, tuple(map(_row, data)), tuple(data))]


def _spent_on(experiment: Experiment, results: Path, dataset: str) -> dict[str, Any]:
    found = [
        entry.result
        for _, row in experiment.rows
        for entry in entries(experiment, results, recipe_ref(f"{dataset}/{row}"))
    ]
    on_gpu = [result for result in found if _memory(result)]
    return {
        "dataset": dataset,
        "runs": len(on_gpu),
        "training_seconds": sum(map(_share, on_gpu)),
        "attack_seconds": sum(map(_all_attacks, on_gpu)),
        "largest_share_bytes": max(map(_memory, on_gpu), default=0.0),
    }


def _row(data: dict[str, Any]) -> tuple[str, ...]:
    minutes = [data[name] / 60 for name in ("training_seconds", "attack_seconds")]
    times = (f"{each:.1f}" for each in (*minutes, sum(minutes)))
    return data["dataset"], str(data["runs"]), *times, f"{data['largest_share_bytes'] / 2**30:.2f}"


def _readable(results: Path) -> list[Result]:
    found = []
    for path in sorted(results.rglob(layout.RESULT)):
        with suppress(AtclError):  # making its table reports the error
            found.append(read_result(path))
    return found


def _attack_seconds(result: Result, metrics: Measurements) -> dict[str, float]:
    """Return the seconds of each attack that ran on the device where the run was trained."""
    trained_on = result.environment.get("device")
    return {name: one.seconds for name, one in metrics.items() if one.machine.get("device") == trained_on}


def _all_attacks(result: Result) -> float:
    """Return the seconds of all attacks on a run, on the reported epoch and on the last one."""
    last = result.last_metrics if result.selection.rule != "last" else {}
    times = [_attack_seconds(result, metrics) for metrics in (result.metrics, last)]
    return sum(time for one in times for name, time in one.items() if name != WORST)


def _memory(result: Result) -> float:
    """Return a run's share of the GPU's memory in bytes; 0 for a run on a CPU."""
    engine = result.engine
    return (engine.peak_gpu_bytes or 0) / engine.together if engine else 0.0


def _share(result: Result) -> float:
    """Return the seconds of a run's training, divided among the runs that shared the device."""
    return result.training_seconds / (result.engine.together if result.engine else 1)


def _training(wanted: Recipe, alike: Sequence[tuple[Result, Recipe]]) -> float | None:
    """Return the training time of the same recipe, else one scaled by passes through the network.

    None where no recipe of the same batch sizes was measured.
    """
    same = [_share(result) for result, made in alike if made == wanted]
    if same:
        return _mean(same)
    # passes, not epochs: the attacks differ between epochs
    batches = _batches(wanted)
    a_pass = [
        _share(result) / sum(costs(made).values()) for result, made in alike if _batches(made) == batches
    ]
    return _mean([one * sum(costs(wanted).values()) for one in a_pass])


def _batches(wanted: Recipe) -> tuple[int, ...]:
    return tuple(sorted({stage.batch_size for stage in wanted.stages}))


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
