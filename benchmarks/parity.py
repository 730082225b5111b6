"""Whether a precision costs accuracy: the same seeds on a shortened schedule in several precisions.

python benchmarks/parity.py --recipe kuzushiji/warmup-pla --epochs 32 --seeds 1 2 3

The accuracies are those of the last epoch. The first natural epochs stay as many as they are; the rise of the
attack, the fall of gamma and the memory of predictions are shortened in proportion.
"""

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro

from atcl.core.device import environment, resolve
from atcl.core.files import read_json, write_json
from atcl.core.precisions import Precision
from atcl.core.settings import digest
from atcl.evaluation.reported import REPORTED
from atcl.recipes.catalogue import recipe
from atcl.recipes.schema import Recipe
from atcl.runs.spec import Execution, RunSpec
from atcl.runs.start import train_together
from atcl.training.schedules import CosineRise, LinearFall
from atcl.training.supervision import PseudoLabels


@dataclass(frozen=True)
class Options:
    """What is compared."""

    recipe: str = "kuzushiji/warmup-pla"
    epochs: int = 32
    seeds: tuple[int, ...] = (1, 2, 3)
    ways: tuple[str, ...] = ("bf16/tf32", "fp32/fp32")
    """precisions of attack/update; the others are compared with the last one"""
    engine: str = "auto"
    device: str = "auto"
    data_dir: Path | None = None
    limit: float = 1800.0
    """seconds after which no further precision is started"""
    out: Path | None = None
    """also write a JSON file after each precision; precisions that it has already are not run again"""


def shortened(wanted: Recipe, epochs: int, precision: Precision) -> Recipe:
    """Return a recipe of one stage with fewer epochs after its natural ones, in a precision.

    The last epoch is reported.
    """
    (stage,) = wanted.stages
    rise, fall, memory = stage.strength, stage.gamma, stage.supervision
    if not (
        isinstance(rise, CosineRise)
        and isinstance(fall, LinearFall)
        and isinstance(memory, PseudoLabels)
        and rise.after == fall.after
    ):
        raise SystemExit("only a recipe of warm-up and pseudo-labels can be shortened")
    if epochs <= rise.after:
        raise SystemExit(f"there are {rise.after} natural epochs first: give --epochs more")
    share = (epochs - rise.after) / (stage.epochs - rise.after)
    short = replace(
        stage,
        epochs=epochs,
        precision=precision,
        strength=replace(rise, over=round(rise.over * share)),
        gamma=replace(fall, over=round(fall.over * share)),
        supervision=replace(memory, last=rise.after + round((memory.last - rise.after) * share)),
    )
    return replace(wanted, stages=(short,), selection="last")


def compared(rows: dict[str, dict[str, Any]], reference: str) -> list[dict[str, Any]]:
    """Return the difference of each precision's mean to the reference, with the mean deviation of seeds."""
    found = []
    for way, row in rows.items():
        for name in REPORTED if way != reference else ():
            ours, theirs = (list(one["accuracies"][name].values()) for one in (row, rows[reference]))
            spread = statistics.mean([statistics.stdev(ours), statistics.stdev(theirs)])
            found.append(
                {
                    "way": way,
                    "name": name,
                    "difference": statistics.mean(ours) - statistics.mean(theirs),
                    "deviation": spread,
                }
            )
    return found


def trained(short: Recipe, options: Options, device: torch.device) -> dict[str, Any]:
    """Train a model for each seed, and return what is recorded of them."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        specs = [RunSpec.of(short, seed=seed, out=Path(folder, str(seed))) for seed in options.seeds]
        runs = train_together(specs, Execution(options.device, options.data_dir, options.engine))
        found = {
            name: {str(run.result.seed): run.result.metrics[name].accuracy for run in runs}
            for name in REPORTED
        }
        first = runs[0].result
    record = {
        "accuracies": found,
        "engine": None if first.engine is None else asdict(first.engine),
        "digest": first.digest,
        "seconds": time.perf_counter() - began,
    }
    return {**record, "environment": environment(device)}


def main(options: Options) -> None:
    """Train what is missing, and print a line for each precision and attack."""
    wanted, device, began = recipe(options.recipe), resolve(options.device), time.perf_counter()
    rows: dict[str, dict[str, Any]] = (
        read_json(options.out)["rows"] if options.out and options.out.exists() else {}
    )
    for way in options.ways:
        attack, update = way.split("/")
        short = shortened(wanted, options.epochs, Precision(attack, update))  # type: ignore[arg-type]
        there = (
            way in rows
            and rows[way]["digest"] == digest(short)
            and set(rows[way]["accuracies"]["natural"]) == {*map(str, options.seeds)}
        )
        if not there:
            if time.perf_counter() - began > options.limit:
                raise SystemExit(f"{way} is not started: the limit of {options.limit:.0f} seconds is over")
            rows[way] = trained(short, options, device)
        record: dict[str, Any] = {
            "options": {name: str(value) for name, value in asdict(options).items() if name != "out"},
            "rows": rows,
        }
        reference = options.ways[-1]
        if reference in rows and len(rows) > 1 and len(options.seeds) > 1:
            record["compared"] = compared(rows, reference)
        if options.out:
            write_json(options.out, record)
        for name, accuracies in rows[way]["accuracies"].items():
            seeds = "  ".join(f"{seed}: {value:.2f}" for seed, value in accuracies.items())
            print(
                f"{way:12} {name:8} {statistics.mean(accuracies.values()):6.2f}  "
                f"({seeds}; {rows[way]['environment']['commit']})",
                flush=True,
            )
    for one in record.get("compared", []):
        print(
            f"{one['way']} - {reference}: {one['name']:8} {one['difference']:+.2f}, "
            f"deviation of the seeds {one['deviation']:.2f}"
        )


if __name__ == "__main__":
    main(tyro.cli(Options))
