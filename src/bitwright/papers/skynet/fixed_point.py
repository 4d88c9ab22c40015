# SPDX-License-Identifier: Apache-2.0
"""SkyNet in the fixed point of its published FPGA version, emulated number by number.

Types are those of its HLS program, ``ap_fixed<total, integer, AP_RND, AP_SAT>``: nearest, ties
upwards, saturating. Products are exact; what is added to an accumulator in one step, a depthwise
tap or the sum over a tile of input channels (an adder tree), is rounded with it. How wide the
adders of the tree are, and where exactly the program rounds, is not stated in the thesis: here the
tree is exact. Batch norm is folded into weights and biases, and a feature map above 3.98
saturates, though ReLU6 goes to 6: the published type has no room for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bitwright.base.errors import ModelError
from bitwright.formats import parse_format
from bitwright.formats.fixed import FixedFormat
from bitwright.papers.skynet.reference import max_pool, space_to_depth

Floats = NDArray[np.float64]
Folded = Mapping[str, tuple[ArrayLike, ArrayLike]]
"""Weight OIHW and bias O of each convolution by name (`models.skynet.folded_weights`)."""

BYPASS, JOIN = "model_p1.4", "model_p3.0"
#: Bundles by name, and whether a pool follows.
BUNDLES = OrderedDict(
    [
        ("model_p1.0", True), ("model_p1.2", True), (BYPASS, True),
        ("model_p2.1", False), ("model_p2.2", False), (JOIN, False),
    ]
)  # fmt: skip
HEAD = "model_p3.1"
CEILING = 6.0


@dataclass(frozen=True)
class FixedTypes:
    """Number formats, ``fixed<total,integer>`` by name.

    Attributes:
        maps: of feature maps and of the image.
        weights: of weights and biases.
        sums: of accumulators.
        tile: input channels that a 1 x 1 convolution adds in one step.
    """

    maps: str = "fixed<9,3>"
    weights: str = "fixed<11,4>"
    sums: str = "fixed<12,4>"
    tile: int = 32

    def __post_init__(self) -> None:
        for name in (self.maps, self.weights, self.sums):
            if not isinstance(parse_format(name), FixedFormat):
                raise ModelError(f"{name} is no fixed point", where="SkyNet", hint="fixed<9,3>")
        if self.tile < 1:
            raise ModelError(f"tiles of {self.tile} channels", where="SkyNet")


def evaluate_fixed(
    weights: Folded,
    images: ArrayLike,
    types: FixedTypes = FixedTypes(),
    bundles: int = len(BUNDLES),
) -> Floats:
    """The published SkyNet in fixed point.

    Args:
        weights: of a network with batch norm folded in.
        images: (N, 3, H, W) in [-2, 2], H and W multiples of 8.
        bundles: so many from the front; all: and the head.

    Returns:
        (N, 10, H/8, W/8): the accumulators of the last convolution; of fewer bundles the map of
        the last one, in front of its pool.
    """
    layers = {
        name: (rounded(weight, types.weights), rounded(bias, types.weights))
        for name, (weight, bias) in weights.items()
    }
    x = rounded(images, types.maps)
    early = x
    for number, (name, pooled) in enumerate(list(BUNDLES.items())[:bundles]):
        if name == JOIN:
            x = np.concatenate([space_to_depth(early), x], axis=1)
        x = _depthwise(x, *layers[f"{name}.0"], types)
        x = _pointwise(x, *layers[f"{name}.3"], types)
        if name == BYPASS:
            early = x
        x = max_pool(x) if pooled and number + 1 < bundles else x
    if bundles < len(BUNDLES):
        return x
    return _sums(x, *layers[HEAD], types)


def rounded(values: ArrayLike, name: str) -> Floats:
    """The nearest number of a fixed point, ties upwards, saturating."""
    kind = parse_format(name)
    assert isinstance(kind, FixedFormat)
    codes = np.floor(np.asarray(values, dtype=np.float64) / kind.lsb + 0.5)
    found: Floats = np.clip(codes, kind.min_code, kind.max_code) * kind.lsb
    return found


def _depthwise(x: Floats, weight: Floats, bias: Floats, types: FixedTypes) -> Floats:
    """3 x 3 with padding 1, one tap after another."""
    height, width = x.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    sums = np.broadcast_to(rounded(bias, types.sums)[:, None, None], x.shape)
    for i in range(3):
        for j in range(3):
            part = padded[:, :, i : i + height, j : j + width]
            sums = rounded(sums + weight[:, 0, i, j][:, None, None] * part, types.sums)
    return _activated(sums, types)


def _pointwise(x: Floats, weight: Floats, bias: Floats, types: FixedTypes) -> Floats:
    return _activated(_sums(x, weight, bias, types), types)


def _sums(x: Floats, weight: Floats, bias: Floats, types: FixedTypes) -> Floats:
    """1 x 1, tile after tile of input channels."""
    count, channels, height, width = x.shape
    flat = x.reshape(count, channels, height * width)
    shape = (count, weight.shape[0], height * width)
    sums = np.broadcast_to(rounded(bias, types.sums)[:, None], shape)
    for start in range(0, channels, types.tile):
        part = slice(start, start + types.tile)
        sums = rounded(sums + weight[:, part, 0, 0] @ flat[:, part], types.sums)
    return np.ascontiguousarray(sums).reshape(count, weight.shape[0], height, width)


def _activated(sums: Floats, types: FixedTypes) -> Floats:
    return rounded(np.clip(sums, 0.0, CEILING), types.maps)
