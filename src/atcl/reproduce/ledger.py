"""The ledger in `results/`: where the result of a run lies, which are there, and what a table still lacks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atcl.core.errors import AtclError
from atcl.core.files import read_json, write_json, write_whole
from atcl.core.journal import Record, read
from atcl.core.settings import digest, from_data
from atcl.recipes.catalogue import with_derived_weights
from atcl.recipes.schema import KINDS, Recipe
from atcl.reproduce.experiments import MEASURED, Experiment
from atcl.reproduce.published import RecipeRef, card
from atcl.runs import layout
from atcl.runs.run import Run, folder_of

# Test sets that are not the official files, by their digest, with what is said beside each number (docs/datasets.md).
UNOFFICIAL = {"c10fd32a29cea2d9": "reconstructed data"}
OTHER_WEIGHTS = "other initial weights"  # than the official code's (docs/reproduction.md)


@dataclass(frozen=True)
class Entry:
    """A run that the ledger holds."""

    path: Path
    seed: int
    result: dict[str, Any]
    notes: tuple[str, ...] = ()  # what is said beside each of its numbers

    @property
    def rule(self) -> str:
        """How its reported epoch was chosen."""
        return str(self.result["selection"]["rule"])

    @property
    def journal(self) -> list[Record]:
        """Its epochs; none where they were not kept."""
        return read(self.path.with_name(layout.JOURNAL))


@dataclass(frozen=True)
class Job:
    """A run that is to be made, or to be measured further, as data: any process of any machine with the same files can take it."""

    what: RecipeRef
    seed: int
    attacks: tuple[str, ...]
    path: Path  # of its result.json in the ledger
    folder: Path  # of the run
    device: str = "auto"
    data_dir: Path | None = None
    journals: bool = False  # whether its epochs are asked for

    def __str__(self) -> str:
        return f"{self.what.words}, seed {self.seed}"

    @property
    def new(self) -> bool:
        """Whether it has still to be trained."""
        return not self.path.exists()

    @property
    def lacks(self) -> tuple[str, ...]:
        """What the ledger does not hold of it yet."""
        if self.new:
            return ("all",)
        told = read_json(self.path)
        if flaw(told):
            return ()  # that is no result: whoever reads the table is told
        measured = told["metrics"]
        journal = ("journal",) if self.journals and not self.path.with_name(layout.JOURNAL).exists() else ()
        return (*(name for name in self.attacks if name not in measured), *journal)

    @property
    def possible(self) -> bool:
        """Whether it can be done: one that is only to be measured needs the model that the ledger speaks of."""
        return self.new or (
            (self.folder / layout.MODEL).exists()
            and _weights(self.folder / layout.RESULT) == _weights(self.path)
        )


def result_path(results: Path, what: RecipeRef, seed: int) -> Path:
    """Return where the ledger keeps a result: dataset, method with a digest of its settings, seed."""
    return _path(results, what.name, what.recipe, seed)


def _path(results: Path, name: str, wanted: Recipe, seed: int) -> Path:
    dataset, _, method = name.partition("/")
    return results / dataset / f"{method}-{digest(wanted)}" / f"seed-{seed}" / layout.RESULT


def _notes(told: dict[str, Any]) -> tuple[str, ...]:
    note = UNOFFICIAL.get(told.get("data", {}).get("test"))
    return () if note is None else (note,)


def attacks_of(
    experiment: Experiment, dataset: str, strong: bool, named: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return what its runs are measured by: AutoAttack only where the table has it and the device is strong enough, or where it is named."""
    own = [
        name
        for name in experiment.columns
        if name == "autoattack" and strong and dataset not in experiment.stand_ins
    ]
    return tuple(dict.fromkeys([*MEASURED, *own, *named]))


def jobs_of(
    experiment: Experiment,
    results: Path,
    runs: Path = Path("runs"),
    *,
    strong: bool = False,
    attacks: Sequence[str] = (),
    device: str = "auto",
    data_dir: Path | None = None,
) -> list[Job]:
    """Return all runs of an experiment, done or not."""
    jobs = []
    for dataset, what, seed in experiment.runs():
        wanted, path = attacks_of(experiment, dataset, strong, attacks), result_path(results, what, seed)
        folder = runs.joinpath(*folder_of(what.name, what.recipe), f"seed-{seed}")
        jobs.append(Job(what, seed, wanted, path, folder, device, data_dir, experiment.journals))
    return jobs


def store(run: Run, path: Path) -> None:
    """Put a finished run into the ledger: its epochs first, since the result says that all is there."""
    try:
        _store(run, path)
    except OSError as error:
        raise AtclError(
            f"{path} cannot be written ({error.strerror}): the run lies whole in {run.folder}, and the same command stores it"
        ) from None


