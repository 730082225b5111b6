"""Curves as data: one panel for each number that epochs recorded, one line for each group of runs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atcl.analysis.observers import TEST_IMAGES
from atcl.reports.gathering import Group
from atcl.reproduce.figures.records import Points

DASHES = {"-": "", "--": "7 4", "-.": "8 3 2 3", ":": "2 3"}
DARK = "#16191d"  # the page's ground in the dark, as page.css has it


@dataclass(frozen=True)
class Panel:
    """A number by epoch."""

    key: str  # in the journal or in analysis.jsonl
    title: str
    about: str
    unit: str = ""
    scale: float = 1.0
    log: bool = False
    distinct: int = 1  # it is left out where no line has so many different values


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
        "right and withstanding PGD20, from held-out labels, without truth",
        "%",
        100,
    ),
    Panel("held_scel_attacked", "Held-out loss under attack", "surrogate complementary loss"),
    Panel("epsilon", "Attack radius epsilon", "of the attack that trains"),
    Panel("steps", "Attack steps", "of the attack that trains", distinct=3),
    Panel("gamma", "Weight gamma", "of all candidates in the loss; the rest goes to the pseudo-label"),
    Panel(
        "pseudo_label_accuracy",
        "Right pseudo-labels",
        "of the training images; known to onlookers alone",
        "%",
        100,
    ),
    Panel("agreement", "Agreement", "attacked training images predicted as their pseudo-label", "%", 100),
    Panel(
        "inside",
        "Inside the candidates",
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
    """Return what the page's script draws: groups with their looks, panels with their lines."""
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
    """Return the mean over the seeds that have come so far, with its standard error; `n` counts them where they are not always all."""
    columns = columns_of(singles)
    line: dict[str, Any] = {
        "x": list(columns),
        "y": [_short(scale * statistics.fmean(column)) for column in columns.values()],
    }
    if len(singles) > 1:
        line["e"] = [
            _short(scale * statistics.pstdev(column) / len(column) ** 0.5) for column in columns.values()
        ]
        line["singles"] = [
            {"x": list(one), "y": [_short(scale * value) for value in one.values()]} for one in singles
        ]
    if any(len(column) < seeds for column in columns.values()):
        line["n"] = [len(column) for column in columns.values()]
    return line


def columns_of(singles: Sequence[Points]) -> dict[int, list[float]]:
    """Return the values of all seeds that came to an epoch, for each epoch that every one of those recorded; there is always one."""
    found = {}
    for epoch in sorted(set().union(*singles)):
        come = [one for one in singles if max(one) >= epoch]
        if all(
            epoch in one for one in come
        ):  # else seeds recorded now and then would make the mean jump to and fro
            found[epoch] = [one[epoch] for one in come]
    return found


def _notes(panel: Panel, groups: Sequence[Group]) -> list[str]:
    """Return what a reader of this panel must know of how its number was measured."""
    members = [one for group in groups for one in group.members]
    if not panel.key.startswith("test_"):
        return []
    partly = any(
        sum(panel.key in record for record in one.recorded.records) < len(one.recorded.points(panel.key))
        for one in members
    )
    crafted = (
        {kind for one in members for kind in one.crafted} - {"fp32"} if panel.key == "test_pgd20" else set()
    )
    first = [f"measured by onlookers on the first {TEST_IMAGES:,} at most"] if partly else []
    return first + ([f"per epoch crafted in {' and '.join(sorted(crafted))}"] if crafted else [])


def _log(panel: Panel, lines: Sequence[dict[str, Any]]) -> bool:
    """Tell whether a panel takes a logarithmic axis: one that is meant for it, above 0, over more than a factor of 20."""
    values = [value for line in lines for value in line["y"]]
    return panel.log and min(values) > 0 and max(values) > 20 * min(values)


def _boundaries(groups: Sequence[Group]) -> list[int]:
    """Return the epochs after which a new stage begins, where all groups agree on them."""
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
    """Return a colour for the dark scheme: the same, or mixed with as much white as it takes to be seen (3:1)."""
    for share in range(0, 101, 5):
        mixed = "#" + "".join(
            f"{round(int(colour[at : at + 2], 16) * (100 - share) / 100 + 255 * share / 100):02x}"
            for at in (1, 3, 5)
        )
        if contrast(mixed, DARK) >= 3.2:
            return mixed
    return "#ffffff"


def contrast(one: str, two: str) -> float:
    """Return the ratio of contrast between two colours as WCAG defines it."""
    lighter, darker = sorted((_luminance(one), _luminance(two)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
