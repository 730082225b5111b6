"""Runs as figures use them: what each epoch recorded, from folders of runs and from the ledger."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atcl.core import journal
from atcl.core.errors import AtclError, Notify
from atcl.core.files import read_json
from atcl.core.settings import from_data
from atcl.recipes.schema import Recipe, kinds
from atcl.runs import layout

Points = dict[int, float]  # epoch, counted through all stages -> value


@dataclass(frozen=True)
class Recorded:
    """A finished run: its recipe, its seed, and what its epochs recorded."""

    recipe: Recipe
    seed: int
    folder: Path
    records: tuple[journal.Record, ...]  # of the journal
    observed: tuple[journal.Record, ...]  # of analysis.jsonl

    def points(self, key: str, part: int | None = None) -> Points:
        """Return a recorded number by epoch, from the file that has it for more epochs.

        Args:
            key: its name in the file.
            part: which element, where it is a list.
        """
        found = [
            {self._epoch(one): _number(one[key], part) for one in file if one.get(key) is not None}
            for file in (self.records, self.observed)
        ]
        return max(found, key=len)

    def _epoch(self, record: journal.Record) -> int:
        return sum(stage.epochs for stage in self.recipe.stages[: record["stage"]]) + int(record["epoch"])


@dataclass(frozen=True)
class Mean:
    """A curve over seeds."""

    epochs: tuple[int, ...]
    means: tuple[float, ...]
    errors: tuple[float, ...]  # standard errors
    singles: tuple[Points, ...]

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return len(self.singles)


def mean_of(singles: Sequence[Points]) -> Mean:
    """Return mean and standard error over seeds, at the epochs that all of them recorded."""
    epochs = sorted(set.intersection(*(set(one) for one in singles)))
    columns = [[one[epoch] for one in singles] for epoch in epochs]
    errors = map(standard_error, columns)
    return Mean(tuple(epochs), tuple(map(statistics.fmean, columns)), tuple(errors), tuple(singles))


def standard_error(values: Sequence[float]) -> float:
    """Return the standard deviation (ddof = 0) over the root of the number of values."""
    return float(statistics.pstdev(values) / len(values) ** 0.5)


def recorded_in(runs: Path, results: Path, notify: Notify) -> list[Recorded]:
    """Return every finished run in a folder of runs, and every result of the ledger.

    Args:
        runs: a folder of runs, which is searched.
        results: the ledger.
        notify: called with a line on each file that cannot be read and is left out.
    """
    found = []
    for read, paths in (
        (_of_run, sorted(runs.rglob(layout.RECIPE))),
        (_of_result, sorted(results.rglob(layout.RESULT))),
    ):
        for path in paths:
            try:
                found += list(read(path))
            except (AtclError, KeyError, TypeError, ValueError) as error:
                notify(f"{path} is passed over: {str(error).splitlines()[0]}")
    return found


def _of_run(path: Path) -> Iterator[Recorded]:
    if (path.parent / layout.RESULT).exists():
        yield _recorded(read_json(path), path.parent)


def _of_result(path: Path) -> Iterator[Recorded]:
    if not path.with_name(layout.RECIPE).exists():  # else it is a run's own, found already
        yield _recorded(read_json(path), path.parent)


def _recorded(data: Any, folder: Path) -> Recorded:
    records, observed = (tuple(journal.read(folder / name)) for name in (layout.JOURNAL, layout.ANALYSIS))
    return Recorded(from_data(data["recipe"], kinds()), int(data["seed"]), folder, records, observed)


def _number(value: Any, part: int | None) -> float:
    return float(value if part is None else value[part])
