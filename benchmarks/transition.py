"""The error of the estimated transition matrix, and the accuracy of FORWARD with it: digits, natural.

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
from atcl.reproduce.cells import in_words
from atcl.training.learner import Learner
from atcl.training.loop import fit
from atcl.training.objectives import MinMax
from atcl.training.transitions import NATURAL, estimated_transition

SOURCES: dict[str, Drawn] = {"uniform": Complementary(), "weak": Biased("weak"), "strong": Biased("strong")}


def build() -> Module:
    """Return a new model of the digits."""
    return TinyCNN(10, (1, 8, 8))


def accuracy(data: WeakData, seed: int) -> float:
    """Train with FORWARD and the data's transition matrix, and return natural test accuracy in %."""
    stage = replace(NATURAL, objective=MinMax("forward"))
    torch.manual_seed(derive(seed, "model"))
    learner = Learner(build(), data, stage)
    fit(learner, data, stage, seed=seed)
    test = digits().test
    with torch.no_grad():
        return 100 * float(
            (learner.refresh()(as_float(test.x)).argmax(1) == test.truth.labels).float().mean()
        )


def row(name: str, source: Drawn, seeds: range) -> str:
    """Return a row of the table: errors of the matrices, and accuracy of FORWARD with each."""
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
    distances = [[(matrix - true).abs() for matrix in found] for found in matrices.values()]
    errors = [
        f"{mean(float(one.mean()) for one in each):.4f}, {max(float(one.max()) for one in each):.3f}"
        for each in distances
    ]
    found = [in_words(numbers, 1) for numbers in accuracies.values()]
    return " | ".join([f"| {name}", *errors[:2], *found]) + " |"


def main() -> None:
    """Print the table of docs/labels.md."""
    torch.set_num_threads(1)
    seeds = range(1, 1 + int(sys.argv[1] if len(sys.argv) > 1 else 3))
    print(
        "| labels | error of the uniform matrix: mean, max | of the estimate "
        "| FORWARD, uniform | FORWARD, estimate | FORWARD, matrix used |"
    )
    print("|---|---|---|---|---|---|")
    for name, source in SOURCES.items():
        print(row(name, source, seeds), flush=True)


if __name__ == "__main__":
    main()
