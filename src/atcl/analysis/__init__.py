"""Analyses of gradients and attacks: functions of a model, and observers of a run."""

from atcl.analysis.attacks import (
    Quality,
    attack_qualities,
    lowered_share,
    paper_attack_losses,
    sign_cosine,
    true_probability,
)
from atcl.analysis.gradients import Variance, direction_variance, first_and_last, image_gradients, layer_norms
from atcl.evaluation.pseudo_labels import pseudo_label_accuracy

__all__ = [
    "Quality",
    "Variance",
    "attack_qualities",
    "direction_variance",
    "first_and_last",
    "image_gradients",
    "layer_norms",
    "lowered_share",
    "paper_attack_losses",
    "pseudo_label_accuracy",
    "sign_cosine",
    "true_probability",
]
