"""What onlookers cost at their default frequency: the time spent in them beside the time of the training that they look at, in one run.

Two runs compared would differ by more than that on a shared machine.

python benchmarks/observers.py [RECIPE] [DEVICE] [NAMES...]
"""

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from atcl.environment import hardware, resolve
from atcl.observing import OBSERVATIONS, onlooking
from atcl.recipes import recipe
from atcl.running import problem_of
from atcl.runs import Run
from atcl.seeds import forked_rng
from atcl.training import Learner, Step, fit


class Clock:
    """Adds up the time spent inside what it wraps."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, 0.0

    def wrap(self, work: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
        """Return the work, timed; on a GPU it is waited for."""

        def timed(*arguments: object) -> Tensor | None:
            began = self.now()
            found = work(*arguments)
            self.seconds += self.now() - began
            return found

        return timed

    def now(self) -> float:
        """Return the time: of the processor, or on a GPU of the clock once it has finished."""
        if self.device.type != "cuda":
            return time.process_time()
        torch.cuda.synchronize(self.device)
        return time.perf_counter()


def main() -> None:
    """Print what the onlookers add to the first stage of a recipe."""
    words = sys.argv[1:]
    name, device = words[0] if words else "digits/oracle", resolve(words[1] if len(words) > 1 else "auto")
    names = tuple(words[2:]) or tuple(OBSERVATIONS)
    wanted = recipe(name)
    stage = wanted.stages[0]
    problem = problem_of(wanted, 1).to(device)
    inner, outer, looks, whole = (Clock(device) for _ in range(4))

    def timed(clock: Clock) -> Callable[[Step], Step]:
        return lambda step: clock.wrap(step)  # type: ignore[return-value]

    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), name, 1, replace(wanted, stages=(stage,)), problem.train.classes, wanted.shape)
        with forked_rng():
            torch.manual_seed(0)
            learner = Learner(run.fresh_model(), problem.train, stage)
        engine, observers = onlooking(names, run, problem, 0, learner, problem.train, say=print, inner=timed(inner))
        timed_observers = [looks.wrap(observer) for observer in observers]
        whole.wrap(lambda: fit(
            learner, problem.train, stage, seed=1, engine=lambda step: timed(outer)(engine(step)), observers=timed_observers  # type: ignore[arg-type]
        ))()  # fmt: skip
    added = looks.seconds + outer.seconds - inner.seconds
    alone = whole.seconds - added
    print(f"{name}, {stage.epochs} epochs, {', '.join(names)}, {hardware(device)['device']}, {torch.get_num_threads()} threads")
    print(
        f"training {alone:.2f} s, looks {looks.seconds:.2f} s, norms of each step {outer.seconds - inner.seconds:.2f} s: {100 * added / alone:+.1f}%"
    )


if __name__ == "__main__":
    main()
