# SPDX-License-Identifier: Apache-2.0
"""Densely connected networks (Huang et al. 2017), pre-activated or convolution first.

Pre-activated is the paper's form: batch norm, activation, convolution. In the convolution-first
form every batch norm follows a convolution, so that it folds into the thresholds behind it and
every activation reads a product. The parameter counts differ slightly: batch norm then stands
behind a convolution's few outputs instead of in front of its many inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bitwright.base.errors import ModelError
from bitwright.models.common import (
    Shape,
    activation_layer,
    check_options,
    choice,
    initialise,
    too_small,
)
from bitwright.models.resnet import STEMS, make_stem

PREACTIVATED, CONVOLUTION_FIRST = "preactivated", "convolution_first"


@dataclass(frozen=True)
class _Style:
    """How a convolution is written: the order, the activation, and whether it has a bias."""

    form: str
    activation: type[nn.Module]
    bias: bool

    def unit(
        self, inputs: int, outputs: int, kernel: int, *, active: bool = True
    ) -> list[nn.Module]:
        """A convolution that keeps the size, with its batch norm and (if active) activation."""
        conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=self.bias)
        act = [self.activation()] if active else []
        if self.form == PREACTIVATED:
            return [nn.BatchNorm2d(inputs), *act, conv]
        return [conv, nn.BatchNorm2d(outputs), *act]


class Concat(nn.Module):
    """The join of a dense block: channels behind channels.

    A module, as every operation of these networks is: tools that take a model apart by its modules
    see all of it.
    """

    def forward(self, *parts: Tensor) -> Tensor:
        """(N, C1, H, W), (N, C2, H, W), .. -> (N, C1 + C2 + .., H, W)."""
        return torch.cat(parts, 1)


class DenseLayer(nn.Module):
    """What a dense layer adds: its output joined behind its input."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.join = Concat()

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C + growth, H, W)."""
        joined: Tensor = self.join(x, self.layers(x))
        return joined


def densenet(  # noqa: PLR0913 - one option for each way in which published DenseNets differ
    num_classes: int,
    input_shape: Shape,
    *,
    blocks: Sequence[int] = (1, 2, 3, 2),
    growth: int = 32,
    bottleneck: int = 4,
    compression: float = 0.5,
    form: str = PREACTIVATED,
    stem: str = "cifar",
    stem_width: int | None = None,
    transition_activation: bool = True,
    final_norm: bool = True,
    final_width: int | None = None,
    bias: bool = False,
    activation: str = "relu",
) -> nn.Module:
    """A DenseNet with any list of blocks.

    Args:
        blocks: dense layers a block; between blocks a transition halves the image.
        growth: channels that a dense layer adds.
        bottleneck: a 1 x 1 convolution to this many times ``growth`` in front of each 3 x 3; 0 for
            none.
        compression: share of the channels that a transition keeps, rounded down.
        form: ``preactivated`` or ``convolution_first``.
        stem: ``cifar``: a 3 x 3 convolution, bare when pre-activated; ``strided``: the same with
            stride 2, a quarter of the work behind it; ``imagenet``: 7 x 7 with stride 2, batch
            norm, activation and a max pool.
        stem_width: channels of the stem; by default twice the growth.
        transition_activation: whether a transition has an activation beside its batch norm.
        final_norm: batch norm and activation behind the last block (pre-activated form only).
        final_width: a bare 1 x 1 convolution to this width in front of the global average.
        bias: whether convolutions have one.

    Raises:
        ModelError: an option makes no sense, or the image is too small for the transitions.
    """
    given = {"stem_width": stem_width, "final_width": final_width}
    check_options(
        "densenet", blocks=blocks, growth=growth, bottleneck=bottleneck, compression=compression,
        **{name: width for name, width in given.items() if width is not None},
    )  # fmt: skip
    choice("densenet", "form", form, (PREACTIVATED, CONVOLUTION_FIRST))
    choice("densenet", "stem", stem, STEMS)
    style = _Style(form, activation_layer("densenet", activation), bias)
    channels = 2 * growth if stem_width is None else stem_width
    layers = _stem(stem, input_shape[2], channels, style)
    shrink = {"cifar": 1, "strided": 2, "imagenet": 4}[stem]
    left = -(-min(input_shape[:2]) // shrink)
    for number, count in enumerate(blocks):
        if number:
            kept = int(channels * compression)
            left //= 2
            if left < 1:
                raise too_small("densenet", input_shape, f"transition {number}")
            if kept < 1:
                raise ModelError(
                    f"compression leaves none of {channels} channels", where="densenet"
                )
            layers += [*style.unit(channels, kept, 1, active=transition_activation)]
            layers.append(nn.AvgPool2d(2))
            channels = kept
        layers += [_dense(style, channels + i * growth, growth, bottleneck) for i in range(count)]
        channels += count * growth
    if final_norm and form == PREACTIVATED:
        layers += [nn.BatchNorm2d(channels), style.activation()]
    if final_width is not None:
        layers.append(nn.Conv2d(channels, final_width, 1, bias=bias))
        channels = final_width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    model = nn.Sequential(*layers)
    initialise(model)
    return model


def _stem(kind: str, inputs: int, width: int, style: _Style) -> list[nn.Module]:
    whole_stem = make_stem(kind, inputs, width, style.activation, bias=style.bias)
    bare = kind != "imagenet" and style.form == PREACTIVATED
    return [whole_stem[0]] if bare else list(whole_stem)


def _dense(style: _Style, inputs: int, growth: int, bottleneck: int) -> DenseLayer:
    layers: list[nn.Module] = []
    if bottleneck:
        layers += style.unit(inputs, bottleneck * growth, 1)
        inputs = bottleneck * growth
    return DenseLayer([*layers, *style.unit(inputs, growth, 3)])
