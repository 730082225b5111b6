"""Residual networks with a 3x3 stem for small images: ResNet-18, PreActResNet-18, WideResNet-32-10."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atcl.models.layers import conv3x3


class Block(nn.Module):
    """He et al. 2015: convolution, normalisation and ReLU, twice; a shortcut joins before the last ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv3x3(inputs, outputs, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = conv3x3(outputs, outputs), nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class PreActBlock(nn.Module):
    """He et al. 2016: normalisation, ReLU, convolution, twice; the shortcut starts after the first ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), conv3x3(inputs, outputs, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), conv3x3(outputs, outputs)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(x))
        shortcut = x if self.shortcut is None else self.shortcut(out)
        out = self.conv2(F.relu(self.norm2(self.conv1(out))))
        return out + shortcut  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A stem, stages of blocks that halve the size (all but the first), average pooling, a linear layer."""

    def __init__(
        self,
        classes: int,
        channels: int,
        block: type[Block] | type[PreActBlock],
        widths: list[int],
        depth: int,
        stem: int,
    ) -> None:
        super().__init__()
        pre = block is PreActBlock
        after_stem = [] if pre else [nn.BatchNorm2d(stem), nn.ReLU()]
        self.stem = nn.Sequential(conv3x3(channels, stem), *after_stem)
        blocks, inputs = [], stem
        for stage, width in enumerate(widths):
            for position in range(depth):
                halves = stage > 0 and position == 0
                blocks.append(block(inputs, width, stride=2 if halves else 1))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Sequential(*([nn.BatchNorm2d(inputs), nn.ReLU()] if pre else []))
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.last(self.blocks(self.stem(x)))
        return self.classifier(torch.mean(features, dim=(2, 3)))  # type: ignore[no-any-return]


def resnet18(classes: int, shape: tuple[int, int, int] = (3, 32, 32)) -> ResNet:
    """ResNet-18 with a 3x3 stem, the paper's network for CIFAR-10 and SVHN."""
    return ResNet(classes, shape[0], Block, [64, 128, 256, 512], depth=2, stem=64)


def preact_resnet18(classes: int, shape: tuple[int, int, int] = (3, 32, 32)) -> ResNet:
    """PreActResNet-18, the usual network of fast adversarial training."""
    return ResNet(classes, shape[0], PreActBlock, [64, 128, 256, 512], depth=2, stem=64)


def wide_resnet32_10(classes: int, shape: tuple[int, int, int] = (3, 32, 32)) -> ResNet:
    """WideResNet-32-10: three stages of five blocks, ten times as wide as a ResNet of that depth.

    The depth is counted as by Madry et al., 32 = 6 x 5 + 2.
    """
    return ResNet(classes, shape[0], PreActBlock, [160, 320, 640], depth=5, stem=16)
