"""The parts of the page that need no test set: headline, table of results, curves."""

from collections.abc import Sequence

from atcl.evaluation.attacks import WORST, heading
from atcl.recipes.names import OWN
from atcl.reports.gathering import Group, changed, chosen_by, title
from atcl.reports.markup import Child, Markup, el
from atcl.reports.notes import flag_list, flag_words, measured_attacks, terms
from atcl.reports.parts import bar, prose, scrolled, section, swatch, table
from atcl.reproduce.cells import EMPTY, Cell, in_words
from atcl.training.weak_validation import Estimate

HELD = (  # estimates from held-out labels: title, name
    ("predictions that are right", "accuracy_natural"),
    ("that are right and withstand PGD20", "robust"),
    ("predictions inside the candidates", "inside_natural"),
    ("inside the candidates under attack", "inside_attacked"),
)


def headline(groups: Sequence[Group]) -> Markup:
    """Return the title, a line on what is shown and, for a single recipe, its accuracies."""
    runs = [one for group in groups for one in group.members]
    datasets = list(dict.fromkeys(one.run.recipe.dataset for one in runs))
    where = " and ".join("own pictures" if name == OWN else name for name in datasets)
    if len(groups) > 1:
        titles = {title(group.members[0].run) for group in groups}
        kinds = "methods" if len(titles) == len(groups) else "groups of runs"
        pending = sum(one.result is None for one in runs)
        unfinished = f", {pending} not finished" if pending else ""
        about = f"{len(runs)} runs{unfinished}; mean ± standard deviation over seeds"
        others = ", ".join(group.label for group in groups if changed(group.members[0].run))
        about += f"; with changed settings: {others}" if others else ""
        return el("div", el("h1", f"{len(groups)} {kinds} on {where}"), el("p", about, class_="sub"))
    (group,) = groups
    first = group.members[0]
    about = f"{first.run.name}{' with changed settings' if changed(first.run) else ''}, {group.seeds}"
    about += f"; {chosen_by(first)}" if len(runs) == 1 else ""
    tiles = [
        _tile(heading(name), group, name)
        for name in measured_attacks(groups)
        if name != WORST or len(measured_attacks(groups)) > 3
    ]
    tiles = tiles or [
        _held_tile(name, found)
        for name, score in (("right", "accuracy_natural"), ("robust", "robust"))
        if (found := _held(group, score))
    ]
    return el(
        "div",
        el("h1", f"{group.label} on {where}"),
        el("p", about, class_="sub"),
        el("div", tiles, class_="tiles") if tiles else None,
    )


def _tile(title: str, group: Group, attack: str) -> Markup:
    cell = group.cell(attack)
    theirs = f"paper {_published(cell)}" if cell.published else None
    deviation = f" ± {cell.deviation:.1f}" if cell.deviation is not None and len(cell.values) > 1 else ""
    number = el("div", f"{cell.mean:.1f}", el("small", f"{deviation} %"), class_="number")
    return el(
        "div",
        el("div", title, class_="name"),
        number,
        el("div", theirs, class_="note") if theirs else None,
        class_="tile",
    )


def _held_tile(name: str, found: Sequence[Estimate]) -> Markup:
    number, *deviation = _estimate(found).partition(" ± ")
    error = ", ± standard error" if len(found) == 1 and deviation[0] else ""
    return el(
        "div",
        el("div", f"estimated {name}", class_="name"),
        el("div", number, el("small", f"{''.join(deviation)} %"), class_="number"),
        el("div", f"by held-out labels{error}", class_="note"),
        class_="tile",
    )


def _held(group: Group, score: str) -> list[Estimate]:
    """Return an estimate from held-out labels for each finished run of a group."""
    return [one.result.held[score] for one in group.finished if one.result and score in one.result.held]


def _estimate(found: Sequence[Estimate]) -> str:
    """Return the mean of estimates in percent.

    That of one run has its standard error, that of several their standard deviation.
    """
    error = f" ± {100 * found[0].error:.1f}" if len(found) == 1 and found[0].error is not None else ""
    return in_words([100 * one.mean for one in found], 1) + error


def remarks(groups: Sequence[Group]) -> list[Markup]:
    """Return what a reader should know first: runs that are not finished, numbers that are not known."""
    lines = []
    for group in groups:
        for one in group.members:
            done, total = one.epochs
            name = f"{group.label}, seed {one.run.seed}"
            if one.result is None:
                lines.append(
                    f"{name}: training has not ended (epoch {done} of {total}). Only its curves are shown; "
                    "the same `atcl train` command goes on with it."
                )
            elif not one.metrics:
                lines.append(
                    f"{name}: there is no test set with true classes. Accuracy, calibration, confusion and "
                    "adversarial images are left out; estimates from held-out complementary labels take "
                    "their place."
                )
    return [el("p", prose(line), class_="remark") for line in lines]


def results(groups: Sequence[Group]) -> Markup:
    """Return the table of results with the published ones, and the signs of false robustness."""
    attacks = measured_attacks(groups)
    held = [scrolled(_held_table(group), "Held-out estimates") for group in groups if _held(group, "robust")]
    if not attacks:
        return section("results", "Results", held or el("p", "There is no result yet.", class_="fine"))
    alone = len(groups) == 1
    shown = scrolled(_one(groups[0], attacks) if alone else _many(groups, attacks), "Table of results")
    flags = el("h3", "Signs of false robustness"), flag_list(groups)
    notes = el("div", terms(groups), *flags, class_="notes")
    beside = el("div", el("div", shown, held), notes, class_="beside" if alone else None)
    return section("results", "Results", beside)


