"""What is known of runs from their folders alone: results, epochs, settings, and the command that makes each again."""

import os
import shlex
import statistics
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
from atcl.recipes.schema import OWN, Recipe
from atcl.reproduce.cells import Cell
from atcl.reproduce.figures.records import Recorded
from atcl.reproduce.figures.style import SERIES, STYLES, Style
from atcl.reproduce.published import RULE, published
from atcl.runs import layout
from atcl.runs.run import Run, is_plain
from atcl.training.selection import RULES

METHOD_TITLES = {  # methods -> how figures call them
    "oracle": "oracle",
    **dict.fromkeys(("two-stage", "two-stage-test-teacher", "two-stage-mcl", "two-stage-rules"), "two-stage"),
    **dict.fromkeys(
        ("warmup-pla", "warmup-pla-mcl", "warmup-pla-rules", "warmup-pla-fixed"), "warm-up + PLA"
    ),
    **dict.fromkeys(("warmup",), "warm-up"),
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
    """A run, with what its files say."""

    run: Run
    recorded: Recorded
    result: dict[str, Any] | None  # None: training has not ended

    @staticmethod
    def of(run: Run) -> "RunSummary":
        """Read the files of a run."""
        records, observed = (
            tuple(journal.read(run.folder / name)) for name in (layout.JOURNAL, layout.ANALYSIS)
        )
        result = run.result if (run.folder / layout.RESULT).exists() else None
        if result is not None and (
            lacking := [key for key in ("selection", "last_epoch", "flags") if key not in result]
        ):
            raise AtclError(
                f"{run.folder / 'result.json'} lacks {', '.join(lacking)}: it is not of this version; leave the run out, or train it again"
            )
        return RunSummary(run, Recorded(run.recipe, run.seed, run.folder, records, observed), result)

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """What was measured of the reported epoch, by attack."""
        return {} if self.result is None else self.result["metrics"]

    @property
    def last(self) -> dict[str, dict[str, Any]]:
        """What was measured of the last epoch, by attack."""
        return {} if self.result is None else self.result["last_epoch"]["metrics"]

    @property
    def epoch(self) -> int | None:
        """The reported epoch, counted through all stages."""
        if self.result is None:
            return None
        chosen = self.result["selection"]
        return sum(stage.epochs for stage in self.run.recipe.stages[: chosen["stage"]]) + int(chosen["epoch"])

    @property
    def rule(self) -> str:
        """The name of the rule that chose the reported epoch."""
        return self.run.recipe.selection if self.result is None else str(self.result["selection"]["rule"])

    @property
    def crafted(self) -> set[str]:
        """What PGD20 after each epoch was computed in, where the journal says so."""
        return {str(one["crafted"]) for one in self.recorded.records if one.get("crafted")}

    @property
    def epochs(self) -> tuple[int, int]:
        """How many epochs are done, and how many there will be."""
        return len(self.recorded.records), sum(stage.epochs for stage in self.run.recipe.stages)


@dataclass(frozen=True)
class Group:
    """Runs of one recipe that differ in their seed, under one name and in one colour."""

    label: str
    style: Style
    members: tuple[RunSummary, ...]

    @cached_property
    def recipe(self) -> Recipe:
        """What they have in common."""
        return self.members[0].run.recipe

    @property
    def seeds(self) -> str:
        """The seeds that are finished, in words, and how many are not."""
        named = self.finished or self.members
        return f"seed{'s' * (len(named) > 1)} {', '.join(str(one.run.seed) for one in named)}" + (
            f" ({self.pending})" if self.pending else ""
        )

    @property
    def pending(self) -> str:
        """How many runs are not finished, in words; empty where all are."""
        number = len(self.members) - len(self.finished)
        return "" if not number else f"{number} not finished" if self.finished else "not finished"

    @property
    def finished(self) -> tuple[RunSummary, ...]:
        """Those whose training has ended."""
        return tuple(one for one in self.members if one.result is not None)

    @property
    def rule(self) -> str:
        """How the reported epochs were chosen."""
        return " / ".join(dict.fromkeys(one.rule for one in self.members))

    def cell(self, attack: str, *, last: bool = False) -> Cell:
        """Return what was measured by an attack over the seeds, beside what is published for this recipe where the paper chose alike."""
        found = [
            metrics[attack]
            for one in self.finished
            if attack in (metrics := one.last if last else one.metrics)
        ]
        flags = tuple(sorted({flag for one in found for flag in one.get("flags") or ()}))
        theirs = (published(self.recipe) or {}).get(attack) if self.rule == RULE and not last else None
        return Cell(tuple(one["accuracy"] for one in found), flags, theirs)


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Return the runs in groups: those of the same recipe and data are one, but a seed that comes again opens another, for it would count twice."""
    found: dict[Any, list[RunSummary]] = {}
    times: Counter[Any] = Counter()
    for run in runs:
        kind = (run.name, run.recipe, run.classes, _source(run))
        found.setdefault((kind, times[kind, run.seed]), []).append(RunSummary.of(run))
        times[kind, run.seed] += 1
    groups = [
        Group(title(members[0].run), STYLES.get(title(members[0].run), SERIES[0]), tuple(members))
        for members in found.values()
    ]
    labels, styles = [group.label for group in groups], _styles(groups)
    return [
        replace(
            group,
            label=f"{group.label} ({detail(group, groups)})"
            if labels.count(group.label) > 1
            else group.label,
            style=style,
        )
        for group, style in zip(groups, styles, strict=True)
    ]


def _styles(groups: Sequence[Group]) -> list[Style]:
    """Return a look for each group: that of its method, which of several the recipe as it is has; others take one that is free, of another dash."""
    found: dict[int, Style] = {}
    for at in sorted(range(len(groups)), key=lambda at: overrides(groups[at].members[0].run) != []):
        own, free = (
            groups[at].style,
            [one for one in (*SERIES, *STYLES.values()) if one not in found.values()],
        )
        found[at] = (
            own if own not in found.values() else next((one for one in free if one.dash != own.dash), own)
        )
    return [found[at] for at in range(len(groups))]


def _source(run: Run) -> Any:
    """Return what data of one's own are known by: their digest, or for a run of before it was kept the folder that the run lies in."""
    if run.recipe.dataset != OWN:
        return None
    return read_json(run.folder / layout.RECIPE).get("source") or run.folder.resolve().parent


def title(run: Run) -> str:
    """Return how a run's method is called in figures; one that has no name there keeps its own."""
    method = run.name.partition("/")[2]
    return METHOD_TITLES.get(method, method or run.name)


def changed(run: Run) -> bool:
    """Tell whether a run's settings are others than those of the recipe that it names."""
    return run.name in RECIPES and not is_plain(run.name, run.recipe)


def detail(group: Group, groups: Sequence[Group]) -> str:
    """Return what tells a group from others of the same method: its recipe's name, what is changed in it, or where it lies."""
    alike = [other for other in groups if other.label == group.label]
    run = group.members[0].run
    named = [other for other in alike if other.members[0].run.name == run.name]
    same = [other for other in named if other.recipe == run.recipe]
    told = [run.name] if len(named) < len(alike) else []
    if len(same) < len(named):
        changed = overrides(run)
        words = (
            " ".join(changed[:4]).replace("--", "") + (" …" if len(changed) > 4 else "")
            if changed
            else digest(run.recipe)
        )
        told = [words if changed else f"{run.name}, {words}"]
    if len(same) > 1:
        places = [other.members[0].run.folder.resolve() for other in same]
        told.append(
            os.path.relpath(run.folder.resolve(), os.path.commonpath(places))
            + (", …" if len(group.members) > 1 else "")
        )
    return ", ".join(told)


def overrides(run: Run) -> list[str] | None:
    """Return the words that turn the recipe of a run's name into the run's own; None where no words can."""
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


def rerun(told: RunSummary) -> str:
    """Return the command that trains the same run again, into a new folder; where no command can say its recipe, the lines of Python."""
    run, place = told.run, (told.result or {}).get("environment", {})
    again = str(run.folder.with_name(f"{run.folder.name}-again"))
    words = overrides(run)
    if words is None or run.recipe.model not in MODELS:
        # what files say becomes part of a line only as a literal or a bare name: nobody should copy what a stranger wrote
        model = run.recipe.model if str(run.recipe.model).isidentifier() else "MODEL"
        yours = ", problem=PROBLEM" * (run.recipe.dataset == OWN) + f", build={model}" * (
            run.recipe.model not in MODELS
        )
        return f"import atcl\n\natcl.train(atcl.open_run({str(run.folder)!r}).recipe, seed={run.seed!r}{yours}, out={again!r})"
    own = ["--images", "FOLDER", "--labels", "FILE.csv"] if run.recipe.dataset == OWN else []
    on_cpu = "CPU" in str(place.get("device", ""))
    device = ["--device", "cpu" if on_cpu else "cuda"] if place else []
    observed = {key for record in told.recorded.observed for key in record}
    looks = {"gradients": "gradient.variance", "attacks": "attack.log.cosine", "test": "test_pgd20"}
    observe = [name for name, key in looks.items() if key in observed]
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
    # on a CPU the number of threads decides the last bits
    return (
        f"OMP_NUM_THREADS={place['threads']} {said}"
        if on_cpu and isinstance(place.get("threads"), int)
        else said
    )


def chosen_by(told: RunSummary) -> str:
    """Return in words which epoch is reported, and by which rule."""
    rule, stages = RULES.get(told.rule), told.run.recipe.stages
    if told.result is None:
        return f"will report {'the last epoch' if rule is None else f'the epoch with {rule.about}'}"
    where = f" of stage {told.result['selection']['stage'] + 1}" if len(stages) > 1 else ""
    number = told.result["selection"]["epoch"]
    return f"epoch {number}{where}, " + ("the last" if rule is None else f"chosen for {rule.about}")


def mean_and_spread(values: Sequence[float], digits: int = 2) -> str:
    """Return a mean, with the standard deviation (ddof = 0) where there are several values."""
    deviation = f" ± {statistics.pstdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{deviation}"
