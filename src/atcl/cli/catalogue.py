"""The entries of all registries, each with a line of description; `make catalogue` stores them as JSON.

The command line reads names from that file, `catalogue.json`. To import the registries would take seconds,
since they import PyTorch.
"""

import inspect
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from atcl.analysis.observers import OBSERVATIONS
from atcl.core.files import write_whole
from atcl.data.augment import AUGMENTATIONS
from atcl.datasets.labels import LABELS
from atcl.datasets.sources import DATASETS, Release, Source
from atcl.engine.engines import AUTO, ENGINES
from atcl.evaluation.attacks import ATTACKS
from atcl.loggers.registry import LOGGERS
from atcl.losses import LOSSES
from atcl.models import MODELS
from atcl.recipes.catalogue import RECIPES
from atcl.recipes.methods import METHODS
from atcl.reproduce.experiments import EXPERIMENTS
from atcl.reproduce.figures.catalogue import FIGURES
from atcl.reproduce.launch.launchers import LAUNCHERS
from atcl.runs.export import EXPORTS
from atcl.runs.pretrained import card_line, cards
from atcl.training.selection import RULES


def first_line(thing: Any) -> str:
    """Return the first line of the docstring of a class, a function, or the function inside a partial."""
    if isinstance(thing, str):
        return thing
    if isinstance(thing, partial):
        thing = thing.keywords.get("ordinary", thing.keywords.get("method", thing.func))
    return (inspect.getdoc(thing) or "").partition("\n")[0].rstrip(".")


def _dataset(found: Any) -> str:
    if isinstance(found, Source):
        return f"{found.sizes[0]:,} images to train on, {found.sizes[1]:,} to test, {found.classes} classes"
    if isinstance(found, Release):
        return f"a release with labels of people or models, {found.classes} classes"
    return first_line(found)


def listing() -> dict[str, Mapping[str, str]]:
    """Return the names of each kind, each with a line of description, as the registries are now."""
    return {
        "recipes": {name: first_line(METHODS.get(name.partition("/")[2], "")) for name in RECIPES},
        "losses": {name: first_line(loss.of) for name, loss in LOSSES.items()},
        "datasets": {name: _dataset(found) for name, found in DATASETS.items()},
        "models": {name: first_line(build) for name, build in MODELS.items()},
        "labels": {name: f"{kind.__name__}: {first_line(kind)}" for name, kind in LABELS.items()},
        "attacks": {name: attack.about for name, attack in ATTACKS.items()},
        "rules": {name: rule.about if rule else "the last epoch" for name, rule in RULES.items()},
        "exports": {name: format.about for name, format in EXPORTS.items()},
        "engines": {
            AUTO: "the fastest that works, by device and length of the training",
            **{name: about for name, (_, _, about) in ENGINES.items()},
        },
        "experiments": {name: experiment.about for name, experiment in EXPERIMENTS.items()},
        "weights": {name: card_line(card) for name, card in cards().items()},
        "observations": {name: observation.about for name, observation in OBSERVATIONS.items()},
        "loggers": {name: first_line(kind) for name, kind in LOGGERS.items()},
        "launchers": {name: first_line(kind) for name, kind in LAUNCHERS.items()},
        "figures": {name: drawing.about for name, drawing in FIGURES.items()},
        "augmentations": {name: first_line(kind.of) for name, kind in AUGMENTATIONS.items()},
    }


LISTED = listing()


def as_json() -> str:
    """Return the content of `catalogue.json`."""
    return json.dumps(LISTED, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    write_whole(Path(__file__).with_suffix(".json"), as_json().encode())
