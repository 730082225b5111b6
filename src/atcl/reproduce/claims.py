"""The paper's claims as data: which row should be above which, and whether the numbers support it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from atcl.core.errors import AtclError
from atcl.reproduce.cells import EMPTY, NARROWEST, T_QUANTILE, Cell, Table
from atcl.reproduce.experiments import EXPERIMENTS, Experiment, published_at
from atcl.reproduce.ledger import Entry, entries
from atcl.reproduce.published import RULE, SEEDS, recipe_ref

METRIC = "pgd20"
DIRECT = tuple(row for _, row in EXPERIMENTS["table1"].rows if row.startswith("direct-"))
TEACHER = "two-stage-test-teacher"

UNKNOWN, HOLDS, OPEN, FAILS = "not yet known", "holds", "undecided: seeds may differ as much", "does not hold"


@dataclass(frozen=True)
class Claim:
    """A claim that some rows are above others or, if `close`, not much below them.

    Args:
        words: the claim as a sentence.
        pairs: rows that should be above, each with the row that should be below.
        close: whether the claim is that the distance is no larger than in the paper.
        beyond: datasets that it does not apply to.
    """

    words: str
    pairs: tuple[tuple[str, str], ...]
    close: bool = False
    beyond: tuple[str, ...] = ()


CLAIMS = (
    Claim(
        "adversarial training with complementary losses fails",
        tuple(("warmup-pla", row) for row in DIRECT),
        beyond=("mnist",),
    ),
    Claim("two stages work", tuple((TEACHER, row) for row in DIRECT)),
    Claim("warm-up and PLA beat two stages", (("warmup-pla", TEACHER),)),
    Claim("they come close to the oracle", (("oracle", "warmup-pla"),), close=True),
    Claim("both components are needed", (("warmup-pla", "warmup"), ("warmup-pla", "pla"))),
)


@dataclass(frozen=True)
class Pair:
    """Two measured rows; the first should be above the second."""

    above: Cell
    below: Cell

    @property
    def distance(self) -> float:
        """How far the first is above the second, in points."""
        return (self.above.mean or 0.0) - (self.below.mean or 0.0)

    @property
    def published(self) -> float | None:
        """The distance in the paper."""
        above, below = self.above.published, self.below.published
        return None if above is None or below is None else above.mean - below.mean

    def spread(self, close: bool) -> float | None:
        """Return how far apart seeds alone may put the two rows; None where no deviation is known.

        For a claim to be `close`, it is how far seeds alone may change the paper's distance.
        """
        variance = 0.0
        for cell in (self.above, self.below):
            if cell.spread is None:
                return None
            variance += cell.spread**2 * (1 / len(cell.values) + (1 / SEEDS if close else 0))
        return max(NARROWEST, T_QUANTILE * math.sqrt(variance))

    def verdict(self, close: bool) -> str:
        """Return whether the claim holds for these two rows, does not hold, or is undecided."""
        spread, there = self.spread(close), self.published
        if spread is None:
            return OPEN
        if close:
            if there is None:
                return OPEN
            if self.distance <= there + NARROWEST:
                return HOLDS
            return FAILS if self.distance > there + spread else OPEN
        return HOLDS if self.distance > spread else FAILS if self.distance < -spread else OPEN


def claimed(experiment: Experiment, results: Path) -> list[Table]:
    """Return a table with a line for each claim and each dataset with runs that it is about."""
    titles = {row: title.strip("*") for title, row in experiment.rows}
    rows, data = [], []
    for claim in CLAIMS:
        if not all(row in titles for pair in claim.pairs for row in pair):
            continue
        lines = 0
        for dataset in (one for one in experiment.datasets if one not in claim.beyond):
            cells = {row: _cell(experiment, results, dataset, row) for pair in claim.pairs for row in pair}
            known = {
                (above, below): Pair(cells[above], cells[below])
                for above, below in claim.pairs
                if cells[above].values and cells[below].values
            }
            if not known:
                continue
            lines += 1
            verdicts = [pair.verdict(claim.close) for pair in known.values()]
            found = overall(verdicts, len(claim.pairs))
            pairs = known.values()
            notes = sorted(
                {note for pair in pairs for cell in (pair.above, pair.below) for note in cell.flags}
            )
            where = f"{dataset} ({', '.join(notes)})" if notes else dataset
            rows.append(
                (
                    claim.words,
                    where,
                    "; ".join(_pair_words(titles, *names, pair) for names, pair in known.items()),
                    found,
                )
            )
            data += [
                {
                    "claim": claim.words,
                    "dataset": dataset,
                    "above": above,
                    "below": below,
                    "values": [pair.above.values, pair.below.values],
                    "outside": [pair.above.outside, pair.below.outside],
                    "distance": pair.distance,
                    "spread": pair.spread(claim.close),
                    "published": pair.published,
                    "verdict": verdict,
                }
                for ((above, below), pair), verdict in zip(known.items(), verdicts, strict=True)
            ]
        if not lines:
            rows.append((claim.words, EMPTY, EMPTY, UNKNOWN))
            data.append({"claim": claim.words, "dataset": None, "verdict": UNKNOWN})
    return [
        Table("claims", ("claim", "dataset", "PGD20, ours (published)", "verdict"), tuple(rows), tuple(data))
    ]


def overall(verdicts: Sequence[str], pairs: int) -> str:
    """Return the outcome of several comparisons: if one fails, the claim fails; missing ones are counted."""
    found = next((one for one in (FAILS, OPEN) if one in verdicts), HOLDS)
    run = f"{len(verdicts)} of {pairs} comparisons {'was' if len(verdicts) == 1 else 'were'} run"
    return found + (f" ({run})" if len(verdicts) < pairs else "")


def _pair_words(titles: dict[str, str], above: str, below: str, pair: Pair) -> str:
    """Return both rows with their numbers."""
    return ", ".join(
        f"{titles[row]} {_number(cell)}" for row, cell in ((above, pair.above), (below, pair.below))
    )


def _number(cell: Cell) -> str:
    seeds = f", {len(cell.values)} seed{'s' if len(cell.values) > 1 else ''}"
    theirs = EMPTY if cell.published is None else f"{cell.published.mean:.2f}"
    return f"{cell.mean:.2f}{' outside' if cell.outside else ''} ({theirs}{seeds})"


def _cell(experiment: Experiment, results: Path, dataset: str, row: str) -> Cell:
    found = entries(experiment, results, recipe_ref(f"{dataset}/{row}"))
    notes = dict.fromkeys(note for entry in found for note in entry.notes)
    return Cell(tuple(map(_value, found)), tuple(notes), published_at(experiment, dataset, row).get(METRIC))


def _value(entry: Entry) -> float:
    """Return the number that the paper would report."""
    if entry.rule != RULE:
        raise AtclError(f"{entry.path} was chosen by {entry.rule}, but the paper's claims are about {RULE}")
    return entry.result.metrics[METRIC].accuracy
