"""The names of recipes, losses and so on, without importing them.

They come from `catalogue.json`, which `make catalogue` writes. If a source file is newer, they come from the
registries, which imports PyTorch.
"""

import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from atcl.core.errors import AtclError, pick

CATALOGUE = Path(__file__).with_name("catalogue.json")
GRACE = 5.0  # seconds: git writes the files of a checkout in any order

LISTED_KINDS = (
    "recipes",
    "losses",
    "datasets",
    "models",
    "labels",
    "attacks",
    "rules",
    "exports",
    "engines",
    "experiments",
    "weights",
    "observations",
    "figures",
    "augmentations",
    "loggers",
    "launchers",
)


@cache
def catalogue() -> Mapping[str, Mapping[str, str]]:
    """Return the names of each kind, each with a line of description."""
    if CATALOGUE.exists() and not _is_stale():
        found: dict[str, dict[str, str]] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
        return found
    return _registries()


def listed(kind: str) -> Mapping[str, str]:
    """Return the names of a kind, each with its description."""
    return catalogue()[kind]


def _names_for(kind: str, name: str) -> Mapping[str, str]:
    """Return the names of a kind, among which a name is looked up.

    A program that has imported PyTorch may have added the name to a registry, which is asked then.
    """
    names = listed(kind)
    return _registries()[kind] if name not in names and "torch" in sys.modules else names


def _is_stale() -> bool:
    """Return whether a source file is newer, as may be in a checkout; nobody edits an installation."""
    package = CATALOGUE.parents[1]
    if not (package.parents[1] / ".git").exists():
        return False
    newest = max(path.stat().st_mtime for path in package.rglob("*.py"))
    return newest > CATALOGUE.stat().st_mtime + GRACE


def _registries() -> Mapping[str, Mapping[str, str]]:
    from atcl.cli.catalogue import listing

    return listing()


def check_kind(kind: str) -> None:
    """Raise an AtclError for a kind that cannot be listed."""
    pick({name: name for name in LISTED_KINDS}, kind, "kind to list")


def check_name(kind: str, name: str, singular: str) -> None:
    """Raise an AtclError for an unknown name, with the closest one that exists.

    Args:
        kind: the kind, such as "losses".
        name: the name.
        singular: one of the kind, such as "loss", for the message.
    """
    pick(_names_for(kind, name), name, singular)


def check_recipe(name: str) -> None:
    """Raise an AtclError for a name that no recipe has, with the closest one that exists."""
    recipes = _names_for("recipes", name)
    halves = [recipe.partition("/") for recipe in recipes]
    if any(name == method for _, _, method in halves):
        raise AtclError(_not_whole(name, f"digits/{name}"))
    if any(name == dataset for dataset, _, _ in halves):
        raise AtclError(_not_whole(name, f"{name}/warmup-pla"))
    pick(recipes, name, "recipe")


def _not_whole(name: str, example: str) -> str:
    return f"a recipe is named dataset/method, such as {example}, not {name!r}; `atcl list recipes` shows all"
