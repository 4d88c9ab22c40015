# SPDX-License-Identifier: Apache-2.0
"""Residual networks (He et al. 2016, "Deep residual learning"), with projection shortcuts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from bitwright.base.errors import ModelError
from bitwright.models.common import Shape, activation_layer, check_options, choice, initialise

STEMS = ("cifar", "strided", "imagenet")


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions, each with batch norm, and a shortcut around them.

    The shortcut is the identity, or a 1 x 1 convolution with batch norm where the shape changes
    (option B of He et al. 2016, section 3.3).
    """

    def __init__(self, inputs: int, width: int, stride: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = activation()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )
        self.act2 = activation()

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, width, H / stride, W / stride)."""
        out = self.act1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.act2(out + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, stages of `BasicBlock`, global average, dense layer."""

    def __init__(self, stem: nn.Module, stages: nn.Module, width: int, num_classes: int) -> None:
        super().__init__()
        self.stem = stem
        self.stages = stages
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, num_classes)."""
        return self.fc(self.flatten(self.pool(self.stages(self.stem(x)))))


def resnet(
    num_classes: int,
    input_shape: Shape,
    *,
    blocks: Sequence[int] = (3, 3, 3),
    widths: Sequence[int] = (16, 32, 64),
    stem: str = "cifar",
    activation: str = "relu",
) -> nn.Module:
    """A residual network of basic blocks.

    With the defaults ResNet-20 for CIFAR: 272 474 parameters with 10 classes. Every stage but the
    first halves the image in its first block.

    Args:
        blocks: blocks a stage; ResNet-20, 32, 44, ... have three times (3, 5, 7, ...).
        widths: channels a stage.
        stem: ``cifar`` is a 3 x 3 convolution; ``strided`` the same with stride 2; ``imagenet`` a
            7 x 7 one with stride 2 and a 3 x 3 max pool with stride 2.

    Raises:
        ModelError: an option makes no sense.
    """
    check_options("resnet", blocks=blocks, widths=widths)
    choice("resnet", "stem", stem, STEMS)
    if len(blocks) != len(widths):
        raise ModelError(
            f"{len(blocks)} stages of blocks, but {len(widths)} widths",
            where="resnet",
            hint="give one width for each stage",
        )
    layer = activation_layer("resnet", activation)
    inputs = widths[0]
    stages = []
    for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
        row = []
        for block in range(count):
            row.append(BasicBlock(inputs, width, 2 if stage and not block else 1, layer))
            inputs = width
        stages.append(nn.Sequential(*row))
    first = make_stem(stem, input_shape[2], widths[0], layer)
    model = ResNet(first, nn.Sequential(*stages), inputs, num_classes)
    initialise(model)
    return model


def make_stem(
    kind: str, inputs: int, width: int, activation: type[nn.Module], *, bias: bool = False
) -> nn.Sequential:
    """The first convolution with batch norm and activation; for ``imagenet`` the first pool too."""
    kernel, stride = {"cifar": (3, 1), "strided": (3, 2), "imagenet": (7, 2)}[kind]
    first = nn.Conv2d(inputs, width, kernel, stride=stride, padding=kernel // 2, bias=bias)
    layers = [first, nn.BatchNorm2d(width), activation()]
    if kind == "imagenet":
        layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    return nn.Sequential(*layers)
