"""The parts of the page that need no test set: headline, table of results, curves, how a run was made."""

import shlex
from collections.abc import Sequence
from typing import Any

from atcl.attacks.threat import Threat
from atcl.evaluation.attacks import ATTACKS, WORST, heading
from atcl.evaluation.masking import CHECKS
from atcl.recipes.schema import OWN
from atcl.reports.gathering import Group, RunSummary, changed, chosen_by, mean_and_spread, title
from atcl.reports.markup import Child, Markup, el
from atcl.reports.parts import bar, prose, scrolled, section, swatch, table
from atcl.reproduce.cells import EMPTY, Cell

ORDER = (*ATTACKS, WORST)
HELD = (
    ("predictions that are right", "accuracy_natural"),
    ("that are right and withstand PGD20", "robust"),
    ("predictions inside the candidates", "inside_natural"),
    ("inside the candidates under attack", "inside_attacked"),
)
NORM_SYMBOLS = {"linf": "L∞", "l2": "L2"}


def measured_attacks(groups: Sequence[Group]) -> list[str]:
    """Return the attacks that any run was measured by, in their usual order."""
    found = {name for group in groups for one in group.finished for name in one.metrics}
    return [name for name in ORDER if name in found]


def headline(groups: Sequence[Group]) -> Markup:
    """Return title, one line on what is shown, and for a single recipe its numbers in large."""
    runs = [one for group in groups for one in group.members]
    datasets = list(dict.fromkeys(one.run.recipe.dataset for one in runs))
    where = " and ".join("own pictures" if name == OWN else name for name in datasets)
    if len(groups) > 1:
        kinds = (
            "methods"
            if len({title(group.members[0].run) for group in groups}) == len(groups)
            else "groups of runs"
        )
        pending = sum(one.result is None for one in runs)
        told = f"{len(runs)} runs{f', {pending} not finished' if pending else ''}; mean ± standard deviation over seeds"
        others = ", ".join(group.label for group in groups if changed(group.members[0].run))
        told += f"; with changed settings: {others}" if others else ""
        return el("div", el("h1", f"{len(groups)} {kinds} on {where}"), el("p", told, class_="sub"))
    (group,) = groups
    first = group.members[0]
    told = f"{first.run.name}{' with changed settings' if changed(first.run) else ''}, {group.seeds}"
    told += f"; {chosen_by(first)}" if len(runs) == 1 else ""
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
        el("p", told, class_="sub"),
        el("div", tiles, class_="tiles") if tiles else None,
    )


def _tile(title: str, group: Group, attack: str) -> Markup:
    cell = group.cell(attack)
    theirs = f"paper {cell.published.mean:.2f} ± {cell.published.deviation:.2f}" if cell.published else None
    deviation = f" ± {cell.deviation:.1f}" if cell.deviation is not None and len(cell.values) > 1 else ""
    number = el("div", f"{cell.mean:.1f}", el("small", f"{deviation} %"), class_="number")
    return el(
        "div",
        el("div", title, class_="name"),
        number,
        el("div", theirs, class_="note") if theirs else None,
        class_="tile",
    )


def _held_tile(name: str, found: Sequence[dict[str, Any]]) -> Markup:
    number, *deviation = _estimate(found).partition(" ± ")
    error = ", ± standard error" if len(found) == 1 and deviation[0] else ""
    return el(
        "div",
        el("div", f"estimated {name}", class_="name"),
        el("div", number, el("small", f"{''.join(deviation)} %"), class_="number"),
        el("div", f"by held-out labels{error}", class_="note"),
        class_="tile",
    )


def _held(group: Group, score: str) -> list[dict[str, Any]]:
    """Return what held-out labels tell of each finished run of a group."""
    return [found for one in group.finished if (found := (one.result or {}).get("held", {}).get(score))]