def _store(run: Run, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path.with_name(layout.JOURNAL), (run.folder / layout.JOURNAL).read_bytes())
    if (run.folder / layout.ANALYSIS).exists():
        write_whole(path.with_name(layout.ANALYSIS), (run.folder / layout.ANALYSIS).read_bytes())
    else:
        path.with_name(layout.ANALYSIS).unlink(missing_ok=True)  # of a run that was removed
    write_json(path, {**run.result, "published": card(run.recipe)})


def entries(experiment: Experiment, results: Path, what: RecipeRef) -> list[Entry]:
    """Return the results of a run that the ledger holds, by seed; one made with other settings than it says is refused.

    Runs of the paper's datasets once drew other initial weights. Until as many are made anew, those stand in the table, and say so; the two are
    never averaged.
    """
    wanted, other = what.recipe, with_derived_weights(what.recipe)
    made = _entries(experiment, results, what, wanted)
    before = _entries(experiment, results, what, other) if other != wanted else []
    return (
        made
        if len(made) >= len(before)
        else [replace(one, notes=(*one.notes, OTHER_WEIGHTS)) for one in before]
    )


def _entries(experiment: Experiment, results: Path, what: RecipeRef, wanted: Recipe) -> list[Entry]:
    found = list[Entry]()
    for seed in experiment.seeds:
        path = _path(results, what.name, wanted, seed)
        if path.exists():
            told = _told(path)
            wrong = flaw(told)
            if wrong:
                raise AtclError(f"{path} {wrong}: remove it, and it is made again")
            if from_data(told.get("recipe"), KINDS) != wanted:
                raise AtclError(
                    f"{path} was made with other settings than {what.words} has now: remove it, and it is made again"
                )
            if told.get("seed", seed) != seed:
                raise AtclError(f"{path} is of seed {told['seed']}: remove it, and it is made again")
            attack_model = next(
                (one.path for one in found if told.get("model") and told["model"] == one.result.get("model")),
                None,
            )
            if attack_model:  # no two seeds end with the same weights
                raise AtclError(
                    f"{path} speaks of the same model as {attack_model}: remove it, and it is made again"
                )
            found.append(Entry(path, seed, told, _notes(told)))
    return found


def _told(path: Path) -> Any:
    try:
        return read_json(path)
    except AtclError as error:
        raise AtclError(f"{error}; remove it, and it is made again") from None


def flaw(told: Any) -> str | None:
    """Return what is wrong with a result, in words, where a table could not be made of it (docs/result.schema.json)."""
    if not isinstance(told, dict) or not isinstance(told.get("metrics"), dict):
        return "is not the result of a run"
    lacking = [name for name in MEASURED if name not in told["metrics"]]
    if lacking:
        return f"lacks {', '.join(lacking)}"
    if (
        not isinstance(told.get("selection"), dict)
        or not isinstance(told["selection"].get("rule"), str)
        or not isinstance(told.get("recipe"), dict)
    ):
        return "does not say by which recipe and rule it was made"
    last, engine = told.get("last_epoch"), told.get("engine") or {}
    if not isinstance(last, dict) or not isinstance(last.get("metrics"), dict):
        return "has no last_epoch with its metrics"
    for name, one in [*told["metrics"].items(), *last["metrics"].items()]:
        if (
            not isinstance(one, dict)
            or not _within(one.get("accuracy"), 100)
            or not _within(one.get("seconds"), math.inf)
        ):
            return f"has no accuracy of {name} between 0 and 100, or no time that it took"
        if not isinstance(one.get("flags", []), list | None) or not isinstance(one.get("machine", {}), dict):
            return f"does not say by which machine, and with which flags, {name} was measured"
    if not _within(told.get("training_seconds"), math.inf) or not isinstance(told.get("environment"), dict):
        return "does not say how long it trained, and where"
    together = engine.get("together", 1) if isinstance(engine, dict) else None
    if (
        not isinstance(together, int)
        or together < 1
        or not _within(engine.get("peak_gpu_bytes") or 0, math.inf)
    ):
        return "has an engine that no run has"
    if not isinstance(told.get("data", {}), dict):
        return "does not say on which data it was made"
    return None


def _within(number: object, largest: float) -> bool:
    return isinstance(number, int | float) and 0 <= number <= largest  # what is not a number is not within


def _weights(path: Path) -> Any:
    """Return the digest of the model that a result speaks of; nothing equals what cannot be read."""
    told = read_json(path) if path.exists() else None
    return told["model"] if isinstance(told, dict) and "model" in told else object()
