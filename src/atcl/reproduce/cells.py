"""The cells of a table: values of several seeds, their spread, the published value, and the table as text."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from atcl.reproduce.ledger import Entry
from atcl.reproduce.published import SEEDS, Value

NARROWEST = 0.3  # points on each side: rounding and other hardware already make such differences
LEVEL = 0.95
# the quantile of Student's t distribution with SEEDS - 1 = 2 degrees of freedom, in closed form
T_QUANTILE = LEVEL * math.sqrt(2 / (1 - LEVEL**2))
EMPTY = "—"


@dataclass(frozen=True)
class Column:
    """Numbers of one kind, from epochs that were chosen by the same rule."""

    name: str  # of the attack, or of the epoch
    heading: str
    rule: str | None  # that chose the epoch; None where there is no choice
    read: Callable[[Entry], tuple[float, Sequence[str]] | None]  # -> the number and its flags


@dataclass(frozen=True)
class Cell:
    """The values measured for one cell of a table, one for each seed, and the published value."""

    values: tuple[float, ...]
    flags: tuple[str, ...]
    published: Value | None

    @property
    def mean(self) -> float | None:
        """The mean over the seeds that were run."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation with ddof = 0, as in the paper; None for a single seed."""
        return statistics.pstdev(self.values) if len(self.values) > 1 else None

    @property
    def spread(self) -> float | None:
        """The standard deviation of a seed (ddof = 1): the larger of the paper's and of ours.

        Ours needs as many seeds as the paper has. The paper's does not count if our mean is *outside* and
        ours has fewer. None if neither is known.
        """
        ours = [statistics.stdev(self.values)] if len(self.values) >= SEEDS else []
        theirs = [sample_deviation(self.published.deviation)] if self.published else []
        return max([*ours, *([] if self.outside and not ours else theirs)], default=None)

    @property
    def difference(self) -> float | None:
        """Our mean minus the published one."""
        return None if self.mean is None or self.published is None else self.mean - self.published.mean

    @property
    def outside(self) -> bool | None:
        """Whether our mean is further from the published one than seeds alone would explain."""
        off, there = self.difference, self.published
        if off is None or there is None:
            return None
        return abs(off) > explained_by_seeds(there.deviation, len(self.values)) + 1e-9


def explained_by_seeds(deviation: float, seeds: int) -> float:
    """Return how far a mean over so many new seeds may lie from a published one.

    This is a prediction interval by Student's t distribution, at least 0.3 wide on each side.
    """
    return max(NARROWEST, T_QUANTILE * sample_deviation(deviation) * math.sqrt(1 / SEEDS + 1 / seeds))


def sample_deviation(deviation: float) -> float:
    """Return a standard deviation over the paper's number of seeds, given with ddof = 0, with ddof = 1."""
    return deviation * math.sqrt(SEEDS / (SEEDS - 1))


@dataclass(frozen=True)
class Table:
    """A table as text, and the data that it shows."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    data: tuple[dict[str, Any], ...]


def in_words(values: Sequence[float], digits: int, seeds: int | None = None) -> str:
    """Return a mean with its standard deviation (ddof = 0) as text.

    Args:
        values: one for each seed; a single one has no deviation.
        digits: after the decimal point.
        seeds: how many seeds the rest of the row has; the text says so where there are fewer values.

    Examples:
        >>> in_words([1.0, 2.0], 1, seeds=3)
        '1.5 ± 0.5 (2 of 3 seeds)'
    """
    if not values:
        return EMPTY
    spread = f" ± {statistics.pstdev(values):.{digits}f}" if len(values) > 1 else ""
    fewer = f" ({len(values)} of {seeds} seeds)" if seeds is not None and len(values) < seeds else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}{fewer}"
