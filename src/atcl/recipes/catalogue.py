"""All recipes by name, `dataset/method`."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from atcl.core.errors import AtclError, pick
from atcl.datasets.labels import Given, Ordinary
from atcl.models import Derived
from atcl.recipes.defaults import DEFAULTS
from atcl.recipes.methods import METHODS
from atcl.recipes.names import OWN
from atcl.recipes.schema import Recipe


def on_own_data(wanted: Recipe) -> Recipe:
    """Return a recipe for data of your own.

    The labels are those of the data, and the epoch is chosen by a rule on held-out complementary labels.

    Args:
        wanted: the recipe whose method, model and other settings are kept.

    Examples:
        >>> on_own_data(recipe("cifar10/warmup-pla")).selection
        'held_scel_attacked'
    """
    if isinstance(wanted.labels, Ordinary):
        raise AtclError(
            "this recipe learns from true labels, and data of your own have complementary ones: "
            "choose another recipe, such as own/warmup-pla"
        )
    own = DEFAULTS[OWN]
    return replace(
        wanted,
        dataset=OWN,
        labels=own.labels,
        selection=own.selection,
        holdout=own.holdout,
        initial=own.initial,
    )


def _offered(wanted: Recipe) -> bool:
    """Return whether a method is possible: with data of a user, no other labels and no test set are there."""
    return wanted.dataset != OWN or (isinstance(wanted.labels, Given) and "test" not in wanted.needs)


RECIPES: dict[str, Callable[[], Recipe]] = {
    f"{name}/{method}": partial(build, defaults)
    for name, defaults in DEFAULTS.items()
    for method, build in METHODS.items()
    if _offered(build(defaults))
}


def with_derived_weights(wanted: Recipe) -> Recipe:
    """Return a recipe with initial weights from a derived seed, in place of those of the official code.

    Recipes of the paper's datasets were like this at first; older results are found by it.
    """
    return replace(wanted, initial=Derived())


def recipe(name: str) -> Recipe:
    """Return a recipe by its name, `dataset/method`; `atcl list recipes` shows the names.

    Raises:
        AtclError: the name is unknown; the message has the closest one.

    Examples:
        >>> recipe("digits/warmup-pla").model
        'tiny_cnn'
    """
    for halves, whole in ((METHODS, f"digits/{name}"), (DEFAULTS, f"{name}/warmup-pla")):
        if name in list(halves):
            raise AtclError(
                f"a recipe is named dataset/method, such as {whole}, not {name!r}; "
                "`atcl list recipes` shows all"
            )
    return made(pick(RECIPES, name, "recipe"))


@cache  # a recipe checks all its epochs when it is made, and a run is compared with many recipes
def made(build: Callable[[], Recipe]) -> Recipe:
    """Return the recipe that a function builds, from the cache after the first time."""
    return build()
