"""What is to be trained, and how it is carried out: the options of a run, each in one place."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atcl.core.errors import AtclError
from atcl.recipes.catalogue import recipe
from atcl.recipes.schema import Recipe
from atcl.runs.observing import Observing
from atcl.runs.problem import Build, Problem
from atcl.runs.run import name_of


@dataclass(frozen=True)
class RunSpec:
    """What is trained: a recipe and a seed, on the recipe's dataset and model or on your own."""

    recipe: Recipe
    name: str
    seed: int = 1
    out: Path | None = None  # None: the folder that follows from the name
    problem: Problem | None = None  # None: the recipe's dataset
    build: Build | None = None  # None: the recipe's model

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
        """Return the spec of a recipe, given as it is or by its name, `dataset/method`."""
        if not isinstance(seed, int) or seed < 0:
            raise AtclError(f"a seed is a whole number of at least 0, not {seed!r}")
        wanted = recipe(what) if isinstance(what, str) else what
        given = name or (what if isinstance(what, str) else name_of(what))
        return RunSpec(wanted, given, seed, None if out is None else Path(out), problem, build)

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"


@dataclass(frozen=True)
class Execution:
    """How runs are carried out. None of this belongs to a recipe: the same run may be carried out in many ways."""

    device: str = "auto"
    """auto, cpu or cuda"""
    data_dir: Path | None = None
    """where the dataset's files lie"""
    engine: str = "auto"
    """how a step is carried out, a name from `atcl list engines`"""
    deterministic: bool = False
    """fp32, and only algorithms that give the same bits each time; slower"""
    observing: Observing = field(default_factory=Observing)
    """analyses that are recorded while it trains, such as `Observers(["gradients"])`"""


def check_different(specs: Sequence[RunSpec]) -> None:
    """Refuse no run at all, and the same run twice."""
    runs = [(spec.name, spec.seed, spec.recipe) for spec in specs]
    if not specs or any(run in runs[:number] for number, run in enumerate(runs)):
        raise AtclError(f"give different seeds, at least one, not {[spec.seed for spec in specs]}")