def _estimate(found: Sequence[dict[str, Any]]) -> str:
    """Return the mean of estimates in percent: of one run with its standard error, of several with their standard deviation."""
    error = f" ± {100 * found[0]['error']:.1f}" if len(found) == 1 and found[0]["error"] is not None else ""
    return mean_and_spread([100 * one["mean"] for one in found], 1) + error


def remarks(groups: Sequence[Group]) -> list[Markup]:
    """Return what a reader should know first: runs that are not finished, numbers that cannot be had."""
    told = []
    for group in groups:
        for one in group.members:
            done, total = one.epochs
            if one.result is None:
                told.append(
                    f"{group.label}, seed {one.run.seed}: training has not ended (epoch {done} of {total}). Only its curves are shown; "
                    "the same `atcl train` command goes on with it."
                )
            elif not one.metrics:
                told.append(
                    f"{group.label}, seed {one.run.seed}: there is no test set with true classes. Accuracy, calibration, confusion and "
                    "images under attack cannot be known and are left out; what held-out complementary labels tell stands in their place."
                )
    return [el("p", prose(line), class_="remark") for line in told]


def results(groups: Sequence[Group]) -> Markup:
    """Return the table of results, with what is published beside it, and the signs of false robustness."""
    attacks = measured_attacks(groups)
    held = [scrolled(_held_table(group), "Held-out estimates") for group in groups if _held(group, "robust")]
    if not attacks:
        return section("results", "Results", held or el("p", "There is no result yet.", class_="fine"))
    alone = len(groups) == 1
    shown = scrolled(_one(groups[0], attacks) if alone else _many(groups, attacks), "Table of results")
    notes = el("div", _terms(groups), el("h3", "Signs of false robustness"), _flags(groups), class_="notes")
    return section(
        "results", "Results", el("div", el("div", shown, held), notes, class_="beside" if alone else None)
    )


def _one(group: Group, attacks: Sequence[str]) -> Markup:
    """Return a row for each attack."""
    theirs = any(group.cell(name).published for name in attacks)
    last = group.rule != "last"
    more = [*(["published %", "difference"] if theirs else []), *(["last epoch %"] if last else [])]
    rows: list[tuple[Child, list[Child]]] = []
    for name in attacks:
        cell = group.cell(name)
        images = {one.metrics[name]["images"] for one in group.finished if name in one.metrics}
        cells: list[Child] = [bar(_over(cell, group), cell.mean or 0.0, group)]
        if theirs:
            cells += [
                f"{cell.published.mean:.2f} ± {cell.published.deviation:.2f}" if cell.published else EMPTY,
                _difference(cell),
            ]
        if last:
            cells.append(mean_and_spread(values) if (values := group.cell(name, last=True).values) else EMPTY)
        cells += [" / ".join(f"{count:,}" for count in sorted(images)), _flag_words(group, [name])]
        rows.append((heading(name), cells))
    caption = f"{group.label}, {group.seeds}: accuracy on the test set, " + (
        "last epoch" if group.rule == "last" else f"epoch chosen by {group.rule}"
    )
    return table(caption, ["attack", "accuracy %", *more, "images", "flags"], rows)


def _many(groups: Sequence[Group], attacks: Sequence[str]) -> Markup:
    """Return a row for each group, and below it the published numbers where there are any."""
    heads = ["method", *(f"{heading(name)} %" for name in attacks), "seeds", "epoch by", "flags"]
    rows: list[tuple[Child, list[Child]]] = []
    for group in groups:
        cells: list[Child] = []
        for name in attacks:
            cell = group.cell(name)
            cells.append(bar(_over(cell, group), cell.mean or 0.0, group) if cell.values else EMPTY)
        seeds = f"{len(group.finished)}{f' ({group.pending})' if group.pending else ''}"
        rows.append(
            (el("span", swatch(group), group.label), [*cells, seeds, group.rule, _flag_words(group, attacks)])
        )
        told = [group.cell(name) for name in attacks]
        if any(cell.published for cell in told):
            theirs = [
                f"{cell.published.mean:.2f} ± {cell.published.deviation:.2f}" if cell.published else EMPTY
                for cell in told
            ]
            rows.append((el("span", "published", class_="quiet"), [*theirs, 3, "test_pgd20", ""]))
            rows.append(
                (
                    el("span", "difference", class_="quiet"),
                    [*(_difference(cell) if cell.published else "" for cell in told), "", "", ""],
                )
            )
    return table("Accuracy on the test set, a row for each recipe", heads, rows)


