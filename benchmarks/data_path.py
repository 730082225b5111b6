"""The cost of making a batch, compared with the adversarial step that uses it, for 60,000 images.

python benchmarks/data_path.py --recipe kuzushiji/warmup-pla --device cpu
python benchmarks/data_path.py --recipe cifar10/warmup-pla --device cuda --pinned   # images in host memory
"""

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import tyro

from atcl.core.device import environment, resolve
from atcl.data.weak import WeakData, rule_out, shuffled
from atcl.engine.engines import Engine, Step
from atcl.models import MODELS
from atcl.recipes.catalogue import recipe
from atcl.training.learner import Learner
from atcl.training.loop import fit
from atcl.training.schedules import Constant


@dataclass(frozen=True)
class Options:
    """What to measure."""

    recipe: str = "kuzushiji/warmup-pla"
    images: int = 60_000
    steps: int = 5
    """adversarial steps to time, after one that does not count"""
    device: str = "auto"
    pinned: bool = False
    """keep the images in pinned memory of the host, as for sets that are too large for the GPU"""


class Enough(Exception):
    """Raised when enough steps were timed."""


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Return the milliseconds that a function takes, including what it queues on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 1000 * (time.perf_counter() - began)


def main(options: Options) -> None:
    """Print the milliseconds of a step and of its batch, and the batch's share."""
    wanted, device = recipe(options.recipe), resolve(options.device)
    stage = replace(wanted.stages[-1], strength=Constant(1.0))
    classes = 10
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (options.images, *wanted.shape), dtype=torch.uint8, generator=rng)
    complementary = torch.randint(0, classes, (options.images,), generator=rng)
    data = WeakData(x, rule_out(options.images, classes, complementary)).to(
        device, room=0 if options.pinned else None
    )
    learner = Learner(MODELS[wanted.model](classes, wanted.shape), data, stage)
    steps: list[float] = []

    class Timed(Engine):
        def whole(self, step: Step, rng: torch.Generator) -> Step:
            def run(index: torch.Tensor, attack: int, remember: bool) -> torch.Tensor:
                if len(steps) > options.steps:
                    raise Enough
                steps.append(timed(lambda: step(index, attack, remember), device))
                return torch.zeros(4, device=device)

            return run

    with contextlib.suppress(Enough):
        fit(learner, data, stage, seed=0, engine=Timed())
    shuffle = timed(lambda: list(shuffled(len(data), stage.batch_size, learner.rng)), device) / (
        len(data) / stage.batch_size
    )
    indices = [
        index for index, _ in zip(shuffled(len(data), stage.batch_size, learner.rng), range(50), strict=False)
    ]
    batches = [
        timed(partial(data.batch, index, stage.augmentation, learner.rng), device) for index in indices
    ]
    step, batch = statistics.median(steps[1:]), statistics.median(batches[5:]) + shuffle
    size = f"batch {stage.batch_size}, {stage.budget.steps} attack steps"
    print(f"{options.recipe}, {len(data):,} images of {wanted.shape}, {size}")
    print(f"{environment(device)}")
    print(f"images are on {data.x.device}{' (pinned)' if options.pinned else ''}")
    print(f"adversarial step {step:.2f} ms, of which the batch {batch:.3f} ms: {100 * batch / step:.2f}%")


if __name__ == "__main__":
    main(tyro.cli(Options))
