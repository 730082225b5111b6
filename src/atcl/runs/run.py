"""A run and its folder: what it trains on, where it lies, its chosen model and its result."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.nn import Module

from atcl.core import checkpoints, journal
from atcl.core.device import precision, resolve
from atcl.core.errors import AtclError, pick
from atcl.core.files import read_json, sole_writer, write_json
from atcl.core.settings import differences, digest, from_data, to_data
from atcl.datasets.sources import DATASETS
from atcl.datasets.truth import Split
from atcl.evaluation.attacks import WORST
from atcl.evaluation.cache import fingerprint_of
from atcl.evaluation.evaluate import Measurement, Watch, flagged, measure
from atcl.evaluation.masking import suspicions
from atcl.models import MODELS
from atcl.recipes.catalogue import RECIPES, recipe
from atcl.recipes.schema import KINDS, OWN, Recipe
from atcl.runs import layout
from atcl.runs.problem import Build, Problem

REPORTED = ("natural", "pgd20", "cw30")


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
        path = self.folder / layout.RESULT
        if not path.exists():
            raise AtclError(f"{self.folder} has no result yet: the same `atcl train` command goes on with it")
        told = read_json(path)
        if not isinstance(told, dict) or not isinstance(told.get("metrics"), dict):
            raise AtclError(
                f"{path} is not the result of a run: remove it, and the same `atcl train` command writes it again"
            )
        return told

    @property
    def journal(self) -> list[journal.Record]:
        """One record an epoch."""
        return journal.read(self.folder / layout.JOURNAL)

    def fresh_model(self, build: Build | None = None) -> Module:
        """Return a new model of the recipe's kind; a model of your own needs `build`."""
        return build() if build else pick(MODELS, self.recipe.model, "model")(self.classes, self.shape)

    def model(self, device: str = "cpu", build: Build | None = None) -> Module:
        """Return the chosen model, in eval mode; a model of your own needs `build` again."""
        path = self.folder / layout.MODEL
        if not path.exists():
            raise AtclError(f"{self.folder} has no model yet: the same `atcl train` command goes on with it")
        model = self.fresh_model(build)
        try:
            model.load_state_dict(checkpoints.from_bytes(path.read_bytes(), path))
        except RuntimeError:
            raise AtclError(f"{path} holds the weights of another model than {self.recipe.model}") from None
        return model.to(resolve(device)).eval()

    def evaluate(
        self,
        attacks: Sequence[str] = REPORTED,
        *,
        device: str = "auto",
        test: Split | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        build: Build | None = None,
        data_dir: Path | None = None,
        checks: bool = True,
        strict_fp32: bool = False,
        watch: Watch | None = None,
    ) -> dict[str, Measurement]:
        """Measure the chosen model; numbers of the recipe's own test set are kept in `result.json`, those of a `test` you bring are not."""
        model = self.model(device, build)
        _ = self.result  # there is none before training has ended
        with precision(strict_fp32):
            if test is not None:
                found = measure(
                    model, test, self.recipe.threat, attacks, seed=seed, batch_size=batch_size, watch=watch
                )
                return (
                    flagged(
                        found,
                        [
                            flag.name
                            for flag in suspicions(model, test.x, test.truth.labels, self.recipe.threat)
                        ],
                    )
                    if checks
                    else found
                )
            if self.recipe.dataset == OWN:
                raise AtclError(
                    "this run learnt from data of your own: give `test` to evaluate on (in the shell: --images FOLDER --labels FILE.csv)"
                )
            with sole_writer(self.folder):
                told = self.result
                official = pick(DATASETS, self.recipe.dataset, "dataset")(data_dir).test
                if fingerprint_of(official) != _get(read_json(self.folder / layout.RECIPE), "test"):
                    raise AtclError(
                        "this test set is not the one that the run was made with: give its folder with --data-dir"
                    )
                measured = measure(
                    model,
                    official,
                    self.recipe.threat,
                    attacks,
                    seed=seed,
                    batch_size=batch_size,
                    keep=self.folder / layout.EVALUATION,
                    extend=True,
                    watch=watch,
                )
                if checks:
                    told["flags"] = [
                        asdict(flag)
                        for flag in suspicions(model, official.x, official.truth.labels, self.recipe.threat)
                    ]
                if (
                    told["flags"] is not None
                ):  # signs that were found once stay, whoever measures next without looking
                    measured = flagged(measured, [flag["name"] for flag in told["flags"]])
                told["metrics"] |= {name: asdict(one) for name, one in measured.items()}
                write_json(self.folder / layout.RESULT, told)
        return {name: one for name, one in measured.items() if name in (*attacks, WORST)}

    def claim(self, problem: Problem) -> None:
        """Write `recipe.json`, or refuse a folder that holds another recipe, seed or dataset."""
        path = self.folder / layout.RECIPE
        prints = problem.fingerprints()
        told = {
            "name": self.name,
            "seed": self.seed,
            "classes": self.classes,
            "shape": list(self.shape),
            **prints,
            "source": problem.source or prints["data"],
            "names": None if self.names is None else list(self.names),
            "recipe": to_data(self.recipe),
        }
        begun = checkpoints.stored(self.folder / layout.CHECKPOINTS) or (self.folder / layout.RESULT).exists()
        if begun and not path.exists():
            raise AtclError(
                f"{self.folder} holds a run, but no recipe.json to say which: choose another folder"
            )
        if not begun:  # nothing would be lost, as after a start that failed
            write_json(path, told)
            return
        held = {
            **read_json(path),
            "recipe": to_data(open_run(self.folder).recipe),
        }  # with settings that came later at their defaults
        binding = ("recipe", "seed", "data", "names", *sorted(self.recipe.needs))
        differing = [name for key in binding for name in differences(_get(held, key), told[key], key)]
        if differing:
            raise AtclError(
                f"{self.folder} holds another run, which differs in {', '.join(differing[:3])}: choose another folder"
            )


def _get(told: Any, key: str) -> Any:
    return told.get(key) if isinstance(told, dict) else None


def open_run(folder: Path | str) -> Run:
    """Return the run that lies in a folder."""
    path = Path(folder) / layout.RECIPE
    if not path.exists():
        entry = (Path(folder) / layout.RESULT).exists()
        what = "an entry of a ledger, which has a result and no model" if entry else "not the folder of a run"
        raise AtclError(
            f"{folder} is {what}: there is no recipe.json in it; give the folder that `atcl train` wrote"
        )
    told = read_json(path)
    try:
        channels, height, width = told["shape"]
        names = tuple(told["names"]) if told.get("names") else None
        return Run(
            Path(folder),
            told["name"],
            told["seed"],
            from_data(told["recipe"], KINDS),
            told["classes"],
            (channels, height, width),
            names,
        )
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
