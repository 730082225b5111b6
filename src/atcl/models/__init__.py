"""Networks for images in [0, 1], with any number of classes and channels; `MODELS` names them.

Each entry is a function of the number of classes and the shape (C, H, W) of an image.

Examples:
    >>> MODELS["mlp"](3, (1, 8, 8)).layers[-1]
    Linear(in_features=500, out_features=3, bias=True)
"""

from collections.abc import Callable

from torch.nn import Module

from atcl.models.initial import Derived, Initial, Official
from atcl.models.layers import Normalize
from atcl.models.residual import ResNet, preact_resnet18, resnet18, wide_resnet32_10
from atcl.models.small import MLP, SmallCNN, TinyCNN

Builder = Callable[[int, tuple[int, int, int]], Module]  # number of classes, (C, H, W) of an image -> model

MODELS: dict[str, Builder] = {
    "tiny_cnn": TinyCNN,
    "small_cnn": SmallCNN,
    "resnet18": resnet18,
    "preact_resnet18": preact_resnet18,
    "wide_resnet32_10": wide_resnet32_10,
    "mlp": MLP,
}

__all__ = [
    "MLP",
    "MODELS",
    "Builder",
    "Derived",
    "Initial",
    "Normalize",
    "Official",
    "ResNet",
    "SmallCNN",
    "TinyCNN",
    "preact_resnet18",
    "resnet18",
    "wide_resnet32_10",
]
