"""Whether it matters that LOG is computed in log-space: the same seeds with softmax, then logarithm.

The official code computes it in the second way.

python benchmarks/log_space.py [RECIPE] [SEEDS]
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from atcl.core.errors import AtclError
from atcl.losses import LOSSES, Targets
from atcl.recipes.catalogue import recipe
from atcl.recipes.schema import Recipe
from atcl.runs.start import train
from atcl.training.objectives import MinMax


def softmax_then_log(logits: Tensor, targets: Targets) -> Tensor:
    """Return LOG as the official code computes it: infinite if the support underflows."""
    return -(targets.correction * (targets.weights * logits.softmax(1)).sum(1).log()).mean()


LOSSES["softmax_then_log"] = replace(LOSSES["log"], of=softmax_then_log)


def by_loss(wanted: Recipe, loss: str) -> Recipe:
    """Return a recipe of LOG with another way to compute it."""
    if any(stage.objective != MinMax("log") for stage in wanted.stages):
        raise SystemExit(
            f"a recipe on {wanted.dataset} that does not train with LOG alone has no other way to compute it"
        )
    return replace(wanted, stages=tuple(replace(stage, objective=MinMax(loss)) for stage in wanted.stages))


def main() -> None:
    """Print the accuracies of each seed's last model, for both ways."""
    name, seeds = (
        sys.argv[1] if len(sys.argv) > 1 else "digits/direct-log",
        range(1, 1 + int(sys.argv[2] if len(sys.argv) > 2 else 3)),
    )
    wanted = recipe(name)
    for loss in ("log", "softmax_then_log"):
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = train(
                        by_loss(wanted, loss), name=name, seed=seed, out=Path(folder, "run")
                    ).result.last_metrics
                    outcome = ", ".join(f"{key} {one.accuracy:.2f}" for key, one in found.items())
                except AtclError as error:  # such as a loss that is not finite
                    outcome = str(error)
            print(f"{name} {loss:16} seed {seed}: {outcome}", flush=True)


if __name__ == "__main__":
    main()
