"""Curves as data: a panel for each number that epochs recorded, with a line for each group of runs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atcl.analysis.observers import TEST_IMAGES
from atcl.reports.gathering import Group
from atcl.reproduce.figures.records import Points, standard_error

DASHES = {"-": "", "--": "7 4", "-.": "8 3 2 3", ":": "2 3"}
DARK = "#16191d"  # background of the dark scheme, as in page.css


@dataclass(frozen=True)
class Panel:
    """A number by epoch.

    Args:
        key: its name in the journal or in analysis.jsonl.
        title: above the panel.
        about: what the number is.
        unit: of its axis.
        scale: factor between the recorded and the drawn number.
        log: whether the axis may be logarithmic.
        distinct: the panel is left out if no line has so many different values.
    """

    key: str
    title: str
    about: str
    unit: str = ""
    scale: float = 1.0
    log: bool = False
    distinct: int = 1


PANELS = (
    Panel("test_natural", "Natural accuracy", "test images as they are", "%"),
    Panel("test_pgd20", "PGD20 accuracy", "test images under attack", "%"),
    Panel(
        "held_accuracy_natural",
        "Estimated accuracy",
        "from held-out complementary labels, without truth",
        "%",
        100,
    ),
    Panel(
        "held_robust",
        "Estimated robust accuracy",
        "right under PGD20, from held-out labels, without truth",
        "%",
        100,
    ),
    Panel("held_scel_attacked", "Held-out loss under attack", "surrogate complementary loss"),
    Panel("epsilon", "Attack radius epsilon", "of the attack in training"),
    Panel("steps", "Attack steps", "of the attack in training", distinct=3),
    Panel("gamma", "Weight gamma", "of all candidates in the loss; the rest goes to the pseudo-label"),
    Panel(
        "pseudo_label_accuracy",
        "Right pseudo-labels",
        "of the training images; recorded by observers, since training does not know it",
        "%",
        100,
    ),
    Panel("agreement", "Agreement", "attacked training images predicted as their pseudo-label", "%", 100),
    Panel(
        "inside",
        "Predicted a candidate",
        "attacked training images whose prediction is not ruled out",
        "%",
        100,
    ),
    Panel("loss", "Training loss", "mean over the epoch"),
    Panel("lr", "Learning rate", "by epoch", distinct=2),
    Panel(
        "gradient.first_norm", "Gradient, first layer", "L2 norm, mean over the steps of the epoch", log=True
    ),
    Panel(
        "gradient.last_norm", "Gradient, last layer", "L2 norm, mean over the steps of the epoch", log=True
    ),
    Panel("gradient.variance", "Gradient directions", "variance over images, from 0 (all agree) to 1"),
)


def drawn(groups: Sequence[Group]) -> dict[str, Any]:
    """Return what the page's script draws: groups with their styles, panels with their lines."""
    panels = [found for panel in PANELS if (found := _panel(panel, groups))]
    return {"groups": [_group(group) for group in groups], "panels": panels, "stages": _boundaries(groups)}


def _group(group: Group) -> dict[str, Any]:
    look = group.style
    return {
        "label": group.label,
        "light": look.colour,
        "dark": on_dark(look.colour),
        "dash": DASHES[look.dash],
        "width": look.width,
        "seeds": [one.run.seed for one in group.members],
        "chosen": sorted({one.epoch for one in group.finished if one.epoch}),
    }


def _panel(panel: Panel, groups: Sequence[Group]) -> dict[str, Any] | None:
    """Return a panel with the lines of all groups that recorded its number; None where none did."""
    lines = []
    for number, group in enumerate(groups):
        singles = [points for one in group.members if (points := one.recorded.points(panel.key))]
        if singles:
            lines.append({"group": number, **_line(singles, panel.scale, len(group.members))})
    if not any(len(set(line["y"])) >= panel.distinct for line in lines):
        return None
    log = _log(panel, lines)
    notes = [panel.about, *_notes(panel, groups), *(["logarithmic axis"] if log else [])]
    return {
        "id": panel.key,
        "title": panel.title,
        "about": "; ".join(notes),
        "unit": panel.unit,
        "log": log,
        "lines": lines,
    }


def _line(singles: Sequence[Points], scale: float, seeds: int) -> dict[str, Any]:
    """Return the mean over seeds with its standard error.

    `n` counts the seeds of each epoch, if these are not always all of them.
    """
    columns = columns_of(singles)
    line: dict[str, Any] = {
        "x": list(columns),
        "y": [_short(scale * statistics.fmean(column)) for column in columns.values()],
    }
    if len(singles) > 1:
        line["e"] = [_short(scale * standard_error(column)) for column in columns.values()]
        line["singles"] = [
            {"x": list(one), "y": [_short(scale * value) for value in one.values()]} for one in singles
        ]
    if any(len(column) < seeds for column in columns.values()):
        line["n"] = [len(column) for column in columns.values()]
    return line


def columns_of(singles: Sequence[Points]) -> dict[int, list[float]]:
    """Return, by epoch, the values of all seeds that reached the epoch; there is always an epoch.

    An epoch that one of those seeds did not record is left out: otherwise seeds that are recorded now and
    then would make the mean jump.
    """
    found = {}
    for epoch in sorted(set().union(*singles)):
        reached = [one for one in singles if max(one) >= epoch]
        if all(epoch in one for one in reached):
            found[epoch] = [one[epoch] for one in reached]
    return found


def _notes(panel: Panel, groups: Sequence[Group]) -> list[str]:
    """Return notes on how the number of a panel was measured."""
    members = [one for group in groups for one in group.members]
    if not panel.key.startswith("test_"):
        return []
    partly = any(
        sum(panel.key in record for record in one.recorded.records) < len(one.recorded.points(panel.key))
        for one in members
    )
    kinds = {kind for one in members for kind in one.crafted} - {"fp32"}
    crafted = kinds if panel.key == "test_pgd20" else set()
    first = [f"measured by observers on the first {TEST_IMAGES:,} at most"] if partly else []
    return first + ([f"per epoch crafted in {' and '.join(sorted(crafted))}"] if crafted else [])


def _log(panel: Panel, lines: Sequence[dict[str, Any]]) -> bool:
    """Return whether a panel has a logarithmic axis: if it may, its values are positive and vary widely."""
    values = [value for line in lines for value in line["y"]]
    return panel.log and min(values) > 0 and max(values) > 20 * min(values)


def _boundaries(groups: Sequence[Group]) -> list[int]:
    """Return the epochs after which a new stage begins; none if the groups differ in them."""
    found = set()
    for group in groups:
        ends, total = [], 0
        for stage in group.recipe.stages[:-1]:
            total += stage.epochs
            ends.append(total)
        found.add(tuple(ends))
    return list(found.pop()) if len(found) == 1 else []


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def on_dark(colour: str) -> str:
    """Return a colour for the dark scheme: the same, or mixed with white until its contrast is 3.2."""
    for share in range(0, 101, 5):
        mixed = "#" + "".join(
            f"{round(int(colour[at : at + 2], 16) * (100 - share) / 100 + 255 * share / 100):02x}"
            for at in (1, 3, 5)
        )
        if contrast(mixed, DARK) >= 3.2:
            return mixed
    return "#ffffff"


def contrast(one: str, two: str) -> float:
    """Return the contrast ratio of two colours as WCAG defines it."""
    lighter, darker = sorted((_luminance(one), _luminance(two)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
