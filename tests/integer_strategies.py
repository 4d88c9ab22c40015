# SPDX-License-Identifier: Apache-2.0
"""Random integer graphs of few-bit networks, for all tiers (numpy only); see `strategies`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType

ACTIVATION_FORMATS = (
    *(f"uint{bits}" for bits in range(1, 9)),
    *(f"int{bits}" for bits in range(2, 9)),
    "ternary",
    "bipolar",
)
WEIGHT_FORMATS = (
    *(f"int{bits}" for bits in range(2, 9)),
    *(f"int{bits}n" for bits in range(2, 9)),
    "uint2",
    "ternary",
    "bipolar",
)
#: Weights that travel as codes, and minifloats for activations: drawn where limits say `formats`.
CODED_WEIGHTS = (
    "po2_4",
    "po2_3<zero>",
    "po2_6<zero>",
    "cb16{-31,-25,-18,-13,-9,-6,-3,-1,0,2,4,7,12,19,26,30}",
    "cb5:e4m3{-3840,-9,0,1,52}",
    "cb3:po2_4{-8,1,64}",
    "e4m3",
    "e4m3<finite,flush>",
    "e2m1",
    "e3m0",
    "e5m2",
    "mx<e2m1,32>",
)
FLOAT_ACTIVATIONS = ("e2m1", "e3m2", "e4m3", "e4m3<finite,flush>", "e5m2", "e3m0")

_LARGEST_TABLE = 512
_MOST_BITS = 56  # of an accumulator: what stands behind multiplies it once more


@dataclass(frozen=True)
class GraphLimits:
    """What `integer_graphs` may draw.

    Attributes:
        image: largest height and width of the input.
        channels: largest number of channels of any layer.
        blocks: largest number of conv / pool blocks before the dense layers.
        wide_pools: also draw max pools in front of the activation, on accumulators.
        add, concat: branches that meet; sum_pool, space_to_depth, upsample, lookup: these
    X unless asked for.
    """

    image: int = 7
    channels: int = 4
    blocks: int = 2
    dense: int = 2
    groups: bool = True
    dilation: bool = True
    requant: bool = True
    flip: bool = True
    wide_pools: bool = True
    pool_padding: bool = True
    add: bool = False
    concat: bool = False
    sum_pool: bool = False
    space_to_depth: bool = False
    upsample: bool = False
    lookup: bool = False
    top_k: bool = False
    formats: bool = False

    @staticmethod
    def everything(**limits: Any) -> GraphLimits:
        """Every operation of the integer dialect."""
        names = ("add", "concat", "sum_pool", "space_to_depth", "upsample", "lookup", "top_k")
        return GraphLimits(**(dict.fromkeys(names, True) | limits))


def draw_levels(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random levels of a format, uniform; no level is impossible."""
    kind = parse_format(name)
    if name == "bipolar":
        return rng.integers(0, 2, shape) * 2 - 1
    if not kind.uniform:
        return rng.choice(kind.grid(), shape)
    return rng.integers(kind.min_level, kind.max_level + 1, shape)


