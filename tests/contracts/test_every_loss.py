"""Every loss in the dict, through the same checks."""

import re
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atcl.losses import LOSSES, PAPER, Targets, decode, uniform_transition

CLASSES = 6
GUESSING = [name for name, loss in LOSSES.items() if loss.guesses]
SEVERAL = [name for name, loss in LOSSES.items() if not loss.single]
BY_IMAGE = [name for name, loss in LOSSES.items() if not loss.by_class]
UNBIASED = [name for name, loss in LOSSES.items() if loss.estimates]
MIXED = torch.tensor([[True] * 5 + [False], [True] + [False] * 5, [True, True, False, False, True, False]])


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
def test_sets_of_labels_and_single_candidates_are_finite_for_extreme_logits(name: str) -> None:
    sole = torch.eye(CLASSES, dtype=torch.bool)[torch.arange(8) % CLASSES]
    for candidates in (sole, MIXED[torch.arange(8) % 3]):
        logits = extremes().requires_grad_()
        loss = LOSSES[name](logits, Targets(candidates))
        loss.backward()
        assert loss.isfinite()
        assert logits.grad is not None
        assert logits.grad.isfinite().all()


@pytest.mark.parametrize("name", SEVERAL)
def test_loss_of_a_single_candidate_falls_when_it_becomes_likelier(name: str) -> None:
    sole = torch.eye(CLASSES, dtype=torch.bool)
    likely, unlikely = (LOSSES[name](logits, Targets(sole)) for logits in (sole.float(), 0.0 * sole))
    assert likely < unlikely


@pytest.mark.parametrize("name", sorted(set(SEVERAL) & set(BY_IMAGE)))
def test_images_with_different_numbers_of_labels_share_a_batch(name: str) -> None:
    logits = torch.randn(3, CLASSES, generator=torch.Generator().manual_seed(1))
    together = LOSSES[name](logits, Targets(MIXED))
    alone = torch.stack([LOSSES[name](logits[i : i + 1], Targets(MIXED[i : i + 1])) for i in range(3)])
    torch.testing.assert_close(together, alone.mean())


@pytest.mark.parametrize("name", LOSSES)
def test_only_a_loss_by_class_is_not_a_mean_over_images(name: str) -> None:
    logits = torch.randn(8, CLASSES, generator=torch.Generator().manual_seed(1))
    given = targets()
    prior = torch.arange(1.0, CLASSES + 1) / 21  # the batch's own would make FREE a mean over images
    together = LOSSES[name](logits, Targets(given.candidates, prior=prior))
    alone = torch.stack(
        [LOSSES[name](logits[i : i + 1], Targets(given.candidates[i : i + 1], prior=prior)) for i in range(8)]
    )
    assert torch.allclose(together, alone.mean()) == (name in BY_IMAGE)


@pytest.mark.parametrize("name", UNBIASED)
def test_an_unbiased_estimate_averages_to_the_ordinary_loss_over_all_sets_of_wrong_classes(name: str) -> None:
    loss = LOSSES[name]
    assert loss.estimates
    logits = 2 * torch.randn(1, CLASSES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ordinary = loss.estimates(logits)[0]  # (K,)
    for true in range(CLASSES):
        for size in (1,) if loss.single else range(1, CLASSES):
            sets = list(combinations([j for j in range(CLASSES) if j != true], size))
            candidates = torch.tensor([[j not in labels for j in range(CLASSES)] for labels in sets])
            average = loss(logits.expand(len(sets), CLASSES), Targets(candidates))
            torch.testing.assert_close(average, ordinary[true], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_no_loss_branches_on_the_values_of_its_tensors(name: str) -> None:
    given = targets()
    assert given.prior is not None
    guess = torch.zeros(8, dtype=torch.long, device="meta") if name in GUESSING else None
    # tensors on "meta" hold no values: reading one raises
    logits = torch.randn(8, CLASSES, device="meta", requires_grad=True)
    without_values = Targets(given.candidates.to("meta"), guess=guess, prior=given.prior.to("meta"))
    loss = LOSSES[name](logits, without_values)
    loss.backward()
    assert loss.shape == ()
    assert logits.grad is not None


def test_the_papers_losses_come_first_and_in_its_order() -> None:
    assert list(LOSSES)[:7] == list(PAPER)


def test_arg_max_of_the_logits_decodes_uniform_labels() -> None:
    logits = torch.randn(200, CLASSES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    predicted = logits.argmax(1)
    assert decode((-logits).softmax(1)).equal(predicted)  # CPE
    assert decode(logits.softmax(1) @ uniform_transition(CLASSES).double()).equal(predicted)  # FORWARD


def test_the_page_of_losses_states_which_labels_each_takes() -> None:
    page = (Path(__file__).parents[2] / "docs/losses.md").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \| [^|]+ \|$", page, re.M))
    takes = {
        name: ("one" if loss.single else "several") + (", guess" if loss.guesses else "")
        for name, loss in LOSSES.items()
    }
    assert stated == takes
