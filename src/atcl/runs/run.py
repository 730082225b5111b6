"""A run and its folder: its recipe, its journal, its chosen model and its result."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.nn import Module

from atcl.core import checkpoints, journal
from atcl.core.device import resolve
from atcl.core.errors import AtclError, pick
from atcl.core.files import read_json, write_json
from atcl.core.settings import differences, digest, from_data, to_data
from atcl.datasets.truth import Split
from atcl.evaluation.evaluate import Measurement, Watch
from atcl.evaluation.reported import REPORTED
from atcl.models import MODELS
from atcl.recipes.catalogue import RECIPES, recipe
from atcl.recipes.schema import Recipe, kinds
from atcl.runs import layout
from atcl.runs.measure import Measuring, measure_run
from atcl.runs.problem import Build, Problem
from atcl.runs.result import Result, result_from_json


@dataclass(frozen=True)
class Run:
    """A run with its folder, which holds recipe, journal, checkpoints, chosen model and result.

    `train` and `open_run` return one.

    Args:
        folder: the folder of the run.
        name: its name, `dataset/method`.
        seed: its seed.
        recipe: its settings.
        classes: the number of classes.
        shape: (C, H, W) of an image.
        names: the names of the classes, if they have any.

    Examples:
        >>> run = Run(Path("runs/pets"), "own/oracle", 1, recipe("digits/oracle"), 3, (1, 8, 8))
        >>> run.class_names
        ('0', '1', '2')
        >>> run.evaluate(["natural", "autoattack"])["worst"].accuracy  # doctest: +SKIP
        58.7
    """

    folder: Path
    name: str
    seed: int
    recipe: Recipe
    classes: int
    shape: tuple[int, int, int]
    names: tuple[str, ...] | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class, or its number if it has no name."""
        return self.names or tuple(map(str, range(self.classes)))

    @property
    def result(self) -> Result:
        """What the run ended with; an AtclError before training has ended."""
        path = self.folder / layout.RESULT
        if not path.exists():
            raise AtclError(f"{self.folder} has no result yet: the same `atcl train` command goes on with it")
        try:
            return result_from_json(read_json(path))
        except ValueError as error:
            raise AtclError(
                f"{path} {error}: remove it, and the same `atcl train` command writes it again"
            ) from None

    @property
    def journal(self) -> list[journal.Record]:
        """One record for each epoch."""
        return journal.read(self.folder / layout.JOURNAL)

    def fresh_model(self, build: Build | None = None) -> Module:
        """Return a new model, the recipe's or that of `build`."""
        if build:
            return build()
        if self.recipe.model not in MODELS and (self.folder / layout.RECIPE).exists():
            raise AtclError(
                f"the run {self.folder} has a model of your own, {self.recipe.model}: "
                "give `build`, the function that returns a new one"
            )
        return pick(MODELS, self.recipe.model, "model")(self.classes, self.shape)

    def model(self, device: str = "cpu", build: Build | None = None) -> Module:
        """Return the chosen model, in eval mode.

        Args:
            device: auto, cpu or cuda.
            build: returns a new model of your own kind, if the run was trained with one.

        Raises:
            AtclError: the run has no model yet, or its weights are of another model.
        """
        path = self.folder / layout.MODEL
        if not path.exists():
            raise AtclError(f"{self.folder} has no model yet: the same `atcl train` command goes on with it")
        model = self.fresh_model(build)
        try:
            model.load_state_dict(checkpoints.from_bytes(path.read_bytes(), path))
        except RuntimeError:
            raise AtclError(
                f"{path} holds the weights of another model than {self.recipe.model}: "
                "a run with a model of your own needs `build`"
            ) from None
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
        """Evaluate the chosen model.

        Accuracies on the recipe's test set are kept in `result.json`; those on your own images are not.

        Args:
            attacks: names from `atcl list attacks`.
            device: auto, cpu or cuda.
            test: your own images with their true classes.
            seed: for the random starts of the attacks.
            batch_size: images at a time; by default what the device has room for.
            build: returns a new model of your own kind, if the run was trained with one.
            data_dir: folder of the dataset's files.
            checks: whether to look for signs of false robustness.
            strict_fp32: full fp32 on a GPU, where convolutions otherwise use tf32.
            watch: called with the attack, its pass, the number of images done, and that of all images.

        Returns:
            The accuracy under each attack and, of several, under the worst of them for each image.

        Raises:
            AtclError: the run is not finished, or its test set is missing or differs from that of the run.
        """
        how = Measuring(attacks, device, seed, batch_size, build, data_dir, checks, strict_fp32, watch)
        return measure_run(self, how, test)

    def claim(self, problem: Problem) -> None:
        """Write `recipe.json`, or refuse a folder that holds another run.

        Args:
            problem: the data of the run, whose fingerprints are written and compared.

        Raises:
            AtclError: the folder holds a run with another recipe, seed or dataset.
        """
        path = self.folder / layout.RECIPE
        fingerprints = problem.fingerprints()
        record = {
            "name": self.name,
            "seed": self.seed,
            "classes": self.classes,
            "shape": list(self.shape),
            **fingerprints,
            "source": problem.source or fingerprints["data"],
            "names": None if self.names is None else list(self.names),
            "recipe": to_data(self.recipe),
        }
        begun = checkpoints.stored(self.folder / layout.CHECKPOINTS) or (self.folder / layout.RESULT).exists()
        if begun and not path.exists():
            raise AtclError(
                f"{self.folder} holds a run, but no recipe.json to say which: choose another folder"
            )
        if not begun:  # a start that failed may have left a recipe.json; replacing it loses nothing
            write_json(path, record)
            return
        # the recipe as it is read: settings that are newer than the file have their defaults
        stored = {**read_json(path), "recipe": to_data(open_run(self.folder).recipe)}
        compared = ("recipe", "seed", "data", "names", *sorted(self.recipe.needs))
        differing = [name for key in compared for name in differences(stored.get(key), record[key], key)]
        if differing:
            raise AtclError(
                f"{self.folder} holds another run, which differs in {', '.join(differing[:3])}: "
                "choose another folder"
            )


