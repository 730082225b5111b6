"""Every loss in the dict, through the same checks."""

import pytest
import torch
from torch import Tensor

from atcl.losses import LOSSES, Targets

CLASSES = 6
GUESSING = [name for name, loss in LOSSES.items() if loss.guesses]
SEVERAL = [name for name, loss in LOSSES.items() if not loss.single]


def targets(n: int = 8, gamma: float = 1.0, guessed: bool = False) -> Targets:
    complementary = torch.arange(n) % CLASSES
    candidates = torch.ones(n, CLASSES, dtype=torch.bool).scatter(1, complementary[:, None], False)
    guess = (complementary + 1) % CLASSES if guessed else None
    return Targets(candidates, gamma, guess, prior=torch.full((CLASSES,), 1 / CLASSES))


def extremes(n: int = 8) -> Tensor:
    """Logits of up to 1e4 in both directions, ties among them."""
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(n, CLASSES, generator=rng).sign() * 1e4
    logits[0] = 0
    logits[1, 1] = 1e4  # all the weight on the complementary label
    logits[1, [0, 2, 3, 4, 5]] = -1e4
    return logits


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_are_finite_for_extreme_logits(name: str) -> None:
    logits = extremes().requires_grad_()
    loss = LOSSES[name](logits, targets())
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("name", GUESSING)
def test_pseudo_label_form_is_finite_for_extreme_logits(name: str, gamma: float) -> None:
    logits = extremes().requires_grad_()
    loss = LOSSES[name](logits, targets(gamma=gamma, guessed=True))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_order_within_the_batch_does_not_matter(name: str) -> None:
    logits = torch.randn(8, CLASSES, generator=torch.Generator().manual_seed(1))
    given = targets()
    order = torch.randperm(8, generator=torch.Generator().manual_seed(2))
    turned = Targets(given.candidates[order], prior=given.prior)
    torch.testing.assert_close(LOSSES[name](logits, given), LOSSES[name](logits[order], turned))


@pytest.mark.parametrize("name", LOSSES)
def test_loss_falls_when_the_complementary_label_becomes_less_likely(name: str) -> None:
    given = targets()
    logits = torch.zeros(8, CLASSES)
    better = logits.scatter(1, given.complementary[:, None], -1.0)
    assert LOSSES[name](better, given) < LOSSES[name](logits, given)


@pytest.mark.parametrize("name", GUESSING)
def test_at_gamma_one_the_guess_does_not_matter(name: str) -> None:
    logits = torch.randn(8, CLASSES, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(LOSSES[name](logits, targets(guessed=True)), LOSSES[name](logits, targets()))


@pytest.mark.parametrize("name", SEVERAL)
def test_images_with_different_numbers_of_labels_share_a_batch(name: str) -> None:
    candidates = torch.tensor([[True] * 5 + [False], [True] + [False] * 5, [True, True, False, False, True, False]])
    logits = torch.randn(3, CLASSES, generator=torch.Generator().manual_seed(1))
    together = LOSSES[name](logits, Targets(candidates))
    alone = torch.stack([LOSSES[name](logits[i : i + 1], Targets(candidates[i : i + 1])) for i in range(3)])
    torch.testing.assert_close(together, alone.mean())