def _over(cell: Cell, group: Group) -> str:
    """Return a mean with its spread, and over how many seeds it is taken where the attack was not tried on all that are finished."""
    return mean_and_spread(cell.values) + (
        f" ({len(cell.values)} of {len(group.finished)} seeds)"
        if len(cell.values) < len(group.finished)
        else ""
    )


def _difference(cell: Cell) -> Child:
    if cell.difference is None:
        return EMPTY
    return el(
        "span", f"{cell.difference:+.2f}", el("span", " outside", class_="tag") if cell.outside else None
    )


def _flag_words(group: Group, names: Sequence[str]) -> str:
    """Return the flags of a group's numbers under these attacks; where nobody looked, or not at all of its runs, that."""
    found = [
        one.metrics[name].get("flags")
        for name in names
        if name != "natural"
        for one in group.finished
        if name in one.metrics
    ]
    flags = sorted({flag for one in found for flag in one or ()})
    if not found:
        return "" if group.finished else "no result yet"
    if all(one is None for one in found):
        return "not looked for"
    return (", ".join(flags) or "none") + (" (not all looked at)" if None in found else "")


def _flags(groups: Sequence[Group]) -> list[Markup]:
    """Return each flag with its sentence and what its check looks for, or that none was found, or that nobody looked."""
    items, unlooked = [], []
    for group in groups:
        for one in group.finished:
            found = (one.result or {}).get("flags")
            if found is None:
                unlooked.append(str(one.run.folder))
            who = (
                f" ({group.label}, seed {one.run.seed})" if len(groups) > 1 or len(group.members) > 1 else ""
            )
            items += [_flag(flag, who) for flag in found or []]
    told = [el("ul", items, class_="flags")] if items else []
    if unlooked:
        more = f" (and {len(unlooked) - 1} more)" if len(unlooked) > 1 else ""
        whom = "" if len(unlooked) == sum(len(group.finished) for group in groups) else " at all of them"
        command = el("code", f"atcl evaluate {shlex.quote(unlooked[0])}")
        told.append(el("p", f"Nobody has looked{whom} yet; ", command, f" does{more}.", class_="fine"))
    elif not items:
        told.append(
            el(
                "p",
                "None was found. That is no proof of robustness: docs/masking.md says what each check sees.",
                class_="fine",
            )
        )
    if items:
        told.append(
            el(
                "p",
                "A flagged accuracy may be higher than the true one. docs/masking.md says what to do about each flag.",
                class_="fine",
            )
        )
    return told


def _flag(flag: dict[str, Any], who: str) -> Markup:
    about = str(CHECKS[flag["name"]].__doc__).strip() if flag["name"] in CHECKS else ""
    return el(
        "li",
        el("strong", flag["name"]),
        f"{who}: {flag['says']}.",
        el("br"),
        el("span", about, class_="fine"),
    )


def _held_table(group: Group) -> Markup:
    rows = []
    for name, score in HELD:
        if found := _held(group, score):
            rows.append(
                (
                    name,
                    [
                        _estimate(found),
                        " / ".join(f"{images:,}" for images in sorted({one["images"] for one in found})),
                    ],
                )
            )
    error = "standard error" if len(_held(group, "robust")) == 1 else "standard deviation over seeds"
    return table(
        f"{group.label}, {group.seeds}: estimated from held-out complementary labels, without truth (± {error})",
        ["", "%", "images"],
        rows,
    )


