"""Tables from the ledger, ours beside the published: Markdown, LaTeX or JSON, and in the pages of docs/."""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from atcl.core.errors import AtclError, pick
from atcl.core.journal import Record
from atcl.evaluation.attacks import heading
from atcl.evaluation.reported import REPORTED
from atcl.reproduce.cells import EMPTY, Cell, Column, Table, explained_by_seeds, in_words
from atcl.reproduce.claims import claimed
from atcl.reproduce.estimates import spent
from atcl.reproduce.experiments import EXPERIMENTS, Experiment, narrowed, published_at
from atcl.reproduce.ledger import Entry, entries
from atcl.reproduce.published import RULE, SEEDS, Value, recipe_ref
from atcl.runs.result import Measurements
from atcl.training.selection import RULES, Rule, chosen_epoch

Layout = Callable[[Experiment, Path], list[Table]]


def compared(experiment: Experiment, results: Path) -> list[Table]:
    """Return a table of accuracies for each dataset.

    Its columns are those of the recipes' rule and, from the same runs, of the last epoch, one rule each.
    """
    tables = []
    for dataset in experiment.datasets:
        found = {
            row: entries(experiment, results, recipe_ref(f"{dataset}/{row}")) for _, row in experiment.rows
        }
        under = dict.fromkeys([*(recipe_ref(f"{dataset}/{row}").recipe.selection for row in found), "last"])
        runs = [entry for row in found.values() for entry in row]
        columns = [_attack(name, rule) for rule in under for name in experiment.columns]
        shown = [
            column
            for column in columns
            if column.name in REPORTED or column.rule == RULE or any(map(column.read, runs))
        ]
        tables.append(_grid(experiment, dataset, shown, found))
    return tables


def epochs(experiment: Experiment, results: Path) -> list[Table]:
    """Return a table of the accuracy of the pseudo-labels after each epoch."""
    columns = [_epoch(name, number) for number, name in enumerate(experiment.columns, 1)]
    return [
        _grid(
            experiment,
            dataset,
            columns,
            {row: entries(experiment, results, recipe_ref(f"{dataset}/{row}")) for _, row in experiment.rows},
        )
        for dataset in experiment.datasets
    ]


def rules(experiment: Experiment, results: Path) -> list[Table]:
    """Return what each rule would have chosen from the same runs.

    For each rule: PGD20 on the test set, and how much less that is than in the best epoch.
    """
    headings = (
        "rule",
        *(
            part
            for title, _ in experiment.rows
            for part in (f"{title}: PGD20", "lost to test_pgd20", "epochs")
        ),
    )
    tables = []
    for dataset in experiment.datasets:
        runs = [recipe_ref(f"{dataset}/{row}") for _, row in experiment.rows]
        stages = [[_last_stage(entry.journal) for entry in entries(experiment, results, run)] for run in runs]
        rows, data = [], list[dict[str, Any]]()
        for name, rule in RULES.items():
            cells = [name]
            for run, held in zip(runs, stages, strict=True):
                picked = [_picked(rule, stage, run.recipe.stages[-1].grown) for stage in held]
                values = [stage[epoch]["test_pgd20"] for stage, epoch in zip(held, picked, strict=True)]
                lost = [
                    max(one["test_pgd20"] for one in stage.values()) - value
                    for stage, value in zip(held, values, strict=True)
                ]
                cells += [in_words(tuple(values), 1), in_words(tuple(lost), 1), ", ".join(map(str, picked))]
                data.append(
                    {
                        "dataset": dataset,
                        "rule": name,
                        "recipe": run.name,
                        "epochs": picked,
                        "pgd20": values,
                        "lost": lost,
                    }
                )
            rows.append(tuple(cells))
        tables.append(Table(dataset, headings, tuple(rows), tuple(data)))
    return tables


LAYOUTS: dict[str, Layout] = {
    "compared": compared,
    "epochs": epochs,
    "rules": rules,
    "claims": claimed,
    "times": spent,
}


def tables_of(experiment: Experiment, results: Path) -> list[Table]:
    """Return the tables of an experiment, made from the ledger."""
    return pick(LAYOUTS, experiment.layout, "layout")(experiment, results)


def markdown(tables: Sequence[Table]) -> str:
    """Return tables as Markdown, each under the name of its dataset if there are several."""
    parts = []
    for table in tables:
        lines = [
            f"| {' | '.join(table.headings)} |",
            f"|{'---|' * len(table.headings)}",
            *(f"| {' | '.join(row)} |" for row in table.rows),
        ]
        parts.append((f"**{table.title}**\n\n" if len(tables) > 1 else "") + "\n".join(lines) + "\n")
    return "\n".join(parts)


def latex(tables: Sequence[Table]) -> str:
    """Return tables as LaTeX; they need the package booktabs."""
    parts = []
    for table in tables:
        lines = [" & ".join(map(_tex, row)) + r" \\" for row in (table.headings, *table.rows)]
        body = [
            r"\begin{tabular}{l" + "r" * (len(table.headings) - 1) + "}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
        ]
        parts.append("\n".join([f"% {table.title}", *body, r"\end{tabular}"]) + "\n")
    return "\n".join(parts)


def tables_as_json(tables: Sequence[Table]) -> str:
    """Return the data of the tables as JSON."""
    return json.dumps([one for table in tables for one in table.data], indent=2) + "\n"


TABLE_FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "markdown": markdown,
    "latex": latex,
    "json": tables_as_json,
}

_PLACE = re.compile(
    r"(<!-- table: (\S+)((?: (?:datasets|rows)=\S+)*) -->\n)((?:(?!<!-- table: ).)*?)(<!-- end -->)", re.S
)


