"""Networks without normalisation: SmallCNN of TRADES, a small net for 8x8 images, a perceptron."""

from math import prod

from torch import Tensor, nn

from atcl.core.errors import AtclError


class SmallCNN(nn.Module):
    """The MNIST network of TRADES: 3x3 convolutions 32-32, pool, 64-64, pool, then 200, dropout, 200, K."""

    def __init__(self, classes: int, shape: tuple[int, int, int] = (1, 28, 28)) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < 16:
            raise AtclError(
                f"SmallCNN shrinks its input by four after unpadded convolutions: {height}x{width} is too small, use tiny_cnn"
            )
        self.features = nn.Sequential(
            *(nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        )
        left = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        last = nn.Linear(200, classes)
        self.classifier = nn.Sequential(
            *(
                nn.Linear(64 * prod(left), 200),
                nn.ReLU(),
                nn.Dropout(0.5),
                nn.Linear(200, 200),
                nn.ReLU(),
                last,
            ),
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Change what the layers drew for themselves: Kaiming's weights for the convolutions, and zero for the last layer."""
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
    """A small network for small images such as the embedded 8x8 digits: three 3x3 convolutions, two of them halving the size, two linear layers."""

    def __init__(self, classes: int, shape: tuple[int, int, int] = (1, 8, 8), width: int = 32) -> None:
        super().__init__()
        channels, height, breadth = shape
        if min(height, breadth) < 4:
            raise AtclError(f"TinyCNN halves its input twice: {height}x{breadth} is too small")
        self.features = nn.Sequential(
            *(nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1), nn.ReLU()),
        )
        flat = 2 * width * -(-height // 4) * -(-breadth // 4)
        self.classifier = nn.Sequential(nn.Linear(flat, 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """A perceptron with one hidden layer of 500, the common small model of complementary-label learning."""

    def __init__(self, classes: int, shape: tuple[int, int, int] = (1, 28, 28)) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(prod(shape), 500), nn.ReLU(), nn.Linear(500, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))  # type: ignore[no-any-return]
