import math

import pytest

from atcl.attacks.threat import Budget
from atcl.core.errors import AtclError
from atcl.recipes.catalogue import recipe
from atcl.training.schedules import Constant, CosineRise, LinearFall, StepDecay

FULL = Budget(epsilon=0.3, step_size=0.01, steps=40)


@pytest.mark.parametrize("epoch", range(1, 120))
def test_warm_up_and_pla_are_the_papers_scheduler(epoch: int) -> None:
    """T(a, e - E_i, E_s) of Eq. eq_eps with E_i = 10, E_s = 50, and zero or full weight before."""
    e = max(epoch - 10, 0)
    expected = 0.3 / 2 * (1 - math.cos(min(e / 50, 1) * math.pi))
    assert CosineRise(0.3, over=50, after=10)(epoch) == pytest.approx(expected, abs=1e-12)
    assert LinearFall(1.0, over=50, after=10)(epoch) == pytest.approx(1 - min(e / 50, 1), abs=1e-12)


def test_a_schedule_over_no_epochs_is_a_jump() -> None:
    assert [CosineRise(1.0, over=0, after=2)(epoch) for epoch in (1, 2, 3, 4)] == [0, 0, 1, 1]
    assert [LinearFall(1.0, over=0, after=2)(epoch) for epoch in (1, 2, 3, 4)] == [1, 1, 0, 0]


def test_step_decay_rises_then_falls() -> None:
    rates = [StepDecay(0.1, at=(4, 6), rise=2)(epoch) for epoch in range(1, 8)]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    assert Constant(3.0)(99) == 3.0


def test_negative_spans_are_refused() -> None:
    for kind in (CosineRise, LinearFall):
        with pytest.raises(AtclError, match="negative"):
            kind(1.0, over=-1)


def test_warm_up_by_epsilon_and_step_size() -> None:
    assert FULL.grown(0.5, ("epsilon", "step_size")) == Budget(0.15, 0.005, 40)


def test_warm_up_by_steps() -> None:
    assert FULL.grown(0.5, ("steps",)) == Budget(0.3, 0.01, 20)
    assert FULL.grown(0.01, ("steps",)) == Budget(0.3, 0.01, 1)


def test_warm_up_by_epsilon_and_steps_rounds_up() -> None:
    """k_e = ceil(epsilon_e / epsilon k)."""
    assert FULL.grown(0.51, ("epsilon", "steps")) == Budget(0.3 * 0.51, 0.01, 21)
    (stage,) = recipe("kuzushiji/warmup-pla-epsilon-k").stages
    assert [stage.phase(epoch).budget.steps for epoch in (10, 11, 35, 60, 100)] == [0, 1, 20, 40, 40]


def test_no_strength_is_no_attack() -> None:
    for grow in (("epsilon", "step_size"), ("steps",), ("epsilon", "steps"), ()):
        assert FULL.grown(0.0, grow).steps == 0
