"""The quality of an attack, measured by the truth: compared with the attack through the true label."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import Module
from torch.nn import functional as F

from atcl.attacks.norms import NORMS, STARTS
from atcl.attacks.pgd import AttackLoss, given, pgd
from atcl.attacks.threat import Budget
from atcl.core.modules import evaluating
from atcl.evaluation.attacks import cross_entropy_of
from atcl.losses import LOSSES, PAPER, Targets
from atcl.training.supervision import guesses

ORACLE = "oracle"  # the attack through the true label
GUESSED = "pla"  # LOG with half of its weight on the pseudo-label
GAMMA = 0.5  # as in the paper's analysis


@dataclass(frozen=True)
class Quality:
    """The quality of an attack on each of n images, compared with the attack through the true label."""

    cosine: Tensor  # (n,) between the signs of the two gradients at the natural image
    l1: Tensor  # (n,) between the two adversarial images, summed over values
    natural: Tensor  # (n,) p(y | x)
    attacked: Tensor  # (n,) p(y | adv)

    @property
    def drop(self) -> Tensor:
        """(n,): p(y | x) - p(y | adv), what the attack takes from the true class."""
        return self.natural - self.attacked

    @property
    def lowered(self) -> Tensor:
        """(n,) bool: whether the attack lowers the true class at all."""
        return self.attacked < self.natural


def attack_qualities(
    model: Module,
    x: Tensor,
    attack_losses: Mapping[str, AttackLoss],
    true: Tensor,
    budget: Budget,
    rng: Generator,
) -> dict[str, Quality]:
    """Return the quality of an attack with each attack loss, and of the attack through the true label.

    Args:
        model: the model that is attacked.
        x: (n, C, H, W) in [0, 1].
        attack_losses: what each attack raises, by name.
        true: (n,) the true classes.
        budget: of each attack; all begin at the same random start.
        rng: the start is drawn from it.
    """
    start = STARTS[budget.start](x, budget.epsilon, NORMS[budget.norm], rng)
    return qualities_from(start, model, x, attack_losses, true, budget)


def qualities_from(
    start: Tensor,
    model: Module,
    x: Tensor,
    attack_losses: Mapping[str, AttackLoss],
    true: Tensor,
    budget: Budget,
) -> dict[str, Quality]:
    """Do what `attack_qualities` does, for attacks that begin at these images (n, C, H, W)."""
    found, signs, idle = {}, {}, Generator()
    for name, attack_loss in {ORACLE: cross_entropy_of(true), **attack_losses}.items():
        found[name] = pgd(
            model,
            x,
            attack_loss,
            epsilon=budget.epsilon,
            step_size=budget.step_size,
            steps=budget.steps,
            norm=budget.norm,
            start=given(start),
            rng=idle,
        )
        signs[name] = input_sign(model, x, attack_loss)
    natural = true_probability(model, x, true)
    return {
        name: Quality(
            sign_cosine(signs[name], signs[ORACLE]),
            (adv - found[ORACLE]).abs().flatten(1).sum(1),
            natural,
            true_probability(model, adv, true),
        )
        for name, adv in found.items()
    }


def paper_attack_losses(model: Module, x: Tensor, candidates: Tensor) -> dict[str, AttackLoss]:
    """Return the attack losses that the paper compares.

    These are each of its losses on the complementary labels, and LOG with pseudo-labels at gamma 0.5.
    """
    attack_losses = {name: _attack_loss(name, Targets(candidates)) for name in PAPER}
    # Paper: the guess comes from a moving average of the predictions. Here it comes from the current ones,
    # so that nothing is kept between epochs.
    with evaluating(model), torch.no_grad():
        guess = guesses(model(x).softmax(1), candidates)
    return {**attack_losses, GUESSED: _attack_loss("log", Targets(candidates, GAMMA, guess))}


def input_sign(model: Module, x: Tensor, attack_loss: AttackLoss) -> Tensor:
    """Return the sign of the gradient of an attack loss with respect to the natural images."""
    with evaluating(model), torch.enable_grad():
        image = x.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(attack_loss(model(image)), image)
    return gradient.sign()


def sign_cosine(one: Tensor, two: Tensor) -> Tensor:
    """Return (n,): the cosine of the angle between sign vectors; 0 where either is all zero."""
    return F.cosine_similarity(one.flatten(1), two.flatten(1))


@torch.no_grad()
def true_probability(model: Module, x: Tensor, true: Tensor) -> Tensor:
    """Return (n,): the probability that the model assigns to the true class."""
    with evaluating(model):
        probabilities: Tensor = model(x).softmax(1)
    return probabilities.gather(1, true[:, None])[:, 0]


def lowered_share(natural: Tensor, attacked: Tensor) -> float:
    """Return the share of attacks that lower the probability of the true class at all."""
    return float((attacked < natural).float().mean())


def _attack_loss(name: str, targets: Targets) -> AttackLoss:
    return lambda logits: LOSSES[name](logits, targets)
