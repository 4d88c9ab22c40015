# SPDX-License-Identifier: Apache-2.0
"""SqueezeNet (Iandola et al. 2016): fire blocks, no dense layer, no batch norm."""

from __future__ import annotations

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


class _Form(NamedTuple):
    """First convolution (channels, kernel, stride, padding) and fire blocks between the pools."""

    first: tuple[int, int, int, int]
    groups: tuple[tuple[int, ...], ...]


#: Channels of each of the two expanding convolutions of a block; its squeezing one has a quarter.
_FORMS = {
    "1.0": _Form((96, 7, 2, 0), ((64, 64, 128), (128, 192, 192, 256), (256,))),
    "1.1": _Form((64, 3, 2, 0), ((64, 64), (128, 128), (192, 192, 256, 256))),
    "cifar": _Form((64, 3, 1, 1), ((64, 64), (128, 128), (192, 192, 256, 256))),
}


class Fire(nn.Module):
    """A 1 x 1 convolution to few channels; a 1 x 1 and a 3 x 3 one behind it, joined."""

    def __init__(self, inputs: int, squeezed: int, each: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(inputs, squeezed, 1), activation())
        self.one = nn.Sequential(nn.Conv2d(squeezed, each, 1), activation())
        self.three = nn.Sequential(nn.Conv2d(squeezed, each, 3, padding=1), activation())
        self.join = Concat()

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, 2 * each, H, W)."""
        x = self.squeeze(x)
        joined: Tensor = self.join(self.one(x), self.three(x))
        return joined


def squeezenet(
    num_classes: int,
    input_shape: Shape,
    *,
    form: str = "cifar",
    width: float = 1.0,
    dropout: float = 0.0,
    activation: str = "relu",
) -> nn.Sequential:
    """First convolution, eight fire blocks, a 1 x 1 convolution to the classes, global average.

    Args:
        form: ``1.0`` as the paper has it (1 248 424 parameters with 1000 classes), ``1.1`` its
            authors' later one (1 235 496), ``cifar`` that one with a first stride of 1.
        width: the share of the channels to keep.
        dropout: share of values that training zeroes in front of the last convolution.

    Raises:
        ModelError: an option makes no sense.
    """
    choice("squeezenet", "form", form, tuple(_FORMS))
    check_options("squeezenet", width=width, dropout=dropout)
    layer = activation_layer("squeezenet", activation)
    chosen = _FORMS[form]
    channels, *geometry = chosen.first
    inputs = scaled(channels, width)
    layers: list[nn.Module] = [nn.Conv2d(input_shape[2], inputs, *geometry), layer()]
    for group in chosen.groups:
        layers.append(max_pool_up())
        for each in group:
            layers.append(Fire(inputs, scaled(each // 4, width), scaled(each, width), layer))
            inputs = 2 * scaled(each, width)
    if dropout:
        layers.append(nn.Dropout(dropout))
    layers += [nn.Conv2d(inputs, num_classes, 1), layer(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers)
    initialise(model)
    return model
