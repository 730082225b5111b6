"""The notes beside the table of results: what its words mean, and the signs of false robustness."""

import shlex
from collections.abc import Sequence

from atcl.attacks.threat import Threat
from atcl.evaluation.attacks import ATTACKS, WORST, heading
from atcl.evaluation.masking import CHECKS, Flag
from atcl.reports.gathering import Group, RunSummary
from atcl.reports.markup import Markup, el
from atcl.reports.parts import prose

ORDER = (*ATTACKS, WORST)
NORM_SYMBOLS = {"linf": "L∞", "l2": "L2"}


def measured_attacks(groups: Sequence[Group]) -> list[str]:
    """Return the attacks that any run was measured by, in their usual order."""
    found = {name for group in groups for one in group.finished for name in one.metrics}
    return [name for name in ORDER if name in found]


def terms(groups: Sequence[Group]) -> Markup:
    """Return what the words of the table mean: attacks, worst case, rule, published, outside."""
    balls: dict[str, list[str]] = {}
    for group in groups:
        threat = group.recipe.threat
        ball = f"{ball_of(threat)}, in steps of {threat.step_size:.4g}; pixels lie in 0 to 1"
        balls.setdefault(ball, []).append(group.label)
    found = [
        ("attacks" if len(balls) == 1 else f"attacks on {', '.join(labels)}", f"stay in the {ball}")
        for ball, labels in balls.items()
    ]
    found += [
        (heading(name), ATTACKS[name].about)
        for name in measured_attacks(groups)
        if name in ATTACKS and name != "natural"
    ]
    if WORST in measured_attacks(groups):
        found.append((heading(WORST), _worst_words(groups)))
    rules = dict.fromkeys(_rule_words(one) for group in groups for one in group.finished)
    found += [("epoch", words) for words in rules]
    cells = [group.cell(name) for group in groups for name in measured_attacks([group])]
    if any(cell.published for cell in cells):
        found.append(("published", "by the paper: mean ± standard deviation over three seeds"))
    if any(cell.outside for cell in cells):
        found.append(("outside", "a difference that seeds alone would not explain"))
    rows = [el("div", el("dt", term), el("dd", prose(words))) for term, words in found]
    return el("dl", rows, class_="terms")


def _worst_words(groups: Sequence[Group]) -> str:
    """Return the attacks of the worst case, for each run if they differ between runs."""
    shown = tuple(name for name in measured_attacks(groups) if name not in ("natural", WORST))
    runs: dict[tuple[str, ...], list[str]] = {}
    for group in groups:
        for attacks, seeds in (mine := _worst_over(group, shown)).items():
            of_seeds = f", seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if len(mine) > 1 else ""
            runs.setdefault(attacks, []).append(group.label + of_seeds)
    if set(runs) == {shown}:
        return "an image counts only if it withstands all of them"
    named = {" + ".join(map(heading, attacks)): "; ".join(names) for attacks, names in runs.items()}
    if len(named) == 1:
        return f"an image counts only if it withstands {next(iter(named))}"
    over = "; ".join(f"{attacks} ({names})" for attacks, names in named.items())
    return f"an image counts only if it withstands {over}. Such worst cases cannot be compared"


def _worst_over(group: Group, otherwise: tuple[str, ...]) -> dict[tuple[str, ...], list[int]]:
    """Return the attacks of a group's worst cases, with the seeds of each choice of attacks."""
    found: dict[tuple[str, ...], list[int]] = {}
    for one in group.finished:
        if WORST in one.metrics:
            over = one.metrics[WORST].attack.get("about", "").rpartition(" worst of ")[2].split(", ")
            attacks = tuple(name for name in ORDER if name in over and name != "natural")
            found.setdefault(attacks or otherwise, []).append(one.run.seed)
    return found


def ball_of(threat: Threat) -> str:
    """Return the ball that an attack stays in, in words."""
    return f"{NORM_SYMBOLS.get(threat.norm, threat.norm)} ball of radius ε = {threat.epsilon:.4g}"


def _rule_words(summary: RunSummary) -> str:
    crafted = summary.crafted - {"fp32"}
    if summary.rule == "last":
        return "the last is reported"
    if not crafted:
        return f"chosen by `{summary.rule}`"
    precisions = " and ".join(sorted(crafted))
    how = f"PGD20 after each epoch was crafted in {precisions}, the numbers here were measured again"
    return f"chosen by `{summary.rule}`; {how}"


def flag_words(group: Group, names: Sequence[str]) -> str:
    """Return the flags of a group's accuracies under these attacks, or that they were not looked for."""
    found = [
        one.metrics[name].flags
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
    return (", ".join(flags) or "none") + (" (not looked for in all runs)" if None in found else "")


def flag_list(groups: Sequence[Group]) -> list[Markup]:
    """Return each flag with its sentence and what its check tests; or that none was found, or looked for."""
    items, unchecked = [], []
    for group in groups:
        for one in group.finished:
            found = one.result.flags if one.result else None
            if found is None:
                unchecked.append(str(one.run.folder))
            several = len(groups) > 1 or len(group.members) > 1
            run = f" ({group.label}, seed {one.run.seed})" if several else ""
            items += [_flag(flag, run) for flag in found or []]
    parts = [el("ul", items, class_="flags")] if items else []
    if unchecked:
        more = f" (and {len(unchecked) - 1} more)" if len(unchecked) > 1 else ""
        finished = sum(len(group.finished) for group in groups)
        where = "" if len(unchecked) == finished else " in all runs"
        command = el("code", f"atcl evaluate {shlex.quote(unchecked[0])}")
        parts.append(el("p", f"Not looked for{where} yet: run ", command, f"{more}.", class_="fine"))
    elif not items:
        none = (
            "None was found. That is no proof of robustness: docs/masking.md explains what each check tests."
        )
        parts.append(el("p", none, class_="fine"))
    if items:
        advice = "A flagged accuracy may be higher than the true one. docs/masking.md explains what to do."
        parts.append(el("p", advice, class_="fine"))
    return parts


def _flag(flag: Flag, run: str) -> Markup:
    about = str(CHECKS[flag.name].__doc__).strip() if flag.name in CHECKS else ""
    return el(
        "li",
        el("strong", flag.name),
        f"{run}: {flag.says}.",
        el("br"),
        el("span", about, class_="fine"),
    )
