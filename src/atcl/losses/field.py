"""Losses of the field beside the paper's seven: no form with pseudo-labels is known for any of them.

MAE, MSE, CE, GCE and PHUBER_CE are one estimator, `unbiased`, around an ordinary loss: (n, K), the loss of each image for
each class that could be its true one. docs/losses.md says where each comes from and which assumption it rests on.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from atcl.losses.paper import class_risks, uniform_transition
from atcl.losses.targets import Targets

OrdinaryLoss = Callable[
    [Tensor], Tensor
]  # logits -> (n, K): the loss of each image for each possible true class


def unbiased(logits: Tensor, targets: Targets, ordinary: OrdinaryLoss) -> Tensor:
    """Feng et al. 2020: the risk of an ordinary loss, from sets of s complementary labels; it can be negative."""
    return unbiased_each(ordinary(logits), targets).mean()


def unbiased_each(loss: Tensor, targets: Targets) -> Tensor:
    """Return (n,), whose expectation over the labels is the loss of the true class, from the loss of each class (n, K)."""
    inside, outside = (loss * targets.candidates).sum(1), (loss * ~targets.candidates).sum(1)
    return inside - (targets.correction - 1) * outside  # (K - 1 - s) / s is the correction less 1


def absolute_error(logits: Tensor) -> Tensor:
    """MAE: the L1 distance between prediction and label, 2 - 2 p."""
    return 2 - 2 * logits.softmax(1)


def squared_error(logits: Tensor) -> Tensor:
    """MSE: the squared L2 distance between prediction and label, 1 - 2 p + sum_j p_j^2."""
    probabilities = logits.softmax(1)
    return 1 - 2 * probabilities + probabilities.square().sum(1, keepdim=True)


def cross_entropy(logits: Tensor) -> Tensor:
    """CE: -log p."""
    return -logits.log_softmax(1)


def generalized_cross_entropy(logits: Tensor, q: float = 0.7) -> Tensor:
    """GCE (Zhang and Sabuncu 2018): (1 - p^q) / q, between CE at q 0 and half of MAE at q 1."""
    # Official code: a power of the softmax, whose gradient is not a number once p underflows.
    return -torch.expm1(q * logits.log_softmax(1)) / q


def partially_huberised(logits: Tensor, tau: float = 10.0) -> Tensor:
    """PHUBER_CE (Menon et al. 2020): cross-entropy, made linear in p where p is at most 1 / tau."""
    logarithm = logits.log_softmax(1)
    line = 1 + math.log(tau) - tau * logarithm.exp()
    return torch.where(logarithm > -math.log(tau), -logarithm, line)


def pairwise(logits: Tensor) -> Tensor:
    """The ordinary loss that PC estimates: the sigmoid loss of the true class against each other class, summed."""
    return (
        torch.sigmoid(logits[:, None, :] - logits[:, :, None]).sum(2) - 0.5
    )  # less the class against itself


def pc(logits: Tensor, targets: Targets) -> Tensor:
    """PC (Ishida et al. 2017): each class against the complementary one, with the constants that make it the risk of `pairwise`."""
    classes = targets.classes
    label = targets.complementary[:, None]
    # Paper: the sum leaves the complementary class out; official code: it is in, a constant (K - 1) / 2 more.
    lost = torch.sigmoid(logits.gather(1, label) - logits).sum(1) - 0.5
    return (classes - 1) * lost.mean() - classes * (classes - 1) / 2 + classes - 1


def ga(logits: Tensor, targets: Targets) -> Tensor:
    """GA (Ishida et al. 2019): the value of FREE; where a class risk is negative, the gradient undoes the negative ones instead."""
    risks = class_risks(logits, targets)
    # Official code: the risks that are undone are multiplied by the number of images with that label; libcll: they are not.
    step = torch.where((risks < 0).any(), -risks.clamp(max=0).sum(), risks.sum())
    # Not the value of `step`, which rises while FREE falls below zero: what is reported stays an estimate of the risk.
    return risks.sum().detach() + (step - step.detach())


def l_uw(logits: Tensor, targets: Targets) -> Tensor:
    """L_UW (Gao and Zhang 2021): the negative log-likelihood of the complementary label under softmax(1 - p)."""
    return _discriminative(logits, targets)[0].mean()


def l_w(logits: Tensor, targets: Targets) -> Tensor:
    """L_W (Gao and Zhang 2021): L_UW and, once more, L_UW weighted by (1 - p) / (K - 1)."""
    lost, weight = _discriminative(logits, targets)
    return (lost + weight * lost).mean()  # the gradient passes through the weight, as in the official code


def cpe(logits: Tensor, targets: Targets) -> Tensor:
    """CPE (Lin and Lin 2023), variant I: the negative log-likelihood of the complementary label, estimated without a transition matrix."""
    # Paper: softmax(logits) estimates p(complementary | x); ours: softmax(-logits), so that the arg-max of the logits decodes it (see `decode`).
    return F.cross_entropy(-logits, targets.complementary)


def decode(estimates: Tensor, transition: Tensor | None = None) -> Tensor:
    """Return (n,): the class whose row of the transition matrix lies nearest in L1 to the estimated p(complementary | x), (n, K)."""
    rows = uniform_transition(estimates.shape[1], estimates.device) if transition is None else transition
    return torch.cdist(estimates, rows.to(estimates), p=1).argmin(1)


def scarce(logits: Tensor, targets: Targets, class_prior: Tensor | None = None) -> Tensor:
    """SCARCE (Wang et al. 2024): for each class, being it against not, from images it was ruled out for and all images."""
    ruled_out = (~targets.candidates).to(logits)  # (n, K)
    share = ruled_out / ruled_out.sum(0).clamp(
        min=1
    )  # (n, K): the columns average over the images that a class was ruled out for
    # Paper: p(true = k), known or estimated; official code: 1 / K.
    wrong = 1 - (1 / targets.classes if class_prior is None else class_prior)  # p(true != k)
    is_class, is_not = (
        F.softplus(-logits),
        F.softplus(logits),
    )  # (n, K): the logistic losses of "it is k" and "it is not k"
    rest = wrong * (share * is_not).sum(0)
    own = is_class.mean(0) - wrong * (share * is_class).sum(
        0
    )  # p(true = k) times a mean over class k, yet negative in many a batch
    return (rest + own.abs()).sum()


def _discriminative(logits: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return (n,) -log softmax(1 - p) and (n,) (1 - p) / (K - 1), both at the complementary label."""
    label = targets.complementary[:, None]
    other = 1 - logits.softmax(1)
    return -other.log_softmax(1).gather(1, label)[:, 0], other.gather(1, label)[:, 0] / (targets.classes - 1)
