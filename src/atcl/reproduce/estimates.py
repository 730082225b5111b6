"""How long a run takes, reckoned from those that were measured on the same kind of device."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atcl.core.files import read_json
from atcl.core.settings import from_data
from atcl.recipes.costs import costs
from atcl.recipes.schema import KINDS, Recipe
from atcl.reproduce.cells import Table
from atcl.reproduce.experiments import Experiment
from atcl.reproduce.ledger import Job, entries, flaw
from atcl.reproduce.published import recipe_ref
from atcl.runs import layout


def measured_on(results: Path, device: str) -> list[dict[str, Any]]:
    """Return the results in a ledger that were made on a device of this name."""
    found = [read_json(path) for path in sorted(results.rglob(layout.RESULT))]
    return [one for one in found if flaw(one) is None and one["environment"].get("device") == device]


def likely(results: Path) -> str:
    """Return the GPU that most results of a ledger were made on: a guess, where the one to come is not known."""
    found = [read_json(path) for path in sorted(results.rglob(layout.RESULT))]
    names = [str(one["environment"].get("device", "")) for one in found if flaw(one) is None]
    return statistics.mode([name for name in names if name and " CPU, " not in name] or ["a GPU"])


def seconds(job: Job, known: Sequence[dict[str, Any]]) -> tuple[float, list[str]]:
    """Return how long the known parts of a job will take, and the parts of which nothing is known: training, or an attack."""
    wanted = job.what.recipe
    alike = [
        (one, made)
        for one in known
        if (made := from_data(one["recipe"], KINDS)).dataset == wanted.dataset and made.model == wanted.model
    ]
    parts = {"training": _training(wanted, alike)} if job.new else {}
    parts |= {
        name: _mean([_attacks(one)[name] for one, _ in alike if name in _attacks(one)])
        for name in job.attacks
    }
    return sum(part for part in parts.values() if part is not None), [
        name for name, part in parts.items() if part is None
    ]


def spent(experiment: Experiment, results: Path) -> list[Table]:
    """Return what the runs of each dataset took on a GPU: training, attacks, memory; one that trained with others counts its share."""
    rows, data = [], []
    for dataset in experiment.datasets:
        found = [
            entry.result
            for _, row in experiment.rows
            for entry in entries(experiment, results, recipe_ref(f"{dataset}/{row}"))
        ]
        strong = [one for one in found if (one.get("engine") or {}).get("peak_gpu_bytes")]
        if strong:
            memory = max(
                told["engine"]["peak_gpu_bytes"] / told["engine"].get("together", 1) for told in strong
            )
            attacks, training = sum(map(_attacked, strong)), sum(map(_share, strong))
            data.append(
                {
                    "dataset": dataset,
                    "runs": len(strong),
                    "training_seconds": training,
                    "attack_seconds": attacks,
                    "largest_share_bytes": memory,
                }
            )
    if data:
        whole: dict[str, Any] = {
            name: sum(one[name] for one in data) for name in ("runs", "training_seconds", "attack_seconds")
        }
        data.append(
            {
                "dataset": "all",
                **whole,
                "largest_share_bytes": max(one["largest_share_bytes"] for one in data),
            }
        )
    for one in data:
        minutes = [one[name] / 60 for name in ("training_seconds", "attack_seconds")]
        told = (f"{each:.1f}" for each in (*minutes, sum(minutes)))
        rows.append((one["dataset"], str(one["runs"]), *told, f"{one['largest_share_bytes'] / 2**30:.2f}"))
    headings = (
        "dataset",
        "runs",
        "training, minutes",
        "attacks, minutes",
        "both",
        "GPU memory, largest share of a run, GiB",
    )
    return [Table("times", headings, tuple(rows), tuple(data))]


def _attacks(told: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of each attack that ran on the device where the run was trained."""
    trained_on = told["environment"].get("device")
    return {
        name: float(one["seconds"])
        for name, one in told["metrics"].items()
        if one.get("machine", {}).get("device") == trained_on
    }


def _attacked(told: dict[str, Any]) -> float:
    """Return the seconds of all attacks on a run, on the epoch that it reports and on its last; the worst of them is no attack of its own."""
    last = told["last_epoch"]["metrics"] if told["selection"]["rule"] != "last" else {}
    looks = (told, {**told, "metrics": last})
    return sum(seconds for one in looks for name, seconds in _attacks(one).items() if name != "worst")


def _share(told: dict[str, Any]) -> float:
    """Return the seconds of a run's training, without the turns of those that shared the device with it."""
    together: int = (told.get("engine") or {}).get("together", 1)
    return float(told["training_seconds"]) / together


def _training(wanted: Recipe, alike: Sequence[tuple[dict[str, Any], Recipe]]) -> float | None:
    """Return the seconds of the same recipe, else of one like it for each pass through the network, since epochs differ in their attack."""
    same = [_share(one) for one, made in alike if made == wanted]
    a_pass = [
        _share(one) / sum(costs(made).values()) for one, made in alike if _batches(made) == _batches(wanted)
    ]
    return _mean(same) if same else _mean([one * sum(costs(wanted).values()) for one in a_pass])


def _batches(wanted: Recipe) -> tuple[int, ...]:
    return tuple(sorted({stage.batch_size for stage in wanted.stages}))


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
