"""What onlookers cost at their default frequency: two runs in one process, one with and one without, that take turns by epochs.

python benchmarks/observers.py --recipe kuzushiji/oracle --epochs 12

Only epochs from the third on count: the first two compile and record. Turns, since a shared machine drifts by more than onlookers cost.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro

from atcl.engines import engine_of
from atcl.environment import environment, resolve
from atcl.observing import OBSERVATIONS, onlooking
from atcl.recipes import Recipe, recipe
from atcl.running import passes, problem_of
from atcl.runs import Problem, Run
from atcl.seeds import forked_rng
from atcl.training import Learner, Snapshot, fitting

SETTLED = 2  # epochs after which one counts


@dataclass(frozen=True)
class Options:
    """What is timed."""

    recipe: str = "digits/oracle"
    epochs: int | None = None
    """of its first stage; None: all"""
    observe: tuple[str, ...] = tuple(OBSERVATIONS)
    device: str = "auto"
    data_dir: Path | None = None


def now(device: torch.device) -> float:
    """Return the time: of the processor, or on a GPU of the clock once it has finished."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def epochs(wanted: Recipe, problem: Problem, names: tuple[str, ...], folder: Path) -> Iterator[float]:
    """Train a run, and yield the seconds of each epoch after it."""
    (stage,), data = wanted.stages, problem.train
    run = Run(folder, "observed", 1, wanted, data.classes, wanted.shape)
    learner = Learner(run.fresh_model(), data, stage)
    engine, observers = onlooking(names, run, problem, 0, learner, data, engine_of("auto", data.device, passes(wanted, len(data))), say=print)
    over = [False]

    def mark(_: Snapshot) -> Iterator[None]:
        over[0] = True
        yield  # before the next epoch begins

    steps, began = fitting(learner, data, stage, seed=1, engine=engine, observers=[*observers, mark]), now(data.device)
    for _ in steps:
        if over[0]:
            yield now(data.device) - began
            over[0], began = False, now(data.device)


def main(options: Options) -> None:
    """Print what the onlookers add to an epoch."""
    device, whole = resolve(options.device), recipe(options.recipe)
    stage = whole.stages[0]
    wanted = replace(whole, stages=(replace(stage, epochs=min(options.epochs or stage.epochs, stage.epochs)),))
    problem = problem_of(wanted, 1, options.data_dir).to(device)
    with tempfile.TemporaryDirectory() as folder, forked_rng():
        turns = list(zip(*(epochs(wanted, problem, seen, Path(folder)) for seen in ((), options.observe)), strict=True))
    alone, watched = map(sum, zip(*turns[SETTLED:], strict=True))
    number, about, names = len(turns) - SETTLED, environment(device), ", ".join(options.observe)
    print(f"{options.recipe}, {about['device']}, torch {about['torch']}, {torch.get_num_threads()} threads, {about['commit']}: {names}")
    print(f"an epoch, mean of {number}: {alone / number:.3f} s alone, {watched / number:.3f} s with onlookers, {100 * (watched / alone - 1):+.1f}%")


if __name__ == "__main__":
    main(tyro.cli(Options))
