"""Experiments as data, the runs that they still lack, and their tables."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atcl.errors import AtclError
from atcl.files import read_json, write_json
from atcl.recipes import recipe
from atcl.runs import REPORTED, Run, folder_of
from atcl.settings import digest

HEADINGS = {"natural": "natural", "pgd20": "PGD20", "cw30": "CW30"}


@dataclass(frozen=True)
class Experiment:
    """Rows of a table, each a recipe run with several seeds."""

    about: str
    rows: tuple[tuple[str, str], ...]  # (what the row is called, recipe)
    seeds: tuple[int, ...] = (1, 2, 3)


EXPERIMENTS: dict[str, Experiment] = {
    "digits": Experiment(
        about="8x8 digits, one complementary label per image, accuracy in % on 397 test images (L-infinity, epsilon 0.15)",
        rows=(
            ("direct LOG", "digits/direct-log"),
            ("two-stage", "digits/two-stage"),
            ("**warm-up + PLA**", "digits/warmup-pla"),
            ("oracle (true labels)", "digits/oracle"),
        ),
    )
}


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
        result = run(name, seed).result
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, result)


def table(experiment: Experiment, results: Path) -> str:
    """Return the Markdown table of an experiment: mean and standard deviation (ddof 0); what was not run stays empty."""
    lines = [
        f"| method | {' | '.join(HEADINGS[metric] for metric in REPORTED)} | seeds | epoch reported |",
        f"|---|{'---|' * len(REPORTED)}---|---|",
    ]
    for title, name in experiment.rows:
        paths = [result_path(results, name, seed) for seed in experiment.seeds]
        found = [_result(path) for path in paths if path.exists()]
        cells = [_cell([one["metrics"][metric]["accuracy"] for one in found]) for metric in REPORTED]
        lines.append(f"| {title} | {' | '.join(cells)} | {len(found) or ''} | {_rule(found)} |")
    return "\n".join(lines) + "\n"


def with_table(page: str, name: str, text: str) -> str:
    """Return a page with a table put between its markers `<!-- table: NAME -->` and `<!-- end -->`."""
    begin, end = f"<!-- table: {name} -->\n", "<!-- end -->"
    if begin not in page or end not in page[page.index(begin) :]:
        raise AtclError(f"the page has no place for the table: add the lines {begin.strip()!r} and {end!r}")
    head, rest = page.split(begin, 1)
    return head + begin + text + end + rest.split(end, 1)[1]


def _result(path: Path) -> dict[str, Any]:
    told = read_json(path)
    if not isinstance(told, dict) or not all(metric in told.get("metrics", {}) for metric in REPORTED):
        raise AtclError(f"{path} lacks {', '.join(REPORTED)}: remove it, and it is made again")
    return told


def _cell(values: list[float]) -> str:
    return f"{statistics.fmean(values):.1f} ± {statistics.pstdev(values):.1f}" if values else ""


def _rule(found: list[dict[str, Any]]) -> str:
    return ", ".join(sorted({one["selection"]["rule"] for one in found}))
