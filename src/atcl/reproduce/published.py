"""What the paper publishes: the runs of its tables and figures, and every number that it prints."""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from atcl.core.settings import overridden
from atcl.recipes.catalogue import recipe, with_derived_weights
from atcl.recipes.schema import Recipe

ATTACKED = ("natural", "pgd20", "cw30", "autoattack")  # the columns of its tables
EPOCHS = tuple(f"epoch {epoch}" for epoch in range(1, 11))  # those of its tables of pseudo-labels
RULE = "test_pgd20"  # how it chose the epochs that it reports
SEEDS = 3


class Value(NamedTuple):
    """A published mean over three seeds, and its standard deviation with ddof = 0."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class RecipeRef:
    """A recipe as one types it: its name, and the settings that are changed."""

    name: str
    overrides: tuple[str, ...] = ()

    @property
    def recipe(self) -> Recipe:
        """The settings in full."""
        return _changed(recipe(self.name), self.overrides) if self.overrides else recipe(self.name)

    @property
    def words(self) -> str:
        """The words that follow `atcl train`."""
        return " ".join([self.name, *self.overrides])


@cache  # a table asks for the same settings many times
def _changed(plain: Recipe, overrides: tuple[str, ...]) -> Recipe:
    return overridden(plain, overrides, "atcl train")


def _scheduling(epochs: int) -> tuple[str, tuple[str, ...]]:
    """Return the main method on Kuzushiji with another E_s.

    The memory is updated until epsilon reaches half of its maximum, as with E_s = 50.
    """
    last = 10 + epochs // 2
    return "warmup-pla", (
        "--stages.0.strength.over",
        str(epochs),
        "--stages.0.gamma.over",
        str(epochs),
        "--stages.0.supervision.last",
        str(last),
    )


# Runs that are a method with a few settings changed. The paper names neither the E_s of its figure, nor its
# numbers of labels beside 3, nor its training alternatives beside "optimizer": these are our choice.
SCHEDULINGS = (20, 30, 40, 60, 70)
NUMBERS_OF_LABELS = (3, 5, 7, 9)
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "two-stage-mcl-test-teacher": ("two-stage-mcl", ("--stages.1.teacher", "test_natural")),
    **{f"warmup-pla-es-{epochs}": _scheduling(epochs) for epochs in SCHEDULINGS},
    **{
        f"direct-log-{number}-labels": ("direct-log", ("--labels.number", str(number)))
        for number in NUMBERS_OF_LABELS
    },
    "direct-log-lr-0.1": ("direct-log", ("--stages.0.lr.value", "0.1")),
    "direct-log-lr-0.001": ("direct-log", ("--stages.0.lr.value", "0.001")),
    "direct-log-weight-decay": ("direct-log", ("--stages.0.optimizer.weight-decay", "0.0005")),
    "direct-log-opening": ("warmup", ("--stages.0.strength.over", "0")),
    **{
        f"{method}-held": (method, ("--holdout", "0.1", "--selection", "held_scel_attacked"))
        for method in ("direct-log", "two-stage", "warmup-pla")
    },
}


def recipe_ref(cell: str) -> RecipeRef:
    """Return the recipe of a cell, `dataset/row`, where a row is a method or one of the variants."""
    dataset, _, row = cell.partition("/")
    method, overrides = VARIANTS.get(row, (row, ()))
    return RecipeRef(f"{dataset}/{method}", overrides)


def _row(*numbers: float) -> dict[str, Value]:
    return {
        name: Value(mean, deviation)
        for name, mean, deviation in zip(ATTACKED, numbers[::2], numbers[1::2], strict=True)
    }


def _epochs(means: tuple[float, ...], deviations: tuple[float, ...]) -> dict[str, Value]:
    return {
        name: Value(mean, deviation) for name, mean, deviation in zip(EPOCHS, means, deviations, strict=True)
    }


PUBLISHED: dict[str, dict[str, Value]] = {
    "mnist/oracle": _row(99.46, 0.04, 98.14, 0.04, 97.45, 0.08, 92.53, 0.23),
    "mnist/two-stage-test-teacher": _row(99.07, 0.02, 97.44, 0.23, 96.72, 0.21, 92.06, 0.45),
    "mnist/direct-forward": _row(97.22, 1.13, 93.76, 2.38, 92.13, 2.87, 85.41, 3.69),
    "mnist/direct-free": _row(48.94, 26.04, 38.02, 22.21, 32.81, 19.63, 22.68, 13.91),
    "mnist/direct-nn": _row(68.48, 40.40, 66.80, 39.22, 66.25, 38.84, 60.65, 38.04),
    "mnist/direct-scl-nl": _row(93.09, 7.35, 87.07, 12.40, 84.59, 14.51, 75.98, 18.29),
    "mnist/direct-scl-exp": _row(14.88, 4.99, 14.34, 4.23, 13.58, 3.16, 10.47, 1.25),
    "mnist/direct-exp": _row(10.99, 0.50, 10.99, 0.50, 10.99, 0.50, 10.99, 0.50),
    "mnist/direct-log": _row(97.16, 0.64, 93.38, 1.25, 91.67, 1.39, 84.88, 2.09),
    "mnist/warmup-pla": _row(99.22, 0.02, 97.73, 0.06, 97.11, 0.07, 92.37, 0.19),
    "kuzushiji/oracle": _row(95.94, 0.15, 90.01, 0.43, 88.06, 0.96, 70.63, 0.48),
    "kuzushiji/two-stage-test-teacher": _row(89.75, 0.42, 82.91, 1.01, 80.21, 1.27, 64.57, 1.79),
    "kuzushiji/direct-forward": _row(35.48, 27.96, 29.84, 25.55, 28.09, 24.37, 22.01, 18.98),
    "kuzushiji/direct-free": _row(16.17, 1.77, 12.01, 0.55, 9.33, 1.50, 4.08, 1.60),
    "kuzushiji/direct-nn": _row(10.00, 0.00, 10.00, 0.00, 10.00, 0.00, 8.87, 1.60),
    "kuzushiji/direct-scl-nl": _row(40.83, 24.03, 32.82, 22.88, 29.93, 22.53, 20.86, 19.74),
    "kuzushiji/direct-scl-exp": _row(10.00, 0.00, 10.00, 0.00, 10.00, 0.00, 8.21, 2.54),
    "kuzushiji/direct-exp": _row(10.00, 0.00, 10.00, 0.00, 10.00, 0.00, 10.00, 0.00),
    "kuzushiji/direct-log": _row(32.66, 25.50, 26.87, 22.66, 24.90, 21.20, 18.78, 16.95),
    "kuzushiji/warmup-pla": _row(91.60, 0.49, 85.88, 0.48, 83.74, 0.35, 68.75, 0.68),
    "cifar10/oracle": _row(78.10, 0.36, 47.35, 0.05, 45.66, 0.22, 43.47, 0.23),
    "cifar10/two-stage-test-teacher": _row(64.98, 2.70, 42.48, 0.92, 39.90, 0.67, 38.89, 0.46),
    "cifar10/direct-forward": _row(15.41, 0.85, 13.58, 0.56, 13.03, 0.34, 12.94, 0.35),
    "cifar10/direct-free": _row(11.60, 0.30, 10.54, 0.23, 10.45, 0.20, 10.32, 0.26),
    "cifar10/direct-nn": _row(11.79, 0.61, 11.13, 0.56, 11.14, 0.56, 11.10, 0.53),
    "cifar10/direct-scl-nl": _row(14.45, 1.07, 13.13, 1.03, 12.84, 1.17, 12.79, 1.18),
    "cifar10/direct-scl-exp": _row(13.49, 1.76, 12.55, 1.39, 12.45, 1.35, 12.38, 1.31),
    "cifar10/direct-exp": _row(10.97, 1.01, 10.56, 0.60, 10.38, 0.36, 10.37, 0.34),
    "cifar10/direct-log": _row(11.70, 1.06, 11.04, 0.72, 10.49, 0.59, 10.44, 0.55),
    "cifar10/warmup-pla": _row(65.88, 1.51, 43.29, 0.70, 41.30, 0.59, 40.28, 0.39),
    "svhn/oracle": _row(91.95, 0.11, 53.89, 0.11, 50.59, 0.23, 47.05, 0.22),
    "svhn/two-stage-test-teacher": _row(90.62, 0.27, 53.92, 0.33, 50.86, 0.28, 47.31, 0.11),
    "svhn/direct-forward": _row(19.59, 0.00, 19.59, 0.00, 19.59, 0.00, 19.68, 0.00),
    "svhn/direct-free": _row(19.59, 0.00, 19.59, 0.00, 19.59, 0.00, 19.68, 0.00),
    "svhn/direct-nn": _row(19.59, 0.00, 19.59, 0.00, 19.59, 0.00, 19.68, 0.00),
    "svhn/direct-scl-nl": _row(19.59, 0.00, 19.59, 0.00, 19.58, 0.00, 19.67, 0.00),
    "svhn/direct-scl-exp": _row(19.59, 0.00, 19.59, 0.00, 19.58, 0.00, 19.68, 0.00),
    "svhn/direct-exp": _row(19.60, 0.01, 19.60, 0.02, 19.56, 0.03, 19.65, 0.04),
    "svhn/direct-log": _row(19.59, 0.00, 19.60, 0.02, 19.59, 0.00, 19.68, 0.00),
    "svhn/warmup-pla": _row(90.50, 0.16, 54.58, 0.10, 51.04, 0.04, 47.47, 0.13),
    "kuzushiji/warmup-forward": _row(91.39, 0.60, 82.95, 0.47, 79.69, 0.52, 61.66, 0.86),
    "kuzushiji/warmup-free": _row(83.19, 1.39, 74.05, 1.30, 70.48, 1.17, 57.39, 0.80),
    "kuzushiji/warmup-nn": _row(86.43, 0.67, 77.85, 0.98, 74.55, 1.03, 59.84, 0.73),
    "kuzushiji/warmup-scl-nl": _row(91.92, 0.29, 82.93, 0.58, 79.77, 0.96, 62.27, 0.68),
    "kuzushiji/pla-scl-nl": _row(39.64, 32.18, 32.18, 30.82, 28.37, 30.97, 21.58, 23.01),
    "kuzushiji/warmup-pla-scl-nl": _row(91.74, 0.85, 86.09, 1.01, 83.77, 1.03, 67.87, 0.94),
    "kuzushiji/warmup-scl-exp": _row(89.09, 0.58, 80.94, 0.70, 78.12, 0.74, 61.17, 1.17),
    "kuzushiji/pla-scl-exp": _row(10.00, 0.00, 10.00, 0.00, 10.00, 0.00, 10.00, 0.00),
    "kuzushiji/warmup-pla-scl-exp": _row(87.58, 2.48, 82.17, 2.45, 80.25, 2.41, 66.36, 2.02),
    "kuzushiji/warmup-exp": _row(89.18, 0.21, 80.80, 0.21, 77.30, 0.35, 60.90, 0.25),
    "kuzushiji/pla-exp": _row(10.00, 0.00, 10.00, 0.00, 10.00, 0.00, 10.00, 0.00),
    "kuzushiji/warmup-pla-exp": _row(84.63, 0.94, 79.37, 1.27, 77.23, 1.42, 65.04, 1.33),
    "kuzushiji/warmup": _row(91.31, 0.53, 82.77, 0.33, 80.31, 0.25, 62.23, 0.42),
    "kuzushiji/pla": _row(57.78, 33.80, 53.10, 30.49, 51.11, 29.08, 39.65, 21.14),
    "kuzushiji/two-stage-mcl-test-teacher": _row(93.53, 0.84, 86.52, 1.68, 84.19, 2.21, 65.91, 2.69),
    "kuzushiji/direct-exp-mcl": _row(10.00, 0.00, 10.00, 0.00, 9.99, 0.01, 7.25, 3.89),
    "kuzushiji/direct-log-mcl": _row(77.83, 17.72, 68.87, 19.21, 64.69, 20.63, 50.04, 18.14),
    "kuzushiji/warmup-pla-mcl": _row(95.61, 0.02, 89.89, 0.17, 88.02, 0.25, 71.48, 0.12),
    "cifar10/two-stage-mcl-test-teacher": _row(77.11, 0.10, 47.58, 0.13, 45.60, 0.09, 43.63, 0.08),
    "cifar10/direct-exp-mcl": _row(37.01, 1.65, 29.31, 0.93, 28.05, 0.77, 27.42, 0.70),
    "cifar10/direct-log-mcl": _row(52.02, 0.50, 36.72, 0.04, 33.79, 0.20, 32.53, 0.19),
    "cifar10/warmup-pla-mcl": _row(82.33, 0.18, 46.44, 0.03, 45.00, 0.27, 42.56, 0.32),
    "kuzushiji/pseudo-labels-slow": _epochs(
        (12.52, 25.44, 46.78, 61.57, 71.81, 79.70, 85.27, 87.55, 89.00, 90.39),
        (0.42, 2.26, 4.27, 4.53, 6.13, 4.20, 1.63, 1.05, 1.05, 1.15),
    ),
    "kuzushiji/pseudo-labels-rapid": _epochs(
        (11.08, 12.66, 12.93, 12.98, 13.00, 13.02, 13.02, 13.02, 13.02, 13.01),
        (0.04, 1.21, 1.48, 1.52, 1.55, 1.56, 1.56, 1.56, 1.56, 1.55),
    ),
}


# The paper does not say whether gamma falls in these runs: both variants are compared with the same numbers.
PUBLISHED |= {
    f"{cell}-warmup": PUBLISHED[cell]
    for cell in ("kuzushiji/pseudo-labels-slow", "kuzushiji/pseudo-labels-rapid")
}


def published(wanted: Recipe) -> dict[str, Value] | None:
    """Return what the paper prints for a recipe, by attack or by epoch; None if it prints nothing.

    How the initial weights are drawn makes no difference.
    """
    cells = [cell for cell in PUBLISHED if cell.startswith(f"{wanted.dataset}/")]
    return next(
        (
            PUBLISHED[cell]
            for cell in cells
            if with_derived_weights(recipe_ref(cell).recipe) == with_derived_weights(wanted)
        ),
        None,
    )


def card(wanted: Recipe) -> dict[str, dict[str, float]] | None:
    """Return the published values as `result.json` has them."""
    found = published(wanted)
    return None if found is None else {name: value._asdict() for name, value in found.items()}
