"""A run and its folder: what it trains on, where it lies, its chosen model and its result."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator
from torch.nn import Module

from atcl import checkpoints, journal
from atcl.batches import WeakData
from atcl.books import digest_of, fingerprint_of
from atcl.data import DATASETS
from atcl.environment import precision, resolve
from atcl.errors import AtclError, pick
from atcl.files import read_json, sole_writer, write_json
from atcl.masking import suspicions
from atcl.models import MODELS
from atcl.recipes import KINDS, RECIPES, Recipe, recipe
from atcl.settings import differences, digest, from_data, to_data
from atcl.tasks import OWN
from atcl.truth import Split, Truth
from atcl.verdicts import WORST, Measurement, Watch, flagged, measure

REPORTED = ("natural", "pgd20", "cw30")

Build = Callable[[], Module]


@dataclass(frozen=True)
class Problem:
    """Weak labels to learn from, and, for looking on only, the truth."""

    train: WeakData
    truth: Truth | None = None  # of the training images: for the accuracy of pseudo-labels in the journal
    test: Split | None = None
    held: WeakData | None = None  # to choose and judge by without truth; a recipe's `holdout` takes it from the training images
    names: tuple[str, ...] | None = None  # of the classes
    source: str | None = None  # digest of the training images before some were held out, the same for every seed

    def __post_init__(self) -> None:
        if self.names is not None and len(set(self.names)) != self.train.classes:
            raise AtclError(f"there are {self.train.classes} classes but {len(set(self.names))} different names for them")
        if self.held is not None and (self.held.classes, self.held.x.shape[1:]) != (self.train.classes, self.train.x.shape[1:]):
            raise AtclError("held-out and training images differ in shape or in the number of classes")
        if self.truth is not None and len(self.truth.labels) != len(self.train):
            raise AtclError(f"there are {len(self.train)} training images but {len(self.truth.labels)} true labels")
        if self.test is None:
            return
        if len(self.test) == 0:
            raise AtclError("the test set is empty: give images, or no test set")
        if self.test.x.shape[1:] != self.train.x.shape[1:] or self.test.truth.classes != self.train.classes:
            raise AtclError(
                f"training and test set differ: images {tuple(self.train.x.shape[1:])} and {tuple(self.test.x.shape[1:])}, "
                f"classes {self.train.classes} and {self.test.truth.classes}"
            )

    def held_out(self, share: float, seed: int) -> "Problem":
        """Return the problem with a random share of the training images held out."""
        number = round(share * len(self.train))
        if not 0 < number < len(self.train):
            raise AtclError(f"a holdout of {share} takes {number} of {len(self.train)} images: leave some on both sides")
        order = torch.randperm(len(self.train), generator=Generator().manual_seed(seed)).to(self.train.device)
        held, rest = order[:number].sort().values, order[number:].sort().values
        truth = None if self.truth is None else Truth(self.truth.labels[rest.to(self.truth.labels.device)], self.truth.classes)
        return replace(self, train=self.train.take(rest), truth=truth, held=self.train.take(held), source=_weak_digest(self.train))

    def to(self, device: torch.device) -> "Problem":
        """Return the problem with what training sees, and what it is chosen by, on a device."""
        return replace(self, train=self.train.to(device), held=None if self.held is None else self.held.to(device))

    def fingerprints(self) -> dict[str, str | None]:
        """Return digests of what training sees, of the held-out part, and of the test set."""
        return {
            "data": _weak_digest(self.train),
            "held": None if self.held is None else _weak_digest(self.held),
            "test": None if self.test is None else fingerprint_of(self.test),
        }


@dataclass(frozen=True)
class Run:
    """A folder with `recipe.json`, `journal.jsonl`, `checkpoints/`, `model.safetensors` and `result.json`."""

    folder: Path
    name: str
    seed: int
    recipe: Recipe
    classes: int
    shape: tuple[int, int, int]  # (C, H, W) of an image
    names: tuple[str, ...] | None = None  # of the classes, where they have any

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class, its number where it has none."""
        return self.names or tuple(map(str, range(self.classes)))

    @property
    def result(self) -> dict[str, Any]:
        """What `result.json` says; it is there once training has ended."""
        path = self.folder / "result.json"
        if not path.exists():
            raise AtclError(f"{self.folder} has no result yet: the same `atcl train` command goes on with it")
        told = read_json(path)
        if not isinstance(told, dict) or not isinstance(told.get("metrics"), dict):
            raise AtclError(f"{path} is not the result of a run: remove it, and the same `atcl train` command writes it again")
        return told

    @property
    def journal(self) -> list[journal.Record]:
        """One record an epoch."""
        return journal.read(self.folder / "journal.jsonl")

    def fresh_model(self, build: Build | None = None) -> Module:
        """Return a new model of the recipe's kind; a model of your own needs `build`."""
        return build() if build else pick(MODELS, self.recipe.model, "model")(self.classes, self.shape)

    def model(self, device: str = "cpu", build: Build | None = None) -> Module:
        """Return the chosen model, in eval mode; a model of your own needs `build` again."""
        path = self.folder / "model.safetensors"
        if not path.exists():
            raise AtclError(f"{self.folder} has no model yet: the same `atcl train` command goes on with it")
        model = self.fresh_model(build)
        try:
            model.load_state_dict(checkpoints.unpacked(path.read_bytes(), path))
        except RuntimeError:
            raise AtclError(f"{path} holds the weights of another model than {self.recipe.model}") from None
        return model.to(resolve(device)).eval()

    def evaluate(
        self, attacks: Sequence[str] = REPORTED, *, device: str = "auto", test: Split | None = None, seed: int = 0, batch_size: int | None = None,
        build: Build | None = None, data_dir: Path | None = None, checks: bool = True, strict_fp32: bool = False, watch: Watch | None = None,
    ) -> dict[str, Measurement]:  # fmt: skip
        """Measure the chosen model; numbers of the recipe's own test set are kept in `result.json`, those of a `test` you bring are not."""
        model = self.model(device, build)
        _ = self.result  # there is none before training has ended
        with precision(strict_fp32):
            if test is not None:
                found = measure(model, test, self.recipe.threat, attacks, seed=seed, batch_size=batch_size, watch=watch)
                return flagged(found, [flag.name for flag in suspicions(model, test.x, test.truth.labels, self.recipe.threat)]) if checks else found
            if self.recipe.dataset == OWN:
                raise AtclError("this run learnt from data of your own: give `test` to evaluate on (in the shell: --images FOLDER --labels FILE.csv)")
            with sole_writer(self.folder):
                told = self.result
                official = pick(DATASETS, self.recipe.dataset, "dataset")(data_dir).test
                if fingerprint_of(official) != _get(read_json(self.folder / "recipe.json"), "test"):
                    raise AtclError("this test set is not the one that the run was made with: give its folder with --data-dir")
                measured = measure(
                    model, official, self.recipe.threat, attacks, seed=seed, batch_size=batch_size, keep=self.folder / "evaluation", extend=True,
                    watch=watch,
                )  # fmt: skip
                if checks:
                    told["flags"] = [asdict(flag) for flag in suspicions(model, official.x, official.truth.labels, self.recipe.threat)]
                if told["flags"] is not None:  # signs that were found once stay, whoever measures next without looking
                    measured = flagged(measured, [flag["name"] for flag in told["flags"]])
                told["metrics"] |= {name: asdict(one) for name, one in measured.items()}
                write_json(self.folder / "result.json", told)
        return {name: one for name, one in measured.items() if name in (*attacks, WORST)}

    def claim(self, problem: Problem) -> None:
        """Write `recipe.json`, or refuse a folder that holds another recipe, seed or dataset."""
        path = self.folder / "recipe.json"
        prints = problem.fingerprints()
        told = {
            "name": self.name, "seed": self.seed, "classes": self.classes, "shape": list(self.shape),
            **prints, "source": problem.source or prints["data"], "names": None if self.names is None else list(self.names),
            "recipe": to_data(self.recipe),
        }  # fmt: skip
        begun = checkpoints.stored(self.folder / "checkpoints") or (self.folder / "result.json").exists()
        if begun and not path.exists():
            raise AtclError(f"{self.folder} holds a run, but no recipe.json to say which: choose another folder")
        if not begun:  # nothing would be lost, as after a start that failed
            write_json(path, told)
            return
        held = {**read_json(path), "recipe": to_data(open_run(self.folder).recipe)}  # with settings that came later at their defaults
        binding = ("recipe", "seed", "data", "names", *sorted(self.recipe.needs))
        differing = [name for key in binding for name in differences(_get(held, key), told[key], key)]
        if differing:
            raise AtclError(f"{self.folder} holds another run, which differs in {', '.join(differing[:3])}: choose another folder")


