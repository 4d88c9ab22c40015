# SPDX-License-Identifier: Apache-2.0
"""MobileNet v1 (Howard et al. 2017, table 1)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from bitwright.base.errors import ModelError
from bitwright.models.common import (
    Shape,
    activation_layer,
    check_options,
    initialise,
    scaled,
)

#: Width and stride of the thirteen separable convolutions behind the first one.
_WIDTHS = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
_STEM = 32
_LEAST = 8


def separable(inputs: int, width: int, stride: int, activation: type[nn.Module]) -> nn.Sequential:
    """A depthwise 3 x 3 and a 1 x 1 convolution, each with batch norm and activation."""
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False),
        nn.BatchNorm2d(inputs),
        activation(),
        nn.Conv2d(inputs, width, 1, bias=False),
        nn.BatchNorm2d(width),
        activation(),
    )


def mobilenet(
    num_classes: int,
    input_shape: Shape,
    *,
    width: float = 1.0,
    stem_stride: int = 2,
    strides: Sequence[int] = _STRIDES,
    activation: str = "relu6",
) -> nn.Module:
    """MobileNet v1 for images of any size: every stride halves, rounding up.

    With 1000 classes and width 1.0 it has 4 231 976 parameters.

    Args:
        width: the width multiplier; no layer gets fewer than 8 channels.
        stem_stride: of the first convolution; 1 for images as small as CIFAR's.
        strides: of the thirteen separable convolutions.

    Raises:
        ModelError: an option makes no sense.
    """
    check_options("mobilenet", width=width, stem_stride=stem_stride, strides=strides)
    if len(strides) != len(_WIDTHS):
        raise ModelError(
            f"{len(strides)} strides for {len(_WIDTHS)} separable convolutions", where="mobilenet"
        )
    layer = activation_layer("mobilenet", activation)
    channels = scaled(_STEM, width, _LEAST)
    layers: list[nn.Module] = [
        nn.Conv2d(input_shape[2], channels, 3, stem_stride, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        layer(),
    ]
    for wanted, stride in zip(_WIDTHS, strides, strict=True):
        kept = scaled(wanted, width, _LEAST)
        layers.append(separable(channels, kept, stride, layer))
        channels = kept
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    model = nn.Sequential(*layers)
    initialise(model)
    return model
