"""What onlookers cost at their default frequency: how long each look takes, beside the epochs of the same run without any.

python benchmarks/observers.py --recipe kuzushiji/oracle --epochs 8

Two runs take turns by epochs in one process, since a shared machine drifts by more than onlookers cost. One is looked at after each epoch, and its
looks are timed. Only epochs from the fourth on count: those before compile and record. The share is that of a whole run, with as many looks as it
plans by itself.
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

SETTLED = 3  # epochs after which one counts


@dataclass(frozen=True)
class Options:
    """What is timed."""

    recipe: str = "digits/oracle"
    epochs: int = 8
    """of its first stage, that are run"""
    observe: tuple[str, ...] = tuple(OBSERVATIONS)
    device: str = "auto"
    data_dir: Path | None = None


def now(device: torch.device) -> float:
    """Return the time: of the processor, or on a GPU of the clock once it has finished."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


class Stopwatch:
    """Adds up the time of looks, by the name of what is looked at."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, dict[str, list[float]]()

    def timed(
        self, name: str, of: Callable[[ObserverContext], Values]
    ) -> Callable[[ObserverContext], Values]:
        """Return a look that notes how long it took."""

        def look(context: ObserverContext) -> Values:
            began = now(self.device)
            values = of(context)
            self.seconds.setdefault(name, []).append(now(self.device) - began)
            return values

        return look


def epochs(wanted: Recipe, problem: Problem, names: tuple[str, ...], folder: Path) -> Iterator[float]:
    """Train a run, and yield the seconds of each epoch after it."""
    (stage, *_), data = wanted.stages, problem.train
    run = Run(folder, "observed", 1, wanted, data.classes, wanted.shape)
    learner = Learner(run.fresh_model(), data, stage)
    engine, observers = attach_observers(
        names, run, problem, 0, learner, data, engine_of("auto", data.device, passes(wanted, len(data))), 1
    )
    over = [False]

    def mark(_: Snapshot) -> Iterator[None]:
        over[0] = True
        yield  # before the next epoch begins

    steps, began = (
        fitting(learner, data, stage, seed=1, engine=engine, observers=[*observers, mark]),
        now(data.device),
    )
    for _ in steps:
        if over[0]:
            yield now(data.device) - began
            over[0], began = False, now(data.device)


def main(options: Options) -> None:
    """Print what a look takes, and what the onlookers add to a run."""
    if options.epochs <= SETTLED:
        raise SystemExit(f"give --epochs more than {SETTLED}: the first {SETTLED} do not count")
    device, wanted = resolve(options.device), recipe(options.recipe)
    stage, problem, watch = (
        wanted.stages[0],
        problem_of(wanted, 1, options.data_dir).to(device),
        Stopwatch(device),
    )
    for name in options.observe:
        OBSERVATIONS[name] = replace(OBSERVATIONS[name], of=watch.timed(name, OBSERVATIONS[name].of))
    with tempfile.TemporaryDirectory() as folder, forked_rng(), room_to_compile(2):
        both = (epochs(wanted, problem, seen, Path(folder)) for seen in ((), options.observe))
        turns = list(islice(zip(*both, strict=True), options.epochs))[SETTLED:]
    alone, watched = (sum(times) / len(turns) for times in zip(*turns, strict=True))
    looks = {name: sum(times[SETTLED:]) / len(times[SETTLED:]) for name, times in watch.seconds.items()}
    steps, about = (
        watched - sum(looks.values()) - alone,
        environment(device),
    )  # what notes in each step add to an epoch, and noise
    print(
        f"{options.recipe}, {about['device']}, torch {about['torch']}, {torch.get_num_threads()} threads, {about['commit']}"
    )
    print(
        f"an epoch, mean of {len(turns)}: {alone:.3f} s alone; watched, without its looks, {1000 * steps:+.1f} ms"
    )
    plan = planned_epochs(options.observe, stage, problem, device)
    for name, seconds in looks.items():
        print(f"a look at {name} {1000 * seconds:.1f} ms, {len(plan[name])} of them in {stage.epochs} epochs")
    added = sum(looks[name] * len(plan[name]) for name in looks) + max(0.0, steps) * stage.epochs
    print(f"together: {100 * added / (alone * stage.epochs):+.1f}%")


if __name__ == "__main__":
    main(tyro.cli(Options))
