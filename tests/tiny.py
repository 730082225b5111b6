"""What trains in moments: images, a network with every kind of state, and each recipe shrunk to them."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atcl.attacks.pgd import AttackLoss
from atcl.data.augment import Augmentation, Cutout
from atcl.datasets.labels import Complementary, Given, LabelSource, weaken
from atcl.datasets.truth import Split, Truth
from atcl.losses import Targets
from atcl.recipes.catalogue import with_derived_weights
from atcl.recipes.defaults import DEFAULTS, DatasetDefaults
from atcl.recipes.methods import METHODS
from atcl.recipes.names import OWN
from atcl.recipes.schema import Recipe
from atcl.runs.problem import Problem
from atcl.runs.spec import Execution
from atcl.training.objectives import OBJECTIVES, MinMax
from atcl.training.schedules import CosineRise, LinearFall

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
    """Defaults with five epochs of three small batches."""
    augment = defaults.augmentation
    if isinstance(augment, Augmentation):
        augment = replace(augment, padding=min(augment.padding, 1))
    return replace(
        defaults,
        dataset="tiny",
        model="TinyNet",
        epochs=5,
        two_stage=(2, 3),
        batch_size=8,
        opening=2,
        scheduling=2,
        remember_from=1,
        budget=replace(defaults.budget, steps=2, step_size=defaults.budget.epsilon),
        decay=(2,) if defaults.decay else (),
        rise=min(defaults.rise, 2),
        augmentation=augment,
        shape=SHAPE,
    )


def changing(recipe: Recipe) -> Recipe:
    """A recipe of eight epochs a stage: the attack, and gamma with pseudo-labels, changes in each."""
    stages = []
    for stage in recipe.stages:
        gamma = LinearFall(1.0, 8) if stage.supervision.uses_guesses else stage.gamma
        stages.append(replace(stage, epochs=8, strength=CosineRise(1.0, 8), gamma=gamma))
    return replace(recipe, stages=tuple(stages))


def recipes() -> dict[str, Recipe]:
    """Every recipe, shrunk, once: those of MNIST and Kuzushiji become equal, as do CIFAR-10's and SVHN's.

    On data of one's own they differ from CIFAR-10's in the choice of an epoch alone: two stand for all.
    """
    found: dict[str, Recipe] = {}
    for name, defaults in DEFAULTS.items():
        for method in ("warmup-pla", "two-stage") if name == OWN else METHODS:
            # a model that is built by a function of its own gets no initial weights from the recipe
            small = with_derived_weights(METHODS[method](shrunk(defaults)))
            if small not in found.values():
                found[f"{name}/{method}"] = small
    return found


RECIPES = recipes()


@dataclass(frozen=True)
class TwoViews:
    """An objective with a second view, whose predictions are drawn towards those of the attacked first."""

    loss: str = "log"
    weight: float = 1.0

    views: ClassVar[int] = 2

    def attack_loss(self, model: nn.Module, x: Tensor, targets: Targets) -> AttackLoss:
        return MinMax(self.loss).attack_loss(model, x, targets)

    def training_loss(
        self, model: nn.Module, x: Tensor, adv: Tensor, targets: Targets, *others: Tensor
    ) -> tuple[Tensor, Tensor]:
        (second,) = others
        loss, logits = MinMax(self.loss).training_loss(model, x, adv, targets)
        aim = logits.detach().softmax(1)
        return loss + self.weight * F.cross_entropy(model(second), aim), logits


OBJECTIVES["two-views"] = TwoViews  # so that runs with it are read again


def custom() -> dict[str, Recipe]:
    """Recipes beyond the paper's methods: averaged weights, several views, a stage that continues."""
    plain = RECIPES["digits/warmup-pla"]
    (stage,) = plain.stages
    averaged = replace(stage, average=0.9)
    crop, cut = Augmentation(padding=1), Cutout(size=2)
    views = replace(stage, objective=TwoViews(), augmentation=crop, views=(cut,))
    return {
        "digits/averaged": replace(plain, stages=(averaged,)),
        "digits/two-views": replace(plain, stages=(views,)),
        "digits/continued": replace(plain, stages=(stage, replace(averaged, fresh=False))),
        "digits/teacher": replace(plain, stages=(averaged, replace(stage, teacher="last"))),
    }


CUSTOM = custom()
ALL = RECIPES | CUSTOM
