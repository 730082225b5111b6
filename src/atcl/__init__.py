"""Image classifiers that resist adversarial perturbations, trained from complementary labels alone.

run = atcl.train("digits/warmup-pla", seed=1)
print(run.evaluate(["natural", "pgd20", "cw30"]))
"""

from dataclasses import replace

from atcl.attacks import Budget, pgd
from atcl.batches import Augmentation, WeakData, rule_out
from atcl.environment import __version__
from atcl.errors import AtclError
from atcl.evaluation import Threat, evaluate
from atcl.labels import Biased, Complementary, FromFile, Ordinary, RandomSets, weaken
from atcl.losses import LOSSES, Loss, Targets
from atcl.models import MODELS
from atcl.objectives import MinMax, Trades
from atcl.recipes import RECIPES, Recipe, recipe
from atcl.running import Watcher, train
from atcl.runs import Problem, Run, open_run
from atcl.schedules import Constant, CosineRise, LinearFall, StepDecay
from atcl.supervision import CandidatesOnly, PseudoLabels
from atcl.training import Adam, Learner, Sgd, Stage, fit
from atcl.transitions import estimated_transition
from atcl.truth import Split, Truth

__all__ = [
    "LOSSES", "MODELS", "RECIPES", "Adam", "AtclError", "Augmentation", "Biased", "Budget", "CandidatesOnly", "Complementary", "Constant",
    "CosineRise", "FromFile", "Learner", "LinearFall", "Loss", "MinMax", "Ordinary", "Problem", "PseudoLabels", "RandomSets", "Recipe", "Run", "Sgd",
    "Split", "Stage", "StepDecay", "Targets", "Threat", "Trades", "Truth", "Watcher", "WeakData", "__version__", "estimated_transition",
    "evaluate", "fit", "open_run", "pgd", "recipe", "replace", "rule_out", "train", "weaken",
]  # fmt: skip
