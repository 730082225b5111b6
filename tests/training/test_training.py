from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor, nn

from atcl.attacks.threat import Budget
from atcl.core.errors import AtclError
from atcl.data.weak import WeakData, rule_out
from atcl.datasets.labels import Complementary, Ordinary, RandomSets, weaken
from atcl.engine.engines import Engine, Step
from atcl.losses import LOSSES, Targets
from atcl.training.learner import Learner
from atcl.training.loop import Snapshot, fit
from atcl.training.objectives import MinMax, Trades
from atcl.training.optimizers import Adam, Sgd
from atcl.training.schedules import Constant
from atcl.training.stage import Stage
from atcl.training.supervision import PseudoLabels, relabel
from tests import tiny

STAGE = Stage(3, 8, Sgd(), Constant(0.05), budget=Budget(0.1, 0.05, 2))


def learner_of(stage: Stage, data: WeakData) -> Learner:
    torch.manual_seed(0)
    return Learner(tiny.TinyNet(), data, stage)


def trained(stage: Stage, data: WeakData, **more: object) -> Learner:
    learner = learner_of(stage, data)
    fit(learner, data, stage, seed=0, **more)  # type: ignore[arg-type]
    return learner


def same(one: Learner, two: Learner) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state().values(), two.state().values(), strict=True))


@pytest.fixture
def data() -> WeakData:
    return weaken(tiny.split(), Complementary(), 0)


def test_a_seed_fixes_every_bit_and_the_global_random_state_is_left_alone(data: WeakData) -> None:
    one = trained(STAGE, data)
    state = torch.get_rng_state()
    two = learner_of(STAGE, data)
    torch.manual_seed(77)  # what others drew before makes no difference
    state = torch.get_rng_state()
    fit(two, data, STAGE, seed=0)
    assert torch.equal(state, torch.get_rng_state())
    assert same(one, two)
    three = learner_of(STAGE, data)
    fit(three, data, STAGE, seed=1)
    assert not same(one, three)


def test_an_observer_cannot_change_the_run(data: WeakData) -> None:
    def meddle(snapshot: Snapshot) -> None:
        torch.rand(5)
        with torch.no_grad():
            for parameter in snapshot.model.parameters():
                parameter.zero_()
        snapshot.memory.zero_()
        snapshot.model.train()
        for parameter in snapshot.attack_model.parameters():
            parameter.data.zero_()
        snapshot.attack_model.train()

    stage = tiny.RECIPES["digits/warmup-pla"].stages[0]
    assert same(trained(stage, data), trained(stage, data, observers=[meddle]))
    learners = [trained(stage, data, observers=observers) for observers in ([], [meddle])]
    assert torch.equal(*(relabel(data, learner.refresh()).candidates for learner in learners))


def test_an_engine_may_wrap_the_step_of_the_loop(data: WeakData) -> None:
    calls: list[tuple[int, int, bool]] = []

    class Counting(Engine):
        def whole(self, step: Step, rng: Generator) -> Step:
            def run(index: Tensor, steps: int, remember: bool) -> Tensor:
                calls.append((len(index), steps, remember))
                return step(index, steps, remember)

            return run

    assert same(trained(STAGE, data), trained(STAGE, data, engine=Counting()))
    assert calls == [(8, 2, False), (8, 2, False), (4, 2, False)] * 3


def test_the_loss_falls_and_the_model_learns(data: WeakData) -> None:
    oracle = weaken(tiny.split(), Ordinary(), 0)
    losses: list[float] = []
    stage = Stage(30, 8, Adam(), Constant(0.01))
    learner = trained(stage, oracle, observers=[lambda snapshot: losses.append(snapshot.loss)])
    assert losses[-1] < losses[0] / 3
    predicted = learner.frozen(oracle.x.float() / 255).argmax(1)
    assert (predicted == tiny.split().truth.labels).float().mean() > 0.9


def test_a_stage_goes_on_from_the_epoch_that_a_learner_has_reached(data: WeakData) -> None:
    whole = trained(STAGE, data)
    half = learner_of(STAGE, data)
    fit(half, data, replace(STAGE, epochs=1), seed=0)
    again = learner_of(STAGE, data)
    again.load({name: tensor.clone() for name, tensor in half.state().items()})
    fit(again, data, STAGE, seed=0)
    assert same(whole, again)


