"""How near the estimated transition matrix comes, and what FORWARD gains by it: digits, natural training, on a CPU.

python benchmarks/transition.py [SEEDS]
"""

import sys
from dataclasses import replace
from statistics import mean

import torch
from torch import Tensor
from torch.nn import Module

from atcl.core.seeds import derive
from atcl.data.images import as_float
from atcl.data.weak import WeakData
from atcl.datasets.labels import Biased, Complementary, Drawn, weaken
from atcl.datasets.sources import digits
from atcl.losses import uniform_transition
from atcl.models.small import TinyCNN
from atcl.training.learner import Learner
from atcl.training.loop import fit
from atcl.training.objectives import MinMax
from atcl.training.transitions import NATURAL, estimated_transition

SOURCES: dict[str, Drawn] = {"uniform": Complementary(), "weak": Biased("weak"), "strong": Biased("strong")}


def build() -> Module:
    """Return a new model."""
    return TinyCNN(10, (1, 8, 8))


def accuracy(data: WeakData, seed: int) -> float:
    """Train with FORWARD under the matrix that the data carry, and return natural test accuracy in %."""
    stage = replace(NATURAL, objective=MinMax("forward"))
    torch.manual_seed(derive(seed, "model"))
    learner = Learner(build(), data, stage)
    fit(learner, data, stage, seed=seed)
    test = digits().test
    with torch.no_grad():
        return 100 * float(
            (learner.refresh()(as_float(test.x)).argmax(1) == test.truth.labels).float().mean()
        )


def spread(numbers: list[float]) -> str:
    """Return mean and standard deviation (ddof = 0)."""
    return f"{mean(numbers):.1f} ± {mean((number - mean(numbers)) ** 2 for number in numbers) ** 0.5:.1f}"


def row(name: str, source: Drawn, seeds: range) -> str:
    """Return a line of the table: errors of the matrices, accuracy of FORWARD with each."""
    true = source.shares(10)
    matrices: dict[str, list[Tensor]] = {"uniform": [], "estimated": [], "used": []}
    accuracies: dict[str, list[float]] = {kind: [] for kind in matrices}
    for seed in seeds:
        data = replace(weaken(digits().train, source, seed), transition=None)
        for kind, matrix in (
            ("uniform", uniform_transition(10)),
            ("estimated", estimated_transition(data, build, seed=seed)),
            ("used", true),
        ):
            matrices[kind].append(matrix)
            accuracies[kind].append(accuracy(replace(data, transition=matrix), seed))
    errors = [
        f"{mean(float((m - true).abs().mean()) for m in ms):.4f}, {max(float((m - true).abs().max()) for m in ms):.3f}"
        for ms in matrices.values()
    ]
    return " | ".join([f"| {name}", *errors[:2], *map(spread, accuracies.values())]) + " |"


def main() -> None:
    """Print the table of docs/labels.md."""
    torch.set_num_threads(1)
    seeds = range(1, 1 + int(sys.argv[1] if len(sys.argv) > 1 else 3))
    print(
        "| labels | error of the uniform matrix: mean, max | of the estimate | FORWARD, uniform | FORWARD, estimate | FORWARD, matrix used |"
    )
    print("|---|---|---|---|---|---|")
    for name, source in SOURCES.items():
        print(row(name, source, seeds), flush=True)


if __name__ == "__main__":
    main()