def _one(group: Group, attacks: Sequence[str]) -> Markup:
    """Return a row for each attack."""
    theirs = any(group.cell(name).published for name in attacks)
    last = group.rule != "last"
    more = [*(["published %", "difference"] if theirs else []), *(["last epoch %"] if last else [])]
    rows: list[tuple[Child, list[Child]]] = []
    for name in attacks:
        cell = group.cell(name)
        images = {one.metrics[name].images for one in group.finished if name in one.metrics}
        cells: list[Child] = [bar(_accuracy(cell, group), cell.mean or 0.0, group)]
        if theirs:
            cells += [_published(cell), _difference(cell)]
        if last:
            cells.append(in_words(group.cell(name, last=True).values, 2))
        cells += [" / ".join(f"{count:,}" for count in sorted(images)), flag_words(group, [name])]
        rows.append((heading(name), cells))
    epoch = "last epoch" if group.rule == "last" else f"epoch chosen by {group.rule}"
    caption = f"{group.label}, {group.seeds}: accuracy on the test set, {epoch}"
    return table(caption, ["attack", "accuracy %", *more, "images", "flags"], rows)


def _many(groups: Sequence[Group], attacks: Sequence[str]) -> Markup:
    """Return a row for each group, and below it the published numbers if there are any."""
    heads = ["method", *(f"{heading(name)} %" for name in attacks), "seeds", "epoch by", "flags"]
    rows: list[tuple[Child, list[Child]]] = []
    for group in groups:
        cells: list[Child] = []
        for name in attacks:
            cell = group.cell(name)
            cells.append(bar(_accuracy(cell, group), cell.mean or 0.0, group) if cell.values else EMPTY)
        seeds = f"{len(group.finished)}{f' ({group.pending})' if group.pending else ''}"
        flags = flag_words(group, attacks)
        rows.append((el("span", swatch(group), group.label), [*cells, seeds, group.rule, flags]))
        ours = [group.cell(name) for name in attacks]
        if any(cell.published for cell in ours):
            theirs = map(_published, ours)
            differences = (_difference(cell) if cell.published else "" for cell in ours)
            rows.append((el("span", "published", class_="quiet"), [*theirs, 3, "test_pgd20", ""]))
            rows.append((el("span", "difference", class_="quiet"), [*differences, "", "", ""]))
    return table("Accuracy on the test set, a row for each recipe", heads, rows)


def _accuracy(cell: Cell, group: Group) -> str:
    """Return a mean with its deviation, and its number of seeds if the attack was not run on all of them."""
    return in_words(cell.values, 2, len(group.finished))


def _published(cell: Cell) -> str:
    theirs = cell.published
    return f"{theirs.mean:.2f} ± {theirs.deviation:.2f}" if theirs else EMPTY


def _difference(cell: Cell) -> Child:
    if cell.difference is None:
        return EMPTY
    outside = el("span", " outside", class_="tag") if cell.outside else None
    return el("span", f"{cell.difference:+.2f}", outside)


def _held_table(group: Group) -> Markup:
    rows = []
    for name, score in HELD:
        if found := _held(group, score):
            images = " / ".join(f"{number:,}" for number in sorted({one.images for one in found}))
            rows.append((name, [_estimate(found), images]))
    error = "standard error" if len(_held(group, "robust")) == 1 else "standard deviation over seeds"
    about = f"estimated from held-out complementary labels, without truth (± {error})"
    return table(f"{group.label}, {group.seeds}: {about}", ["", "%", "images"], rows)


def curves(groups: Sequence[Group], panels: int, accuracies: bool) -> Markup:
    """Return the legend of the curves, and the element in which the script draws them."""
    if not panels:
        return section("curves", "Curves", el("p", "The journal holds no epoch yet.", class_="fine"))
    items = [
        el(
            "button",
            swatch(group),
            el("span", group.label),
            el("small", group.seeds),
            type="button",
            class_="key",
            aria_pressed="true",
            data_group=number,
        )
        for number, group in enumerate(groups)
    ]
    note = "Point at a curve, or reach it with Tab and move with the arrow keys, Home and End. "
    if any(len(group.finished) == len(group.members) == 1 for group in groups):
        note += "A ring marks the reported epoch. "
    if any(len(group.members) > 1 for group in groups):
        note += "Lines are means over seeds with a band of one standard error; thin lines are single seeds. "
    if any(group.pending and len(group.members) > 1 for group in groups):
        note += "Where some seeds have fewer epochs, a line continues as the mean of the others; "
        note += "pointing at it shows of how many. "
    if not accuracies and any(group.recipe.dataset != OWN for group in groups):
        note += "Accuracy by epoch was not recorded: the rule of this recipe does not use the test set; "
        note += "`atcl train … --observe test --observe-every 1` records it."
    keys = (
        el("div", items, class_="keys", role="group", aria_label="Runs shown in the curves")
        if len(groups) > 1
        else None
    )
    live = el("p", "", id="told", class_="unseen", aria_live="polite")
    missing = el(
        "noscript",
        el("p", "The curves are drawn by a script, which this browser does not run.", class_="remark"),
    )
    return section(
        "curves",
        "Curves",
        el("p", prose(note.strip()), class_="fine"),
        keys,
        missing,
        el("div", class_="panels", id="panels"),
        live,
    )
