"""Does a precision cost accuracy? The same seeds on a shortened schedule in several precisions, and what the last epoch's model withstands.

python benchmarks/parity.py --recipe kuzushiji/warmup-pla --epochs 32 --seeds 1 2 3

The natural opening stays as long as it is; the rise of the attack, the fall of gamma and the memory of predictions are shortened in proportion.
"""

import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from atcl.environment import environment, resolve
from atcl.experiments import MEASURED
from atcl.precisions import Precision
from atcl.recipes import Recipe, recipe
from atcl.running import train_together
from atcl.schedules import CosineRise, LinearFall
from atcl.settings import digest
from atcl.supervision import PseudoLabels


@dataclass(frozen=True)
class Options:
    """What is compared."""

    recipe: str = "kuzushiji/warmup-pla"
    epochs: int = 32
    seeds: tuple[int, ...] = (1, 2, 3)
    ways: tuple[str, ...] = ("bf16/tf32", "fp32/fp32")
    """attack/update; the last is what the others are held to"""
    engine: str = "auto"
    device: str = "auto"
    data_dir: Path | None = None
    limit: float = 1800.0
    """seconds after which no further way is begun"""
    out: Path | None = None
    """also write a JSON file, anew after each way; ways that it holds are not run again"""


def shortened(wanted: Recipe, epochs: int, precision: Precision) -> Recipe:
    """Return a recipe of one stage with fewer epochs after its natural opening, in a precision; the last epoch is taken."""
    (stage,) = wanted.stages
    rise, fall, memory = stage.strength, stage.gamma, stage.supervision
    if not (isinstance(rise, CosineRise) and isinstance(fall, LinearFall) and isinstance(memory, PseudoLabels) and rise.after == fall.after):
        raise SystemExit("only a recipe of warm-up and pseudo-labels is shortened")
    if epochs <= rise.after:
        raise SystemExit(f"the natural opening takes {rise.after} epochs: give --epochs more")
    share = (epochs - rise.after) / (stage.epochs - rise.after)
    short = replace(
        stage, epochs=epochs, precision=precision, strength=replace(rise, over=round(rise.over * share)),
        gamma=replace(fall, over=round(fall.over * share)), supervision=replace(memory, last=rise.after + round((memory.last - rise.after) * share)),
    )  # fmt: skip
    return replace(wanted, stages=(short,), selection="last")


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how far each way's mean lies from the last way's, beside the deviation of the seeds of both."""
    reference, told = rows[-1], []
    for row in rows[:-1]:
        for name in MEASURED:
            ours, theirs = (list(one["accuracies"][name].values()) for one in (row, reference))
            spread = statistics.mean([statistics.stdev(ours), statistics.stdev(theirs)])
            told.append({"way": row["way"], "name": name, "difference": statistics.mean(ours) - statistics.mean(theirs), "deviation": spread})
    return told


def main(options: Options) -> None:
    """Train, and print a line for each way and measure."""
    wanted, device, began = recipe(options.recipe), resolve(options.device), time.perf_counter()
    done = json.loads(options.out.read_text())["rows"] if options.out and options.out.exists() else []
    told: dict[str, Any] = {"options": {name: str(value) for name, value in asdict(options).items()}, "rows": []}
    for way in options.ways:
        if time.perf_counter() - began > options.limit:
            break
        attack, update = way.split("/")
        short = shortened(wanted, options.epochs, Precision(attack, update))  # type: ignore[arg-type]
        if same := [row for row in done if row["digest"] == digest(short) and set(row["accuracies"]["natural"]) == {*map(str, options.seeds)}]:
            told["rows"].append(same[0])
            continue
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            runs = train_together(
                short, seeds=options.seeds, outs=[Path(folder, str(seed)) for seed in options.seeds], device=options.device,
                data_dir=options.data_dir, engine=options.engine,
            )  # fmt: skip
            found = {name: {str(run.result["seed"]): run.result["metrics"][name]["accuracy"] for run in runs} for name in MEASURED}
            told["rows"].append(
                {
                    "way": way,
                    "accuracies": found,
                    "engine": runs[0].result["engine"],
                    "digest": runs[0].result["digest"],
                    "seconds": time.perf_counter() - started,
                    "environment": environment(device),
                }
            )
        for name, accuracies in found.items():
            print(f"{way:12} {name:8} {statistics.mean(accuracies.values()):6.2f}  seeds {accuracies}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(told, indent=2) + "\n")
    if len(told["rows"]) > 1 and len(options.seeds) > 1:
        told["compared"] = compared(told["rows"])
        for one in told["compared"]:
            print(
                f"{one['way']} - {told['rows'][-1]['way']}: {one['name']:8} {one['difference']:+.2f}, deviation of the seeds {one['deviation']:.2f}"
            )
        if options.out:
            options.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Options))