def open_run(folder: Path | str) -> Run:
    """Return the run that a folder holds.

    Args:
        folder: the folder, as `train` or `atcl train` wrote it.

    Raises:
        AtclError: it is not the folder of a run.

    Examples:
        >>> open_run("runs/digits/warmup-pla/seed-1").result.metrics["pgd20"].accuracy  # doctest: +SKIP
        60.7
        >>> open_run("nowhere")
        Traceback (most recent call last):
        atcl.core.errors.AtclError: nowhere is not the folder of a run: ...
    """
    path = Path(folder) / layout.RECIPE
    if not path.exists():
        entry = (Path(folder) / layout.RESULT).exists()
        what = "an entry of a ledger, which has a result and no model" if entry else "not the folder of a run"
        raise AtclError(
            f"{folder} is {what}: it has no {layout.RECIPE}; give the folder that `atcl train` wrote"
        )
    record = read_json(path)
    try:
        channels, height, width = record["shape"]
        names = tuple(record["names"]) if record.get("names") else None
        return Run(
            Path(folder),
            record["name"],
            record["seed"],
            from_data(record["recipe"], kinds()),
            record["classes"],
            (channels, height, width),
            names,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise AtclError(
            f"{path} is not of a run: {type(error).__name__} {error}; give the folder of another run"
        ) from None


def name_of(wanted: Recipe) -> str:
    """Return the name of a recipe, or `DATASET/custom` for changed settings."""
    own = (name for name in RECIPES if name.startswith(f"{wanted.dataset}/"))
    return next((name for name in own if recipe(name) == wanted), f"{wanted.dataset}/custom")


def is_plain(name: str, wanted: Recipe) -> bool:
    """Return whether a recipe has the settings of the recipe of this name."""
    return name in RECIPES and recipe(name) == wanted


def folder_of(name: str, wanted: Recipe) -> tuple[str, str]:
    """Return the two folders of a run: its dataset, and its method, with a digest if settings were changed.

    Args:
        name: `dataset/method`.
        wanted: the recipe of the run.
    """
    dataset, _, method = name.partition("/")
    return dataset, method if is_plain(name, wanted) else f"{method}-{digest(wanted)}"
