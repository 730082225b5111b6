"""What stands in a table: values of several seeds, their spread, what is published beside, and the table in words."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from atcl.reproduce.ledger import Entry
from atcl.reproduce.published import SEEDS, Value

NARROWEST = 0.3  # points on each side: below that, rounding and other hardware already differ
LEVEL = 0.95
T_QUANTILE = LEVEL * math.sqrt(
    2 / (1 - LEVEL**2)
)  # the quantile of Student's distribution for SEEDS - 1 = 2 degrees of freedom, in closed form
EMPTY = "—"


@dataclass(frozen=True)
class Column:
    """Numbers of one kind, all chosen by the same rule."""

    name: str  # under which the paper's number is known
    heading: str
    rule: str | None  # that chose the epoch; None where there is no choice
    read: Callable[[Entry], tuple[float, Sequence[str]] | None]  # the number, and what speaks against it


@dataclass(frozen=True)
class Cell:
    """What was measured for one place of a table, one value for each seed, and what is published there."""

    values: tuple[float, ...]
    flags: tuple[str, ...]
    published: Value | None

    @property
    def mean(self) -> float | None:
        """Of the seeds that were run."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """With ddof = 0, as the paper's; one seed has none."""
        return statistics.pstdev(self.values) if len(self.values) > 1 else None

    @property
    def spread(self) -> float | None:
        """The deviation of one seed, the larger of the paper's and ours of as many; None where neither says, or fewer of ours are *outside*."""
        ours = [statistics.stdev(self.values)] if len(self.values) >= SEEDS else []
        theirs = (
            []
            if self.published is None or (self.outside and not ours)
            else [sample_deviation(self.published.deviation)]
        )
        return max([*ours, *theirs], default=None)

    @property
    def difference(self) -> float | None:
        """Ours less theirs."""
        return None if self.mean is None or self.published is None else self.mean - self.published.mean

    @property
    def outside(self) -> bool | None:
        """Whether our mean is further from theirs than seeds alone would explain."""
        off, there = self.difference, self.published
        return (
            None
            if off is None or there is None
            else abs(off) > explained_by_seeds(there.deviation, len(self.values)) + 1e-9
        )


def explained_by_seeds(deviation: float, seeds: int) -> float:
    """Return how far a new mean over so many seeds may lie from a published one: a prediction interval after Student's t, never narrower than 0.3."""
    return max(NARROWEST, T_QUANTILE * sample_deviation(deviation) * math.sqrt(1 / SEEDS + 1 / seeds))


def sample_deviation(deviation: float) -> float:
    """Return a deviation of as many seeds as the paper has, with ddof = 0, as one with ddof = 1."""
    return deviation * math.sqrt(SEEDS / (SEEDS - 1))


@dataclass(frozen=True)
class Table:
    """A table in words, and what it was made from as data."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    data: tuple[dict[str, Any], ...]


def in_words(values: tuple[float, ...], digits: int, seeds: int | None = None) -> str:
    """Return mean and spread; a single seed has none, and fewer seeds than the rest of the row are told."""
    if not values:
        return EMPTY
    spread = f" ± {statistics.pstdev(values):.{digits}f}" if len(values) > 1 else ""
    fewer = f" ({len(values)} of {seeds} seeds)" if seeds is not None and len(values) < seeds else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}{fewer}"
