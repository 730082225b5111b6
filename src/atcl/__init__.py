"""Image classifiers that resist adversarial perturbations, trained from complementary labels alone.

run = atcl.train("digits/warmup-pla", seed=1)
print(run.evaluate(["natural", "pgd20", "cw30"]))
"""

from dataclasses import replace

from atcl.attacks import Budget, pgd
from atcl.batches import WeakData, rule_out
from atcl.errors import AtclError
from atcl.evaluation import Threat, evaluate
from atcl.labels import weaken
from atcl.losses import LOSSES, Loss, Targets
from atcl.models import MODELS
from atcl.objectives import MinMax, Trades
from atcl.recipes import RECIPES, Recipe, recipe
from atcl.running import train
from atcl.runs import Problem, Run, open_run
from atcl.training import Learner, Stage, fit
from atcl.truth import Split, Truth

__all__ = [
    "LOSSES", "MODELS", "RECIPES", "AtclError", "Budget", "Learner", "Loss", "MinMax", "Problem", "Recipe", "Run", "Split", "Stage", "Targets",
    "Threat", "Trades", "Truth", "WeakData", "evaluate", "fit", "open_run", "pgd", "recipe", "replace", "rule_out", "train", "weaken",
]  # fmt: skip
