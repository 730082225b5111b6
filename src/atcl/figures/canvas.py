"""Curves and grids of images as PNG, PDF and CSV."""

import csv
import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from atcl.figures.plan import Curve, Panel
from atcl.figures.records import Mean
from atcl.files import write_whole

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE, LETTER = 0.2, 0.07  # height of a line, width of a letter of the small print, in inches


@dataclass(frozen=True)
class Drawn:
    """A panel with what was found for each of its curves."""

    panel: Panel
    curves: tuple[tuple[Curve, Mean | None], ...]
    seeds: int  # how many were asked for


@dataclass(frozen=True)
class Row:
    """An image as it is and attacked in several ways, each with a caption."""

    images: tuple[Tensor, ...]  # (C, H, W) in [0, 1]
    captions: tuple[str, ...]
    about: str


def draw_curves(panels: Sequence[Drawn], columns: int, note: str) -> "Figure":
    """Return a figure of curves with their standard errors; legends lie below the axes, never over a curve."""
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = (4.6, 3.0) if len(panels) == 1 else (3.4, 2.6)  # of a panel, in inches
    labels = [_labels(one) for one in panels]
    most = list(dict.fromkeys(label for one in labels for label in one))
    titled = all(len(one) == 1 for one in labels)  # each panel's title names its one curve
    shared = len(panels) > 2 and not titled and max(map(len, labels)) >= len(most) - 2
    in_line = [_in_line(one, width) for one in labels]
    below = 0 if shared or titled else max(math.ceil(len(one) / number) for one, number in zip(labels, in_line, strict=True)) * LINE
    together = _in_line(most, columns * width)
    above = textwrap.fill(note, int(columns * width / LETTER))
    rest = LINE * (above.count("\n") + 1) + (math.ceil(len(most) / together) * LINE if shared else 0)
    figure = Figure(figsize=(columns * width, rows * (height + below) + rest), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    handles: dict[str, Artist] = {}
    for one, number, ax in zip(panels, in_line, axes, strict=False):
        _draw_panel(one, ax)
        found, names = ax.get_legend_handles_labels()
        handles.update(zip(names, found, strict=True))
        if not shared and not titled:
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=number, fontsize=7, frameon=False, handlelength=3)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    if shared:
        figure.legend([handles[name] for name in most], most, loc="outside lower center", ncols=together, fontsize=8, frameon=False, handlelength=3)
    figure.suptitle(above, fontsize=8, color="#444444")
    return figure


def draw_images(rows: Sequence[Row], headings: Sequence[str], note: str) -> "Figure":
    """Return a grid of images under headings, each image with its caption below it."""
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


def curve_rows(panels: Sequence[Drawn]) -> list[tuple[object, ...]]:
    """Return the data of a figure of curves, heading first."""
    rows: list[tuple[object, ...]] = [("panel", "axis", "curve", "epoch", "mean", "standard_error", "seeds")]
    for one in panels:
        for curve, mean in one.curves:
            for point in zip(mean.epochs, mean.means, mean.errors, strict=True) if mean else ():
                rows.append((one.panel.title, one.panel.y, curve.label, *point, mean.seeds if mean else 0))
    return rows


def save(figure: "Figure", rows: Sequence[Sequence[object]], folder: Path, name: str) -> list[Path]:
    """Write a figure as NAME.png and NAME.pdf and its data as NAME.csv, each whole; the same data give the same bytes."""
    from matplotlib import rc_context

    folder.mkdir(parents=True, exist_ok=True)
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


def _in_line(labels: Sequence[str], width: float) -> int:
    """Return how many entries of a legend fit beside each other."""
    return max(1, min(len(labels), int(width / (0.7 + LETTER * max(map(len, labels))))))


def _hidden(number: int, curves: Sequence[tuple[Curve, Mean | None]]) -> int:
    """Return how many of the curves drawn after this one lie over it."""
    own = curves[number][1]
    return sum(mean is not None and own is not None and _alike(mean, own) for _, mean in curves[number + 1 :])


def _alike(one: Mean, two: Mean) -> bool:
    return one.epochs == two.epochs and all(math.isclose(a, b, rel_tol=0.01, abs_tol=0.001) for a, b in zip(one.means, two.means, strict=True))


def _labels(one: Drawn) -> list[str]:
    return [_label(curve, mean, one.seeds) for curve, mean in one.curves]


def _label(curve: Curve, mean: Mean | None, seeds: int) -> str:
    if mean is None:
        return f"{curve.label} (no run yet)"
    return curve.label if mean.seeds == seeds or curve.planned else f"{curve.label} ({mean.seeds} of {seeds} seeds)"


def _draw_panel(one: Drawn, ax: "Axes") -> None:
    """Draw mean, band and, where asked for, single seeds; markers are staggered so that they do not hide each other."""
    panel = one.panel
    count = len(one.curves)
    for number, (curve, mean) in enumerate(one.curves):
        look, label = curve.look, _label(curve, mean, one.seeds)
        epochs, means, errors = (mean.epochs, mean.means, mean.errors) if mean else ((), (), ())
        step = max(1, len(epochs) // 6, min(count, len(epochs) // 2))
        width = look.width + 1.1 * _hidden(number, one.curves)  # its edges show beside those that cover it
        ax.plot(
            epochs, means, color=look.colour, linestyle=look.dash, linewidth=width, marker=look.marker, markersize=4.5,
            markevery=(number * step // count, step), label=label,
        )  # fmt: skip
        if mean and mean.seeds > 1:
            low = [middle - error for middle, error in zip(means, errors, strict=True)]
            high = [middle + error for middle, error in zip(means, errors, strict=True)]
            ax.fill_between(epochs, low, high, color=look.colour, alpha=0.18, linewidth=0)
        if panel.singles and mean:
            for single in mean.singles:
                ax.plot(list(single), list(single.values()), color=look.colour, linewidth=0.6, alpha=0.6)
    if panel.log and any(value > 0 for _, mean in one.curves if mean for value in mean.means):
        ax.set_yscale("log", nonpositive="mask")
    ax.set_title(textwrap.fill(panel.title, 38), fontsize=9)
    ax.set_xlabel("epoch", fontsize=8)
    ax.set_ylabel(panel.y, fontsize=8)
    ax.tick_params(which="both", labelsize=7)
    ax.grid(alpha=0.25, linewidth=0.5)
    if not any(mean for _, mean in one.curves):
        ax.text(0.5, 0.5, "no run yet", transform=ax.transAxes, ha="center", va="center", color="#666666")
