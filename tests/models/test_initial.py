"""First weights: those that the official code draws, bit for bit, and ours, derived from the run's seed."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from atcl.models import MODELS, Derived, Official
from atcl.models.initial import redrawn
from atcl.recipes.catalogue import RECIPES, recipe, with_derived_weights
from atcl.recipes.defaults import DEFAULTS

SHAPES = {"small_cnn": (1, 28, 28), "resnet18": (3, 32, 32)}


def drawn_small() -> list[Tensor]:
    """The weights of SmallCNN in the order in which the official code makes its layers."""
    convolutions = [
        nn.Conv2d(inputs, outputs, 3) for inputs, outputs in ((1, 32), (32, 32), (32, 64), (64, 64))
    ]
    linear = [nn.Linear(64 * 4 * 4, 200), nn.Linear(200, 200), nn.Linear(200, 10)]
    for layer in convolutions:
        nn.init.kaiming_normal_(layer.weight)
        nn.init.constant_(layer.bias, 0)  # type: ignore[arg-type]
    nn.init.constant_(linear[-1].weight, 0)
    nn.init.constant_(linear[-1].bias, 0)
    return [tensor for layer in (*convolutions, *linear) for tensor in layer.parameters()]


def drawn_resnet() -> list[Tensor]:
    """The same for ResNet-18: a stem, eight blocks of two or three convolutions, one linear layer."""
    layers: list[nn.Conv2d | nn.Linear] = [nn.Conv2d(3, 64, 3, bias=False)]
    inputs = 64
    for width in (64, 128, 256, 512):
        for _ in range(2):
            layers += [nn.Conv2d(inputs, width, 3, bias=False), nn.Conv2d(width, width, 3, bias=False)]
            layers += [nn.Conv2d(inputs, width, 1, bias=False)] if inputs != width else []
            inputs = width
    layers.append(nn.Linear(512, 10))
    return [tensor for layer in layers for tensor in layer.parameters()]


DRAWN: dict[str, Callable[[], list[Tensor]]] = {"small_cnn": drawn_small, "resnet18": drawn_resnet}


def weights(model: nn.Module) -> list[Tensor]:
    return [
        tensor
        for layer in model.modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
        for tensor in layer.parameters(recurse=False)
    ]


@pytest.mark.parametrize("loader_draws", [0, 1])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", DRAWN)
def test_official_weights_are_those_of_the_official_order_bit_for_bit(
    name: str, seed: int, loader_draws: int
) -> None:
    ours = weights(Official(loader_draws)(lambda: MODELS[name](10, SHAPES[name]), seed, 0))
    torch.manual_seed(seed)
    for _ in range(loader_draws):
        torch.empty((), dtype=torch.int64).random_()  # a loader over the whole training set seeds its workers
    theirs = DRAWN[name]()
    assert len(ours) == len(theirs)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", DRAWN)
def test_positive_control_other_draws_give_other_weights(name: str) -> None:
    one, other, ours = (
        weights(kind(lambda: MODELS[name](10, SHAPES[name]), 1, 0))
        for kind in (Official(0), Official(1), Derived())
    )
    assert not torch.equal(one[0], other[0])
    assert not torch.equal(one[0], ours[0])


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("small_cnn", "wide_resnet32_10")])
def test_a_network_drawn_anew_is_one_built_anew(name: str) -> None:
    """SmallCNN builds its last layer first; a test above compares it with the official order.

    The wide network is of the same class as ResNet-18.
    """
    shape = (1, 28, 28) if name in ("mlp", "tiny_cnn") else (3, 32, 32)
    torch.manual_seed(1)
    built = MODELS[name](10, shape).state_dict()
    other = MODELS[name](10, shape)
    torch.manual_seed(1)
    assert all(torch.equal(built[key], tensor) for key, tensor in redrawn(other).state_dict().items())


def test_a_later_stage_draws_other_weights_that_can_be_had_again() -> None:
    build = lambda: MODELS["small_cnn"](10, (1, 28, 28))  # noqa: E731
    first, second, again = (weights(Official()(build, 1, stage))[0] for stage in (0, 1, 1))
    assert torch.equal(second, again)
    assert not torch.equal(first, second)


def test_recipes_of_the_papers_datasets_draw_official_weights_and_no_others_do() -> None:
    draws = {"mnist": Official(1), "kuzushiji": Official(1), "cifar10": Official(0), "svhn": Official(0)}
    for name in RECIPES:
        dataset = name.partition("/")[0]
        assert recipe(name).initial == draws.get(dataset, Derived()), name
        assert (with_derived_weights(recipe(name)) == recipe(name)) == (dataset not in draws)
    assert set(draws) < set(DEFAULTS)
