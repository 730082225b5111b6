"""The ledger in `results/`: where the results of runs are kept, and what is missing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atcl.core.errors import AtclError
from atcl.core.files import read_json, write_json, write_whole
from atcl.core.journal import Record, read
from atcl.core.settings import digest, from_data
from atcl.evaluation.reported import REPORTED
from atcl.recipes.catalogue import with_derived_weights
from atcl.recipes.schema import Recipe, kinds
from atcl.reproduce.experiments import Experiment
from atcl.reproduce.published import RecipeRef, card
from atcl.runs import layout
from atcl.runs.result import Result, result_from_json
from atcl.runs.run import Run, folder_of

# test sets that are not the official files, by digest, with a note for each number (docs/datasets.md)
UNOFFICIAL = {"c10fd32a29cea2d9": "reconstructed data"}
AGAIN = ": remove it, and it is made again"
OTHER_WEIGHTS = "other initial weights"  # than those of the official code (docs/reproduction.md)


@dataclass(frozen=True)
class Entry:
    """A run in the ledger."""

    path: Path
    seed: int
    result: Result
    notes: tuple[str, ...] = ()  # shown beside each of its numbers

    @property
    def rule(self) -> str:
        """The name of the rule that chose its reported epoch."""
        return self.result.selection.rule

    @property
    def journal(self) -> list[Record]:
        """The records of its epochs; empty if they were not kept."""
        return read(self.path.with_name(layout.JOURNAL))


@dataclass(frozen=True)
class Job:
    """A run to train or to evaluate, as data that any process with the same files can use.

    Args:
        what: its recipe.
        seed: its seed.
        attacks: what it is evaluated with.
        path: its result.json in the ledger.
        folder: the folder of the run.
        device: auto, cpu or cuda.
        data_dir: where the dataset's files lie.
        journals: whether the ledger also needs the records of its epochs.
    """

    what: RecipeRef
    seed: int
    attacks: tuple[str, ...]
    path: Path
    folder: Path
    device: str = "auto"
    data_dir: Path | None = None
    journals: bool = False

    def __str__(self) -> str:
        return f"{self.what.words}, seed {self.seed}"

    @property
    def new(self) -> bool:
        """Whether it is not trained yet."""
        return not self.path.exists()

    @property
    def lacks(self) -> tuple[str, ...]:
        """The parts of it that the ledger lacks: "all", attacks, or "journal"."""
        if self.new:
            return ("all",)
        try:
            measured = read_result(self.path).metrics
        except AtclError:
            return ()  # not a valid result: reading the table says so
        journal = ("journal",) if self.journals and not self.path.with_name(layout.JOURNAL).exists() else ()
        return (*(name for name in self.attacks if name not in measured), *journal)

    @property
    def possible(self) -> bool:
        """Whether it can be made; to evaluate a run of the ledger, its own model must be there."""
        return self.new or (
            (self.folder / layout.MODEL).exists()
            and _weights(self.folder / layout.RESULT) == _weights(self.path)
        )


def result_path(results: Path, what: RecipeRef, seed: int) -> Path:
    """Return the path of a result in the ledger: dataset, method with a digest of its settings, seed."""
    return _path(results, what.name, what.recipe, seed)


def _path(results: Path, name: str, wanted: Recipe, seed: int) -> Path:
    dataset, _, method = name.partition("/")
    return results / dataset / f"{method}-{digest(wanted)}" / f"seed-{seed}" / layout.RESULT


def _notes(result: Result) -> tuple[str, ...]:
    note = UNOFFICIAL.get(str(result.data.get("test")))
    return () if note is None else (note,)


def attacks_of(
    experiment: Experiment, dataset: str, strong: bool, named: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the attacks that the runs of an experiment are evaluated with.

    AutoAttack is one of them if it is named, or if the table has it and the device is strong enough.
    """
    own = [
        name
        for name in experiment.columns
        if name == "autoattack" and strong and dataset not in experiment.stand_ins
    ]
    return tuple(dict.fromkeys([*REPORTED, *own, *named]))


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
    """Return a job for each run of an experiment, done or not."""
    jobs = []
    for dataset, what, seed in experiment.runs():
        wanted, path = attacks_of(experiment, dataset, strong, attacks), result_path(results, what, seed)
        folder = runs.joinpath(*folder_of(what.name, what.recipe), f"seed-{seed}")
        jobs.append(Job(what, seed, wanted, path, folder, device, data_dir, experiment.journals))
    return jobs


def store(run: Run, path: Path) -> None:
    """Put a finished run into the ledger: its epochs first, since a result there counts as complete.

    Raises:
        AtclError: a file cannot be written.
    """
    try:
        _store(run, path)
    except OSError as error:
        raise AtclError(
            f"{path} cannot be written ({error.strerror}): the run lies whole in {run.folder}, "
            "and the same command stores it"
        ) from None


def _store(run: Run, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path.with_name(layout.JOURNAL), (run.folder / layout.JOURNAL).read_bytes())
    if (run.folder / layout.ANALYSIS).exists():
        write_whole(path.with_name(layout.ANALYSIS), (run.folder / layout.ANALYSIS).read_bytes())
    else:
        path.with_name(layout.ANALYSIS).unlink(missing_ok=True)  # of a run that was removed
    write_json(path, {**run.result.to_json(), "published": card(run.recipe)})


def entries(experiment: Experiment, results: Path, what: RecipeRef) -> list[Entry]:
    """Return the results of a recipe in the ledger, by seed.

    Runs of the paper's datasets once drew other initial weights. As long as there are more of those, they are
    returned, with a note; the two kinds are never mixed.

    Raises:
        AtclError: a result was made with other settings or another seed than its path says.
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
        if not path.exists():
            continue
        result = read_result(path)
        if from_data(result.recipe, kinds()) != wanted:
            raise AtclError(f"{path} was made with other settings than {what.words} has now{AGAIN}")
        if result.seed != seed:
            raise AtclError(f"{path} is of seed {result.seed}{AGAIN}")
        copied = next((one.path for one in found if result.model and result.model == one.result.model), None)
        if copied:  # no two seeds end with the same weights
            raise AtclError(f"{path} speaks of the same model as {copied}{AGAIN}")
        found.append(Entry(path, seed, result, _notes(result)))
    return found


def read_result(path: Path) -> Result:
    """Return a result of the ledger that has all that a table needs.

    Raises:
        AtclError: the file is not such a result.
    """
    try:
        result = result_from_json(read_json(path))
    except ValueError as error:
        raise AtclError(f"{path} {error}{AGAIN}") from None
    except AtclError as error:
        raise AtclError(f"{error}{AGAIN}") from None
    lacking = [name for name in REPORTED if name not in result.metrics]
    if lacking:
        raise AtclError(f"{path} lacks {', '.join(lacking)}{AGAIN}")
    return result


def _weights(path: Path) -> Any:
    """Return the digest of the model of a result; of an unreadable file, a value that equals nothing."""
    data = read_json(path) if path.exists() else None
    return data["model"] if isinstance(data, dict) and "model" in data else object()
