"""An estimate of the transition matrix from weak data alone, for FORWARD; there is no truth here."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F

from atcl.core.errors import AtclError
from atcl.core.seeds import derive, forked_rng
from atcl.data.weak import WeakData
from atcl.losses import uniform_transition
from atcl.training.learner import Learner
from atcl.training.loop import fit
from atcl.training.objectives import MinMax
from atcl.training.optimizers import Adam
from atcl.training.schedules import Constant
from atcl.training.stage import Stage

NATURAL = Stage(epochs=40, batch_size=32, optimizer=Adam(), lr=Constant(1e-3))
CHUNK = 1000  # images predicted at once


def estimated_transition(
    data: WeakData,
    build: Callable[[], Module],
    *,
    seed: int,
    stage: Stage = NATURAL,
    noisy: bool = False,
    refinements: int = 2,
) -> Tensor:
    """Return (K, K): the labels given, counted by the class that a model trained on the other half of the images predicts."""
    # Yu et al. 2018: the model's p(complementary | x) at anchors, images whose class is known; here no class is known,
    # so each image counts for every class as far as a model that never saw its label believes in it.
    if not data.single:
        raise AtclError(
            "a transition matrix is estimated from exactly one complementary label for each image: keep one of several"
        )
    if len(data) < 2 or refinements < 0:
        raise AtclError(
            f"an estimate needs at least 2 images and 0 refinements (images {len(data)}, refinements {refinements})"
        )
    uniform = (
        torch.full((data.classes, data.classes), 1 / data.classes)
        if noisy
        else uniform_transition(data.classes)
    )
    uniform = uniform.to(data.device)
    transition = _evident(
        soft_counts(
            crossed(replace(data, transition=None), build, stage, derive(seed, 0)), data.candidates, uniform
        ),
        uniform,
    )
    corrected = replace(stage, objective=MinMax("forward"))
    for number in range(1, refinements + 1):
        predicted = crossed(replace(data, transition=transition), build, corrected, derive(seed, number))
        transition = _evident(soft_counts(predicted, data.candidates, transition), uniform)
    return transition


def crossed(data: WeakData, build: Callable[[], Module], stage: Stage, seed: int) -> Tensor:
    """Return (n, K): for each image, the prediction of a model that was trained on the half without it."""
    halves = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)).to(data.device).chunk(2)
    predicted = torch.empty(data.candidates.shape, device=data.device)
    for number, (seen, unseen) in enumerate((halves, halves[::-1])):
        own = derive(seed, "half", number)
        part = data.take(seen)
        with forked_rng():
            torch.manual_seed(own)
            learner = Learner(build(), part, stage)
        fit(learner, part, stage, seed=own)
        model = learner.refresh()
        with torch.no_grad():
            predicted[unseen] = torch.cat([model(x).softmax(1) for x in data.take(unseen).in_order(CHUNK)])
    return predicted


def soft_counts(predicted: Tensor, candidates: Tensor, transition: Tensor) -> Tensor:
    """Return (K, K): how often class i was given the label j, by a belief in i from the prediction and, through the matrix so far, the label."""
    complementary = F.one_hot(candidates.logical_not().int().argmax(1), candidates.shape[1]).to(
        predicted
    )  # (n, K)
    likelihood = predicted.clamp(min=1e-9) * (
        complementary @ transition.T
    )  # never 0 for all, however sure the model is of the ruled-out class
    belief = likelihood / likelihood.sum(1, keepdim=True)  # (n, K)
    return belief.T @ complementary


def _evident(counts: Tensor, uniform: Tensor) -> Tensor:
    """Return the rows' shares, each pulled to the uniform matrix as far as chance alone explains that they differ from it."""
    images = counts.sum(1, keepdim=True).clamp(min=1e-9)  # (K, 1)
    shares = counts / images
    chance = (uniform * (1 - uniform)).sum(1, keepdim=True)  # (K, 1): of one label, summed over its row
    spread = (
        images * (shares - uniform).square()
    ).sum() / images.sum()  # mean over the labels, summed over a row
    bias = (spread - chance.sum() / images.sum()).clamp(min=0)
    trust = bias / (bias + chance / images)  # (K, 1)
    return trust * shares + (1 - trust) * uniform
