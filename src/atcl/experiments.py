"""Experiments as data, the runs that they still lack, and their tables."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atcl.errors import AtclError
from atcl.files import read_json, write_json, write_whole
from atcl.journal import Record, read
from atcl.recipes import KINDS, recipe
from atcl.runs import REPORTED, Run, folder_of
from atcl.selection import RULES, Rule, chosen_epoch
from atcl.settings import digest, from_data

HEADINGS = {
    "natural": "natural", "pgd20": "PGD20", "cw30": "CW30", "pgd20_restarts": "PGD20, 10 starts", "autoattack": "AutoAttack", "worst": "worst case",
}  # fmt: skip


@dataclass(frozen=True)
class Experiment:
    """Rows of a table, each a recipe run with several seeds."""

    about: str
    rows: tuple[tuple[str, str], ...]  # (what the row is called, recipe)
    table: Callable[["Experiment", Path], str]
    page: str  # the page that shows the table
    seeds: tuple[int, ...] = (1, 2, 3)
    journals: bool = False  # whether the ledger keeps each run's epochs too


def result_path(results: Path, name: str, seed: int) -> Path:
    """Return where the ledger keeps a result: dataset, recipe with a digest of its settings, seed."""
    wanted = recipe(name)
    dataset, method = folder_of(name, wanted)
    return results / dataset / f"{method}-{digest(wanted)}" / f"seed-{seed}" / "result.json"


def missing(experiment: Experiment, results: Path) -> list[tuple[str, int]]:
    """Return recipe and seed of each run that the ledger lacks."""
    return [(name, seed) for _, name in experiment.rows for seed in experiment.seeds if not result_path(results, name, seed).exists()]


def reproduce(experiment: Experiment, results: Path, run: Callable[[str, int], Run]) -> None:
    """Run what is missing, and put each result into the ledger."""
    for name, seed in missing(experiment, results):
        path = result_path(results, name, seed)
        done = run(name, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        if experiment.journals:
            write_whole(path.with_name("journal.jsonl"), (done.folder / "journal.jsonl").read_bytes())
        write_json(path, done.result)


def accuracies(experiment: Experiment, results: Path) -> str:
    """Return a Markdown table of accuracies, mean and standard deviation (ddof 0); rules never share a column, and what was not run stays empty."""
    found = {title: _results(experiment, results, name) for title, name in experiment.rows}
    rules = sorted({one["selection"]["rule"] for row in found.values() for one in row}) or ["last"]
    columns = [(rule, metric) for rule in rules for metric in REPORTED]
    headings = [f"{HEADINGS[metric]} ({rule})" for rule, metric in columns]
    lines = [f"| method | {' | '.join(headings)} | seeds |", f"|---|{'---|' * len(columns)}---|"]
    for title, row in found.items():
        cells = [_marked([one["metrics"][metric] for one in row if one["selection"]["rule"] == rule]) for rule, metric in columns]
        lines.append(f"| {title} | {' | '.join(cells)} | {len(row) or ''} |")
    return "\n".join(lines) + "\n"


def by_rule(experiment: Experiment, results: Path) -> str:
    """Return a Markdown table of what each rule would have picked from the same runs: PGD20 on the test set, and what it lost to the best."""
    titles = " | ".join(f"{title}: PGD20 | lost to test_pgd20 | epochs" for title, _ in experiment.rows)
    lines = [f"| rule | {titles} |", f"|---|{'---|' * 3 * len(experiment.rows)}"]
    stages = {name: _last_stages(experiment, results, name) for _, name in experiment.rows}
    for name, rule in RULES.items():
        cells = []
        for _, run in experiment.rows:
            grown = recipe(run).stages[-1].grown
            epochs = [_picked(rule, stage, grown) for stage in stages[run]]
            picked = [stage[epoch]["test_pgd20"] for stage, epoch in zip(stages[run], epochs, strict=True)]
            lost = [max(one["test_pgd20"] for one in stage.values()) - value for stage, value in zip(stages[run], picked, strict=True)]
            cells += [_cell(picked), _cell(lost), ", ".join(map(str, epochs))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_table(page: str, name: str, text: str) -> str:
    """Return a page with a table put between its markers `<!-- table: NAME -->` and `<!-- end -->`."""
    begin, end = f"<!-- table: {name} -->\n", "<!-- end -->"
    if begin not in page or end not in page[page.index(begin) :]:
        raise AtclError(f"the page has no place for the table: add the lines {begin.strip()!r} and {end!r}")
    head, rest = page.split(begin, 1)
    return head + begin + text + end + rest.split(end, 1)[1]


def _results(experiment: Experiment, results: Path, name: str) -> list[dict[str, Any]]:
    """Return the results of a recipe that the ledger holds; one made with other settings than it says is refused."""
    found = []
    for path in (result_path(results, name, seed) for seed in experiment.seeds):
        if path.exists():
            told = read_json(path)
            if not isinstance(told, dict) or not all(metric in told.get("metrics", {}) for metric in REPORTED):
                raise AtclError(f"{path} lacks {', '.join(REPORTED)}: remove it, and it is made again")
            if from_data(told.get("recipe"), KINDS) != recipe(name):
                raise AtclError(f"{path} was made with other settings than {name} has now: remove it, and it is made again")
            found.append(told)
    return found


def _last_stages(experiment: Experiment, results: Path, name: str) -> list[dict[int, Record]]:
    """Return, for each seed that was run, the records of the last stage by epoch."""
    _results(experiment, results, name)
    journals = [read(result_path(results, name, seed).with_name("journal.jsonl")) for seed in experiment.seeds]
    return [{one["epoch"]: one for one in records if one["stage"] == records[-1]["stage"]} for records in journals if records]


def _picked(rule: Rule | None, stage: dict[int, Record], grown: Callable[[int], bool]) -> int:
    competing = {epoch: one[rule.key] for epoch, one in stage.items() if rule.considers(grown(epoch))} if rule else {}
    return chosen_epoch(rule, competing) if rule and competing else max(stage)


def _marked(metrics: list[dict[str, Any]]) -> str:
    """Return a cell, with the flags of those numbers that should not be believed."""
    flags = sorted({flag for one in metrics for flag in one["flags"] or ()})
    return _cell([one["accuracy"] for one in metrics]) + (f" ({', '.join(flags)})" if flags else "")


def _cell(values: list[float]) -> str:
    return f"{statistics.fmean(values):.1f} ± {statistics.pstdev(values):.1f}" if values else ""


EXPERIMENTS: dict[str, Experiment] = {
    "digits": Experiment(
        about="8x8 digits, one complementary label per image, accuracy in % on 397 test images (L-infinity, epsilon 0.15)",
        rows=(
            ("direct LOG", "digits/direct-log"),
            ("two-stage", "digits/two-stage"),
            ("**warm-up + PLA**", "digits/warmup-pla"),
            ("oracle (true labels)", "digits/oracle"),
        ),
        table=accuracies,
        page="README.md",
    ),
    "selection": Experiment(
        about="8x8 digits, a tenth of the training images held out: what each rule picks from the same runs, PGD20 on the test set in %",
        rows=(("warm-up + PLA", "digits/warmup-pla-rules"), ("two-stage", "digits/two-stage-rules")),
        table=by_rule,
        page="docs/selection.md",
        journals=True,
    ),
}
