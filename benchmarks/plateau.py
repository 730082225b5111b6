"""When direct training leaves the constant predictions that it starts with.

The same seed is trained with changes of what the paper does not specify.

python benchmarks/plateau.py --recipe mnist/direct-log --variants recipe fp32 random-head --epochs 100

All variants train together. Each is compared with `recipe`, the recipe without changes.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import tyro
from log_space import by_loss
from torch import nn

from atcl.core.device import environment, resolve
from atcl.core.files import write_json
from atcl.core.precisions import Precision
from atcl.datasets.sources import DATASETS
from atcl.models import MODELS
from atcl.recipes.catalogue import recipe
from atcl.recipes.schema import Recipe
from atcl.runs.spec import Execution, RunSpec
from atcl.runs.start import train_together
from atcl.runs.watcher import Watcher

# points of natural accuracy above that of the best constant prediction: from there on, predictions vary
AWAY = 5.0


@dataclass(frozen=True)
class Options:
    """What is compared."""

    recipe: str = "mnist/direct-log"
    variants: tuple[str, ...] = ("recipe", "fp32", "random-head")
    seeds: tuple[int, ...] = (1,)
    epochs: int | None = None
    """fewer than the recipe's"""
    device: str = "auto"
    data_dir: Path | None = None
    out: Path | None = None
    """also write a JSON file after each epoch"""


def in_precision(precision: Precision) -> Callable[[Recipe], Recipe]:
    """Return a function that changes a recipe to another precision."""
    return lambda wanted: replace(
        wanted, stages=tuple(replace(stage, precision=precision) for stage in wanted.stages)
    )


def with_random_head(wanted: Recipe) -> Recipe:
    """Return a recipe whose last layer starts with PyTorch's random weights, not with zero."""
    name, build = f"{wanted.model}_random_head", MODELS[wanted.model]

    def drawn(classes: int, shape: tuple[int, int, int]) -> nn.Module:
        model = build(classes, shape)
        last = [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1]
        last.reset_parameters()
        return model

    MODELS[name] = drawn
    return replace(wanted, model=name)


def with_softmax(wanted: Recipe) -> Recipe:
    """Return a recipe that computes LOG by softmax, then logarithm."""
    return by_loss(wanted, "softmax_then_log")


VARIANTS: dict[str, Callable[[Recipe], Recipe]] = {
    "recipe": lambda wanted: wanted,
    "fp32": in_precision(Precision("fp32", "fp32")),
    "tf32": in_precision(Precision("tf32", "tf32")),
    "bf16": in_precision(Precision("bf16", "bf16")),
    "random-head": with_random_head,
    "softmax": with_softmax,
}


@dataclass
class Noting(Watcher):
    """A watcher that keeps natural accuracy and PGD20 of each epoch."""

    constant: float  # percent: natural accuracy of the best constant prediction
    after: Callable[[], None]
    epochs: list[dict[str, float]] = field(default_factory=list)

    def epoch(self, record: dict[str, Any]) -> None:
        self.epochs.append({name: record[name] for name in ("epoch", "loss", "test_natural", "test_pgd20")})
        self.after()

    @property
    def left(self) -> float | None:
        """The first epoch after which natural accuracy stays above that of a constant prediction, if any."""
        kept = [one["epoch"] for one in self.epochs if one["test_natural"] <= self.constant + AWAY]
        first = kept[-1] + 1 if kept else 1
        return first if first <= self.epochs[-1]["epoch"] else None


def main(options: Options) -> None:
    """Train, and print for each variant when it leaves the plateau and where it ends."""
    # this rule has each epoch evaluated on the test set
    wanted = replace(recipe(options.recipe), selection="test_pgd20")
    if len(wanted.stages) > 1:
        raise SystemExit("give a recipe of one stage")
    test = DATASETS[wanted.dataset](options.data_dir).test.truth
    constant = 100 * int(test.labels.bincount().max()) / len(test.labels)
    if options.epochs:
        wanted = replace(
            wanted,
            stages=tuple(replace(stage, epochs=min(stage.epochs, options.epochs)) for stage in wanted.stages),
        )
    if unknown := set(options.variants) - VARIANTS.keys():
        raise SystemExit(f"unknown variant {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}")
    changed = {name: VARIANTS[name](wanted) for name in options.variants}
    device, began = resolve(options.device), time.perf_counter()
    notes: dict[str, Noting] = {}

    def write() -> None:
        if options.out:
            record = {
                "recipe": options.recipe,
                "environment": environment(device),
                "seconds": time.perf_counter() - began,
            }
            write_json(options.out, {**record, "runs": {name: note.epochs for name, note in notes.items()}})

    with tempfile.TemporaryDirectory() as folder:
        specs = []
        for seed in options.seeds:
            for name, variant in changed.items():
                notes[f"{name}:{seed}"] = note = Noting(constant, write)
                specs.append(RunSpec(variant, options.recipe, seed, Path(folder, f"{name}-{seed}")))
        train_together(specs, Execution(options.device, options.data_dir), list(notes.values()))
    place = f"{environment(device)['device']}, torch {torch.__version__}"
    print(f"{options.recipe}, {place}, {time.perf_counter() - began:.0f} s")
    for name, note in notes.items():
        last = note.epochs[-1]
        when = f"leaves the plateau in epoch {note.left:.0f}" if note.left else "does not leave the plateau"
        accuracies = f"natural {last['test_natural']:.2f}, PGD20 {last['test_pgd20']:.2f}"
        print(f"{name:16} {when}; epoch {last['epoch']:.0f}: {accuracies}")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
