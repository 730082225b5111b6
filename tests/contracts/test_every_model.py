"""Every network in the dict, through the same checks."""

import pytest
import torch
from torch.nn import functional as F

from atcl.core.errors import AtclError
from atcl.models import MODELS, Normalize, SmallCNN

NATIVE = {"tiny_cnn": (1, 8, 8), "small_cnn": (1, 28, 28), "mlp": (1, 28, 28)}
PARAMETERS = {
    "small_cnn": 312_202,
    "resnet18": 11_173_962,
    "preact_resnet18": 11_172_170,
    "wide_resnet32_10": 46_160_474,
    "mlp": 397_510,
    "tiny_cnn": 89_930,
}


@pytest.mark.parametrize("name", MODELS)
def test_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = MODELS[name](10, NATIVE.get(name, (3, 32, 32)))
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 20, 24)])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "wide_resnet32_10"])
def test_takes_any_number_of_classes_and_channels(name: str, shape: tuple[int, int, int]) -> None:
    model = MODELS[name](7, shape).eval()
    assert model(torch.rand(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("name", MODELS)
def test_input_gradient_is_not_zero_after_an_update(name: str) -> None:
    torch.manual_seed(0)
    shape = NATIVE.get(name, (3, 16, 16))
    model = MODELS[name](4, shape)
    x, labels = torch.rand(4, *shape), torch.arange(4)
    F.cross_entropy(model(x), labels).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.add_(parameter.grad, alpha=-0.1)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(model.eval()(x), labels), x)
    assert gradient.abs().sum() > 0


@pytest.mark.parametrize("name", ["tiny_cnn", "small_cnn"])
def test_an_image_too_small_is_refused(name: str) -> None:
    with pytest.raises(AtclError, match="too small"):
        MODELS[name](10, (1, 3, 3))


def test_small_cnn_begins_as_in_trades() -> None:
    torch.manual_seed(0)
    model = SmallCNN(10)
    convolutions = [module for module in model.features if isinstance(module, torch.nn.Conv2d)]
    assert len(convolutions) == 4
    for module in convolutions:
        assert module.bias is not None
        assert module.bias.abs().sum() == 0
        deviation = (2 / (module.in_channels * 9)) ** 0.5
        assert float(module.weight.detach().std()) == pytest.approx(deviation, rel=0.15)
    assert model(torch.rand(3, 1, 28, 28)).abs().sum() == 0  # the last layer starts at zero


def test_normalisation_lives_inside_the_model() -> None:
    x = torch.rand(2, 3, 4, 4)
    normalised = Normalize([0.5, 0.25, 0.0], [0.5, 1.0, 2.0])(x)
    torch.testing.assert_close(normalised[:, 0], (x[:, 0] - 0.5) / 0.5)
    torch.testing.assert_close(normalised[:, 2], x[:, 2] / 2)
