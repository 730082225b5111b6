"""The options of a run: what is trained (`RunSpec`), and how it is executed (`Execution`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path

from atcl.core.errors import AtclError
from atcl.recipes.catalogue import recipe
from atcl.recipes.schema import Recipe
from atcl.runs.observing import Observing
from atcl.runs.problem import Build, Problem
from atcl.runs.run import name_of


@dataclass(frozen=True)
class RunSpec:
    """What is trained: a recipe and a seed, with the recipe's dataset and model or with your own.

    Args:
        recipe: all settings of the training.
        name: the name of the run, `dataset/method`.
        seed: labels, initial weights and batches follow from it.
        out: the folder of the run; None: `runs/NAME/seed-SEED`.
        problem: your own data; None: the recipe's dataset.
        build: returns a new model of your own; None: the recipe's model.

    Examples:
        >>> spec = RunSpec.of("digits/warmup-pla", seed=2)
        >>> print(spec)
        digits/warmup-pla, seed 2
    """

    recipe: Recipe
    name: str
    seed: int = 1
    out: Path | None = None
    problem: Problem | None = None
    build: Build | None = None

    @staticmethod
    def of(
        what: Recipe | str,
        *,
        name: str | None = None,
        seed: int = 1,
        out: Path | str | None = None,
        problem: Problem | None = None,
        build: Build | None = None,
    ) -> "RunSpec":
        """Return the spec of a recipe.

        Args:
            what: the recipe, or its name, `dataset/method`.
            name: the name of the run; by default that of the recipe.
            seed: labels, initial weights and batches follow from it.
            out: the folder of the run; None: `runs/NAME/seed-SEED`.
            problem: your own data; None: the recipe's dataset.
            build: returns a new model of your own; None: the recipe's model.

        Raises:
            AtclError: there is no recipe of this name, or the seed is negative or no whole number.
        """
        if not isinstance(seed, Integral) or isinstance(seed, bool) or seed < 0:
            raise AtclError(f"the seed must be a whole number of at least 0, not {seed!r}")
        wanted = recipe(what) if isinstance(what, str) else what
        if not isinstance(wanted, Recipe):
            raise AtclError(f"give a recipe or its name, such as 'digits/warmup-pla', not {what!r}")
        if problem is not None and not isinstance(problem, Problem):
            given_kind = type(problem).__name__
            raise AtclError(f"`problem` is an atcl.Problem, such as Problem(weak_data), not a {given_kind}")
        given = name or (what if isinstance(what, str) else name_of(what))
        return RunSpec(wanted, given, int(seed), None if out is None else Path(out), problem, build)

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"


@dataclass(frozen=True)
class Execution:
    """How runs are executed; a recipe has none of these options.

    Examples:
        >>> Execution(device="cpu").engine
        'auto'
    """

    device: str = "auto"
    """auto, cpu or cuda"""
    data_dir: Path | None = None
    """folder of the dataset's files"""
    engine: str = "auto"
    """how a step is executed, a name from `atcl list engines`"""
    deterministic: bool = False
    """fp32, and only algorithms that give the same bits each time; slower"""
    observing: Observing = field(default_factory=Observing)
    """analyses to record while a run trains, such as `Observers(["gradients"])`"""


def check_different(specs: Sequence[RunSpec]) -> None:
    """Refuse an empty list of runs, and one that has the same run twice."""
    runs = [(spec.name, spec.seed, spec.recipe) for spec in specs]
    if not specs or any(run in runs[:number] for number, run in enumerate(runs)):
        raise AtclError(f"give different seeds, at least one, not {[spec.seed for spec in specs]}")
