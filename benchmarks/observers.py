"""What onlookers cost at their default frequency: the time spent in them beside the time of the training that they look at, in one run.

Two runs compared would differ by more than that on a shared machine.

python benchmarks/observers.py [RECIPE] [DEVICE] [NAMES...]
"""

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from atcl.environment import hardware, resolve
from atcl.observing import OBSERVATIONS, Noting, onlooking
from atcl.recipes import recipe
from atcl.running import problem_of
from atcl.runs import Run
from atcl.seeds import forked_rng
from atcl.training import Learner, fit


class Clock:
    """Adds up the time spent inside what it wraps."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, 0.0

    def wrap(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return the work, timed; on a GPU it is waited for."""

        def timed(*arguments: object) -> Any:
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
    norms, looks, whole = (Clock(device) for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), name, 1, replace(wanted, stages=(stage,)), problem.train.classes, wanted.shape)
        with forked_rng():
            torch.manual_seed(0)
            learner = Learner(run.fresh_model(), problem.train, stage)
        engine, observers = onlooking(names, run, problem, 0, learner, problem.train, say=print)
        if isinstance(engine, Noting):
            engine = replace(engine, note=norms.wrap(engine.note))
        whole.wrap(partial(fit, learner, problem.train, stage, seed=1, engine=engine, observers=[looks.wrap(observer) for observer in observers]))()
    added = looks.seconds + norms.seconds
    alone = whole.seconds - added
    print(f"{name}, {stage.epochs} epochs, {', '.join(names)}, {hardware(device)['device']}, {torch.get_num_threads()} threads")
    print(f"training {alone:.2f} s, looks {looks.seconds:.2f} s, norms of each step {norms.seconds:.2f} s: {100 * added / alone:+.1f}%")


if __name__ == "__main__":
    main()