def test_loading_keeps_the_very_tensors(data: WeakData) -> None:
    """A captured step points at them."""
    learner = trained(STAGE, data)
    state = {name: tensor.clone() for name, tensor in learner.state().items()}
    places = {name: tensor.data_ptr() for name, tensor in learner.state().items() if name != "epoch"}
    fit(learner, data, replace(STAGE, epochs=4), seed=9)
    learner.load(state)
    assert places == {name: tensor.data_ptr() for name, tensor in learner.state().items() if name != "epoch"}
    assert all(torch.equal(tensor, state[name]) for name, tensor in learner.state().items())


def test_a_loss_that_is_not_finite_stops_with_one_line(data: WeakData) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * torch.nan * x.flatten(1)[:, : tiny.CLASSES]

    with pytest.raises(AtclError, match="the loss is no longer finite in epoch 1"):
        fit(Learner(Broken(), data, STAGE), data, STAGE, seed=0)


def test_weights_that_are_not_finite_never_reach_an_observer(data: WeakData) -> None:
    seen: list[int] = []
    wild = Stage(1, 20, Sgd(momentum=0, weight_decay=1e30), Constant(1e30), budget=Budget())
    with pytest.raises(AtclError, match="no longer finite"):
        trained(wild, data, observers=[lambda snapshot: seen.append(snapshot.phase.epoch)])
    assert not seen


def test_losses_for_one_label_refuse_several() -> None:
    several = weaken(tiny.split(), RandomSets(), 0)
    for name in (name for name, loss in LOSSES.items() if loss.single):
        with pytest.raises(AtclError, match=r"exactly one complementary label.*scl_nl.*log.*scarce"):
            trained(replace(STAGE, objective=MinMax(name)), several)


def test_losses_without_pseudo_labels_refuse_them_and_name_those_that_take_them() -> None:
    for name in (name for name, loss in LOSSES.items() if not loss.guesses):
        message = r"no form with pseudo-labels: use one of scl_nl, scl_exp, exp, log$"
        with pytest.raises(AtclError, match=message):
            replace(STAGE, objective=MinMax(name), supervision=PseudoLabels())


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_trains_under_attack(name: str, data: WeakData) -> None:
    stage = replace(STAGE, objective=MinMax(name), epochs=1)
    untouched = trained(replace(stage, lr=Constant(0.0)), data)
    assert not same(trained(stage, data), untouched)


def test_forward_uses_the_transition_matrix_of_the_data(data: WeakData) -> None:
    biased = torch.full((5, 5), 0.1).fill_diagonal_(0)
    biased += torch.diag(torch.full((4,), 0.6), 1) + torch.diag(torch.full((1,), 0.6), -4)
    stage = replace(STAGE, objective=MinMax("forward"))
    skewed = replace(data, transition=biased / biased.sum(1, keepdim=True))
    assert not same(trained(stage, data), trained(stage, skewed))


def test_trades_adds_the_divergence_to_the_loss_of_the_clean_images() -> None:
    torch.manual_seed(0)
    model, x = tiny.TinyNet().eval(), torch.rand(4, *tiny.SHAPE)
    adv = (x + 0.1).clamp(0, 1)
    targets = Targets(rule_out(4, 5, [0, 1, 2, 3]))
    loss, logits = Trades("log", on="clean", weight=2.0).training_loss(model, x, adv, targets)
    clean, moved = model(x), model(adv)
    kl = nn.functional.kl_div(moved.log_softmax(1), clean.softmax(1), reduction="batchmean")
    torch.testing.assert_close(loss, MinMax("log").training_loss(model, x, x, targets)[0] + 2 * kl)
    torch.testing.assert_close(logits, moved)
    alone, _ = Trades("log", on="adv", weight=0.0).training_loss(model, x, adv, targets)
    torch.testing.assert_close(alone, MinMax("log").training_loss(model, x, adv, targets)[0])