class _Network:
    """One network being drawn."""

    def __init__(self, draw: st.DrawFn, limits: GraphLimits) -> None:
        self.draw = draw
        self.limits = limits
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="seed"))
        self.builder = GraphBuilder("random", INTEGER)
        size = st.integers(1, limits.image)
        shape = (draw(size), draw(size), draw(st.integers(1, limits.channels)))
        floats = FLOAT_ACTIVATIONS if limits.formats else ()
        name = draw(st.sampled_from((*ACTIVATION_FORMATS, *floats)), label="input")
        kind = parse_format(name)
        self.edge = self.builder.input(
            "x", TensorType(shape, kind, (0.25,), kind.min_level, kind.max_level)
        )

    @property
    def kind(self) -> TensorType:
        return self.builder.types[self.edge]

    @property
    def numbers(self) -> bool:
        """Whether the levels are evenly spaced, so that every operation takes them."""
        return self.kind.format is None or self.kind.format.uniform

    def flag(self, allowed: bool = True) -> bool:
        return bool(allowed) and self.draw(st.booleans())

    def pair(self, low: int, high: int) -> tuple[int, int]:
        number = st.integers(low, max(low, high))
        return self.draw(number), self.draw(number)

    def weights(self, shape: tuple[int, ...]) -> tuple[str, dict[str, np.ndarray]]:
        names = [*WEIGHT_FORMATS, *(CODED_WEIGHTS if self.limits.formats else ())]
        reach = max(-self.kind.lo, self.kind.hi) * shape[-1] * 9 * 40
        fitting = [n for n in names if parse_format(n).max_level * reach < 1 << _MOST_BITS]
        name = self.draw(st.sampled_from(fitting), label="weights")
        params = {"weight": draw_levels(self.rng, name, shape)}
        if self.flag():
            params["bias"] = self.rng.integers(-20, 21, shape[0])
        return name, params

    def conv(self) -> None:
        height, width, channels = self.kind.shape
        padded = self.kind.format is None or bool(self.kind.format.contains(0).all())
        padding = (*self.pair(0, 2 * padded), *self.pair(0, 2 * padded))
        room = (height + padding[0] + padding[2], width + padding[1] + padding[3])
        kernel = tuple(self.draw(st.integers(1, min(3, r))) for r in room)
        dilation = tuple(
            2 if self.flag(self.limits.dilation) and 2 * (k - 1) + 1 <= r else 1
            for k, r in zip(kernel, room, strict=True)
        )
        groups = channels if self.flag(self.limits.groups) else 1
        rows = groups * self.draw(st.integers(1, max(1, self.limits.channels // groups)))
        name, params = self.weights((rows, *kernel, channels // groups))
        self.edge = self.builder.add(
            "conv",
            (self.edge,),
            attrs={
                "stride": self.pair(1, 2),
                "padding": padding,
                "dilation": dilation,
                "groups": groups,
                "weight_format": name,
                "weight_scale": (0.5,),
            },
            params=params,
            source="conv",
        )

    def dense(self, rows: int) -> None:
        name, params = self.weights((rows, self.kind.channels))
        self.edge = self.builder.add(
            "dense",
            (self.edge,),
            attrs={"weight_format": name, "weight_scale": (0.5,)},
            params=params,
            source="dense",
        )

    def pool(self) -> None:
        height, width, _ = self.kind.shape
        kernel = tuple(self.draw(st.integers(1, min(3, s))) for s in (height, width))
        padding = (0, 0, 0, 0)
        if self.flag(self.limits.pool_padding):
            padding = tuple(int(self.draw(st.integers(0, kernel[i % 2] - 1))) for i in range(4))
        self.edge = self.builder.add(
            "max_pool",
            (self.edge,),
            attrs={"kernel": kernel, "stride": self.pair(1, 3), "padding": padding},
        )

    def threshold(self) -> None:
        name = self.draw(st.sampled_from(ACTIVATION_FORMATS), label="activation")
        kind, channels = parse_format(name), self.kind.channels
        rows = 1 if self.flag() else channels
        steps = (kind.max_level - kind.min_level) // kind.level_step
        # A little beyond the interval on both sides: some thresholds always or never pass.
        margin = 1 + (self.kind.hi - self.kind.lo) // 8
        drawn = self.rng.integers(self.kind.lo - margin, self.kind.hi + margin + 1, (rows, steps))
        params = {"thresholds": np.sort(drawn, axis=1)}
        if self.flag(self.limits.flip):
            params["flip"] = self.rng.integers(0, 2, rows)
        self.edge = self.builder.add(
            "threshold",
            (self.edge,),
            attrs={
                "base": kind.min_level,
                "step": kind.level_step,
                "format": name,
                "scale": (0.5,),
            },
            params=params,
            source="threshold",
        )

    def requant(self) -> None:
        names = [n for n in ACTIVATION_FORMATS if n != "bipolar"]
        name = self.draw(st.sampled_from(names), label="activation")
        kind = parse_format(name)
        rows = 1 if self.flag() else self.kind.channels
        shift = self.draw(st.integers(0, 12))
        self.edge = self.builder.add(
            "requant",
            (self.edge,),
            attrs={
                "shift": shift,
                "rounding": self.draw(st.sampled_from(("half_even", "half_up", "floor"))),
                "lo": kind.min_level,
                "hi": kind.max_level,
                "format": name,
                "scale": (0.5,),
            },
            params={
                "multiplier": self.rng.integers(-40, 41, rows) if self.flag() else np.array([16]),
                "offset": self.rng.integers(-(8 << shift), (8 << shift) + 1, rows),
            },
            source="requant",
        )

    def requant_float(self) -> None:
        """A requantization to a minifloat that uses most of its range."""
        kind = parse_format(self.draw(st.sampled_from(FLOAT_ACTIVATIONS), label="activation"))
        rows = 1 if self.flag() else self.kind.channels
        reach = (max(-self.kind.lo, self.kind.hi) * 40).bit_length() - kind.max_level.bit_length()
        shift = max(0, reach - self.draw(st.integers(0, 8)))
        low = 0 if self.flag() else kind.min_level
        significant = kind.mantissa + 1
        self.edge = self.builder.add(
            "requant_float",
            (self.edge,),
            attrs={
                "shift": shift,
                "significant": significant,
                "smallest": 0 if kind.denormals else (1 << kind.mantissa) + 1,
                "rounding": self.draw(st.sampled_from(("half_even", "half_up", "floor"))),
                "lo": low,
                "hi": kind.max_level,
                "format": kind.name,
                "scale": (0.5,),
            },
            params={
                "multiplier": self.rng.integers(-40, 41, rows) if self.flag() else np.array([4]),
                "offset": self.rng.integers(-(3 << shift), (3 << shift) + 1, rows),
            },
            source="requant",
        )

    def lookup(self) -> None:
        name = self.draw(st.sampled_from(ACTIVATION_FORMATS), label="activation")
        rows = 1 if self.flag() else self.kind.channels
        table = draw_levels(self.rng, name, (rows, self.kind.hi - self.kind.lo + 1))
        self.edge = self.builder.add(
            "lookup",
            (self.edge,),
            attrs={"format": name, "scale": (0.5,)},
            params={"table": table},
            source="lookup",
        )

    def activation(self, floats: bool = True) -> None:
        if self.flag(floats and self.limits.formats and not self.kind.is_coded):
            self.requant_float()
            return
        narrow = self.kind.hi - self.kind.lo < _LARGEST_TABLE
        if self.flag(self.limits.lookup and narrow):
            self.lookup()
        elif self.flag(self.limits.requant):
            self.requant()
        else:
            self.threshold()

    def sum_pool(self) -> None:
        height, width, _ = self.kind.shape
        kernel = tuple(self.draw(st.integers(1, min(3, s))) for s in (height, width))
        padding = (0, 0, 0, 0)
        if self.flag(self.limits.pool_padding and not self.kind.is_bipolar):
            padding = tuple(int(self.draw(st.integers(0, kernel[i % 2] - 1))) for i in range(4))
        self.edge = self.builder.add(
            "sum_pool",
            (self.edge,),
            attrs={"kernel": kernel, "stride": self.pair(1, 2), "padding": padding},
        )
        self.activation()

    def pointwise(self, rows: int) -> None:
        """A 1 x 1 convolution and its activation: a branch that keeps the image's size."""
        name, params = self.weights((rows, 1, 1, self.kind.channels))
        attrs = {"weight_format": name, "weight_scale": (0.5,)}
        self.edge = self.builder.add(
            "conv", (self.edge,), attrs=attrs, params=params, source="branch"
        )
        self.activation(floats=False)

    def join(self, op: str) -> None:
        """The image and one or two branches of it, added or concatenated, and an activation."""
        start, channels = self.edge, self.kind.channels
        ends = [start] if self.flag() else []
        while len(ends) < 2:
            self.edge = start
            rows = channels if op == "add" else self.draw(st.integers(1, self.limits.channels))
            self.pointwise(rows)
            ends.append(self.edge)
        if op == "add":
            factors = st.integers(-4, 4).filter(bool)
            attrs = {"multipliers": (self.draw(factors), self.draw(factors)), "scale": (0.5,)}
            self.edge = self.builder.add("add", tuple(ends), attrs=attrs, source="add")
        else:
            self.edge = self.builder.add("concat", tuple(ends), source="concat")
        self.activation()

    def rearrange(self) -> None:
        """Space to depth, or upsampling, if the size and the limits allow it."""
        height, width, channels = self.kind.shape
        folds = height % 2 == width % 2 == 0 and channels <= self.limits.channels
        if self.flag(self.limits.space_to_depth and folds):
            self.edge = self.builder.add("space_to_depth", (self.edge,), attrs={"block": 2})
        elif self.flag(self.limits.upsample and max(height, width) <= self.limits.image):
            attrs = {"factor": self.pair(1, 2)}
            self.edge = self.builder.add("upsample", (self.edge,), attrs=attrs)

    def block(self) -> None:
        self.conv()
        if self.flag(self.limits.wide_pools):
            self.pool()
        self.activation()
        if self.flag():
            self.pool()
        for op in ("add", "concat"):
            if self.flag(getattr(self.limits, op) and self.numbers):
                self.join(op)
        if self.flag(self.limits.sum_pool and self.numbers):
            self.sum_pool()
        if self.limits.space_to_depth or self.limits.upsample:
            self.rearrange()


@st.composite
def integer_graphs(draw: st.DrawFn, limits: GraphLimits | None = None) -> Graph:
    """A small classifier: conv / pool blocks, flatten, dense layers, scores and label."""
    limits = GraphLimits() if limits is None else limits
    network = _Network(draw, limits)
    for _ in range(draw(st.integers(0, limits.blocks), label="blocks")):
        network.block()
    network.edge = network.builder.add("flatten", (network.edge,))
    for _ in range(draw(st.integers(1, limits.dense), label="dense") - 1):
        network.dense(draw(st.integers(1, 2 * limits.channels)))
        network.activation()
    network.dense(draw(st.integers(1, 5), label="classes"))
    scores = network.edge
    k = 1
    if limits.top_k:
        k = draw(st.integers(1, network.kind.channels), label="k")
    label = network.builder.add("top_k", (scores,), name="label", attrs={"k": k})
    return network.builder.finish(scores, label)
