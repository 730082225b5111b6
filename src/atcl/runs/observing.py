"""What may observe a run while it trains. It is handed in by the caller, since the analyses themselves know more than a run does."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from atcl.data.weak import WeakData
from atcl.engine.engines import Engine
from atcl.runs.problem import Problem
from atcl.training.learner import Learner
from atcl.training.loop import Observer

if TYPE_CHECKING:
    from atcl.runs.run import Run


class Observing:
    """Nothing is observed. Subclasses record analyses after some epochs, and change nothing that is learnt."""

    names: tuple[str, ...] = ()

    def check_names(self) -> None:
        """Refuse names and numbers that mean nothing, before anything is written."""

    def check(self, problem: Problem) -> None:
        """Refuse what cannot be observed on this problem, such as for want of true labels."""

    def attach(
        self,
        run: "Run",
        problem: Problem,
        stage: int,
        learner: Learner,
        data: WeakData,
        engine: Engine,
        notify: Callable[[str], None],
    ) -> tuple[Engine, Sequence[Observer]]:
        """Return the engine and the observers that a stage is trained with."""
        return engine, []
