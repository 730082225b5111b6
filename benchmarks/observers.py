"""The cost of observations at their default frequency, beside the epochs of the same run without any.

python benchmarks/observers.py --recipe kuzushiji/oracle --epochs 8

Two runs take turns by epochs in one process, since the speed of a shared machine drifts by more than
observations cost. One of them is observed after each epoch, and each observation is timed. Only epochs from
the fourth on count: those before compile and record. The printed share is that of a whole run, with as many
observations as it plans by default.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
import tyro

from atcl.analysis.observers import OBSERVATIONS, ObserverContext, Values, attach_observers, planned_epochs
from atcl.core.device import environment, resolve
from atcl.core.seeds import forked_rng
from atcl.engine.engines import engine_of, room_to_compile
from atcl.recipes.catalogue import recipe
from atcl.recipes.costs import passes
from atcl.recipes.schema import Recipe
from atcl.runs.problem import Problem
from atcl.runs.run import Run
from atcl.runs.start import problem_of
from atcl.training.learner import Learner
from atcl.training.loop import Snapshot, fitting

SETTLED = 3  # the first epochs, which do not count


@dataclass(frozen=True)
class Options:
    """What is timed."""

    recipe: str = "digits/oracle"
    epochs: int = 8
    """how many epochs of its first stage are run"""
    observe: tuple[str, ...] = tuple(OBSERVATIONS)
    device: str = "auto"
    data_dir: Path | None = None


def now(device: torch.device) -> float:
    """Return the processor's time or, on a GPU, the time of the clock once the GPU has finished."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


class Stopwatch:
    """Keeps the time of each observation, by its name."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, dict[str, list[float]]()

    def timed(
        self, name: str, of: Callable[[ObserverContext], Values]
    ) -> Callable[[ObserverContext], Values]:
        """Return an observation that also records how long it takes."""

        def observe(context: ObserverContext) -> Values:
            began = now(self.device)
            values = of(context)
            self.seconds.setdefault(name, []).append(now(self.device) - began)
            return values

        return observe


def epochs(wanted: Recipe, problem: Problem, names: tuple[str, ...], folder: Path) -> Iterator[float]:
    """Train a run, and yield the seconds of each epoch."""
    (stage, *_), data = wanted.stages, problem.train
    run = Run(folder, "observed", 1, wanted, data.classes, wanted.shape)
    learner = Learner(run.fresh_model(), data, stage)
    step_engine = engine_of("auto", data.device, passes(wanted, len(data)))
    engine, observers = attach_observers(names, run, problem, 0, learner, data, step_engine, 1)
    over = [False]

    def mark(_: Snapshot) -> Iterator[None]:
        over[0] = True
        yield  # before the next epoch begins

    steps = fitting(learner, data, stage, seed=1, engine=engine, observers=[*observers, mark])
    began = now(data.device)
    for _ in steps:
        if over[0]:
            yield now(data.device) - began
            over[0], began = False, now(data.device)


def main(options: Options) -> None:
    """Print the time of an observation, and what all observations add to a run."""
    if options.epochs <= SETTLED:
        raise SystemExit(f"give --epochs more than {SETTLED}: the first {SETTLED} do not count")
    device, wanted = resolve(options.device), recipe(options.recipe)
    problem = problem_of(wanted, 1, options.data_dir).to(device)
    stage, watch = wanted.stages[0], Stopwatch(device)
    for name in options.observe:
        OBSERVATIONS[name] = replace(OBSERVATIONS[name], of=watch.timed(name, OBSERVATIONS[name].of))
    with tempfile.TemporaryDirectory() as folder, forked_rng(), room_to_compile(2):
        both = (epochs(wanted, problem, seen, Path(folder)) for seen in ((), options.observe))
        turns = list(islice(zip(*both, strict=True), options.epochs))[SETTLED:]
    alone, watched = (sum(times) / len(turns) for times in zip(*turns, strict=True))
    each = {name: sum(times[SETTLED:]) / len(times[SETTLED:]) for name, times in watch.seconds.items()}
    # what the norms of each step add to an epoch, and noise
    steps = watched - sum(each.values()) - alone
    about = environment(device)
    place = f"{about['device']}, torch {about['torch']}, {torch.get_num_threads()} threads, {about['commit']}"
    print(f"{options.recipe}, {place}")
    mean = f"an epoch, mean of {len(turns)}: {alone:.3f} s alone"
    print(f"{mean}; observed, without the observations, {1000 * steps:+.1f} ms")
    plan = planned_epochs(options.observe, stage, problem, device)
    for name, seconds in each.items():
        print(f"{name}: {1000 * seconds:.1f} ms each, {len(plan[name])} of them in {stage.epochs} epochs")
    added = sum(each[name] * len(plan[name]) for name in each) + max(0.0, steps) * stage.epochs
    print(f"together: {100 * added / (alone * stage.epochs):+.1f}%")


if __name__ == "__main__":
    main(tyro.cli(Options))
