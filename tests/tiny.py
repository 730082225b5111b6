"""Small things that train in moments: images, a network with every kind of state, and each recipe shrunk to them."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from atcl.datasets.labels import Complementary, Given, LabelSource, weaken
from atcl.datasets.truth import Split, Truth
from atcl.recipes.defaults import DEFAULTS, DatasetDefaults
from atcl.recipes.methods import METHODS
from atcl.recipes.schema import OWN, Recipe
from atcl.runs.problem import Problem
from atcl.runs.spec import Execution
from atcl.training.schedules import CosineRise, LinearFall
from atcl.training.supervision import PseudoLabels

CLASSES = 5
SHAPE = (1, 6, 6)
ON_CPU = Execution(device="cpu")


def split(n: int = 20, seed: int = 0) -> Split:
    """Images that brighten one stripe by class, with noise."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    x = torch.randint(0, 120, (n, *SHAPE), generator=rng)
    x[torch.arange(n), 0, labels] += 120
    return Split(x.to(torch.uint8), Truth(labels, CLASSES))


def problem(labels: LabelSource) -> Problem:
    """Weak labels for twenty images, with the truth of those and of ten others."""
    train = split()
    drawn = Complementary() if labels == Given() else labels
    return Problem(weaken(train, drawn, seed=3), train.truth, split(10, seed=1))


class TinyNet(nn.Module):
    """Batch statistics and dropout: everything that a resumed run could lose."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)),
            *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, CLASSES)),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def shrunk(defaults: DatasetDefaults) -> DatasetDefaults:
    """A task of five epochs of three small batches."""
    return replace(
        defaults, dataset="tiny", model="TinyNet", epochs=5, two_stage=(2, 3), batch_size=8, opening=2, scheduling=2, remember_from=1,
        budget=replace(defaults.budget, steps=2, step_size=defaults.budget.epsilon), decay=(2,) if defaults.decay else (), rise=min(defaults.rise, 2),
        augmentation=replace(defaults.augmentation, padding=min(defaults.augmentation.padding, 1)), shape=SHAPE,
    )  # fmt: skip


def changing(recipe: Recipe) -> Recipe:
    """A recipe of eight epochs a stage, in each of which the attack, and gamma where there are pseudo-labels, is another."""
    stages = []
    for stage in recipe.stages:
        gamma = LinearFall(1.0, 8) if isinstance(stage.supervision, PseudoLabels) else stage.gamma
        stages.append(replace(stage, epochs=8, strength=CosineRise(1.0, 8), gamma=gamma))
    return replace(recipe, stages=tuple(stages))


def recipes() -> dict[str, Recipe]:
    """Every recipe, shrunk; those of MNIST and Kuzushiji, and of CIFAR-10 and SVHN, are then the same and appear once.

    On data of one's own they differ from CIFAR-10's in the choice of an epoch alone, so that two stand for all.
    """
    found: dict[str, Recipe] = {}
    for name, defaults in DEFAULTS.items():
        for method in ("warmup-pla", "two-stage") if name == OWN else METHODS:
            small = METHODS[method](shrunk(defaults))
            if small not in found.values():
                found[f"{name}/{method}"] = small
    return found


RECIPES = recipes()
