# SPDX-License-Identifier: Apache-2.0
"""SkyNet's fixed point as an integer graph: the same numbers as `fixed_point.evaluate_fixed`, as
levels, so that it is mapped, simulated and built as any other graph is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bitwright.base.errors import ModelError
from bitwright.formats import parse_format
from bitwright.formats.fixed import FixedFormat
from bitwright.ir import INTEGER, Attr, Graph, GraphBuilder, TensorType
from bitwright.papers.skynet.fixed_point import (
    BUNDLES,
    BYPASS,
    CEILING,
    HEAD,
    JOIN,
    FixedTypes,
    Folded,
    rounded,
)

#: The published types, with tiles that all layers' channels are whole numbers of.
HARDWARE = FixedTypes(tile=16)


def fixed_graph(
    weights: Folded,
    shape: tuple[int, int, int],
    types: FixedTypes = HARDWARE,
    bundles: int = len(BUNDLES),
) -> Graph:
    """The network, or its first bundles, as `conv_rounded`, requantization and pools.

    Each 1 x 1 convolution adds `types.tile` input channels in one step. Hardware needs a divisor of
    their numbers: 16 of those published, but for the first, which has three.

    Args:
        weights: of a network with batch norm folded in.
        shape: (H, W, 3) of an image.
        bundles: so many from the front; all: and the head.

    Raises:
        ModelError: accumulators are coarser than maps or finer than products, or there are not so
            many bundles.
    """
    if not 1 <= bundles <= len(BUNDLES):
        raise ModelError(f"{bundles} bundles, of {len(BUNDLES)}", where="SkyNet")
    net = _Net(weights, shape, types)
    early = ""
    for number, (name, pooled) in enumerate(list(BUNDLES.items())[:bundles]):
        if name == JOIN:
            net.join(early)
        net.convolve(f"{name}.0", padding=1)
        net.activate()
        net.convolve(f"{name}.3")
        net.activate()
        if name == BYPASS:
            early = net.edge
        if pooled and number + 1 < bundles:
            net.pool()
    if bundles == len(BUNDLES):
        net.convolve(HEAD)
    return net.builder.finish(net.edge)


def levels_of(values: ArrayLike, name: str) -> NDArray[np.int64]:
    """Levels (N, H, W, C) of the numbers (N, C, H, W) of a fixed point."""
    found = np.moveaxis(rounded(values, name) / _kind(name).lsb, 1, -1)
    return found.astype(np.int64)


def _kind(name: str) -> FixedFormat:
    kind = parse_format(name)
    assert isinstance(kind, FixedFormat)
    return kind


class _Net:
    """The graph as far as it is built: `edge` is what the next layer takes."""

    def __init__(self, weights: Folded, shape: tuple[int, int, int], types: FixedTypes) -> None:
        self.weights, self.types = weights, types
        self.maps, self.factors, self.sums = map(_kind, (types.maps, types.weights, types.sums))
        #: Bits that a step's sum loses, and that a map has less than the accumulator.
        self.drop = _places(self.maps) + _places(self.factors) - _places(self.sums)
        self.shift = _places(self.sums) - _places(self.maps)
        if self.drop < 0 or self.shift < 0:
            raise ModelError(
                f"accumulators of {self.sums.name} between products of {self.maps.name} by "
                f"{self.factors.name} and maps",
                where="SkyNet",
                hint="as many places behind the point as maps have, or more, and no more than "
                "products",
            )
        self.builder = GraphBuilder("skynet_fixed", INTEGER)
        lo, hi = self.maps.min_level, self.maps.max_level
        kind = TensorType(shape, self.maps, (self.maps.lsb,), lo, hi)
        self.edge = self.builder.input("image", kind)

    def convolve(self, layer: str, padding: int = 0) -> None:
        """A depthwise convolution, whose taps are added one by one, or one of 1 x 1."""
        weight, bias = self.weights[layer]
        given = rounded(bias, self.types.weights)
        start = rounded(given, self.types.sums) / self.sums.lsb
        attrs: dict[str, Attr] = {
            "padding": (padding,) * 4,
            "groups": self.builder.types[self.edge].channels if padding else 1,
            "weight_format": self.factors.name,
            "weight_scale": (self.factors.lsb,),
            "tile": 1 if padding else self.types.tile,
            "drop": self.drop,
            "bits": self.sums.bits,
        }
        params = {"weight": levels_of(weight, self.types.weights), "bias": start.astype(np.int64)}
        name = self.builder.unique(layer.replace(".", "_"))
        self.edge = self.builder.add(
            "conv_rounded", (self.edge,), name=name, attrs=attrs, params=params, source=layer
        )

    def activate(self) -> None:
        """ReLU6 and the maps' format, which ends below 6."""
        top = rounded(CEILING, self.types.maps) / self.maps.lsb
        attrs: dict[str, Attr] = {
            "shift": self.shift,
            "rounding": "half_up",
            "lo": 0,
            "hi": int(top),
            "format": self.maps.name,
            "scale": (self.maps.lsb,),
        }
        params = {"multiplier": np.array([1]), "offset": np.array([0])}
        name = self.builder.unique("relu6")
        self.edge = self.builder.add("requant", (self.edge,), name=name, attrs=attrs, params=params)

    def pool(self) -> None:
        attrs: dict[str, Attr] = {"kernel": (2, 2), "stride": (2, 2)}
        name = self.builder.unique("pool")
        self.edge = self.builder.add("max_pool", (self.edge,), name=name, attrs=attrs)

    def join(self, early: str) -> None:
        """The bypass in front of what the last bundle gave."""
        deep = self.builder.add(
            "space_to_depth", (early,), name=self.builder.unique("reorder"), attrs={"block": 2}
        )
        self.edge = self.builder.add(
            "concat", (deep, self.edge), name=self.builder.unique("bypass"), attrs={}
        )


def _places(kind: FixedFormat) -> int:
    """Binary places behind the point."""
    return kind.width - kind.integer
