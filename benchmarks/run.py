"""The time of a whole run, from start to result, including compilation and the evaluation after each epoch.

python benchmarks/run.py --recipe cifar10/warmup-pla --epochs 10

The images are a picture of their class in some noise. They cost as much as real ones, and a model soon knows
them, so that nearly all of the test set is attacked (the last natural accuracy of the journal is printed).
With `--epochs`, only so many natural and adversarial epochs are run, and the time of all epochs is
extrapolated from their medians. The first epoch of each phase, in which steps are compiled and recorded,
counts as it is.
"""

import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro
from torch.nn import functional as F

from atcl.core.device import environment, resolve
from atcl.core.journal import Record
from atcl.data.weak import WeakData, rule_out
from atcl.datasets.truth import Split, Truth
from atcl.recipes.catalogue import recipe
from atcl.recipes.schema import Recipe
from atcl.runs.problem import Problem
from atcl.runs.spec import Execution, RunSpec
from atcl.runs.start import train_together
from atcl.training.schedules import CosineRise

SIZES = {
    "digits": (1437, 360),
    "mnist": (60_000, 10_000),
    "kuzushiji": (60_000, 10_000),
    "fashion": (60_000, 10_000),
    "cifar10": (50_000, 10_000),
    "svhn": (73_257, 26_032),
}


@dataclass(frozen=True)
class Options:
    """What is timed."""

    recipe: str = "kuzushiji/warmup-pla"
    epochs: int | None = None
    """of each phase, natural and adversarial; None: all"""
    seeds: tuple[int, ...] = (1,)
    """models trained at once"""
    engine: str = "auto"
    device: str = "auto"
    out: Path | None = None
    """also write a JSON file"""


def data_like(wanted: Recipe) -> Problem:
    """Return a picture for each class in some noise, in the sizes and shapes of a dataset.

    Each image has one complementary label.
    """
    rng = torch.Generator().manual_seed(0)
    squares = torch.randint(0, 2, (10, wanted.shape[0], 4, 4), generator=rng)
    pictures = F.interpolate(255.0 * squares, size=wanted.shape[1:]).to(torch.uint8)
    labels = [torch.randint(0, 10, (size,), generator=rng) for size in SIZES[wanted.dataset]]
    images = [
        pictures[true] // 2
        + torch.randint(0, 128, (len(true), *wanted.shape), dtype=torch.uint8, generator=rng)
        for true in labels
    ]
    train = WeakData(
        images[0],
        rule_out(len(images[0]), 10, (labels[0] + torch.randint(1, 10, labels[0].shape, generator=rng)) % 10),
    )
    return Problem(train, Truth(labels[0], 10), Split(images[1], Truth(labels[1], 10)))


def extrapolated(records: list[Record], wanted: Recipe) -> tuple[float, dict[str, Any]]:
    """Return the seconds of all epochs, and what they are extrapolated from."""
    if len(wanted.stages) > 1:
        return sum(record["seconds"] for record in records), {}
    (stage,) = wanted.stages
    total, found = 0.0, {}
    for phase in ("natural", "adversarial"):
        seconds = [record["seconds"] for record in records if (record["steps"] == 0) == (phase == "natural")]
        if not seconds:
            continue
        epochs = sum(
            (stage.phase(epoch).budget.steps == 0) == (phase == "natural")
            for epoch in range(1, stage.epochs + 1)
        )
        first, each = seconds[0], statistics.median(seconds[1:])
        total += first + (epochs - 1) * each
        found[phase] = {"epochs": epochs, "first_s": first, "each_s": each, "run": len(seconds)}
    return total, found


def main(options: Options) -> None:
    """Run, extrapolate and print."""
    wanted, device = recipe(options.recipe), resolve(options.device)
    short = wanted
    if options.epochs is not None:
        if options.epochs < 2 or len(wanted.stages) > 1:
            raise SystemExit("--epochs takes at least 2, and a recipe of one stage")
        (stage,) = wanted.stages
        strength = CosineRise(1.0, over=0, after=options.epochs)
        short = replace(wanted, stages=(replace(stage, epochs=2 * options.epochs, strength=strength),))
    problem = data_like(wanted)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        specs = [
            RunSpec.of(short, name=options.recipe, seed=seed, out=Path(folder, str(seed)), problem=problem)
            for seed in options.seeds
        ]
        runs = train_together(specs, Execution(device=options.device, engine=options.engine))
        whole = time.perf_counter() - began
        spent = sum(record["seconds"] for record in runs[0].journal)
        training, phases = extrapolated(runs[0].journal, wanted)
        use = runs[0].result.engine
        known = runs[0].journal[-1].get("test_natural")
    total = training + whole - spent
    record = {
        "options": asdict(options) | {"out": None},
        "environment": environment(device),
        "engine": None if use is None else asdict(use),
        "phases": phases,
        "outside_of_epochs_s": whole - spent,
        "total_s": total,
        "extrapolated": options.epochs is not None,
        "test_natural": known,
    }
    print(json.dumps(record, indent=2))
    peak = f", peak {use.peak_gpu_bytes / 2**30:.2f} GiB" if use and use.peak_gpu_bytes else ""
    how = f"extrapolated from {options.epochs} epochs of each phase" if options.epochs else "measured"
    print(f"{options.recipe}, {len(options.seeds)} at once: {total / 60:.1f} minutes ({how}){peak}")
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
