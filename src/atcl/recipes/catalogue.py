"""Every recipe by its name, `dataset/method`."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from atcl.core.errors import AtclError, pick
from atcl.datasets.labels import Given
from atcl.models import Derived
from atcl.recipes.defaults import DEFAULTS
from atcl.recipes.methods import METHODS
from atcl.recipes.schema import OWN, Recipe


def on_own_data(wanted: Recipe) -> Recipe:
    """Return a recipe for data of one's own: their labels as they come, an epoch chosen by held-out ones."""
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
    """Tell whether a method can be had: on data of one's own only with the labels that came with them, and with no test set."""
    return wanted.dataset != OWN or (isinstance(wanted.labels, Given) and "test" not in wanted.needs)


RECIPES: dict[str, Callable[[], Recipe]] = {
    f"{name}/{method}": partial(build, defaults)
    for name, defaults in DEFAULTS.items()
    for method, build in METHODS.items()
    if _offered(build(defaults))
}


def with_derived_weights(wanted: Recipe) -> Recipe:
    """Return a recipe as it was before those of the paper's datasets drew the official weights: results of both kinds are told apart by it."""
    return replace(wanted, initial=Derived())


def recipe(name: str) -> Recipe:
    """Return a recipe by its name, `dataset/method`."""
    for halves, whole in ((METHODS, f"digits/{name}"), (DEFAULTS, f"{name}/warmup-pla")):
        if name in list(halves):
            raise AtclError(
                f"a recipe is named dataset/method, such as {whole}, not {name!r}; `atcl list recipes` tells all"
            )
    return made(pick(RECIPES, name, "recipe"))


@cache  # each is checked epoch by epoch when it is made, and a run is compared with many
def made(build: Callable[[], Recipe]) -> Recipe:
    """Return what a maker of recipes gives, made once."""
    return build()
