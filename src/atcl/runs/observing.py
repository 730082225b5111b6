"""The interface of analyses that are recorded while a run trains.

The caller passes them in, since this room may not import `analysis`.
"""

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
    """Records no analysis; subclasses record some after an epoch, and never change training."""

    names: tuple[str, ...] = ()

    def check_names(self) -> None:
        """Refuse unknown names and impossible numbers, before anything is written."""

    def check(self, problem: Problem) -> None:
        """Refuse an analysis that this problem does not allow, such as one that needs true labels."""

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
        """Return the engine and the observers that a stage is trained with.

        Args:
            run: the run.
            problem: what it learns from, with the truth where there is one.
            stage: the number of the stage.
            learner: what the stage trains.
            data: the labels of the stage, which a teacher may have changed.
            engine: how steps are executed; an observer may need to wrap it.
            notify: receives messages for the user.
        """
        return engine, []
