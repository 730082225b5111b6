"""Analysis compared with slow loops, with cases worked out by hand and with its definitions."""

from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor, nn

from atcl.analysis.attacks import (
    attack_qualities,
    lowered_share,
    paper_attack_losses,
    sign_cosine,
    true_probability,
)
from atcl.analysis.gradients import direction_variance, first_and_last, image_gradients, layer_norms
from atcl.attacks.threat import Budget
from atcl.core.errors import AtclError
from atcl.evaluation.attacks import cross_entropy_of
from atcl.evaluation.pseudo_labels import pseudo_label_accuracy
from atcl.losses import LOSSES, PAPER, Targets
from atcl.models import MODELS
from atcl.training.objectives import MinMax, Objective, Trades
from tests import tiny

OBJECTIVES: list[Objective] = [
    *(MinMax(name) for name in LOSSES),
    Trades("scl_nl", "clean", 0.7),
    Trades("log", "adv", 0.0),
]


def net() -> nn.Module:
    torch.manual_seed(0)
    return tiny.TinyNet().eval()


def batch(n: int = 12) -> tuple[Tensor, Tensor, Targets]:
    rng = Generator().manual_seed(1)
    x = torch.rand(n, *tiny.SHAPE, generator=rng)
    adv = (x + 0.1 * torch.randn(x.shape, generator=rng)).clamp(0, 1)
    complementary = torch.randint(tiny.CLASSES, (n,), generator=rng)
    return x, adv, Targets(~torch.nn.functional.one_hot(complementary, tiny.CLASSES).bool())


def batch_gradient(
    model: nn.Module, objective: Objective, x: Tensor, adv: Tensor, targets: Targets, names: tuple[str, ...]
) -> Tensor:
    """The gradient of the batch's loss, the ordinary way."""
    loss, _ = objective.training_loss(model, x, adv, targets)
    found = torch.autograd.grad(loss, [dict(model.named_parameters())[name] for name in names])
    return torch.cat([one.flatten() for one in found])


def slow_trace(gradients: Tensor) -> float:
    """The trace of the covariance matrix itself."""
    directions = torch.stack([one / one.norm() for one in gradients.double()])
    return float(torch.cov(directions.T, correction=0).trace())


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_the_parts_of_the_images_add_up_to_the_gradient_of_the_batch(objective: Objective) -> None:
    model, (x, adv, targets) = net(), batch()
    for names in first_and_last(model):
        parts = image_gradients(model, objective, x, adv, targets, names)
        assert parts.shape[0] == len(x)
        torch.testing.assert_close(
            parts.sum(0), batch_gradient(model, objective, x, adv, targets, names), atol=1e-5, rtol=1e-4
        )


# NN clamps risks of the batch: it has no loss of one image
@pytest.mark.parametrize("name", [name for name in PAPER if name != "nn"])
def test_the_variance_is_that_of_a_slow_loop_over_single_images(name: str) -> None:
    model, (x, adv, targets) = net(), batch(32)
    first, _ = first_and_last(model)
    one_by_one = torch.stack(
        [
            batch_gradient(
                model,
                MinMax(name),
                x[i : i + 1],
                adv[i : i + 1],
                replace(targets, candidates=targets.candidates[i : i + 1]),
                first,
            )
            for i in range(len(x))
        ]
    )
    fast = direction_variance(image_gradients(model, MinMax(name), x, adv, targets, first))
    assert fast.zeros == 0
    assert fast.trace is not None
    assert fast.trace == pytest.approx(slow_trace(one_by_one), abs=1e-5)
    assert 0 < fast.trace < 1


class Dropping(nn.Module):
    """Two dropouts, one of them called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(36, 6), nn.Linear(6, 6), nn.Linear(6, tiny.CLASSES)
        self.many, self.few = nn.Dropout(0.5), nn.Dropout(1 / 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.many(torch.tanh(self.first(x.flatten(1))))
        return self.last(self.many(self.few(torch.tanh(self.second(hidden)))))  # type: ignore[no-any-return]


def test_dropouts_draw_their_masks_from_a_generator_that_is_given() -> None:
    torch.manual_seed(0)
    model, (x, adv, targets) = Dropping().eval(), batch(32)
    first, _ = first_and_last(model)
    plain = image_gradients(model, MinMax(), x, adv, targets, first)
    state = torch.get_rng_state()
    dropped = image_gradients(model, MinMax(), x, adv, targets, first, torch.Generator().manual_seed(1))
    assert torch.equal(state, torch.get_rng_state())
    assert not any(layer._forward_hooks for layer in model.modules())
    assert not torch.allclose(plain, dropped)

    rng = torch.Generator().manual_seed(1)
    one, two, three = ((torch.rand(32, 6, generator=rng) >= p) / (1 - p) for p in (0.5, 1 / 3, 0.5))
    hidden = torch.tanh(model.first(adv.flatten(1))) * one
    logits = model.last(torch.tanh(model.second(hidden)) * two * three)
    loss, _ = MinMax().training_loss(lambda images: logits, x, adv, targets)  # type: ignore[arg-type]
    expected = torch.cat(
        [
            part.flatten()
            for part in torch.autograd.grad(loss, [dict(model.named_parameters())[name] for name in first])
        ]
    )
    torch.testing.assert_close(dropped.sum(0), expected, atol=1e-6, rtol=1e-4)


class Sequence(nn.Module):
    """A dropout whose rows are not images."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(24, tiny.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 2)  # (n * 6, 6)
        return self.last(self.drop(torch.tanh(self.first(rows))).view(len(x), -1))  # type: ignore[no-any-return]


