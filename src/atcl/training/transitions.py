"""An estimate of the transition matrix from complementary labels alone, for the loss FORWARD."""

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
CHUNK = 1000  # images in a batch of predictions


def estimated_transition(
    data: WeakData,
    build: Callable[[], Module],
    *,
    seed: int,
    stage: Stage = NATURAL,
    noisy: bool = False,
    refinements: int = 2,
) -> Tensor:
    """Return an estimate (K, K) of the transition matrix: row = true class, column = complementary label.

    Models are trained on each half of the images and predict the classes of the other half. The matrix counts
    how often each label was given to each predicted class, weighted by the probability of that class.

    Args:
        data: images with exactly one complementary label each; a transition matrix in it is ignored.
        build: returns a new model.
        seed: weights and batches follow from it.
        stage: how a model is trained; its objective is replaced by FORWARD in the refinements.
        noisy: whether complementary labels may be wrong; the diagonal is 0 otherwise.
        refinements: how often the estimate is repeated with models trained by FORWARD with the last one.

    Raises:
        AtclError: an image has several labels, or there are fewer than two images.

    Examples:
        >>> from atcl.data.weak import rule_out
        >>> data = WeakData(torch.rand(4, 1, 2, 2), rule_out(4, 3, [0, 1, 2, 0]))
        >>> build = lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        >>> quick = replace(NATURAL, epochs=1)
        >>> estimated_transition(data, build, seed=0, stage=quick, refinements=0).shape
        torch.Size([3, 3])
    """
    # Yu et al. 2018: p(complementary | x) of the model at anchors, images whose class is certain.
    # Ours: no class is known, so each image counts for every class, by the probability that a model which was
    # not trained on its label gives to that class.
    if not data.single:
        raise AtclError(
            "a transition matrix is estimated from exactly one complementary label for each image: "
            "keep one of several"
        )
    if len(data) < 2 or refinements < 0:
        numbers = f"images {len(data)}, refinements {refinements}"
        raise AtclError(f"an estimate needs at least 2 images and 0 refinements ({numbers})")
    square = data.classes, data.classes
    uniform = torch.full(square, 1 / data.classes) if noisy else uniform_transition(data.classes)
    uniform = uniform.to(data.device)
    predicted = crossed(replace(data, transition=None), build, stage, derive(seed, 0))
    transition = _evident(soft_counts(predicted, data.candidates, uniform), uniform)
    corrected = replace(stage, objective=MinMax("forward"))
    for number in range(1, refinements + 1):
        predicted = crossed(replace(data, transition=transition), build, corrected, derive(seed, number))
        transition = _evident(soft_counts(predicted, data.candidates, transition), uniform)
    return transition


def crossed(data: WeakData, build: Callable[[], Module], stage: Stage, seed: int) -> Tensor:
    """Return (n, K): the prediction for each image by a model that was trained on the half without it."""
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
    """Return (K, K): how often label j was given to class i, where an image counts for every class.

    It counts for class i by the posterior of i given the image and its label.

    Args:
        predicted: (n, K), the predicted p(class | image).
        candidates: (n, K) bool.
        transition: (K, K), the estimate so far of p(label | class).
    """
    label = candidates.logical_not().int().argmax(1)  # (n,)
    complementary = F.one_hot(label, candidates.shape[1]).to(predicted)  # (n, K)
    # the minimum: the sum over classes is positive also where the model is certain of the class ruled out
    likelihood = predicted.clamp(min=1e-9) * (complementary @ transition.T)
    posterior = likelihood / likelihood.sum(1, keepdim=True)  # (n, K)
    return posterior.T @ complementary


def _evident(counts: Tensor, uniform: Tensor) -> Tensor:
    """Return the counts as a matrix, each row shrunk towards the uniform one.

    A row is shrunk as far as the sampling error of its counts explains its difference from the uniform row.
    """
    images = counts.sum(1, keepdim=True).clamp(min=1e-9)  # (K, 1)
    shares = counts / images
    # (K, 1): the variance of the row of a single image, summed over the row
    chance = (uniform * (1 - uniform)).sum(1, keepdim=True)
    # mean over the images of the squared difference, summed over a row
    spread = (images * (shares - uniform).square()).sum() / images.sum()
    bias = (spread - chance.sum() / images.sum()).clamp(min=0)  # of that, what sampling does not explain
    trust = bias / (bias + chance / images)  # (K, 1)
    return trust * shares + (1 - trust) * uniform
