"""Losses of the field besides the paper's seven; none of them has a known form with pseudo-labels.

MAE, MSE, CE, GCE and PHUBER_CE share one estimator, `unbiased`, of the risk of an ordinary loss.
docs/losses.md names the source of each loss and the assumption that it makes.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from atcl.losses.paper import class_risks, uniform_transition
from atcl.losses.targets import Targets

OrdinaryLoss = Callable[[Tensor], Tensor]  # logits -> (n, K), the loss if class k were the true one


def unbiased(logits: Tensor, targets: Targets, ordinary: OrdinaryLoss) -> Tensor:
    """Feng et al. 2020: an unbiased estimate of the risk of an ordinary loss; it can be negative."""
    return unbiased_each(ordinary(logits), targets).mean()


def unbiased_each(loss: Tensor, targets: Targets) -> Tensor:
    """Return (n,): an estimate whose expectation over the labels is the loss of the true class.

    Args:
        loss: (n, K), the ordinary loss of each image for each class
        targets: the candidates of each image
    """
    inside, outside = (loss * targets.candidates).sum(1), (loss * ~targets.candidates).sum(1)
    return inside - (targets.correction - 1) * outside  # (K - 1 - s) / s for s labels


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
    """PHUBER_CE (Menon et al. 2020): cross-entropy, but linear in p where p is at most 1 / tau."""
    logarithm = logits.log_softmax(1)
    line = 1 + math.log(tau) - tau * logarithm.exp()
    return torch.where(logarithm > -math.log(tau), -logarithm, line)


def pairwise(logits: Tensor) -> Tensor:
    """The ordinary loss that PC estimates: the sum of sigmoid losses of the true class against the others."""
    against_all = torch.sigmoid(logits[:, None, :] - logits[:, :, None]).sum(2)
    return against_all - 0.5  # without the class against itself


def pc(logits: Tensor, targets: Targets) -> Tensor:
    """PC (Ishida et al. 2017): sigmoid losses of each class against the complementary one.

    Constants are added that make it an unbiased estimate of the risk of `pairwise`.
    """
    classes = targets.classes
    label = targets.complementary[:, None]
    # Paper: the sum omits the complementary class; official code: it is included, which adds (K - 1) / 2.
    loss = torch.sigmoid(logits.gather(1, label) - logits).sum(1) - 0.5
    return (classes - 1) * loss.mean() - classes * (classes - 1) / 2 + classes - 1


def ga(logits: Tensor, targets: Targets) -> Tensor:
    """GA (Ishida et al. 2019): the value of FREE, but a step raises the negative risks of classes, if any."""
    risks = class_risks(logits, targets)
    # Official code: negative risks are weighted by the number of images with that label; libcll: unweighted.
    to_descend = torch.where((risks < 0).any(), -risks.clamp(max=0).sum(), risks.sum())
    # The value is FREE's, an estimate of the risk; that of `to_descend` is none, it rises as the risks fall.
    return risks.sum().detach() + (to_descend - to_descend.detach())


def l_uw(logits: Tensor, targets: Targets) -> Tensor:
    """L_UW (Gao and Zhang 2021): the negative log-likelihood of the complementary label by softmax(1 - p)."""
    return _discriminative(logits, targets)[0].mean()


def l_w(logits: Tensor, targets: Targets) -> Tensor:
    """L_W (Gao and Zhang 2021): L_UW plus L_UW weighted by (1 - p) / (K - 1)."""
    loss, weight = _discriminative(logits, targets)
    return (loss + weight * loss).mean()  # the gradient passes through the weight, as in the official code


def cpe(logits: Tensor, targets: Targets) -> Tensor:
    """CPE (Lin and Lin 2023), variant I: the negative log-likelihood of the complementary label."""
    # Paper: softmax(logits) estimates p(complementary | x).
    # Ours: softmax(-logits), so that the largest logit is the predicted class (see `decode`).
    return F.cross_entropy(-logits, targets.complementary)


def decode(estimates: Tensor, transition: Tensor | None = None) -> Tensor:
    """Return (n,): the class whose row of the transition matrix is closest in L1 to p(complementary | x).

    Args:
        estimates: (n, K), the estimated p(complementary | x)
        transition: (K, K); None: the uniform one
    """
    rows = uniform_transition(estimates.shape[1], estimates.device) if transition is None else transition
    return torch.cdist(estimates, rows.to(estimates), p=1).argmin(1)


def scarce(logits: Tensor, targets: Targets, class_prior: Tensor | None = None) -> Tensor:
    """SCARCE (Wang et al. 2024): the sum of K logistic losses, "it is class k" against "it is not".

    The images for which class k is ruled out are examples of "it is not". What they contribute to the mean
    over all images is subtracted from it, which leaves the examples of "it is class k".
    """
    ruled_out = (~targets.candidates).to(logits)  # (n, K)
    # (n, K): with it, the sum of a column is the mean over the images for which the class is ruled out
    mean_weight = ruled_out / ruled_out.sum(0).clamp(min=1)
    # Paper: p(true = k), known or estimated; official code: 1 / K.
    not_class = 1 - (1 / targets.classes if class_prior is None else class_prior)  # p(true != k)
    is_loss, is_not_loss = F.softplus(-logits), F.softplus(logits)  # (n, K)
    negative_risk = not_class * (mean_weight * is_not_loss).sum(0)  # (K,)
    # (K,): an estimate of p(true = k) times the mean over class k, which can be negative in a batch
    positive_risk = is_loss.mean(0) - not_class * (mean_weight * is_loss).sum(0)
    return (negative_risk + positive_risk.abs()).sum()


def _discriminative(logits: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return -log softmax(1 - p) and (1 - p) / (K - 1), each (n,), both at the complementary label."""
    label = targets.complementary[:, None]
    inverse = 1 - logits.softmax(1)
    loss = -inverse.log_softmax(1).gather(1, label)[:, 0]
    return loss, inverse.gather(1, label)[:, 0] / (targets.classes - 1)
