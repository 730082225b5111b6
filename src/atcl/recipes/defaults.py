"""The settings that all methods share on a dataset: model, epochs, optimisers, attack."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from atcl.attacks.threat import Budget, Threat
from atcl.core.precisions import Precision
from atcl.data.augment import AnyAugmentation, Augmentation
from atcl.datasets.labels import Complementary, Given, LabelSource
from atcl.models import Derived, Initial, Official
from atcl.recipes.names import OWN
from atcl.training.optimizers import Adam, AnyOptimizer, Sgd
from atcl.training.schedules import Constant, Schedule, StepDecay
from atcl.training.stage import Stage


@dataclass(frozen=True)
class DatasetDefaults:
    """The settings that all methods share on a dataset."""

    dataset: str
    model: str
    epochs: int  # of a one-stage method
    two_stage: tuple[int, int]  # epochs of the natural and of the adversarial stage
    batch_size: int
    optimizer: AnyOptimizer
    lr: float
    budget: Budget
    threat: Threat
    opening: int  # E_i: natural epochs before the schedules begin
    scheduling: int  # E_s: epochs until full strength and gamma 0
    natural_optimizer: AnyOptimizer  # first stage of two-stage
    natural_lr: float
    decay: tuple[int, ...] = ()  # adversarial epochs from which on lr is divided by ten
    rise: int = 0  # epochs over which lr rises
    remember_from: int = 6  # the first epoch whose predictions are remembered
    augmentation: AnyAugmentation = Augmentation()
    precision: Precision = Precision()
    direct_lr: Mapping[str, float] = field(
        default_factory=dict
    )  # for losses with a learning rate of their own
    selection: str = "test_pgd20"
    holdout: float = 0.0
    shape: tuple[int, int, int] = (3, 32, 32)
    labels: LabelSource = Complementary()
    initial: Initial = Derived()

    def stage(self, lr: float | None = None, opening: int = 0) -> Stage:
        """Return a stage of adversarial training on the candidates, at full strength.

        Args:
            lr: the learning rate; by default that of the dataset.
            opening: natural epochs by which the decay of the learning rate is delayed.
        """
        return Stage(
            self.epochs,
            self.batch_size,
            self.optimizer,
            self.schedule(lr or self.lr, opening),
            budget=self.budget,
            augmentation=self.augmentation,
            precision=self.precision,
        )

    def schedule(self, lr: float, opening: int = 0, rise: int | None = None) -> Schedule:
        """Return the schedule of a learning rate: a rise, then a tenth from each of the decay epochs on.

        Args:
            lr: the learning rate after the rise.
            opening: epochs by which the decay is delayed.
            rise: epochs of the rise; by default that of the dataset.
        """
        at = tuple(opening + epoch for epoch in self.decay)
        if not at and not self.rise:
            return Constant(lr)
        return StepDecay(lr, at, rise=self.rise if rise is None else rise)


_MNIST = DatasetDefaults(
    dataset="mnist",
    model="small_cnn",
    epochs=100,
    two_stage=(50, 50),
    batch_size=256,
    optimizer=Sgd(),
    lr=0.01,
    budget=Budget(epsilon=0.3, step_size=0.01, steps=40),
    threat=Threat(epsilon=0.3, step_size=0.01),
    opening=10,
    scheduling=50,
    natural_optimizer=Adam(weight_decay=1e-4),
    natural_lr=1e-3,
    shape=(1, 28, 28),
    precision=Precision("bf16", "tf32"),
    direct_lr={
        "forward": 0.1,
        "free": 0.001,
        "nn": 0.01,
        "scl_nl": 0.1,
        "scl_exp": 0.05,
        "exp": 0.01,
        "log": 0.01,
    },
    initial=Official(loader_draws=1),
)


_CIFAR10 = DatasetDefaults(
    dataset="cifar10",
    model="resnet18",
    epochs=120,
    two_stage=(50, 70),
    batch_size=128,
    optimizer=Sgd(weight_decay=5e-4),
    lr=0.01,
    budget=Budget(epsilon=8 / 255, step_size=2 / 255, steps=10),
    threat=Threat(epsilon=8 / 255, step_size=2 / 255),
    opening=40,
    scheduling=40,
    natural_optimizer=Sgd(weight_decay=5e-4),
    natural_lr=0.01,
    decay=(30, 60),
    rise=5,
    augmentation=Augmentation(padding=4, flip=True),
    precision=Precision("bf16", "bf16"),
    initial=Official(loader_draws=0),
)


_DIGITS = DatasetDefaults(
    dataset="digits",
    model="tiny_cnn",
    epochs=80,
    two_stage=(50, 50),
    batch_size=32,
    optimizer=Adam(),
    lr=1e-3,
    budget=Budget(epsilon=0.15, step_size=0.03, steps=10),
    threat=Threat(epsilon=0.15, step_size=0.015),
    opening=20,
    scheduling=40,
    natural_optimizer=Adam(),
    natural_lr=1e-3,
    selection="last",
    shape=(1, 8, 8),
)


DEFAULTS: dict[str, DatasetDefaults] = {
    "digits": _DIGITS,
    "mnist": _MNIST,
    "kuzushiji": replace(_MNIST, dataset="kuzushiji"),
    # not in the paper: the settings of MNIST
    "fashion": replace(_MNIST, dataset="fashion", initial=Derived()),
    "cifar10": _CIFAR10,
    # not in the paper: the settings of CIFAR-10
    "cifar100": replace(_CIFAR10, dataset="cifar100", initial=Derived()),
    "svhn": replace(_CIFAR10, dataset="svhn"),
    # the settings of CIFAR-10, without true labels
    OWN: replace(
        _CIFAR10, dataset=OWN, labels=Given(), selection="held_scel_attacked", holdout=0.1, initial=Derived()
    ),
}
