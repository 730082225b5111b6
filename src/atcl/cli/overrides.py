"""A recipe from the command line: by name, for your own data or not, with changed settings."""

from collections.abc import Sequence

from atcl.core.settings import option_names, overridden
from atcl.recipes.catalogue import on_own_data, recipe
from atcl.recipes.schema import Recipe


def overridden_recipe(name: str, overrides: Sequence[str], command: type, own: bool = False) -> Recipe:
    """Return the recipe of a name with changed settings.

    Args:
        name: `dataset/method`.
        overrides: options such as `--stages.0.epochs 3`.
        command: the dataclass of the command, whose options a message about a misspelt setting may suggest.
        own: whether it is for data of your own.

    Raises:
        AtclError: a setting is misspelt, or its value is impossible.
    """
    plain = on_own_data(recipe(name)) if own else recipe(name)
    if not overrides:
        return plain
    return overridden(plain, overrides, f"atcl {command.__name__.lower()} {name}", option_names(command))
