"""Image classifiers that resist adversarial perturbations, trained from complementary labels alone.

run = atcl.train("digits/warmup-pla", seed=1)
print(run.evaluate(["natural", "pgd20", "cw30"]))

`import atcl` is quick: what a name stands for is imported when it is first used.
"""

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atcl.analysis.observers import Observers as Observers
    from atcl.attacks.pgd import pgd as pgd
    from atcl.attacks.threat import Budget as Budget
    from atcl.attacks.threat import Threat as Threat
    from atcl.core.errors import AtclError as AtclError
    from atcl.core.precisions import Precision as Precision
    from atcl.core.version import __version__ as __version__
    from atcl.data.augment import Augmentation as Augmentation
    from atcl.data.image_folder import read_folder as read_folder
    from atcl.data.weak import WeakData as WeakData
    from atcl.data.weak import from_torch_dataset as from_torch_dataset
    from atcl.data.weak import rule_out as rule_out
    from atcl.datasets.labelled_folder import read_truth as read_truth
    from atcl.datasets.labels import Biased as Biased
    from atcl.datasets.labels import Complementary as Complementary
    from atcl.datasets.labels import FromFile as FromFile
    from atcl.datasets.labels import Ordinary as Ordinary
    from atcl.datasets.labels import RandomSets as RandomSets
    from atcl.datasets.labels import weaken as weaken
    from atcl.datasets.truth import Split as Split
    from atcl.datasets.truth import Truth as Truth
    from atcl.evaluation.evaluate import evaluate as evaluate
    from atcl.evaluation.masking import suspicions as suspicions
    from atcl.losses import LOSSES as LOSSES
    from atcl.losses import Loss as Loss
    from atcl.losses import Targets as Targets
    from atcl.models import MODELS as MODELS
    from atcl.recipes.catalogue import RECIPES as RECIPES
    from atcl.recipes.catalogue import on_own_data as on_own_data
    from atcl.recipes.catalogue import recipe as recipe
    from atcl.recipes.schema import Recipe as Recipe
    from atcl.reports.writing import report as report
    from atcl.runs.export import export as export
    from atcl.runs.predict import predict as predict
    from atcl.runs.pretrained import load as load
    from atcl.runs.problem import Problem as Problem
    from atcl.runs.run import Run as Run
    from atcl.runs.run import open_run as open_run
    from atcl.runs.spec import Execution as Execution
    from atcl.runs.spec import RunSpec as RunSpec
    from atcl.runs.start import train as train
    from atcl.runs.start import train_together as train_together
    from atcl.runs.watcher import Watcher as Watcher
    from atcl.training.learner import Learner as Learner
    from atcl.training.loop import fit as fit
    from atcl.training.objectives import MinMax as MinMax
    from atcl.training.objectives import Trades as Trades
    from atcl.training.optimizers import Adam as Adam
    from atcl.training.optimizers import Sgd as Sgd
    from atcl.training.schedules import Constant as Constant
    from atcl.training.schedules import CosineRise as CosineRise
    from atcl.training.schedules import LinearFall as LinearFall
    from atcl.training.schedules import StepDecay as StepDecay
    from atcl.training.stage import Stage as Stage
    from atcl.training.supervision import CandidatesOnly as CandidatesOnly
    from atcl.training.supervision import PseudoLabels as PseudoLabels
    from atcl.training.transitions import estimated_transition as estimated_transition

_HOME = {
    "Adam": "atcl.training.optimizers",
    "AtclError": "atcl.core.errors",
    "Augmentation": "atcl.data.augment",
    "Biased": "atcl.datasets.labels",
    "Budget": "atcl.attacks.threat",
    "CandidatesOnly": "atcl.training.supervision",
    "Complementary": "atcl.datasets.labels",
    "Constant": "atcl.training.schedules",
    "CosineRise": "atcl.training.schedules",
    "Execution": "atcl.runs.spec",
    "FromFile": "atcl.datasets.labels",
    "LOSSES": "atcl.losses",
    "Learner": "atcl.training.learner",
    "LinearFall": "atcl.training.schedules",
    "Loss": "atcl.losses",
    "MODELS": "atcl.models",
    "MinMax": "atcl.training.objectives",
    "Observers": "atcl.analysis.observers",
    "Ordinary": "atcl.datasets.labels",
    "Precision": "atcl.core.precisions",
    "Problem": "atcl.runs.problem",
    "PseudoLabels": "atcl.training.supervision",
    "RECIPES": "atcl.recipes.catalogue",
    "RandomSets": "atcl.datasets.labels",
    "Recipe": "atcl.recipes.schema",
    "Run": "atcl.runs.run",
    "RunSpec": "atcl.runs.spec",
    "Sgd": "atcl.training.optimizers",
    "Split": "atcl.datasets.truth",
    "Stage": "atcl.training.stage",
    "StepDecay": "atcl.training.schedules",
    "Targets": "atcl.losses",
    "Threat": "atcl.attacks.threat",
    "Trades": "atcl.training.objectives",
    "Truth": "atcl.datasets.truth",
    "Watcher": "atcl.runs.watcher",
    "WeakData": "atcl.data.weak",
    "__version__": "atcl.core.version",
    "estimated_transition": "atcl.training.transitions",
    "evaluate": "atcl.evaluation.evaluate",
    "export": "atcl.runs.export",
    "fit": "atcl.training.loop",
    "from_torch_dataset": "atcl.data.weak",
    "load": "atcl.runs.pretrained",
    "on_own_data": "atcl.recipes.catalogue",
    "open_run": "atcl.runs.run",
    "pgd": "atcl.attacks.pgd",
    "predict": "atcl.runs.predict",
    "read_folder": "atcl.data.image_folder",
    "read_truth": "atcl.datasets.labelled_folder",
    "recipe": "atcl.recipes.catalogue",
    "report": "atcl.reports.writing",
    "rule_out": "atcl.data.weak",
    "suspicions": "atcl.evaluation.masking",
    "train": "atcl.runs.start",
    "train_together": "atcl.runs.start",
    "weaken": "atcl.datasets.labels",
}

# spelt out, since type checkers read it
__all__ = [
    "LOSSES",
    "MODELS",
    "RECIPES",
    "Adam",
    "AtclError",
    "Augmentation",
    "Biased",
    "Budget",
    "CandidatesOnly",
    "Complementary",
    "Constant",
    "CosineRise",
    "Execution",
    "FromFile",
    "Learner",
    "LinearFall",
    "Loss",
    "MinMax",
    "Observers",
    "Ordinary",
    "Precision",
    "Problem",
    "PseudoLabels",
    "RandomSets",
    "Recipe",
    "Run",
    "RunSpec",
    "Sgd",
    "Split",
    "Stage",
    "StepDecay",
    "Targets",
    "Threat",
    "Trades",
    "Truth",
    "Watcher",
    "WeakData",
    "__version__",
    "estimated_transition",
    "evaluate",
    "export",
    "fit",
    "from_torch_dataset",
    "load",
    "on_own_data",
    "open_run",
    "pgd",
    "predict",
    "read_folder",
    "read_truth",
    "recipe",
    "replace",
    "report",
    "rule_out",
    "suspicions",
    "train",
    "train_together",
    "weaken",
]

if not TYPE_CHECKING:  # a type checker would take any name to be there

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'atcl' has no attribute {name!r}")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted(__all__)
