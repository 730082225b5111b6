"""What there is to choose from, by name, each with a line that says what it is."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from atcl.analysis.observers import OBSERVATIONS
from atcl.datasets.labels import LABELS
from atcl.datasets.sources import DATASETS, Release, Source
from atcl.engine.engines import AUTO, ENGINES
from atcl.evaluation.attacks import ATTACKS
from atcl.losses import LOSSES
from atcl.models import MODELS
from atcl.recipes.catalogue import RECIPES
from atcl.recipes.methods import METHODS
from atcl.reproduce.experiments import EXPERIMENTS
from atcl.reproduce.figures.catalogue import FIGURES
from atcl.runs.export import EXPORTS
from atcl.runs.pretrained import card_line, cards
from atcl.training.selection import RULES


def told(thing: Any) -> str:
    """Return the first sentence that a function, a class, or the function inside a partial says of itself."""
    if isinstance(thing, partial):
        thing = thing.keywords.get("ordinary", thing.keywords.get("method", thing.func))
    return (inspect.getdoc(thing) or "").partition("\n")[0].rstrip(".")


def _dataset(found: Any) -> str:
    if isinstance(found, Source):
        return f"{found.sizes[0]:,} images to train on, {found.sizes[1]:,} to test, {found.classes} classes"
    return (
        f"a release with labels of people or models, {found.classes} classes"
        if isinstance(found, Release)
        else told(found)
    )


LISTED: dict[str, Mapping[str, str]] = {
    "recipes": {name: told(METHODS[name.partition("/")[2]]) for name in RECIPES},
    "losses": {name: told(loss.of) for name, loss in LOSSES.items()},
    "datasets": {name: _dataset(found) for name, found in DATASETS.items()},
    "models": {name: told(build) for name, build in MODELS.items()},
    "labels": {name: f"{kind.__name__}: {told(kind)}" for name, kind in LABELS.items()},
    "attacks": {name: attack.about for name, attack in ATTACKS.items()},
    "rules": {name: rule.about if rule else "no choice: the last epoch" for name, rule in RULES.items()},
    "exports": {name: format.about for name, format in EXPORTS.items()},
    "engines": {
        AUTO: "the one that pays, by device and size of the job",
        **{name: about for name, (_, _, about) in ENGINES.items()},
    },
    "experiments": {name: experiment.about for name, experiment in EXPERIMENTS.items()},
    "weights": {name: card_line(card) for name, card in cards().items()},
    "observations": {name: observation.about for name, observation in OBSERVATIONS.items()},
    "figures": {name: drawing.about for name, drawing in FIGURES.items()},
}
