"""A whole run: seconds from start to result, with the test set attacked after each epoch as the recipe says, compiling included.

python benchmarks/run.py --recipe cifar10/warmup-pla --epochs 10

Images are a picture of their class in some noise: they cost what real ones cost, and a model soon knows them, so that nearly all of the test set
is attacked (the last natural accuracy of the journal is told). With `--epochs`, so many natural and so many adversarial epochs are run, and the
rest is reckoned from their medians; the first of each phase, in which steps are compiled and recorded, counts as it is.
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
    """Return a picture for each class in some noise, of the sizes and shapes of a dataset, with one complementary label each."""
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


def reckoned(records: list[Record], wanted: Recipe) -> tuple[float, dict[str, Any]]:
    """Return the seconds of all epochs, and what they were reckoned from."""
    if len(wanted.stages) > 1:
        return sum(record["seconds"] for record in records), {}
    (stage,) = wanted.stages
    total, told = 0.0, {}
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
        told[phase] = {"epochs": epochs, "first_s": first, "each_s": each, "run": len(seconds)}
    return total, told


def main(options: Options) -> None:
    """Run, reckon and print."""
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
        training, phases = reckoned(runs[0].journal, wanted)
        engine = runs[0].result["engine"]
        known = runs[0].journal[-1].get("test_natural")
    total = training + whole - spent
    told = {
        "options": asdict(options) | {"out": None},
        "environment": environment(device),
        "engine": engine,
        "phases": phases,
        "outside_of_epochs_s": whole - spent,
        "total_s": total,
        "extrapolated": options.epochs is not None,
        "test_natural": known,
    }
    print(json.dumps(told, indent=2))
    peak = f", peak {engine['peak_gpu_bytes'] / 2**30:.2f} GiB" if engine["peak_gpu_bytes"] else ""
    how = f"reckoned from {options.epochs} epochs of each phase" if options.epochs else "measured"
    print(f"{options.recipe}, {len(options.seeds)} at once: {total / 60:.1f} minutes ({how}){peak}")
    if options.out:
        options.out.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
