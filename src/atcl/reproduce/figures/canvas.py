"""Curves and grids of images as PNG, PDF and CSV."""

import csv
import io
import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from atcl.core.errors import AtclError
from atcl.core.files import write_whole
from atcl.reproduce.figures.plan import Curve, FigurePanel
from atcl.reproduce.figures.records import Mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

LINE, LETTER = 0.2, 0.07  # height of a line and width of a letter of the small text, in inches


@dataclass(frozen=True)
class DrawnPanel:
    """A panel, with the mean of each of its curves; None for a curve without a run."""

    panel: FigurePanel
    dataset: str  # of the runs
    curves: tuple[tuple[Curve, Mean | None], ...]
    seeds: int  # how many there should be


@dataclass(frozen=True)
class ImageRow:
    """A natural image and its adversarial images, each with a caption."""

    images: tuple[Tensor, ...]  # (C, H, W) in [0, 1]
    captions: tuple[str, ...]
    about: str


def draw_curves(panels: Sequence[DrawnPanel], columns: int, note: str) -> "Figure":
    """Return a figure of curves with their standard errors; legends are below the axes, never over a curve.

    Args:
        panels: what is drawn, in reading order.
        columns: panels in a row.
        note: the heading.
    """
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = (4.6, 3.0) if len(panels) == 1 else (3.4, 2.6)  # of a panel, in inches
    plain = list(dict.fromkeys(curve.label for one in panels for curve, _ in one.curves))
    titled = all(len(one.curves) == 1 for one in panels)  # a panel's title is the name of its only curve
    most = max(len(one.curves) for one in panels)
    shared = len(panels) > 2 and not titled and most >= len(plain) - 2
    own = [] if shared or titled else [_entries([one]) for one in panels]
    common = _entries(panels) if shared else {}
    below = max((math.ceil(len(one) / _in_line(one, width)) for one in own), default=0) * LINE
    above = textwrap.fill(note, int(columns * width / LETTER))
    rest = LINE * (above.count("\n") + 1) + (
        math.ceil(len(common) / _in_line(common, columns * width)) * LINE if shared else 0
    )
    figure = Figure(figsize=(columns * width, rows * (height + below) + rest), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for one, ax in zip(panels, axes, strict=False):
        _draw_panel(one, ax)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    for entries, ax in zip(own, axes, strict=False):
        ax.legend(
            handles=_handles(entries),
            loc="upper center",
            bbox_to_anchor=(0.5, -0.2),
            ncols=_in_line(entries, width),
            fontsize=7,
            frameon=False,
            handlelength=3,
        )
    if shared:
        number = _in_line(common, columns * width)
        figure.legend(
            handles=_handles(common),
            loc="outside lower center",
            ncols=number,
            fontsize=8,
            frameon=False,
            handlelength=3,
        )
    figure.suptitle(above, fontsize=8, color="#444444")
    return figure


def draw_images(rows: Sequence[ImageRow], headings: Sequence[str], note: str) -> "Figure":
    """Return a grid of images with headings, each image with its caption below it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.95 * len(headings) + 0.3, 1.2 * len(rows) + 0.7), layout="constrained")
    grid = figure.subplots(len(rows), len(headings), squeeze=False)
    for row, axes in zip(rows, grid, strict=True):
        axes[0].set_ylabel(row.about, fontsize=7)
        for image, caption, ax in zip(row.images, row.captions, axes, strict=True):
            pixels = image.permute(1, 2, 0).cpu().numpy()
            ax.imshow(pixels[..., 0] if pixels.shape[2] == 1 else pixels, cmap="gray", vmin=0, vmax=1)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.set_xlabel(caption, fontsize=7)
    for heading, ax in zip(headings, grid[0], strict=True):
        ax.set_title(heading, fontsize=8)
    figure.suptitle(note, fontsize=8, color="#444444")
    return figure


def curve_rows(panels: Sequence[DrawnPanel]) -> list[tuple[object, ...]]:
    """Return the data of a figure of curves as rows, the heading first."""
    rows: list[tuple[object, ...]] = [
        ("dataset", "panel", "axis", "curve", "epoch", "mean", "standard_error", "seeds")
    ]
    for one in panels:
        for curve, mean in one.curves:
            for epoch, middle, error in (
                zip(mean.epochs, mean.means, mean.errors, strict=True) if mean else ()
            ):
                seeds = mean.seeds if mean else 0
                rows.append(
                    (
                        one.dataset,
                        one.panel.title,
                        one.panel.y,
                        curve.label,
                        epoch,
                        middle,
                        error if seeds > 1 else "",
                        seeds,
                    )
                )
    return rows


def save_figure(figure: "Figure", rows: Sequence[Sequence[object]], folder: Path, name: str) -> list[Path]:
    """Write a figure as NAME.png and NAME.pdf, and its data as NAME.csv; the same data give the same bytes.

    Returns:
        The paths of the three files.

    Raises:
        AtclError: the folder cannot be made.
    """
    from matplotlib import rc_context

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AtclError(f"{folder} cannot be made: {error.strerror}; give --out a folder") from None
    contents = {}
    with rc_context({"pdf.fonttype": 42, "svg.hashsalt": "atcl"}):
        for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None, "ModDate": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
            contents[kind] = buffer.getvalue()
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    contents["csv"] = text.getvalue().encode()
    paths = [folder / f"{name}.{kind}" for kind in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        write_whole(path, content)
    return paths


def _in_line(labels: Collection[str], width: float) -> int:
    """Return how many entries of a legend fit beside each other."""
    return max(1, min(len(labels), int(width / (0.7 + LETTER * max(map(len, labels))))))


def _hidden(number: int, curves: Sequence[tuple[Curve, Mean | None]]) -> int:
    """Return how many of the curves that are drawn after this one cover it."""
    own = curves[number][1]
    return sum(mean is not None and own is not None and _alike(mean, own) for _, mean in curves[number + 1 :])


def _alike(one: Mean, two: Mean) -> bool:
    return one.epochs == two.epochs and all(
        math.isclose(a, b, rel_tol=0.01, abs_tol=0.001) for a, b in zip(one.means, two.means, strict=True)
    )


def _entries(panels: Sequence[DrawnPanel]) -> dict[str, Curve]:
    """Return the entries of a legend, each curve once, with the number of seeds that it lacks."""
    # label -> curve, seeds that were run for each panel, seeds that there should be
    found: dict[str, tuple[Curve, set[int], int]] = {}
    for one in [one for one in panels if _shows(one)] or panels:
        for curve, mean in one.curves:
            run = mean.seeds if mean else 0
            seeds = one.seeds if curve.planned else run
            found[curve.label] = curve, {seeds} | found.get(curve.label, (curve, set[int](), 0))[1], one.seeds
    return {label + _lacking(seeds, asked): curve for label, (curve, seeds, asked) in found.items()}


def _lacking(seeds: set[int], asked: int) -> str:
    fewest, most = min(seeds), max(seeds)
    if fewest == asked:
        return ""
    if not most:
        return " (no run yet)"
    return f" ({fewest if fewest == most else f'{fewest} to {most}'} of {asked} seeds)"


def _handles(entries: Mapping[str, Curve]) -> "list[Line2D]":
    from matplotlib.lines import Line2D

    looks = [(text, curve.look) for text, curve in entries.items()]
    return [
        Line2D(
            [],
            [],
            color=look.colour,
            linestyle=look.dash,
            linewidth=look.width,
            marker=look.marker,
            markersize=4.5,
            label=text,
        )
        for text, look in looks
    ]


def _shows(one: DrawnPanel) -> bool:
    return any(mean for _, mean in one.curves)


def _draw_panel(one: DrawnPanel, ax: "Axes") -> None:
    """Draw mean, band and, if asked for, single seeds, with markers at different epochs for each curve."""
    panel = one.panel
    count = len(one.curves)
    for number, (curve, mean) in enumerate(one.curves):
        if mean is None:
            continue
        look, epochs, means, errors = curve.look, mean.epochs, mean.means, mean.errors
        step = max(1, len(epochs) // 6, min(count, len(epochs) // 2))
        # a covered curve is wider, so that its edges show
        width = look.width + min(4.5, 1.1 * _hidden(number, one.curves))
        ax.plot(
            epochs,
            means,
            color=look.colour,
            linestyle=look.dash,
            linewidth=width,
            marker=look.marker,
            markersize=4.5,
            markevery=(number * step // count, step),
        )
        if mean.seeds > 1:
            low = [middle - error for middle, error in zip(means, errors, strict=True)]
            high = [middle + error for middle, error in zip(means, errors, strict=True)]
            ax.fill_between(epochs, low, high, color=look.colour, alpha=0.18, linewidth=0)
        for single in mean.singles if panel.singles else ():
            ax.plot(list(single), list(single.values()), color=look.colour, linewidth=0.6, alpha=0.6)
    if panel.log and any(value > 0 for _, mean in one.curves if mean for value in mean.means):
        ax.set_yscale("log", nonpositive="mask")
    elif panel.least is not None and _shows(one):
        ax.set_ylim(0, max(panel.least, ax.get_ylim()[1]))
    ax.set_title(textwrap.fill(panel.title, 38), fontsize=9)
    ax.set_xlabel("epoch", fontsize=8)
    ax.set_ylabel(panel.y, fontsize=8)
    ax.tick_params(which="both", labelsize=7)
    ax.grid(alpha=0.25, linewidth=0.5)
    if not _shows(one):
        ax.set_xticks([])
        ax.set_yticks([])
        ax.text(0.5, 0.5, "no run yet", transform=ax.transAxes, ha="center", va="center", color="#666666")
