"""What the files of runs contain: results, epochs, settings, and the command that makes each run again."""

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from atcl.core import journal
from atcl.core.errors import AtclError
from atcl.core.files import read_json
from atcl.core.settings import digest, options, overridden
from atcl.models import MODELS
from atcl.recipes.catalogue import RECIPES, recipe
from atcl.recipes.names import OWN
from atcl.recipes.schema import Recipe
from atcl.reproduce.cells import Cell
from atcl.reproduce.figures.records import Recorded
from atcl.reproduce.figures.style import SERIES, STYLES, Style
from atcl.reproduce.published import RULE, published
from atcl.runs import layout
from atcl.runs.result import Measurements, Result
from atcl.runs.run import Run, is_plain
from atcl.training.selection import RULES

METHOD_TITLES = {  # methods -> their names in figures
    "oracle": "oracle",
    **dict.fromkeys(("two-stage", "two-stage-test-teacher", "two-stage-mcl", "two-stage-rules"), "two-stage"),
    **dict.fromkeys(
        ("warmup-pla", "warmup-pla-mcl", "warmup-pla-rules", "warmup-pla-fixed"), "warm-up + PLA"
    ),
    "warmup": "warm-up",
    "pla": "PLA",
    **{
        f"direct-{loss.lower().replace('_', '-')}": loss
        for loss in ("LOG", "EXP", "FORWARD", "FREE", "NN", "SCL_NL", "SCL_EXP")
    },
    **dict.fromkeys(("direct-log-mcl", "direct-log-sgd", "direct-log-adam"), "LOG"),
    "direct-exp-mcl": "EXP",
    "trades": "TRADES",
    "trades-log": "TRADES-LOG",
    "trades-pla": "TRADES-PLA",
    "warmup-exp": "warm-up (EXP)",
    "pla-exp": "PLA (EXP)",
    "warmup-pla-exp": "warm-up + PLA (EXP)",
    "warmup-pla-k": "warm-up (k) + PLA",
    "warmup-pla-epsilon-k": "warm-up (ε, k) + PLA",
}


@dataclass(frozen=True)
class RunSummary:
    """A run, with the content of its files."""

    run: Run
    recorded: Recorded
    result: Result | None  # None: training has not ended

    @staticmethod
    def of(run: Run) -> "RunSummary":
        """Read the files of a run."""
        records, observed = (
            tuple(journal.read(run.folder / name)) for name in (layout.JOURNAL, layout.ANALYSIS)
        )
        result = run.result if (run.folder / layout.RESULT).exists() else None
        return RunSummary(run, Recorded(run.recipe, run.seed, run.folder, records, observed), result)

    @property
    def metrics(self) -> Measurements:
        """The measurements of the reported epoch, by attack."""
        return {} if self.result is None else self.result.metrics

    @property
    def last(self) -> Measurements:
        """The measurements of the last epoch, by attack."""
        return {} if self.result is None else self.result.last_metrics

    @property
    def epoch(self) -> int | None:
        """The reported epoch, counted through all stages."""
        if self.result is None:
            return None
        chosen = self.result.selection
        return sum(stage.epochs for stage in self.run.recipe.stages[: chosen.stage]) + chosen.epoch

    @property
    def rule(self) -> str:
        """The name of the rule that chose the reported epoch."""
        return self.run.recipe.selection if self.result is None else self.result.selection.rule

    @property
    def crafted(self) -> set[str]:
        """The precisions that PGD20 after each epoch was computed in, as far as the journal has them."""
        return {str(one["crafted"]) for one in self.recorded.records if one.get("crafted")}

    @property
    def epochs(self) -> tuple[int, int]:
        """The number of epochs that are done, and of all epochs."""
        return len(self.recorded.records), sum(stage.epochs for stage in self.run.recipe.stages)