def places(page: str) -> list[str]:
    """Return the names of the experiments that a page has a place for.

    A place reads `<!-- table: NAME [datasets=A,B] [rows=C,D] -->` up to `<!-- end -->`.
    """
    return [found[2] for found in _PLACE.finditer(page)]


def rewritten(page: str, results: Path) -> str:
    """Return a page with all its tables made again from the ledger."""

    def table(found: re.Match[str]) -> str:
        part = {
            name: value.split(",") for name, _, value in (word.partition("=") for word in found[3].split())
        }
        wanted = narrowed(
            pick(EXPERIMENTS, found[2], "experiment"), part.get("datasets", ()), part.get("rows", ())
        )
        return found[1] + markdown(tables_of(wanted, results)) + found[5]

    return _PLACE.sub(table, page)


def check_place(page: str, name: str) -> None:
    """Raise an AtclError if a page has no place for the table of an experiment."""
    if name not in places(page):
        raise AtclError(
            f"the page has no place for the table: add the lines '<!-- table: {name} -->' and '<!-- end -->'"
        )


def _attack(name: str, rule: str) -> Column:
    def read(entry: Entry) -> tuple[float, Sequence[str]] | None:
        # the last epoch of a run is evaluated too, whichever epoch its rule chose
        metrics: Measurements = {}
        if entry.rule == rule:
            metrics = entry.result.metrics
        elif rule == "last":
            metrics = entry.result.last_metrics
        measurement = metrics.get(name)
        if measurement is None:
            return None
        # AutoAttack runs the search of the sign "square" itself
        signs = [flag for flag in measurement.flags or () if (name, flag) != ("autoattack", "square")]
        return measurement.accuracy, (*signs, *entry.notes)

    return Column(name, f"{heading(name)} ({rule})", rule, read)


def _epoch(name: str, number: int) -> Column:
    def read(entry: Entry) -> tuple[float, Sequence[str]] | None:
        found = [record.get("pseudo_label_accuracy") for record in entry.journal if record["epoch"] == number]
        return (100 * found[0], entry.notes) if found and found[0] is not None else None

    return Column(name, name, None, read)


def _grid(
    experiment: Experiment, dataset: str, columns: Sequence[Column], found: dict[str, list[Entry]]
) -> Table:
    rows, data = [], []
    theirs = {row: published_at(experiment, dataset, row) for row in found}
    beside = any(theirs.values())
    digits = 2 if beside else 1
    for title, row in experiment.rows:
        cells = [_cell(column, found[row], theirs[row]) for column in columns]
        seeds = [entry.seed for entry in found[row]]
        ours = [
            in_words(cell.values, digits, len(seeds)) + (f" ({', '.join(cell.flags)})" if cell.flags else "")
            for cell in cells
        ]
        rows.append((title, *(["ours"] if beside else []), *ours, str(len(seeds) or EMPTY)))
        if theirs[row]:
            beside_it = [
                EMPTY
                if cell.published is None
                else f"{cell.published.mean:.2f} ± {cell.published.deviation:.2f}"
                for cell in cells
            ]
            rows.append(("", "published", *beside_it, str(SEEDS)))
        if any(cell.difference is not None for cell in cells):
            rows.append(("", "difference", *map(_difference, cells), ""))
        data += [
            _data(dataset, row, title, column, cell, found[row])
            for column, cell in zip(columns, cells, strict=True)
        ]
    headings = ("method", *([""] if beside else []), *(column.heading for column in columns), "seeds")
    return Table(dataset, headings, tuple(rows), tuple(data))


def _cell(column: Column, found: Sequence[Entry], theirs: dict[str, Value]) -> Cell:
    read = [one for one in map(column.read, found) if one is not None]
    counts = Counter(flag for _, flags in read for flag in flags)
    flags = [
        flag if number == len(read) else f"{flag} {number} of {len(read)}"
        for flag, number in sorted(counts.items())
    ]
    # the paper chose epochs by the test set: its numbers are compared with ours that were chosen alike
    return Cell(
        tuple(value for value, _ in read),
        tuple(flags),
        theirs.get(column.name) if column.rule in (RULE, None) else None,
    )


def _data(
    dataset: str, row: str, title: str, column: Column, cell: Cell, found: Sequence[Entry]
) -> dict[str, Any]:
    what, there = recipe_ref(f"{dataset}/{row}"), cell.published
    return {
        "dataset": dataset,
        "row": row,
        "title": title,
        "recipe": what.name,
        "overrides": list(what.overrides),
        "metric": column.name,
        "rule": column.rule,
        "seeds": [entry.seed for entry in found if column.read(entry) is not None],
        "values": list(cell.values),
        "mean": cell.mean,
        "deviation": cell.deviation,
        "flags": list(cell.flags),
        "published": there and there._asdict(),
        "difference": cell.difference,
        "margin": explained_by_seeds(there.deviation, len(cell.values)) if there and cell.values else None,
        "outside": cell.outside,
    }


def _difference(cell: Cell) -> str:
    return "" if cell.difference is None else f"{cell.difference:+.2f}{' outside' if cell.outside else ''}"


def _last_stage(records: Sequence[Record]) -> dict[int, Record]:
    return {one["epoch"]: one for one in records if one["stage"] == records[-1]["stage"]}


def _picked(rule: Rule | None, stage: dict[int, Record], grown: Callable[[int], bool]) -> int:
    competing = (
        {epoch: one[rule.key] for epoch, one in stage.items() if rule.considers(grown(epoch))} if rule else {}
    )
    return chosen_epoch(rule, competing) if rule and competing else max(stage)


def _tex(text: str) -> str:
    for sign, tex in (("_", r"\_"), ("%", r"\%"), ("±", r"$\pm$"), (EMPTY, "--")):
        text = text.replace(sign, tex)
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text)
