"""Image classifiers that resist adversarial perturbations, trained from complementary labels alone.

run = atcl.train("digits/warmup-pla", seed=1)
print(run.evaluate(["natural", "pgd20", "cw30"]))
"""

from dataclasses import replace

from atcl.attacks import Budget, Threat, pgd
from atcl.batches import Augmentation, WeakData, from_torch_dataset, rule_out
from atcl.environment import __version__
from atcl.errors import AtclError
from atcl.exporting import export
from atcl.folders import read_folder
from atcl.headline import load
from atcl.labelled import read_truth
from atcl.labels import Biased, Complementary, FromFile, Ordinary, RandomSets, weaken
from atcl.losses import LOSSES, Loss, Targets
from atcl.masking import suspicions
from atcl.models import MODELS
from atcl.objectives import MinMax, Trades
from atcl.page import report
from atcl.precisions import Precision
from atcl.predicting import predict
from atcl.recipes import RECIPES, Recipe, on_own_data, recipe
from atcl.running import train, train_together
from atcl.runs import Problem, Run, open_run
from atcl.schedules import Constant, CosineRise, LinearFall, StepDecay
from atcl.stages import Watcher
from atcl.supervision import CandidatesOnly, PseudoLabels
from atcl.training import Adam, Learner, Sgd, Stage, fit
from atcl.transitions import estimated_transition
from atcl.truth import Split, Truth
from atcl.verdicts import evaluate

__all__ = [
    "LOSSES", "MODELS", "RECIPES", "Adam", "AtclError", "Augmentation", "Biased", "Budget", "CandidatesOnly", "Complementary", "Constant",
    "CosineRise", "FromFile", "Learner", "LinearFall", "Loss", "MinMax", "Ordinary", "Precision", "Problem", "PseudoLabels", "RandomSets",
    "Recipe", "Run", "Sgd", "Split", "Stage", "StepDecay", "Targets", "Threat", "Trades", "Truth", "Watcher", "WeakData", "__version__",
    "estimated_transition", "evaluate", "export", "fit", "from_torch_dataset", "load", "on_own_data", "open_run", "pgd", "predict",
    "read_folder", "read_truth", "recipe", "replace", "report", "rule_out", "suspicions", "train", "train_together", "weaken",
]  # fmt: skip
