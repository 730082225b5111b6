"""Networks without normalisation: SmallCNN of TRADES, a smaller one for 8x8 images, a perceptron."""

from math import prod

from torch import Tensor, nn

from atcl.core.errors import AtclError


class SmallCNN(nn.Module):
    """The MNIST network of TRADES: two pairs of 3x3 convolutions, a max pool after each, three linear layers.

    The convolutions have 32, 32, 64 and 64 channels; the linear layers have 200, 200 and K outputs, with
    dropout after the first.
    """

    def __init__(self, classes: int, shape: tuple[int, int, int] = (1, 28, 28)) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < 16:
            raise AtclError(f"images of {height}x{width} are too small for small_cnn: use tiny_cnn")
        self.features = nn.Sequential(
            *(nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        )
        sides = [((side - 4) // 2 - 4) // 2 for side in (height, width)]  # of the last feature map
        # the last layer is built first: what the other two draw from the seed depends on that order
        last = nn.Linear(200, classes)
        self.classifier = nn.Sequential(
            *(nn.Linear(64 * prod(sides), 200), nn.ReLU(), nn.Dropout(0.5)),
            *(nn.Linear(200, 200), nn.ReLU(), last),
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolutions by Kaiming's rule and set the last layer to zero; other layers stay."""
        for module in self.features:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        last = self.classifier[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))  # type: ignore[no-any-return]


class TinyCNN(nn.Module):
    """A small network for images such as the embedded 8x8 digits: three 3x3 convolutions, two linear layers.

    The second and the third convolution halve the size.
    """

    def __init__(self, classes: int, shape: tuple[int, int, int] = (1, 8, 8), width: int = 32) -> None:
        super().__init__()
        channels, *sides = shape
        if min(sides) < 4:
            raise AtclError(f"images of {sides[0]}x{sides[1]} are too small for tiny_cnn: use mlp")
        self.features = nn.Sequential(
            *(nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1), nn.ReLU()),
        )
        features = 2 * width * prod(-(-side // 4) for side in sides)  # each side halved twice, rounded up
        self.classifier = nn.Sequential(nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """A perceptron with one hidden layer of 500 units, usual in papers on complementary labels."""

    def __init__(self, classes: int, shape: tuple[int, int, int] = (1, 28, 28)) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(prod(shape), 500), nn.ReLU(), nn.Linear(500, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))  # type: ignore[no-any-return]
