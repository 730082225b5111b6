"""The variance of the gradient directions of a batch: vectorised, and by a loop over its images.

python benchmarks/gradients.py [DEVICE] [IMAGES]
"""

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor
from torch.nn import Module

from atcl.analysis.gradients import direction_variance, first_and_last, image_gradients
from atcl.core.device import hardware, resolve
from atcl.core.seeds import generator
from atcl.losses import Targets
from atcl.models import SmallCNN
from atcl.training.objectives import MinMax

OBJECTIVE = MinMax("log")


def problem(device: torch.device, images: int) -> tuple[Module, Tensor, Targets]:
    """Return the paper's network for Kuzushiji, random images, and one complementary label for each.

    Its last layer, which starts at zero, gets random weights.
    """
    rng = generator(torch.device("cpu"), 0, "benchmark")
    torch.manual_seed(0)
    model = SmallCNN(10)
    last = list(model.parameters())[-2]
    torch.nn.init.normal_(last, std=0.1, generator=rng)
    x = torch.rand(images, 1, 28, 28, generator=rng)
    complementary = torch.randint(10, (images,), generator=rng)
    return (
        model.to(device).eval(),
        x.to(device),
        Targets(~torch.nn.functional.one_hot(complementary, 10).bool().to(device)),
    )


def vectorised(model: Module, x: Tensor, targets: Targets) -> float | None:
    """Return the trace as the library computes it."""
    return direction_variance(
        image_gradients(model, OBJECTIVE, x, x, targets, first_and_last(model)[0])
    ).trace


def loop(model: Module, x: Tensor, targets: Targets) -> float:
    """Return the trace from one backward pass for each image and the covariance matrix."""
    names, _ = first_and_last(model)
    parameters = [dict(model.named_parameters())[name] for name in names]
    directions = []
    for image, candidates in zip(x, targets.candidates, strict=True):
        loss, _ = OBJECTIVE.training_loss(model, image[None], image[None], Targets(candidates[None]))
        gradient = torch.cat([one.flatten() for one in torch.autograd.grad(loss, parameters)])
        directions.append(gradient / gradient.norm())
    return float(torch.cov(torch.stack(directions).T, correction=0).trace())


def seconds(work: Callable[[], object], device: torch.device, times: int = 5) -> float:
    """Return the median time of a function, after one call that does not count."""
    found = []
    for _ in range(times + 1):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - began)
    return median(found[1:])


def main() -> None:
    """Print both times, their ratio, and the difference of the results."""
    device = resolve(sys.argv[1] if len(sys.argv) > 1 else "auto")
    images = int(sys.argv[2]) if len(sys.argv) > 2 else 256
    torch.backends.cudnn.allow_tf32 = False  # the results then differ by rounding alone
    model, x, targets = problem(device, images)
    fast, slow = vectorised(model, x, targets), loop(model, x, targets)
    assert fast is not None
    print(
        f"{hardware(device)['device']}, torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"{images} images, SmallCNN, first layer"
    )
    print(f"trace: vectorised {fast:.7f}, loop {slow:.7f}, apart by {abs(fast - slow):.1e}")
    quick = seconds(lambda: vectorised(model, x, targets), device)
    slowly = seconds(lambda: loop(model, x, targets), device)
    print(f"vectorised {1000 * quick:.1f} ms, loop {1000 * slowly:.1f} ms: {slowly / quick:.1f} times faster")


if __name__ == "__main__":
    main()
