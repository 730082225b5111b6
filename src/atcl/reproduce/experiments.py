"""Experiments as data: the runs of each table, and the page that shows it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from atcl.core.errors import AtclError, pick
from atcl.evaluation.reported import REPORTED
from atcl.reproduce.published import (
    ATTACKED,
    EPOCHS,
    NUMBERS_OF_LABELS,
    PUBLISHED,
    SCHEDULINGS,
    RecipeRef,
    Value,
    recipe_ref,
)


@dataclass(frozen=True)
class Experiment:
    """A table for each dataset, with a row for each method or variant, run with several seeds.

    Args:
        about: what it shows, in a few words.
        datasets: the datasets of the tables.
        rows: the title of each row, with its method or variant.
        page: the page that shows the tables.
        columns: attacks, or epochs.
        layout: a name from `tables.LAYOUTS`.
        stand_ins: other datasets that take the same rows, for which nothing is published.
        seeds: of each run.
        journals: whether the tables also need the epochs of each run.
        makes: whether `atcl reproduce` makes the missing runs, or shows what other tables made.
    """

    about: str
    datasets: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]
    page: str
    columns: tuple[str, ...] = REPORTED
    layout: str = "compared"
    stand_ins: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3)
    journals: bool = False
    makes: bool = True

    def runs(self) -> list[tuple[str, RecipeRef, int]]:
        """Return dataset, recipe and seed of each run of the tables."""
        return [
            (dataset, recipe_ref(f"{dataset}/{row}"), seed)
            for dataset in self.datasets
            for _, row in self.rows
            for seed in self.seeds
        ]


def narrowed(
    experiment: Experiment, datasets: Sequence[str] = (), rows: Sequence[str] = (), seeds: Sequence[int] = ()
) -> Experiment:
    """Return the part of an experiment with these datasets, rows and seeds; an empty choice means all.

    Raises:
        AtclError: the experiment has no such dataset or row, or a seed is negative.
    """
    known = {name: name for name in (*experiment.datasets, *experiment.stand_ins)}
    titles = {row: title for title, row in experiment.rows}
    chosen = [
        pick(known, name, "dataset of this experiment") for name in dict.fromkeys(datasets)
    ] or experiment.datasets
    for row in rows:
        pick(titles, row, "row of this experiment")
    kept = tuple((title, row) for title, row in experiment.rows if not rows or row in rows)
    if any(seed < 0 for seed in seeds):
        raise AtclError(f"a seed is a whole number of at least 0, not {min(seeds)}")
    return replace(
        experiment, datasets=tuple(chosen), rows=kept, seeds=tuple(dict.fromkeys(seeds)) or experiment.seeds
    )


def published_at(experiment: Experiment, dataset: str, row: str) -> dict[str, Value]:
    """Return the values that the paper prints for a row, by column of the experiment."""
    return {
        name: value
        for name, value in PUBLISHED.get(f"{dataset}/{row}", {}).items()
        if name in experiment.columns
    }


_LOSSES = ("FORWARD", "FREE", "NN", "SCL_NL", "SCL_EXP", "EXP", "LOG")
_GUESSING = ("SCL_NL", "SCL_EXP", "EXP", "LOG")  # those that take a pseudo-label


def _method(kind: str, loss: str) -> str:
    return kind if loss == "LOG" else f"{kind}-{loss.lower().replace('_', '-')}"


def _parts(loss: str) -> tuple[tuple[str, str], ...]:
    """Return the rows of a loss in the ablation: alone, with each component, with both."""
    rows = (
        (loss, f"direct-{loss.lower().replace('_', '-')}"),
        (f"{loss} + warm-up", _method("warmup", loss)),
    )
    more = ((f"{loss} + PLA", _method("pla", loss)), (f"{loss} + warm-up + PLA", _method("warmup-pla", loss)))
    return rows + (more if loss in _GUESSING else ())


_OURS = ("**warm-up + PLA**", "warmup-pla")
# Paper: the teacher is the epoch with the "best validation performance"; official code: the one with the best
# natural accuracy on the test set.
_TEACHER = "two-stage, teacher by test accuracy"
_ORACLE = "oracle (true labels)"
_RESULTS = "docs/results.md"

EXPERIMENTS: dict[str, Experiment] = {
    "digits": Experiment(
        about="8x8 digits, one complementary label per image, accuracy in % on 397 test images "
        "(L-infinity, epsilon 0.15)",
        datasets=("digits",),
        rows=(("direct LOG", "direct-log"), ("two-stage", "two-stage"), _OURS, (_ORACLE, "oracle")),
        page="README.md",
    ),
    "selection": Experiment(
        about="8x8 digits, a tenth of the training images held out: what each rule picks from the same runs, "
        "PGD20 on the test set in %",
        datasets=("digits",),
        rows=(("warm-up + PLA", "warmup-pla-rules"), ("two-stage", "two-stage-rules")),
        page="docs/selection.md",
        layout="rules",
        journals=True,
    ),
    "table1": Experiment(
        about="the paper's Table 1: every method on four datasets",
        datasets=("mnist", "kuzushiji", "cifar10", "svhn"),
        stand_ins=("digits",),
        rows=(
            (_ORACLE, "oracle"),
            (_TEACHER, "two-stage-test-teacher"),
            *(_parts(loss)[0] for loss in _LOSSES),
            _OURS,
        ),
        page=_RESULTS,
        columns=ATTACKED,
    ),
    "ablation": Experiment(
        about="the paper's table of components by loss, on Kuzushiji",
        datasets=("kuzushiji",),
        rows=tuple(row for loss in _LOSSES for row in _parts(loss)),
        page=_RESULTS,
        columns=ATTACKED,
    ),
    "mcl": Experiment(
        about="the paper's table of random sets of complementary labels",
        datasets=("kuzushiji", "cifar10"),
        rows=(
            (_ORACLE, "oracle"),
            (_TEACHER, "two-stage-mcl-test-teacher"),
            ("EXP", "direct-exp-mcl"),
            ("LOG", "direct-log-mcl"),
            ("**warm-up + PLA**", "warmup-pla-mcl"),
        ),
        page=_RESULTS,
        columns=ATTACKED,
    ),
    "pseudo-labels": Experiment(
        about="the paper's two tables of the accuracy of pseudo-labels in % by epoch, on Kuzushiji",
        datasets=("kuzushiji",),
        # Paper: does not say whether gamma falls in these runs; official code: reports pseudo-labels even
        # where no loss uses them.
        rows=(
            ("epsilon rises slowly, E_s = 50", "pseudo-labels-slow"),
            ("slowly, gamma stays at 1", "pseudo-labels-slow-warmup"),
            ("rapidly, E_s = 10", "pseudo-labels-rapid"),
            ("rapidly, gamma stays at 1", "pseudo-labels-rapid-warmup"),
        ),
        page=_RESULTS,
        columns=EPOCHS,
        layout="epochs",
        journals=True,
    ),
    "components": Experiment(
        about="the figure of the two components, on Kuzushiji and CIFAR-10",
        datasets=("kuzushiji", "cifar10"),
        rows=(
            ("without both: LOG", "direct-log"),
            ("without PLA", "warmup"),
            ("without warm-up", "pla"),
            _OURS,
        ),
        page=_RESULTS,
    ),
    "scheduling": Experiment(
        about="the figure of E_s, the epochs of scheduling, on Kuzushiji",
        datasets=("kuzushiji",),
        rows=tuple(
            (f"E_s = {epochs}", "warmup-pla" if epochs == 50 else f"warmup-pla-es-{epochs}")
            for epochs in sorted((*SCHEDULINGS, 50))
        ),
        page=_RESULTS,
    ),
    "labels": Experiment(
        about="the figure of LOG with more complementary labels for each image, on Kuzushiji",
        datasets=("kuzushiji",),
        rows=(
            ("1 label", "direct-log"),
            *((f"{number} labels", f"direct-log-{number}-labels") for number in NUMBERS_OF_LABELS),
            (_ORACLE, "oracle"),
        ),
        page=_RESULTS,
    ),
    "trades": Experiment(
        about="the figure of methods after TRADES, on Kuzushiji",
        datasets=("kuzushiji",),
        rows=(("TRADES", "trades"), ("TRADES-LOG", "trades-log"), ("TRADES-PLA", "trades-pla"), _OURS),
        page=_RESULTS,
    ),
    "exp": Experiment(
        about="the figure of LOG and EXP, on Kuzushiji",
        datasets=("kuzushiji",),
        rows=(
            ("LOG", "direct-log"),
            ("EXP", "direct-exp"),
            ("warm-up + PLA, EXP", "warmup-pla-exp"),
            ("**warm-up + PLA**, LOG", "warmup-pla"),
        ),
        page=_RESULTS,
    ),
    "warmup": Experiment(
        about="the figure of warm-up strategies: what grows with the epochs, on Kuzushiji",
        datasets=("kuzushiji",),
        rows=(
            ("epsilon and step size", "warmup-pla"),
            ("number of steps", "warmup-pla-k"),
            ("epsilon and number of steps", "warmup-pla-epsilon-k"),
        ),
        page=_RESULTS,
    ),
    "alternatives": Experiment(
        about="the figure of training alternatives that do not save direct LOG, on Kuzushiji "
        "(the choice of alternatives is ours)",
        datasets=("kuzushiji",),
        rows=(
            ("SGD, lr 0.01", "direct-log"),
            ("SGD, lr 0.1", "direct-log-lr-0.1"),
            ("SGD, lr 0.001", "direct-log-lr-0.001"),
            ("SGD, weight decay 0.0005", "direct-log-weight-decay"),
            ("Adam, lr 0.001", "direct-log-adam"),
            ("10 natural epochs first", "direct-log-opening"),
        ),
        page=_RESULTS,
    ),
    "claims": Experiment(
        about="the paper's claims, each compared with the measured numbers: PGD20 in %, "
        "the epoch chosen as in the paper",
        datasets=("mnist", "kuzushiji", "cifar10", "svhn"),
        rows=(
            (_ORACLE, "oracle"),
            (_TEACHER, "two-stage-test-teacher"),
            *(_parts(loss)[0] for loss in _LOSSES),
            *_parts("LOG")[1:3],
            _OURS,
        ),
        page="docs/reproduction.md",
        layout="claims",
        makes=False,
    ),
    "times": Experiment(
        about="what the runs of Table 1 took on GPUs",
        datasets=("mnist", "kuzushiji", "cifar10", "svhn"),
        rows=(
            (_ORACLE, "oracle"),
            (_TEACHER, "two-stage-test-teacher"),
            *(_parts(loss)[0] for loss in _LOSSES),
            _OURS,
        ),
        page="docs/performance.md",
        layout="times",
        makes=False,
    ),
    "truth-free": Experiment(
        about="the epoch chosen without truth: separate runs with a tenth of the training images held out",
        datasets=("kuzushiji",),
        rows=(
            ("direct LOG", "direct-log-held"),
            ("two-stage", "two-stage-held"),
            ("**warm-up + PLA**", "warmup-pla-held"),
        ),
        page=_RESULTS,
    ),
}