@dataclass(frozen=True)
class Group:
    """Runs of one recipe that differ in their seed, with a label and a style."""

    label: str
    style: Style
    members: tuple[RunSummary, ...]

    @cached_property
    def recipe(self) -> Recipe:
        """Their recipe."""
        return self.members[0].run.recipe

    @property
    def seeds(self) -> str:
        """The seeds that are finished, in words, and how many are not."""
        named = self.finished or self.members
        pending = f" ({self.pending})" if self.pending else ""
        return f"seed{'s' * (len(named) > 1)} {', '.join(str(one.run.seed) for one in named)}{pending}"

    @property
    def pending(self) -> str:
        """How many runs are not finished, in words; empty where all are."""
        number = len(self.members) - len(self.finished)
        return "" if not number else f"{number} not finished" if self.finished else "not finished"

    @property
    def finished(self) -> tuple[RunSummary, ...]:
        """The runs whose training has ended."""
        return tuple(one for one in self.members if one.result is not None)

    @property
    def rule(self) -> str:
        """The rule that chose the reported epochs."""
        return " / ".join(dict.fromkeys(one.rule for one in self.members))

    def cell(self, attack: str, *, last: bool = False) -> Cell:
        """Return the accuracies under an attack over the seeds, with the published one.

        The published one is that of the same recipe, if the epochs were chosen as in the paper.
        """
        found = [
            metrics[attack]
            for one in self.finished
            if attack in (metrics := one.last if last else one.metrics)
        ]
        flags = tuple(sorted({flag for one in found for flag in one.flags or ()}))
        theirs = (published(self.recipe) or {}).get(attack) if self.rule == RULE and not last else None
        return Cell(tuple(one.accuracy for one in found), flags, theirs)


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Return the runs in groups of the same recipe and data.

    A seed that occurs twice opens another group: it would count twice in a mean.
    """
    found: dict[Any, list[RunSummary]] = {}
    times: Counter[Any] = Counter()
    for run in runs:
        kind = (run.name, run.recipe, run.classes, _source(run))
        found.setdefault((kind, times[kind, run.seed]), []).append(RunSummary.of(run))
        times[kind, run.seed] += 1
    titled = [(title(members[0].run), tuple(members)) for members in found.values()]
    groups = [Group(name, STYLES.get(name, SERIES[0]), members) for name, members in titled]
    labels, styles = [group.label for group in groups], _styles(groups)
    details = [f" ({detail(one, groups)})" if labels.count(one.label) > 1 else "" for one in groups]
    return [
        replace(group, label=f"{group.label}{more}", style=style)
        for group, more, style in zip(groups, details, styles, strict=True)
    ]


def _styles(groups: Sequence[Group]) -> list[Style]:
    """Return a style for each group: that of its method, or a free one with another dash.

    Of several groups with the same method, the one with unchanged settings has the method's style.
    """
    found: dict[int, Style] = {}
    for at in sorted(range(len(groups)), key=lambda at: overrides(groups[at].members[0].run) != []):
        own = groups[at].style
        free = [one for one in (*SERIES, *STYLES.values()) if one not in found.values()]
        other = next((one for one in free if one.dash != own.dash), own)
        found[at] = own if own not in found.values() else other
    return [found[at] for at in range(len(groups))]


def _source(run: Run) -> Any:
    """Return what identifies data of one's own: their digest, or for older runs the folder of the run."""
    if run.recipe.dataset != OWN:
        return None
    return read_json(run.folder / layout.RECIPE).get("source") or run.folder.resolve().parent


def title(run: Run) -> str:
    """Return the name of a run's method in figures; a method without one keeps its own."""
    method = run.name.partition("/")[2]
    return METHOD_TITLES.get(method, method or run.name)


def changed(run: Run) -> bool:
    """Return whether a run's settings differ from those of the recipe that it names."""
    return run.name in RECIPES and not is_plain(run.name, run.recipe)


