# SPDX-License-Identifier: Apache-2.0
"""GoogLeNet (Szegedy et al. 2015) with batch norm and without auxiliary classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from bitwright.models.common import (
    Shape,
    activation_layer,
    check_options,
    choice,
    initialise,
    max_pool_up,
    scaled,
)
from bitwright.models.densenet import Concat

#: Kernels of the convolutions behind the 1 x 1 of the third branch.
_TOWERS = {"5x5": (5,), "3x3": (3,), "3x3x2": (3, 3)}
_STEMS = ("cifar", "imagenet")


class Widths(NamedTuple):
    """Channels of an inception block, as table 1 of the paper gives them.

    Attributes:
        one: of the 1 x 1 branch.
        three_reduce, three: of the 1 x 1 and the 3 x 3 convolution of the second branch.
        five_reduce, five: of the third branch.
        pool: of the 1 x 1 convolution behind the pool.
    """

    one: int
    three_reduce: int
    three: int
    five_reduce: int
    five: int
    pool: int


#: Blocks 3a .. 3b, 4a .. 4e, 5a .. 5b; a pool halves the image between the groups.
_GROUPS = (
    (Widths(64, 96, 128, 16, 32, 32), Widths(128, 128, 192, 32, 96, 64)),
    (
        Widths(192, 96, 208, 16, 48, 64),
        Widths(160, 112, 224, 24, 64, 64),
        Widths(128, 128, 256, 24, 64, 64),
        Widths(112, 144, 288, 32, 64, 64),
        Widths(256, 160, 320, 32, 128, 128),
    ),
    (Widths(256, 160, 320, 32, 128, 128), Widths(384, 192, 384, 48, 128, 128)),
)


class _Unit(nn.Sequential):
    """Convolution that keeps the size (but for its stride), batch norm, activation."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, activation: type[nn.Module], stride: int = 1
    ) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(outputs),
            activation(),
        )


class Inception(nn.Module):
    """Four branches side by side, their channels joined."""

    def __init__(
        self, inputs: int, widths: Widths, tower: Sequence[int], activation: type[nn.Module]
    ) -> None:
        super().__init__()
        self.one = _Unit(inputs, widths.one, 1, activation)
        self.three = nn.Sequential(
            _Unit(inputs, widths.three_reduce, 1, activation),
            _Unit(widths.three_reduce, widths.three, 3, activation),
        )
        layers = [_Unit(inputs, widths.five_reduce, 1, activation)]
        for kernel in tower:
            before = widths.five_reduce if len(layers) == 1 else widths.five
            layers.append(_Unit(before, widths.five, kernel, activation))
        self.five = nn.Sequential(*layers)
        self.pool = nn.Sequential(
            nn.MaxPool2d(3, 1, padding=1), _Unit(inputs, widths.pool, 1, activation)
        )
        self.join = Concat()

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, one + three + five + pool, H, W)."""
        joined: Tensor = self.join(self.one(x), self.three(x), self.five(x), self.pool(x))
        return joined


def googlenet(
    num_classes: int,
    input_shape: Shape,
    *,
    stem: str = "cifar",
    tower: str = "3x3x2",
    width: float = 1.0,
    dropout: float = 0.0,
    activation: str = "relu",
) -> nn.Module:
    """Stem, nine inception blocks, global average, dense layer.

    With ``stem: imagenet`` and ``tower: 5x5`` it is the network of the paper's table 1, batch norm
    instead of local response normalization: 57 convolutions. With the defaults it is the usual one
    for CIFAR: 64 convolutions, 6 158 346 parameters with 10 classes.

    Args:
        stem: ``cifar``: one 3 x 3 convolution of 192 channels; ``imagenet``: 7 x 7 with stride 2,
            pool, 1 x 1, 3 x 3, pool.
        tower: of the third branch: ``5x5`` as printed; ``3x3`` as torchvision has it; ``3x3x2``,
            two convolutions of 3 x 3, which see as much as one of 5 x 5.
        width: the share of all channels to keep.
        dropout: share of the averaged features that training zeroes.

    Raises:
        ModelError: an option makes no sense.
    """
    choice("googlenet", "stem", stem, _STEMS)
    choice("googlenet", "tower", tower, tuple(_TOWERS))
    check_options("googlenet", width=width, dropout=dropout)
    layer = activation_layer("googlenet", activation)
    inputs = scaled(192, width)
    layers: list[nn.Module] = [_stem(stem, input_shape[2], width, layer)]
    for group in _GROUPS:
        if len(layers) > 1:
            layers.append(_halving(stem))
        for printed in group:
            widths = Widths(*(scaled(count, width) for count in printed))
            layers.append(Inception(inputs, widths, _TOWERS[tower], layer))
            inputs = widths.one + widths.three + widths.five + widths.pool
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if dropout:
        layers.append(nn.Dropout(dropout))
    model = nn.Sequential(*layers, nn.Linear(inputs, num_classes))
    initialise(model)
    return model


def _stem(kind: str, channels: int, width: float, activation: type[nn.Module]) -> nn.Sequential:
    last = scaled(192, width)
    if kind == "cifar":
        return nn.Sequential(_Unit(channels, last, 3, activation))
    first = scaled(64, width)
    return nn.Sequential(
        _Unit(channels, first, 7, activation, stride=2),
        _halving(kind),
        _Unit(first, first, 1, activation),
        _Unit(first, last, 3, activation),
        _halving(kind),
    )


def _halving(stem: str) -> nn.Module:
    """A 3 x 3 maximum with stride 2.

    The paper's begin at the edge and round the size up; the ones for CIFAR have a border all
    around.
    """
    if stem == "cifar":
        return nn.MaxPool2d(3, 2, padding=1)
    return max_pool_up()
