"""The seven losses of the paper's table.

An image has a set of candidates and at most one guess. With

    weights = gamma * candidates + (1 - gamma) * onehot(guess),      support = sum_j weights_j p_j

LOG, EXP, SCL_NL and SCL_EXP are one line each, with and without pseudo-labels, and LOG of a single
candidate is cross-entropy. FORWARD, FREE and NN are defined for exactly one complementary label and no guess.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from atcl.losses.targets import Targets


def log(logits: Tensor, targets: Targets) -> Tensor:
    """LOG (Feng et al. 2020) and Eqs. log_ce, log_ce_mcl: the corrected negative logarithm of the support."""
    return -(targets.correction * _log_support(logits, targets.weights)).mean()


def exp(logits: Tensor, targets: Targets) -> Tensor:
    """EXP (Feng et al. 2020) and Eq. exp_ce: the corrected exponential of the negative support."""
    return (targets.correction * torch.exp(-_support(logits, targets.weights))).mean()


def scl_nl(logits: Tensor, targets: Targets) -> Tensor:
    """SCL_NL (Chou et al. 2020) and Eq. scl_nl_ce: the negative logarithm of the support."""
    # Paper: -log(1 - p); official code: -log(1 - p + 1e-5), which log-space does not need.
    return -_log_support(logits, targets.weights).mean()


def scl_exp(logits: Tensor, targets: Targets) -> Tensor:
    """SCL_EXP (Chou et al. 2020) and Eq. scl_exp_ce: exp(gamma - support)."""
    return torch.exp(targets.gamma - _support(logits, targets.weights)).mean()


def free(logits: Tensor, targets: Targets) -> Tensor:
    """FREE (Ishida et al. 2019): an unbiased estimate of the risk of cross-entropy; it can be negative."""
    return class_risks(logits, targets).sum()


def nn(logits: Tensor, targets: Targets) -> Tensor:
    """NN (Ishida et al. 2019): FREE, where a negative risk of a class counts as zero."""
    return class_risks(logits, targets).clamp(min=0).sum()


def forward(logits: Tensor, targets: Targets) -> Tensor:
    """FORWARD (Yu et al. 2018): -log p(complementary label), computed from p by the transition matrix."""
    transition = targets.transition
    if transition is None:
        transition = uniform_transition(targets.classes, logits.device)
    observed = transition.T[targets.complementary]  # (n, K): p(this complementary label | true = j)
    return -_log_support(logits, observed).mean()


def uniform_transition(classes: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the (K, K) matrix of the uniform assumption: 0 on the diagonal, 1 / (K - 1) elsewhere."""
    return (1 - torch.eye(classes, device=device)) / (classes - 1)


def _support(logits: Tensor, weights: Tensor) -> Tensor:
    return (weights * logits.softmax(1)).sum(1)


def _log_support(logits: Tensor, weights: Tensor) -> Tensor:
    # Paper: softmax, then log; official code: the same, which is infinite once p underflows.
    # In log-space value and gradient stay finite.
    return torch.logsumexp(logits.log_softmax(1) + weights.log(), 1)


def class_risks(logits: Tensor, targets: Targets) -> Tensor:
    """Return (K,): L_k = -(K - 1) pi_k mean_k l(k) + sum_j pi_j mean_j l(k).

    l is -log softmax, and mean_k the mean over the images of the batch with complementary label k.
    """
    classes = targets.classes
    loss = -logits.log_softmax(1)  # (n, K)
    complementary = F.one_hot(targets.complementary, classes).to(loss)  # (n, K)
    count = complementary.sum(0)  # (K,)
    # Paper: a mean over images, so pi is the share in the batch; official code: the share in the dataset.
    prior = count / len(logits) if targets.prior is None else targets.prior
    # (K, K): row j holds the means of l over the images with complementary label j
    mean = complementary.T @ loss / count.clamp(min=1)[:, None]
    return -(classes - 1) * prior * mean.diagonal() + prior @ mean