def detail(group: Group, groups: Sequence[Group]) -> str:
    """Return what distinguishes a group from others of the same method.

    This is the name of its recipe, the settings that are changed, or its folder.
    """
    alike = [other for other in groups if other.label == group.label]
    run = group.members[0].run
    named = [other for other in alike if other.members[0].run.name == run.name]
    same = [other for other in named if other.recipe == run.recipe]
    parts = [run.name] if len(named) < len(alike) else []
    if len(same) < len(named):
        changed = overrides(run)
        words = (
            " ".join(changed[:4]).replace("--", "") + (" …" if len(changed) > 4 else "")
            if changed
            else digest(run.recipe)
        )
        parts = [words if changed else f"{run.name}, {words}"]
    if len(same) > 1:
        places = [other.members[0].run.folder.resolve() for other in same]
        parts.append(
            os.path.relpath(run.folder.resolve(), os.path.commonpath(places))
            + (", …" if len(group.members) > 1 else "")
        )
    return ", ".join(parts)


def overrides(run: Run) -> list[str] | None:
    """Return the command-line words that turn the recipe that a run names into the run's own.

    None if no words do so.
    """
    if run.name not in RECIPES:
        return None
    plain = recipe(run.name)
    before = set(options(plain))
    try:
        words = [
            word
            for line in options(run.recipe)
            if line not in before and line.startswith("--")
            for word in shlex.split(line)
        ]
        same = (overridden(plain, words, "atcl train") if words else plain) == run.recipe
    except (AtclError, ValueError):  # ValueError: a line that no shell would read
        return None
    return words if same else None


def rerun(summary: RunSummary) -> str:
    """Return the command that trains a run again, into a new folder.

    Where no command can express its recipe, these are lines of Python.
    """
    run, place = summary.run, summary.result.environment if summary.result else {}
    again = str(run.folder.with_name(f"{run.folder.name}-again"))
    words = overrides(run)
    if words is None or run.recipe.model not in MODELS:
        # what a file contains becomes part of a line only as a literal or a bare name, for safety
        model = run.recipe.model if str(run.recipe.model).isidentifier() else "MODEL"
        problem = ", problem=PROBLEM" * (run.recipe.dataset == OWN)
        build = f", build={model}" * (run.recipe.model not in MODELS)
        opened = f"atcl.open_run({str(run.folder)!r}).recipe"
        return f"import atcl\n\natcl.train({opened}, seed={run.seed!r}{problem}{build}, out={again!r})"
    own = ["--images", "FOLDER", "--labels", "FILE.csv"] if run.recipe.dataset == OWN else []
    on_cpu = "CPU" in str(place.get("device", ""))
    device = ["--device", "cpu" if on_cpu else "cuda"] if place else []
    observed = {key for record in summary.recorded.observed for key in record}
    typical = {"gradients": "gradient.variance", "attacks": "attack.log.cosine", "test": "test_pgd20"}
    observe = [name for name, key in typical.items() if key in observed]
    said = shlex.join(
        [
            "atcl",
            "train",
            run.name,
            *words,
            *own,
            "--seed",
            str(run.seed),
            *device,
            *(["--observe", *observe] if observe else []),
            "--out",
            again,
        ]
    )
    # on a CPU the last bits depend on the number of threads
    return (
        f"OMP_NUM_THREADS={place['threads']} {said}"
        if on_cpu and isinstance(place.get("threads"), int)
        else said
    )


def chosen_by(summary: RunSummary) -> str:
    """Return in words the reported epoch and the rule that chose it."""
    rule, stages = RULES.get(summary.rule), summary.run.recipe.stages
    if summary.result is None:
        return f"will report {'the last epoch' if rule is None else f'the epoch with {rule.about}'}"
    where = f" of stage {summary.result.selection.stage + 1}" if len(stages) > 1 else ""
    number = summary.result.selection.epoch
    return f"epoch {number}{where}, " + ("the last" if rule is None else f"chosen for {rule.about}")