def test_a_dropout_that_receives_something_else_than_images_drops_nothing() -> None:
    torch.manual_seed(0)
    model, (x, adv, targets) = Sequence().eval(), batch()
    first, _ = first_and_last(model)
    both = [
        image_gradients(model, MinMax(), x, adv, targets, first, rng) for rng in (None, torch.Generator())
    ]
    assert torch.equal(*both)


def test_without_dropout_a_generator_changes_nothing() -> None:
    model, (x, adv, targets) = MODELS["mlp"](tiny.CLASSES, tiny.SHAPE).eval(), batch()
    first, _ = first_and_last(model)
    both = [
        image_gradients(model, MinMax(), x, adv, targets, first, rng) for rng in (None, torch.Generator())
    ]
    assert torch.equal(*both)


def test_the_model_is_left_as_it_was_found() -> None:
    model, (x, adv, targets) = net().train(), batch()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    image_gradients(model, MinMax(), x, adv, targets, first_and_last(model)[0])
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("gradients", "trace", "zeros"),
    [
        ([[1.0, 0.0], [5.0, 0.0]], 0.0, 0.0),  # they agree, whatever their lengths
        ([[1.0, 0.0], [-2.0, 0.0]], 1.0, 0.0),
        ([[1.0, 0.0], [0.0, 3.0]], 0.5, 0.0),
        ([[1.0, 0.0], [0.0, 3.0], [0.0, 0.0], [0.0, 0.0]], 0.5, 0.5),  # zeros are counted apart
        ([[1e-30, 0.0], [0.0, 1e-30]], 0.5, 0.0),  # a direction is one however short
        ([[1e-41, 0.0], [0.0, 1e-41]], 0.5, 0.0),
        ([[0.0, 0.0]], None, 1.0),
    ],
)
def test_variance_by_hand(gradients: list[list[float]], trace: float | None, zeros: float) -> None:
    found = direction_variance(torch.tensor(gradients))
    assert found.zeros == zeros
    assert found.trace == (None if trace is None else pytest.approx(trace, abs=1e-6))


@pytest.mark.parametrize("name", [name for name in MODELS if "wide" not in name])
def test_first_and_last_layer_of_every_model(name: str) -> None:
    model = MODELS[name](7, (1, 16, 16))
    first, last = ([dict(model.named_parameters())[own] for own in names] for names in first_and_last(model))
    assert first[0] is next(model.parameters())
    assert last[0].shape[0] == 7


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(AtclError, match="no parameters"):
        first_and_last(nn.Flatten())


def test_the_norm_of_a_layer_is_that_of_all_its_parameters() -> None:
    gradients = {"a": torch.tensor([[3.0]]), "b": torch.tensor([4.0]), "c": torch.tensor([2.0]), "d": None}
    assert layer_norms(gradients, [("a", "b"), ("c", "d")]).tolist() == [5.0, 2.0]


def test_attacks_from_the_same_start_differ_by_their_loss_alone() -> None:
    model, (x, _, targets) = net(), batch()
    true = model(x).argmax(1)
    attack_losses = {**paper_attack_losses(model, x, targets.candidates), "again": cross_entropy_of(true)}
    found = attack_qualities(model, x, attack_losses, true, Budget(0.2, 0.05, 5), Generator().manual_seed(3))
    assert set(found) == {"oracle", *PAPER, "pla", "again"}
    for one in (found["oracle"], found["again"]):
        assert one.l1.tolist() == [0.0] * len(x)
        torch.testing.assert_close(one.cosine, torch.ones(len(x)))
    assert float(found["log"].l1.min()) > 0
    assert bool(found["oracle"].lowered.all())
    assert float(found["oracle"].drop.mean()) > float(found["log"].drop.mean())
    torch.testing.assert_close(found["log"].drop, true_probability(model, x, true) - found["log"].attacked)


def test_the_guess_of_the_pseudo_label_attack_is_a_candidate() -> None:
    model, (x, _, _) = net(), batch()
    logits = model(x).detach()
    predicted = logits.argmax(1)
    ruled_out = ~torch.nn.functional.one_hot(predicted, tiny.CLASSES).bool()  # the predicted class
    attack_loss = paper_attack_losses(model, x, ruled_out)["pla"]
    second = logits.scatter(1, predicted[:, None], -torch.inf).argmax(1)
    expected = LOSSES["log"](logits, Targets(ruled_out, 0.5, second))
    assert float(attack_loss(logits)) == pytest.approx(float(expected))


def test_shares_and_cosines_by_hand() -> None:
    assert lowered_share(torch.tensor([0.5, 0.5, 0.5, 0.5]), torch.tensor([0.4, 0.5, 0.6, 0.1])) == 0.5
    signs = torch.tensor([[1.0, 1.0, -1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]).view(2, 1, 2, 2)
    other = torch.tensor([[1.0, -1.0, -1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]).view(2, 1, 2, 2)
    torch.testing.assert_close(sign_cosine(signs, other), torch.tensor([0.5, 0.0]))
    memory = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]])
    candidates = torch.tensor([[True, False, True], [True, True, False]])
    assert pseudo_label_accuracy(memory, candidates, torch.tensor([2, 1])) == 0.5
