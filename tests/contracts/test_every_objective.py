"""What holds for every objective, supervision, optimiser and schedule in the registries."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atcl.core.settings import from_data, to_data
from atcl.data.augment import Augmentation
from atcl.data.weak import Batch, rule_out
from atcl.losses import Targets
from atcl.recipes.schema import kinds
from atcl.training.learner import Learner
from atcl.training.loop import fit
from atcl.training.objectives import OBJECTIVES, Objective, loss_of
from atcl.training.optimizers import OPTIMIZERS
from atcl.training.schedules import SCHEDULES, Constant
from atcl.training.stage import Stage
from atcl.training.supervision import SUPERVISIONS, Supervision, blank_memory
from tests import tiny

N, K = 6, tiny.CLASSES
STAGE = tiny.RECIPES["digits/direct-log"].stages[0]
# A schedule has no default settings: an example of each, over a few epochs.
EXAMPLES: dict[str, Any] = {
    "constant": {"value": 0.5},
    "cosine-rise": {"to": 0.5, "over": 3},
    "linear-fall": {"start": 0.5, "over": 3},
    "step-decay": {"value": 0.5, "at": (2,)},
}


def batch() -> tuple[nn.Module, Tensor, Targets]:
    torch.manual_seed(0)
    x = torch.rand(N, *tiny.SHAPE)
    guess = torch.tensor([1, 2, 3, 4, 0, 1])
    return tiny.TinyNet().eval(), x, Targets(rule_out(N, K, [0, 1, 2, 3, 4, 0]), torch.tensor(0.5), guess)


def made(objective: Objective) -> tuple[Tensor, Tensor, nn.Module]:
    model, x, targets = batch()
    adv, others = (x + 0.1).clamp(0, 1), [x.flip(3)] * (objective.views - 1)
    loss, logits = objective.training_loss(model, x, adv, targets, *others)
    return loss, logits, model


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_lowers_a_scalar_that_depends_on_every_weight(name: str) -> None:
    loss, logits, model = made(OBJECTIVES[name]())
    assert loss.shape == ()
    assert logits.shape == (N, K)
    loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all())
    assert any(
        bool((parameter.grad != 0).any()) for parameter in model.parameters() if parameter.grad is not None
    )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_returns_the_logits_of_the_adversarial_images(name: str) -> None:
    model, x, _ = batch()
    _, logits, _ = made(OBJECTIVES[name]())
    torch.testing.assert_close(logits, model((x + 0.1).clamp(0, 1)))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_attack_raises_a_scalar_of_the_logits(name: str) -> None:
    objective = OBJECTIVES[name]()
    model, x, targets = batch()
    adv = (x + 0.05).requires_grad_()
    raised = objective.attack_loss(model, x, targets)(model(adv))
    assert raised.numel() == 1
    (gradient,) = torch.autograd.grad(raised, adv)
    assert bool((gradient != 0).flatten(1).any(1).all()), "some image would not be attacked"
    assert callable(loss_of(objective))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_stage_trains_by_an_objective(name: str) -> None:
    objective = OBJECTIVES[name]()
    views = (Augmentation(flip=True),) * (objective.views - 1)
    stage = replace(STAGE, objective=objective, views=views, epochs=2)
    data = tiny.problem(tiny.RECIPES["digits/direct-log"].labels).train
    learner = Learner(tiny.TinyNet(), data, stage)
    before = [parameter.detach().clone() for parameter in learner.model.parameters()]
    fit(learner, data, stage, seed=1)
    assert not all(map(torch.equal, before, learner.model.parameters()))


@pytest.mark.parametrize("name", SUPERVISIONS)
def test_a_supervision_keeps_targets_and_memory_inside_the_candidates(name: str) -> None:
    supervision: Supervision = SUPERVISIONS[name]()
    _, x, targets = batch()
    index = torch.tensor([3, 1, 5])
    part = Batch(index, x[index], targets.candidates[index])
    memory = blank_memory(targets.candidates)
    before = memory.clone()
    supervision.remember(memory, part, torch.rand(3, K).softmax(1))
    rest = torch.tensor([0, 2, 4])
    assert torch.equal(memory[rest], before[rest])
    assert not bool((memory * ~targets.candidates).any())
    found = supervision.targets(part, memory, torch.tensor(0.3), torch.full((K,), 1 / K), None)
    assert torch.equal(found.candidates, part.candidates)
    assert (found.guess is not None) == supervision.uses_guesses
    if found.guess is not None:
        assert bool(part.candidates.gather(1, found.guess[:, None]).all())
    assert isinstance(supervision.remembers(1), bool)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_reads_the_learning_rate_in_each_step(name: str) -> None:
    model, lr = nn.Linear(3, 2), torch.tensor(0.0)
    optimizer = OPTIMIZERS[name]()(model, lr)
    moved = []
    for value in (0.0, 0.1):
        lr.fill_(value)
        before = model.weight.detach().clone()
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        moved.append(not torch.equal(before, model.weight))
    assert moved == [False, True]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_gives_a_finite_number_in_every_epoch(name: str) -> None:
    schedule = SCHEDULES[name](**EXAMPLES[name])
    assert all(0 <= schedule(epoch) <= 0.5 for epoch in range(1, 200))


@pytest.mark.parametrize(
    "settings",
    [
        *(kind() for registry in (OBJECTIVES, SUPERVISIONS, OPTIMIZERS) for kind in registry.values()),
        *(SCHEDULES[name](**EXAMPLES[name]) for name in SCHEDULES),
    ],
    ids=lambda settings: type(settings).__name__,
)
def test_settings_come_back_from_a_file(settings: Any) -> None:
    assert from_data(to_data(settings), kinds()) == settings
    assert all(field.name for field in fields(settings))


def test_what_a_stage_takes_from_the_one_before_follows_from_its_settings() -> None:
    natural = Stage(1, 8, STAGE.optimizer, Constant(0.1))
    assert natural.takes == ()
    assert replace(natural, teacher="last").takes == ("labels",)
    assert replace(natural, fresh=False).takes == ("weights",)
    assert replace(natural, teacher="last", fresh=False).takes == ("labels", "weights")
    assert tiny.RECIPES["digits/two-stage"].stages[1].takes == ("labels",)
