"""Figures as data: panels of curves, the runs of each curve, and the commands that make missing runs."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from atcl.attacks.threat import Budget
from atcl.core.errors import AtclError
from atcl.core.settings import overridden
from atcl.recipes.catalogue import with_derived_weights
from atcl.recipes.defaults import DEFAULTS, DatasetDefaults
from atcl.recipes.methods import METHODS
from atcl.recipes.schema import Recipe
from atcl.reproduce.figures.records import Mean, Points, Recorded, mean_of
from atcl.reproduce.figures.style import STYLES, Style
from atcl.runs.run import folder_of

Words = tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """The datasets and seeds of figures: those of the paper, or small runs on the embedded digits."""

    defaults: Mapping[str, DatasetDefaults]  # by the dataset that the paper's figure shows
    seeds: tuple[int, ...]
    about: str = ""

    def has(self, dataset: str) -> bool:
        """Whether a panel for this dataset can be drawn."""
        return dataset in self.defaults


PAPER_SETTING = Setting(DEFAULTS, (1, 2, 3))

# A perceptron and few epochs: a run takes seconds, and direct training fails as on larger data.
SMALL = replace(
    DEFAULTS["digits"],
    model="mlp",
    epochs=30,
    two_stage=(12, 18),
    batch_size=64,
    opening=6,
    scheduling=16,
    remember_from=2,
    budget=Budget(epsilon=0.15, step_size=0.06, steps=5),
    lr=2e-3,
    natural_lr=2e-3,
)

DIGITS_SETTING = Setting({"kuzushiji": SMALL}, (1, 2, 3), "small runs on 8x8 digits: a perceptron, 30 epochs")


@dataclass(frozen=True)
class CurveSource:
    """The run of a curve: a method, and overrides that may depend on the dataset's defaults."""

    method: str
    words: Callable[[DatasetDefaults], Words] = field(default=lambda task: ())

    def name(self, task: DatasetDefaults) -> str:
        """Return the name of the recipe."""
        return f"{task.dataset}/{self.method}"

    def recipe(self, task: DatasetDefaults) -> Recipe:
        """Return the recipe with these defaults and the overrides."""
        plain, words = METHODS[self.method](task), self.words(task)
        return _overridden(plain, words) if words else plain


@dataclass(frozen=True)
class Curve:
    """One line of a panel."""

    label: str
    source: CurveSource
    key: str  # name of the number in the journal or in analysis.jsonl
    style: Style | None = None  # None: that of the label
    scale: float = 1.0
    part: int | None = None  # which element, where the number is a list
    planned: Callable[[Recipe], Points] | None = None  # computes it from the recipe, without a run

    @property
    def look(self) -> Style:
        """The style that it is drawn in."""
        return self.style or STYLES[self.label]

    def observations(self, recipe: Recipe) -> set[str]:
        """Return the names of the observations that a run needs for this number in all epochs."""
        head = self.key.partition(".")[0].partition("_")[0]
        if head == "test":
            rules = [recipe.rule(number) for number in range(len(recipe.stages))]
            # a rule that attacks the test set records the accuracy of each epoch
            return set() if all(rule and rule.on == "test" for rule in rules) else {"test"}
        return {"gradient": {"gradients"}, "attack": {"attacks"}, "instance": {"attacks"}}.get(head, set())


@dataclass(frozen=True)
class FigurePanel:
    """Curves over epochs, on one dataset."""

    title: str
    y: str  # name and unit of the axis
    curves: tuple[Curve, ...]
    dataset: str = "kuzushiji"
    log: bool = False
    singles: bool = False  # whether to draw each seed, too
    seeds: int | None = None  # how many seeds there should be; None: all of the setting
    least: float | None = None  # the axis reaches from zero to this number at least


@dataclass(frozen=True)
class Drawing:
    """A figure: panels in rows of `columns`."""

    about: str
    panels: Callable[[Setting], tuple[FigurePanel, ...]]
    columns: int = 3
    images: bool = False  # whether it is a grid of images, made with the model of each panel's first run

    def drawable(self, setting: Setting) -> tuple[FigurePanel, ...]:
        """Return the panels whose dataset the setting has."""
        return tuple(panel for panel in self.panels(setting) if setting.has(panel.dataset))


@dataclass(frozen=True)
class Need:
    """A run that figures need."""

    name: str
    recipe: Recipe
    words: Words
    seed: int
    observe: frozenset[str]

    def command(self, runs: Path, taken: bool) -> str:
        """Return the shell command that makes the run.

        Args:
            runs: the folder of all runs.
            taken: whether the run's folder already has the run, without what must be observed.
        """
        folder = self.folder(runs)
        out = folder.with_name(f"{folder.name}-observed") if taken else folder
        usual = out == Path("runs") / folder.relative_to(runs)
        observe = ["--observe", *sorted(self.observe)] if self.observe else []
        return shlex.join(
            [
                "atcl",
                "train",
                self.name,
                *self.words,
                "--seed",
                str(self.seed),
                *observe,
                *([] if usual else ["--out", str(out)]),
            ]
        )

    def folder(self, runs: Path) -> Path:
        """Return the folder of the run."""
        return runs.joinpath(*folder_of(self.name, self.recipe), f"seed-{self.seed}")


def needs(drawings: Iterable[Drawing], setting: Setting) -> list[Need]:
    """Return the runs that figures need, each once, with all observations that any figure needs."""
    found: dict[tuple[Recipe, int], Need] = {}
    for panel in (panel for drawing in drawings for panel in drawing.drawable(setting)):
        task = setting.defaults[panel.dataset]
        for curve in panel.curves:
            if curve.planned:
                continue
            recipe = curve.source.recipe(task)
            for seed in setting.seeds[: panel.seeds]:
                before = found.get((recipe, seed))
                observe = curve.observations(recipe) | (before.observe if before else frozenset())
                found[recipe, seed] = Need(
                    curve.source.name(task), recipe, curve.source.words(task), seed, frozenset(observe)
                )
    return list(found.values())


def curve_of(
    curve: Curve, panel: FigurePanel, setting: Setting, runs: Sequence[Recorded]
) -> tuple[Mean | None, list[tuple[Recipe, int]]]:
    """Return a curve over the seeds that were run, if any, and the missing recipes and seeds."""
    recipe = curve.source.recipe(setting.defaults[panel.dataset])
    if curve.planned:
        return mean_of([curve.planned(recipe)]), []
    made, before = (
        _points(curve, panel, setting, runs, one) for one in (recipe, with_derived_weights(recipe))
    )
    # runs of both kinds of initial weights are never mixed in a curve, as in the ledger
    found, lacking = made if len(made[0]) >= len(before[0]) else before
    return (mean_of(found) if found else None), [(recipe, seed) for seed in lacking]


def _points(
    curve: Curve, panel: FigurePanel, setting: Setting, runs: Sequence[Recorded], recipe: Recipe
) -> tuple[list[Points], list[int]]:
    """Return what each seed recorded, and the seeds that recorded nothing."""
    found, lacking = [], []
    for seed in setting.seeds[: panel.seeds]:
        points = max(
            (one.points(curve.key, curve.part) for one in runs if (one.recipe, one.seed) == (recipe, seed)),
            key=len,
            default={},
        )
        if points:
            found.append({epoch: value * curve.scale for epoch, value in points.items()})
        else:
            lacking.append(seed)
    return found, lacking


@cache
def _overridden(recipe: Recipe, words: Words) -> Recipe:
    try:
        return overridden(recipe, words, "atcl train")
    except AtclError as error:
        raise AtclError(f"{' '.join(words)}: {error}") from None