def _terms(groups: Sequence[Group]) -> Markup:
    """Return what was attacked and how, and which rule chose the epochs, word by word."""
    balls: dict[str, list[str]] = {}
    for group in groups:
        ball = f"{ball_of(group.recipe.threat)}, in steps of {group.recipe.threat.step_size:.4g}; pixels lie in 0 to 1"
        balls.setdefault(ball, []).append(group.label)
    terms = [
        ("attacks" if len(balls) == 1 else f"attacks on {', '.join(labels)}", f"stay in the {ball}")
        for ball, labels in balls.items()
    ]
    terms += [
        (heading(name), ATTACKS[name].about)
        for name in measured_attacks(groups)
        if name in ATTACKS and name != "natural"
    ]
    if WORST in measured_attacks(groups):
        terms.append((heading(WORST), _worst_words(groups)))
    terms += [
        ("epoch", words)
        for words in dict.fromkeys(_rule_words(one) for group in groups for one in group.finished)
    ]
    cells = [group.cell(name) for group in groups for name in measured_attacks([group])]
    if any(cell.published for cell in cells):
        terms.append(("published", "by the paper: mean ± standard deviation over three seeds"))
    if any(cell.outside for cell in cells):
        terms.append(("outside", "a difference that seeds alone would not explain"))
    return el(
        "dl", [el("div", el("dt", term), el("dd", prose(words))) for term, words in terms], class_="terms"
    )


def _worst_words(groups: Sequence[Group]) -> str:
    """Return what the worst case was taken over; where that differs between runs, or from what the table shows, for whom by name."""
    shown = tuple(name for name in measured_attacks(groups) if name not in ("natural", WORST))
    judged: dict[tuple[str, ...], list[str]] = {}
    for group in groups:
        for attacks, seeds in (mine := _worst_over(group, shown)).items():
            of_seeds = f", seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if len(mine) > 1 else ""
            judged.setdefault(attacks, []).append(group.label + of_seeds)
    if set(judged) == {shown}:
        return "an image counts only if it withstands all of them"
    told = {
        " + ".join(heading(name) for name in attacks): "; ".join(whose) for attacks, whose in judged.items()
    }
    if len(told) == 1:
        return f"an image counts only if it withstands {next(iter(told))}"
    over = "; ".join(f"{attacks} ({whose})" for attacks, whose in told.items())
    return f"an image counts only if it withstands {over}. Over different attacks it does not compare"


def _worst_over(group: Group, otherwise: tuple[str, ...]) -> dict[tuple[str, ...], list[int]]:
    """Return the attacks that a group's worst cases were taken over, each with its seeds."""
    found: dict[tuple[str, ...], list[int]] = {}
    for one in group.finished:
        if WORST in one.metrics:
            over = one.metrics[WORST]["attack"].get("about", "").rpartition(" worst of ")[2].split(", ")
            attacks = tuple(name for name in ORDER if name in over and name != "natural")
            found.setdefault(attacks or otherwise, []).append(one.run.seed)
    return found


def ball_of(threat: Threat) -> str:
    """Return the ball that an attack stays in, in words."""
    return f"{NORM_SYMBOLS.get(threat.norm, threat.norm)} ball of radius ε = {threat.epsilon:.4g}"


def _rule_words(told: RunSummary) -> str:
    crafted = told.crafted - {"fp32"}
    if told.rule == "last":
        return "the last is reported"
    how = (
        f"; PGD20 after each epoch was crafted in {' and '.join(sorted(crafted))}, the numbers here were measured anew"
        if crafted
        else ""
    )
    return f"chosen by `{told.rule}`{how}"


def curves(groups: Sequence[Group], panels: int, accuracies: bool) -> Markup:
    """Return the legend and the place where the script draws."""
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
        note += "Where some seeds have not come so far, a line goes on as the mean of the others; pointing at it tells of how many. "
    if not accuracies and any(group.recipe.dataset != OWN for group in groups):
        note += "Accuracy by epoch was not recorded: the rule of this recipe does not look at the test set; "
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
