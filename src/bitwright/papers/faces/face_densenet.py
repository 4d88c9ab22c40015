# SPDX-License-Identifier: Apache-2.0
"""DenseNets that turn a face into an embedding, and the count of their layers as Keras counts them.

They follow the DenseNet-121 of Keras (Huang et al. 2017): 7 x 7 stem with a max pool, bottlenecks
of four times the growth, pre-activated dense layers, no norm behind the last block, every
convolution with a bias. DenseNet 1.0 has one block of 6 dense layers, DenseNet 2.0 blocks of 6 and
12 and a 1 x 1 convolution in front of the global average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from bitwright.base.errors import ModelError
from bitwright.models.common import Shape, check_options
from bitwright.models.densenet import DenseLayer, densenet

#: Keras' own DenseNets use this in every batch norm (torch: 1e-5).
KERAS_EPSILON = 1.001e-5


def face_densenet(  # noqa: PLR0913 - one option for each way in which published DenseNets differ
    input_shape: Shape,
    *,
    embedding: int = 128,
    blocks: Sequence[int] = (6,),
    growth: int = 32,
    bottleneck: int = 4,
    compression: float = 0.5,
    stem_width: int | None = None,
    final_width: int | None = None,
    bias: bool = True,
    epsilon: float = KERAS_EPSILON,
) -> nn.Module:
    """A DenseNet with a vector of reals, not scores of classes, as its output.

    Args:
        input_shape: (H, W, C); the networks of the literature take (80, 80, 3).
        embedding: values of the output vector; no activation or normalisation follows.
        blocks: dense layers a block.
        growth: channels that a dense layer adds.
        bottleneck: width of the 1 x 1 convolutions in units of the growth; 0 for none.
        compression: share of the channels that a transition keeps.
        stem_width: channels of the 7 x 7 convolution; by default twice the growth.
        final_width: width of a 1 x 1 convolution in front of the global average.
        bias: whether convolutions have one.
        epsilon: of every batch norm.

    Raises:
        ModelError: an option makes no sense, or the image is too small.
    """
    check_options("face_densenet", embedding=embedding)
    if not isinstance(epsilon, float) or not epsilon > 0:
        raise ModelError(f"epsilon must be positive, found {epsilon!r}", where="face_densenet")
    model = densenet(
        embedding,
        input_shape,
        blocks=blocks,
        growth=growth,
        bottleneck=bottleneck,
        compression=compression,
        stem="imagenet",
        stem_width=stem_width,
        final_norm=False,
        final_width=final_width,
        bias=bias,
    )
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = epsilon
    return model


@dataclass(frozen=True)
class LayerCount:
    """Layers of a network by kind, as Keras would list them.

    Attributes:
        pool: max and average pools, the global average included.
        concat: joins of a dense layer's output with its input.
        pad: borders that Keras adds in layers of their own: in front of strided windows with
            padding.
    """

    conv: int
    norm: int
    dense: int
    pool: int
    activation: int
    concat: int
    pad: int

    @property
    def keras(self) -> int:
        """All layers; Keras' own count has the input layer on top."""
        return sum(vars(self).values())


def count_layers(model: nn.Module) -> LayerCount:
    """Count the layers of a sequential network or DenseNet."""
    modules = list(model.modules())

    def among(*kinds: type[nn.Module]) -> int:
        return sum(isinstance(module, kinds) for module in modules)

    return LayerCount(
        conv=among(nn.Conv2d),
        norm=among(nn.BatchNorm2d),
        dense=among(nn.Linear),
        pool=among(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
        activation=among(nn.ReLU, nn.ReLU6, nn.Hardtanh),
        concat=among(DenseLayer),
        pad=sum(_is_padded_apart(module) for module in modules),
    )


def _is_padded_apart(module: nn.Module) -> bool:
    """Keras pads strided windows by a layer; stride 1 uses the option "same" of the convolution."""
    if not isinstance(module, nn.Conv2d | nn.MaxPool2d):
        return False
    return _first(module.stride) > 1 and _first(module.padding) > 0


def _first(value: int | str | tuple[int, ...]) -> int:
    first = value[0] if isinstance(value, tuple) else value
    return 0 if isinstance(first, str) else first