def _weak_digest(data: WeakData) -> str:
    return digest_of([data.x, data.candidates, *([] if data.transition is None else [data.transition])])


def _get(told: Any, key: str) -> Any:
    return told.get(key) if isinstance(told, dict) else None


def open_run(folder: Path | str) -> Run:
    """Return the run that lies in a folder."""
    path = Path(folder) / "recipe.json"
    if not path.exists():
        entry = (Path(folder) / "result.json").exists()
        what = "an entry of a ledger, which has a result and no model" if entry else "not the folder of a run"
        raise AtclError(f"{folder} is {what}: there is no recipe.json in it; give the folder that `atcl train` wrote")
    told = read_json(path)
    try:
        channels, height, width = told["shape"]
        names = tuple(told["names"]) if told.get("names") else None
        return Run(Path(folder), told["name"], told["seed"], from_data(told["recipe"], KINDS), told["classes"], (channels, height, width), names)
    except (KeyError, TypeError, ValueError) as error:
        raise AtclError(f"{path} is not of a run: {type(error).__name__} {error}") from None


def name_of(wanted: Recipe) -> str:
    """Return the name of a recipe: its own, or for a variant its dataset's with `custom`."""
    own = (name for name in RECIPES if name.startswith(f"{wanted.dataset}/"))
    return next((name for name in own if recipe(name) == wanted), f"{wanted.dataset}/custom")


def is_plain(name: str, wanted: Recipe) -> bool:
    """Tell whether settings are those of the recipe of a name."""
    return name in RECIPES and recipe(name) == wanted


def folder_of(name: str, wanted: Recipe) -> tuple[str, str]:
    """Return dataset and method, the method with a digest where the settings are not those of the named recipe."""
    dataset, _, method = name.partition("/")
    return dataset, method if is_plain(name, wanted) else f"{method}-{digest(wanted)}"
