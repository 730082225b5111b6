"""Every norm, start and objective of the attack, and every attack of record, through the same checks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from atcl.attacks.norms import NORMS, STARTS
from atcl.attacks.pgd import AttackLoss, cw_margin, divergence, given, pgd
from atcl.attacks.threat import Threat
from atcl.core.errors import AtclError
from atcl.evaluation.attacks import ATTACKS
from atcl.evaluation.evaluate import measure
from tests.tiny import TinyNet, split

LABELS = split().truth.labels
IMAGES = split().x.float() / 255
EPSILON = 0.2

ATTACK_LOSSES: dict[str, Callable[[nn.Module], AttackLoss]] = {
    "cross-entropy": lambda model: lambda logits: F.cross_entropy(logits, LABELS),
    "margin": lambda model: cw_margin(LABELS),
    "divergence": lambda model: divergence(model(IMAGES)),
}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """A network that has learnt the images."""
    torch.manual_seed(0)
    net = TinyNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(net(IMAGES), LABELS).backward()
        optimizer.step()
    net.eval().zero_grad()
    assert (net(IMAGES).argmax(1) == LABELS).float().mean() > 0.9
    return net


def length(delta: Tensor, norm: str) -> Tensor:
    flat = delta.flatten(1)
    return flat.abs().amax(1) if norm == "linf" else flat.norm(dim=1)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_stays_inside_the_ball_and_the_box(
    model: nn.Module, norm: str, start: str, steps: int, rng: Generator
) -> None:
    for epsilon in (0.0, 0.0005, 0.3, 5.0):
        adv = pgd(
            model,
            IMAGES,
            ATTACK_LOSSES["cross-entropy"](model),
            epsilon=epsilon,
            step_size=epsilon + 0.01,
            steps=steps,
            norm=norm,
            start=start,
            rng=rng,
        )
        assert length(adv - IMAGES, norm).max() <= epsilon + 1e-6
        assert adv.min() >= 0
        assert adv.max() <= 1


@pytest.mark.parametrize("attack_loss", ATTACK_LOSSES)
@pytest.mark.parametrize("norm", NORMS)
def test_the_attack_raises_its_loss(model: nn.Module, norm: str, attack_loss: str, rng: Generator) -> None:
    objective = ATTACK_LOSSES[attack_loss](model)
    epsilon = 0.1 if norm == "linf" else 0.5
    start = pgd(model, IMAGES, objective, epsilon=epsilon, step_size=epsilon / 4, steps=0, norm=norm, rng=rng)
    adv = pgd(
        model,
        IMAGES,
        objective,
        epsilon=epsilon,
        step_size=epsilon / 4,
        steps=10,
        norm=norm,
        start=given(start),
        rng=rng,
    )
    assert objective(model(adv)) > objective(model(start)) + 1e-3


@pytest.mark.parametrize("norm", NORMS)
def test_leaves_mode_gradients_buffers_and_random_state_alone(
    model: nn.Module, norm: str, rng: Generator
) -> None:
    model.train()
    model.layers[1].eval()  # type: ignore[index, union-attr]  # a part in another mode is put back as it was
    before = [tensor.clone() for tensor in model.state_dict().values()]
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    pgd(
        model,
        IMAGES,
        ATTACK_LOSSES["margin"](model),
        epsilon=EPSILON,
        step_size=EPSILON,
        steps=3,
        norm=norm,
        rng=rng,
    )
    assert modes == [module.training for module in model.modules()]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(old, new) for old, new in zip(before, model.state_dict().values(), strict=True))
    model.eval()


@pytest.mark.parametrize("norm", NORMS)
def test_random_start_fills_the_ball(norm: str, rng: Generator) -> None:
    x = torch.full((2000, 1, 2, 2), 0.5)
    delta = (
        pgd(
            nn.Flatten(),
            x,
            lambda logits: logits.sum(),
            epsilon=0.25,
            step_size=0.1,
            steps=0,
            norm=norm,
            rng=rng,
        )
        - x
    )
    radius = length(delta, norm) / 0.25
    # in d dimensions the radius of a uniform point has the distribution function r^d
    assert abs(float((radius**4).mean()) - 0.5) < 0.03
    assert abs(float(delta.mean())) < 0.01


@pytest.mark.parametrize("norm", NORMS)
def test_budget_may_be_a_number_or_a_tensor(model: nn.Module, norm: str) -> None:
    def attack(epsilon: Tensor | float, step_size: Tensor | float) -> Tensor:
        rng = Generator().manual_seed(1)
        return pgd(
            model,
            IMAGES,
            ATTACK_LOSSES["cross-entropy"](model),
            epsilon=epsilon,
            step_size=step_size,
            steps=3,
            norm=norm,
            rng=rng,
        )

    torch.testing.assert_close(attack(0.2, 0.1), attack(torch.tensor(0.2), torch.tensor(0.1)))


@pytest.mark.parametrize("norm", NORMS)
def test_a_zero_gradient_moves_nothing(norm: str, rng: Generator) -> None:
    x = torch.full((2, 1, 2, 2), 0.5)
    adv = pgd(
        nn.Flatten(),
        x,
        lambda logits: (logits * 0).sum(),
        epsilon=0.1,
        step_size=0.1,
        steps=2,
        norm=norm,
        start="natural",
        rng=rng,
    )
    assert torch.equal(adv, x)


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "natural"])
def test_attack_of_record_breaks_a_naturally_trained_model(model: nn.Module, name: str) -> None:
    assert measure(model, split(), Threat(0.4, 0.05), [name])[name].accuracy < 20


def test_images_that_are_no_floats_and_steps_below_zero_are_refused(model: nn.Module, rng: Generator) -> None:
    for x, steps in ((split().x, 1), (IMAGES, -1)):
        with pytest.raises(AtclError, match="at least 0 steps on images of floats"):
            pgd(model, x, ATTACK_LOSSES["margin"](model), epsilon=0.1, step_size=0.1, steps=steps, rng=rng)
    budget: Any = {"epsilon": 0.1, "step_size": 0.1, "steps": 1, "rng": rng}
    wrong_names: list[dict[str, Any]] = [{"norm": "l3"}, {"start": "zero"}]
    for wrong in wrong_names:
        with pytest.raises(AtclError, match="unknown"):
            pgd(model, IMAGES, ATTACK_LOSSES["margin"](model), **budget, **wrong)


def test_margin_stops_at_its_confidence() -> None:
    logits = torch.tensor([[0.0, 60.0], [0.0, 10.0]], requires_grad=True)
    cw_margin(torch.tensor([0, 0]), confidence=50.0)(logits).backward()
    assert logits.grad is not None
    assert logits.grad[0].abs().sum() == 0  # already leads by more than 50
    assert torch.equal(logits.grad[1], torch.tensor([-1.0, 1.0]))


def test_divergence_of_equal_logits_is_zero() -> None:
    logits = torch.randn(4, 3)
    assert abs(float(divergence(logits)(logits))) < 1e-6
