"""Models that only seem robust, each caught by name; honest ones, which are not."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atcl.attacks.norms import NORMS
from atcl.attacks.pgd import pgd
from atcl.attacks.threat import Threat
from atcl.core.errors import AtclError
from atcl.datasets.sources import Dataset, digits
from atcl.evaluation.masking import CHECKS, Flag, beyond_chance, suspicions
from atcl.evaluation.masking_evidence import GEOMETRIES, gather_evidence, square_attack
from atcl.models import TinyCNN
from tests.tiny import TinyNet, split

THREATS = {"linf": Threat(0.15, 0.015), "l2": Threat(1.0, 0.1, "l2")}


@cache
def data() -> Dataset:
    return digits()


@cache
def trained(epsilon: float) -> nn.Module:
    """A network trained on the digits with their true labels.

    Under attack it is convolutional; without, a perceptron, which is faster.
    """
    train = data().train
    x, labels = train.x.float() / 255, train.truth.labels
    rng = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = (
            TinyCNN(10, width=8)
            if epsilon
            else nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        )
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for index in [batch for _ in range(8) for batch in torch.randperm(len(x), generator=rng).split(50)]:
        loss = partial(F.cross_entropy, target=labels[index])
        adv = pgd(
            net, x[index], loss, epsilon=epsilon, step_size=epsilon / 2, steps=3 if epsilon else 0, rng=rng
        )
        optimizer.zero_grad()
        loss(net(adv)).backward()
        optimizer.step()
    net.zero_grad()
    return net


def flags_of(model: nn.Module, norm: str = "linf", images: int = 60, queries: int = 60) -> dict[str, Flag]:
    x, labels = data().test.x, data().test.truth.labels
    found = suspicions(model, x, labels, THREATS[norm], images=images, queries=queries)
    return {flag.name: flag for flag in found}


class Masked(nn.Module):
    """The naturally trained network behind a change of its input and before one of its output."""

    def __init__(
        self,
        before: Callable[[Tensor], Tensor] = lambda x: x,
        after: Callable[[Tensor], Tensor] = lambda logits: logits,
    ) -> None:
        super().__init__()
        self.net, self.before, self.after = trained(0), before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.net(self.before(x)))


class Turning(Masked):
    """Its gradient turns around after a number of calls."""

    def __init__(self, patience: int) -> None:
        super().__init__(self.turn)
        self.patience = patience

    def turn(self, x: Tensor) -> Tensor:
        self.patience -= x.requires_grad
        return x if self.patience >= 0 else 2 * x.detach() - x


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    raises: set[str]
    alone: bool = False  # whether no other check is raised


CASES = {
    "saturated logits": Case(lambda: Masked(after=lambda logits: logits * 1e4), {"saturated", "erasing"}),
    "quantised input": Case(
        lambda: Masked(lambda x: (16 * x).round() / 16), {"zero_gradient", "erasing", "square"}
    ),
    "thresholded input": Case(
        lambda: Masked(lambda x: (x > 0.5).float()), {"zero_gradient", "erasing", "square", "noise"}
    ),
    "gradient cut off": Case(lambda: Masked(lambda x: x.detach()), {"zero_gradient", "erasing", "square"}),
    "no graph at all": Case(
        lambda: Masked(after=lambda logits: logits.detach()), {"zero_gradient", "erasing", "square"}
    ),
    "gradient that turns around": Case(lambda: Turning(patience=6), {"more_steps", "erasing", "square"}),
    "noise layer": Case(lambda: Masked(lambda x: x + 0.1 * torch.randn_like(x)), {"randomised"}, alone=True),
    "softmax output": Case(
        lambda: Masked(after=lambda logits: logits.softmax(1)), {"probabilities"}, alone=True
    ),
    "one class for all": Case(
        lambda: Masked(after=lambda logits: logits + 500 * torch.eye(10)[3]), {"constant"}, alone=True
    ),
    "NaN output": Case(lambda: Masked(after=lambda logits: logits / 0 * 0), {"not_finite"}, alone=True),
    "NaN gradient": Case(
        lambda: Masked(after=lambda logits: logits + (logits - logits).sqrt()),
        {"not_finite", "erasing", "square"},
    ),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", CASES)
def test_a_model_with_masked_gradients_is_flagged_by_the_right_name(name: str, norm: str) -> None:
    case = CASES[name]
    flags = flags_of(case.build(), norm)
    assert flags.keys() >= case.raises
    assert not case.alone or flags.keys() == case.raises
    for flag in flags.values():
        assert 0 < flag.value <= 100
        assert json.loads(json.dumps(asdict(flag))) == asdict(flag)
        assert any(figure.isdigit() for figure in flag.says)
        assert "\n" not in flag.says


def test_every_check_is_raised_by_some_model_and_described_on_the_page() -> None:
    assert {name for case in CASES.values() for name in case.raises} == set(CHECKS)
    page = (Path(__file__).parents[2] / "docs/masking.md").read_text(encoding="utf-8")
    assert [name for name in CHECKS if f"### `{name}`" not in page] == []


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("epsilon", [0, 0.15])
def test_an_honest_model_raises_none_whether_robust_or_not(epsilon: float, norm: str) -> None:
    assert flags_of(trained(epsilon), norm, images=120) == {}


def test_of_the_honest_models_one_is_robust_and_the_other_is_not() -> None:
    test = data().test
    x, labels, left = test.x, test.truth.labels, []
    options = {"seed": 0, "batch_size": 256, "images": 120, "queries": 1}
    for epsilon in (0, 0.15):
        evidence = gather_evidence(trained(epsilon), x, labels, THREATS["linf"], **options)
        assert evidence.right.float().mean() > 0.85
        left.append(float(evidence.kept(evidence.pgd20).float().mean()))
    assert left[0] < 0.35 < 0.45 < left[1]


@pytest.mark.parametrize("norm", NORMS)
def test_a_constant_model_is_flagged_as_constant_and_nothing_else(norm: str) -> None:
    three = torch.eye(10)[3]
    constant = Masked(after=lambda logits: (5 * three).expand(len(logits), 10))
    tied = Masked(after=lambda logits: 0 * logits)
    collapsed = Masked(after=lambda logits: logits + 500 * three)
    for model in (constant, tied, collapsed):
        assert flags_of(model, norm, images=40, queries=10).keys() == {"constant"}


def test_one_class_for_all_images_is_right_where_they_are_of_one_class() -> None:
    test = data().test
    three = test.truth.labels == 3
    collapsed = CASES["one class for all"].build()
    x, labels = test.x[three][:20], test.truth.labels[three][:20]
    flags = suspicions(collapsed, x, labels, THREATS["linf"], queries=10)
    assert "constant" not in [flag.name for flag in flags]


@pytest.mark.parametrize(
    ("n", "others", "flagged"), [(40, 0, True), (40, 1, False), (200, 4, True), (200, 5, False)]
)
def test_a_few_other_predictions_of_many_do_not_hide_a_collapse(n: int, others: int, flagged: bool) -> None:
    x = torch.full((n, 1, 6, 6), 0.25)
    labels = torch.arange(n) % 2
    evidence = gather_evidence(
        brightness(2), x, labels, Threat(0.01, 0.001), seed=0, batch_size=n, images=n, queries=1
    )
    passes = torch.eye(2)[(torch.arange(n) < others).long()].expand(5, n, 2)
    assert (CHECKS["constant"](replace(evidence, passes=passes)) is not None) == flagged


def test_images_of_one_class_do_not_make_a_masked_model_constant() -> None:
    test = data().test
    three = test.truth.labels == 3
    x, labels, masked = test.x[three], test.truth.labels[three], Masked(lambda x: x.detach())
    flags = suspicions(masked, x, labels, THREATS["linf"], images=20, queries=10)
    assert "zero_gradient" in [flag.name for flag in flags]


def test_images_with_non_finite_gradients_are_counted_and_the_others_checked() -> None:
    def blind(x: Tensor) -> Tensor:
        return torch.where(x.mean((1, 2, 3), keepdim=True) < 0.26, torch.nan, x.detach())

    flags = flags_of(Masked(blind))
    assert 0 < flags["not_finite"].value < 50
    assert "zero_gradient" in flags


@pytest.mark.parametrize(
    ("by_noise", "by_pgd", "flagged"),
    [
        (0, 0, False),
        (2, 2, False),
        (5, 5, True),
        (5, 6, False),
        (5, 4, True),
        (20, 20, False),
        (18, 20, False),
    ],
)
def test_noise_as_strong_as_pgd_is_flagged_unless_both_break_nothing_or_everything(
    by_noise: int, by_pgd: int, flagged: bool
) -> None:
    x = torch.full((20, 1, 6, 6), 0.25)
    labels = torch.zeros(20, dtype=torch.int64)
    evidence = gather_evidence(
        brightness(2), x, labels, Threat(0.01, 0.001), seed=0, batch_size=20, images=20, queries=1
    )
    # both break the first images, so that noise breaks none that PGD20 leaves unless it breaks more
    number = torch.arange(20)[:, None]
    right, wrong = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    noise, pgd20 = (torch.where(number < broken, wrong, right) for broken in (by_noise, by_pgd))
    assert (CHECKS["noise"](replace(evidence, noise=noise, pgd20=pgd20)) is not None) == flagged


def brightness(classes: int) -> nn.Module:
    """An honest model: which band of brightness the mean of the image lies in."""

    class Bands(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            middle = (torch.arange(classes) + 0.5) / classes
            return -20 * (x.mean((1, 2, 3))[:, None] - middle) ** 2

    return Bands()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("classes", [2, 3])
def test_two_or_three_classes_are_enough(classes: int, norm: str) -> None:
    labels = torch.arange(30) % classes
    noise = 0.02 * torch.randn(30, 1, 6, 7, generator=torch.Generator().manual_seed(0))
    x = ((labels + 0.5) / classes).view(-1, 1, 1, 1) + noise
    honest, threat = brightness(classes), Threat(0.02, 0.002, norm)
    assert suspicions(honest, x, labels, threat, queries=10, batch_size=15) == []
    cut = nn.Sequential(honest)
    cut.register_forward_pre_hook(lambda module, inputs: (inputs[0].detach(),))
    flags = suspicions(cut, x, labels, threat, queries=10, batch_size=15)
    assert {"zero_gradient", "erasing"} <= {flag.name for flag in flags}


def test_a_model_that_is_never_right_leaves_nothing_to_break() -> None:
    test = data().test
    wrong = (trained(0)(test.x[:20].float() / 255).argmax(1) + 1) % 10
    assert suspicions(trained(0), test.x[:20], wrong, THREATS["l2"]) == []


def test_the_model_and_the_random_state_are_left_as_found_and_a_seed_fixes_the_result() -> None:
    torch.manual_seed(0)
    model = TinyNet().train()
    model.layers[1].eval()  # a part in another mode is put back as it was
    before = [tensor.clone() for tensor in model.state_dict().values()]
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    tiny = split()
    one, two = (
        gather_evidence(
            model, tiny.x, tiny.truth.labels, THREATS["linf"], seed=4, batch_size=3, images=15, queries=5
        )
        for _ in range(2)
    )
    assert modes == [module.training for module in model.modules()]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(old, new) for old, new in zip(before, model.state_dict().values(), strict=True))
    assert len(one.labels) == 15
    for name in ("labels", "passes", "pgd5", "pgd20", "cw30", "noise", "square", "erased"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name


def test_it_works_where_gradients_are_switched_off() -> None:
    model = Masked(after=lambda logits: logits * 1e4)
    with torch.no_grad():
        assert "saturated" in flags_of(model, images=20, queries=5)


@pytest.mark.parametrize("size", [(3, 3), (8, 8), (12, 12), (14, 9), (24, 24)])
@pytest.mark.parametrize("norm", NORMS)
def test_square_takes_images_of_any_size_and_stays_in_the_ball(norm: str, size: tuple[int, int]) -> None:
    x = torch.rand(4, 1, *size, generator=torch.Generator().manual_seed(0))
    labels = brightness(3)(x).argmax(1)
    adv = square_attack(brightness(3), x, labels, Threat(0.3, 0.1, norm), queries=30, seed=1)
    assert adv.shape == x.shape
    delta = (adv - x).flatten(1)
    assert (delta.abs().amax(1) if norm == "linf" else delta.norm(dim=1)).max() <= 0.3 + 1e-5
    assert 0 <= adv.min() <= adv.max() <= 1


def test_square_breaks_images_near_the_decision_boundary() -> None:
    x = torch.full((4, 1, 8, 8), 0.48)
    adv = square_attack(
        brightness(2), x, torch.zeros(4, dtype=torch.int64), Threat(0.1, 0.1), queries=100, seed=1
    )
    assert (brightness(2)(adv).argmax(1) == 1).all()


def test_the_erasing_ball_holds_grey_around_every_image_in_every_norm() -> None:
    assert set(GEOMETRIES) == set(NORMS)
    for shape in ((1, 2, 2), (3, 8, 8)):
        for x in (torch.zeros(1, *shape), torch.ones(1, *shape)):
            delta = 0.5 - x
            for name, geometry in GEOMETRIES.items():
                torch.testing.assert_close(NORMS[name].project(delta, geometry.erasing(x[0].numel())), delta)


def test_beyond_chance_is_over_two_images_and_over_two_percent() -> None:
    assert [beyond_chance(count, 50) for count in (0, 2, 3)] == [False, False, True]
    assert [beyond_chance(count, 300) for count in (3, 6, 7)] == [False, False, True]
    assert not beyond_chance(0, 0)


def test_wrong_arguments_are_refused_in_one_line() -> None:
    tiny, threat = split(), THREATS["linf"]
    x, labels = tiny.x, tiny.truth.labels
    wrong: list[tuple[Tensor, Tensor, dict[str, int], str]] = [
        (x, labels[:3], {}, "one label of type int64"),
        (x, labels.float(), {}, "one label of type int64"),
        (x[:0], labels[:0], {}, "at least one image"),
        (x.float(), labels, {}, "floats in"),
        (x, labels + 9, {}, "labels in 0 to 4"),
        (x, labels, {"batch_size": 0}, "at least 1"),
        (x, labels, {"images": 0}, "at least 1"),
        (x, labels, {"seed": -1}, "at least 1"),
    ]
    for images, true, more, message in wrong:
        with pytest.raises(AtclError, match=message) as caught:
            suspicions(TinyNet(), images, true, threat, **more)
        assert "\n" not in str(caught.value)
    with pytest.raises(AtclError, match=r"logits \(n, K\)"):
        suspicions(nn.Identity(), x, labels, threat)
