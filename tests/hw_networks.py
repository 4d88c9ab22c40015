# SPDX-License-Identifier: Apache-2.0
"""Networks and foldings for the tests of the hardware side."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.strategies import GraphLimits, integer_graphs

from bitwright.base.errors import ModelError
from bitwright.formats import parse_format
from bitwright.hw import Folding, NodeFolding, blocks_of, template
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType

LIMITS = GraphLimits.everything(image=8, channels=6)
FORMAT_LIMITS = GraphLimits.everything(image=6, channels=4, formats=True)


def levels(shape: tuple[int, ...], name: str) -> TensorType:
    """A tensor that may hold all levels of a format."""
    kind = parse_format(name)
    return TensorType(shape, kind, (0.5,), kind.min_level, kind.max_level)


class Net:
    """A network written down layer by layer, with random weights and thresholds."""

    def __init__(
        self, shape: tuple[int, ...], activation: str, weight: str, seed: int = 0, name: str = "net"
    ) -> None:
        self.builder = GraphBuilder(name, INTEGER)
        self.rng = np.random.default_rng(seed)
        self.activation, self.weight = activation, weight
        self.edge = self.builder.input("x", levels(shape, activation))

    def _weights(self, shape: tuple[int, ...]) -> np.ndarray:
        kind = parse_format(self.weight)
        if kind.name == "bipolar":
            return self.rng.integers(0, 2, shape) * 2 - 1
        if not kind.uniform:
            return self.rng.choice(kind.grid(), shape)
        return self.rng.integers(kind.min_level, kind.max_level + 1, shape)

    def using(self, weight: str | None = None, activation: str | None = None) -> Net:
        """Other formats from here on."""
        self.weight, self.activation = weight or self.weight, activation or self.activation
        return self

    def _layer(self, op: str, name: str, params: dict[str, np.ndarray], **attrs: object) -> Net:
        attrs |= {"weight_format": self.weight, "weight_scale": (0.5,)}
        self.edge = self.builder.add(op, (self.edge,), name=name, attrs=attrs, params=params)
        return self

    def conv(self, rows: int, kernel: int, padding: int = 0, stride: int = 1) -> Net:
        channels = self.builder.types[self.edge].channels
        params = {"weight": self._weights((rows, kernel, kernel, channels))}
        name = self.builder.unique("conv")
        pads, strides = (padding,) * 4, (stride,) * 2
        return self._layer("conv", name, params, padding=pads, stride=strides)

    def depthwise(self, kernel: int = 3, padding: int = 1, stride: int = 1) -> Net:
        """A convolution of each channel by itself."""
        channels = self.builder.types[self.edge].channels
        params = {"weight": self._weights((channels, kernel, kernel, 1))}
        attrs = {"padding": (padding,) * 4, "stride": (stride,) * 2, "groups": channels}
        return self._layer("conv", self.builder.unique("dw"), params, **attrs)

    def grouped(self, rows: int, kernel: int, groups: int, padding: int = 0) -> Net:
        channels = self.builder.types[self.edge].channels
        params = {"weight": self._weights((rows, kernel, kernel, channels // groups))}
        attrs = {"padding": (padding,) * 4, "groups": groups}
        return self._layer("conv", self.builder.unique("gconv"), params, **attrs)

    def at(self, edge: str) -> Net:
        """Go on from another edge."""
        self.edge = edge
        return self

    def add(self, other: str, multipliers: tuple[int, int] = (1, 1)) -> Net:
        attrs = {"multipliers": multipliers, "scale": (0.5,)}
        name = self.builder.unique("add")
        self.edge = self.builder.add("add", (self.edge, other), name=name, attrs=attrs)
        return self

    def concat(self, *others: str) -> Net:
        """Channels of these edges, then those of the current one."""
        name = self.builder.unique("concat")
        self.edge = self.builder.add("concat", (*others, self.edge), name=name)
        return self

    def plain(self, op: str, **attrs: object) -> Net:
        """An operation without parameters."""
        name = self.builder.unique(op)
        self.edge = self.builder.add(op, (self.edge,), name=name, attrs=attrs)
        return self

    def average(self, kernel: int, stride: int | None = None) -> Net:
        stride = kernel if stride is None else stride
        return self.plain("sum_pool", kernel=(kernel,) * 2, stride=(stride,) * 2)

    def dense(self, rows: int, *, bias: bool = False, name: str | None = None) -> Net:
        params = {"weight": self._weights((rows, self.builder.types[self.edge].channels))}
        if bias:
            params["bias"] = self.rng.integers(-20, 21, rows)
        return self._layer("dense", name or self.builder.unique("dense"), params)

    def threshold(self) -> Net:
        tensor, kind = self.builder.types[self.edge], parse_format(self.activation)
        count = (kind.max_level - kind.min_level) // kind.level_step
        drawn = self.rng.integers(tensor.lo // 3, tensor.hi // 3 + 2, (tensor.channels, count))
        attrs = {"base": kind.min_level, "step": kind.level_step, "format": self.activation}
        self.edge = self.builder.add(
            "threshold",
            (self.edge,),
            name=self.builder.unique("act"),
            attrs={**attrs, "scale": (0.5,)},
            params={"thresholds": np.sort(drawn, axis=1)},
        )
        return self

    def requant(self, bits: int = 16) -> Net:
        """The activation by one multiplication a channel."""
        tensor, kind = self.builder.types[self.edge], parse_format(self.activation)
        reach = max(-tensor.lo, tensor.hi).bit_length()
        shift = reach + bits - kind.bits - 1
        params = {
            "multiplier": self.rng.integers(1 << (bits - 2), 1 << (bits - 1), tensor.channels),
            "offset": self.rng.integers(0, 1 << (shift + 1), tensor.channels),
        }
        attrs = {"shift": shift, "lo": kind.min_level, "hi": kind.max_level, "scale": (0.5,)}
        name = self.builder.unique("act")
        attrs |= {"format": self.activation}
        edge = (self.edge,)
        self.edge = self.builder.add("requant", edge, name=name, attrs=attrs, params=params)
        return self

    def requant_float(self) -> Net:
        """The activation by one multiplication a channel, rounded to a minifloat."""
        tensor, kind = self.builder.types[self.edge], parse_format(self.activation)
        reach = 12 + max(-tensor.lo, tensor.hi).bit_length() - kind.max_level.bit_length()
        reach = max(reach, 0)
        attrs = {
            "shift": max(0, reach - 3),
            "significant": kind.mantissa + 1,
            "smallest": 0 if kind.denormals else (1 << kind.mantissa) + 1,
            "lo": kind.min_level,
            "hi": kind.max_level,
            "format": kind.name,
            "scale": (0.5,),
        }
        params = {
            "multiplier": self.rng.integers(1 << 11, 1 << 12, tensor.channels),
            "offset": self.rng.integers(-(1 << reach), 1 << reach, tensor.channels),
        }
        name = self.builder.unique("act")
        edge = (self.edge,)
        self.edge = self.builder.add("requant_float", edge, name=name, attrs=attrs, params=params)
        return self

    def shifted(self) -> Net:
        """Dynamic fixed point: the sum, moved by a power of two, is the activation."""
        tensor, kind = self.builder.types[self.edge], parse_format(self.activation)
        shift = max(0, max(-tensor.lo, tensor.hi).bit_length() - kind.bits)
        attrs = {"shift": shift, "lo": kind.min_level, "hi": kind.max_level, "scale": (0.5,)}
        attrs |= {"format": self.activation}
        params = {"multiplier": np.ones(1, dtype=np.int64), "offset": np.zeros(1, dtype=np.int64)}
        name = self.builder.unique("act")
        edge = (self.edge,)
        self.edge = self.builder.add("requant", edge, name=name, attrs=attrs, params=params)
        return self

    def act(self, *, requant: bool) -> Net:
        return self.requant() if requant else self.threshold()

    def pool(self, kernel: int = 2) -> Net:
        attrs = {"kernel": (kernel, kernel), "stride": (kernel, kernel)}
        name = self.builder.unique("pool")
        self.edge = self.builder.add("max_pool", (self.edge,), name=name, attrs=attrs)
        return self

    def flatten(self) -> Net:
        self.edge = self.builder.add("flatten", (self.edge,), name="flat")
        return self

    def finish(self, *, label: bool = True, top: int = 1) -> Graph:
        if not label:
            return self.builder.finish(self.edge)
        scores = self.edge
        return self.builder.finish(
            scores, self.builder.add("top_k", (scores,), name="label", attrs={"k": top})
        )


def digits_like(seed: int = 0) -> Graph:
    """The demo's network with random numbers."""
    net = Net((8, 8, 1), "uint4", "int4n", seed, "digits")
    net.conv(8, 3, 1).threshold().pool().conv(16, 3, 1).threshold().pool()
    return net.flatten().dense(10, bias=True, name="scores").finish()


def resnet(blocks: int = 3, size: int = 32, width: int = 16, seed: int = 0) -> Graph:
    """A residual network for CIFAR (three stages), with random numbers."""
    net = Net((size, size, 3), "uint4", "int4n", seed, "resnet")
    net.conv(width, 3, 1).threshold()
    for stage in range(3):
        for block in range(blocks):
            start, rows = net.edge, width << stage
            stride = 2 if stage and not block else 1
            short = start
            if stride == 2:
                short = net.conv(rows, 1, 0, 2).threshold().edge
            net.at(start).conv(rows, 3, 1, stride).threshold().conv(rows, 3, 1).threshold()
            net.add(short, (3, 2)).threshold()
    net.average(size // 4).flatten()
    return net.dense(10, bias=True, name="scores").finish()


def densenet(growth: int = 4, layers: int = 3, size: int = 8, seed: int = 0) -> Graph:
    """A dense block between two convolutions, and a global average."""
    net = Net((size, size, 3), "uint4", "int4n", seed, "densenet")
    net.conv(2 * growth, 3, 1).threshold()
    for _ in range(layers):
        before = net.edge
        net.conv(growth, 3, 1).threshold().concat(before)
    net.conv(2 * growth, 1).threshold().average(2).threshold().average(size // 2).flatten()
    return net.dense(5, bias=True, name="scores").finish()


def skynet(
    height: int = 160, width: int = 320, share: int = 1, seed: int = 0, *, requant: bool = False
) -> Graph:
    """SkyNet with random numbers; `share` divides its channels."""
    net = Net((height, width, 3), "uint4", "int4n", seed, "skynet")

    def bundle(rows: int) -> Net:
        net.depthwise().act(requant=requant)
        return net.conv(rows // share, 1).act(requant=requant)

    bundle(48).pool()
    bundle(96).pool()
    early = bundle(192).edge
    net.pool()
    bundle(384)
    late = bundle(512).edge
    net.at(early).plain("space_to_depth", block=2)
    around = net.edge
    net.at(late).concat(around)
    bundle(96).conv(10, 1)
    return net.finish(label=False)


CODEBOOK = "cb16{-31,-25,-18,-13,-9,-6,-3,-1,0,2,4,7,12,19,26,30}"
HYBRID = "cb16:e4m3{-3840,-960,-448,-52,-9,-1,0,1,3,13,60,72,104,480,1024,3584}"


def shifts_and_tables(seed: int = 0) -> Graph:
    """Powers of two and codebooks as weights, integers as activations, also channel by channel."""
    net = Net((6, 5, 2), "uint4", "po2_4", seed, "tables")
    net.conv(4, 3, 1).requant().using("po2_6<zero>").depthwise().requant()
    net.using(CODEBOOK).conv(6, 1).threshold().pool()
    net.using(HYBRID).depthwise(3, 1).requant().using("cb4:po2_4{-64,-1,2,32}").flatten()
    return net.dense(5, bias=True, name="scores").finish()


def floats(seed: int = 0) -> Graph:
    """Minifloats as weights and activations, with everything that streams of them may meet."""
    net = Net((6, 4, 2), "e4m3", "e4m3", seed, "floats")
    net.conv(4, 3, 1).requant_float().pool().using("e2m1", "e4m3<finite,flush>")
    net.depthwise(3, 1).requant_float().using("int4n", "e3m2").conv(6, 1).requant_float()
    net.plain("upsample", factor=(2, 1)).plain("space_to_depth", block=2)
    net.using("bipolar", "e5m2").conv(4, 1).requant_float().using("po2_4").flatten()
    return net.dense(5, bias=True, name="scores").finish()


def mixed(seed: int = 0) -> Graph:
    """Minifloats against integers: weights of e4m3 and in blocks, dynamic fixed point."""
    net = Net((5, 5, 3), "int8", "e4m3", seed, "mixed")
    net.conv(4, 3, 1).requant().using("mx<e2m1,32>").conv(6, 3).requant()
    net.using("int8").grouped(6, 1, 2).shifted().using("e5m2", "bipolar").conv(4, 1).threshold()
    return net.using("e3m2").flatten().dense(5, name="scores").finish()


def mlp(activation: str, weight: str, seed: int = 0) -> Graph:
    """A small fully connected network."""
    net = Net((24,), activation, weight, seed, "mlp")
    return net.dense(12).threshold().dense(8).threshold().dense(5, name="scores").finish()


def tiny() -> Graph:
    """The smallest network with one of everything; its RTL is a golden file."""
    net = Net((4, 4, 1), "uint2", "int2n", 3, "tiny")
    net.conv(2, 3, 1).threshold().pool().flatten()
    return net.dense(3, bias=True, name="scores").finish()


@st.composite
def mapped_networks(draw: st.DrawFn, limits: GraphLimits = LIMITS) -> tuple[Graph, Folding]:
    """A random network that has hardware, and a random legal folding of it."""
    graph = draw(integer_graphs(limits).filter(has_hardware))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="folding"))
    return graph, random_folding(graph, rng)


def has_hardware(graph: Graph) -> bool:
    """Whether every layer has a block (the refusals have tests of their own)."""
    try:
        template(graph)
    except ModelError:
        return False
    return True


def random_folding(graph: Graph, rng: np.random.Generator, most: int | None = None) -> Folding:
    """A legal folding of every block that can be folded, uniform; `most` products of lanes at the
    input and at the output, where that is possible: a small design.
    """
    nodes: dict[str, NodeFolding] = {}
    for name, block in blocks_of(template(graph)).items():
        choices = block.foldings()
        small = [fold for fold in choices if most and fold.lanes_in * fold.lanes_out <= most]
        choices = tuple(small) or choices
        if len(choices) > 1:
            chosen = choices[rng.integers(len(choices))].as_dict()
            if block.node.attrs.get("groups") == 0:
                del chosen["simd"]  # a depthwise unit's window follows it
                chosen.pop("parallel_window", None)
            nodes[name] = NodeFolding.from_attrs(chosen)
    return Folding(nodes)


def rounded_network(rng: np.random.Generator, layers: int) -> Graph:
    """Convolutions of all kinds with accumulators that round and saturate, and the activations in
    between; each step of a sum is one that a unit can do.
    """
    channels = int(rng.choice([2, 3, 4, 6]))
    name = str(rng.choice(["int4", "uint4", "int6"]))
    builder = GraphBuilder("rounded", INTEGER)
    edge = builder.input("x", levels((7, 8, channels), name))
    for layer in range(layers):
        kind = str(rng.choice(["full", "depthwise", "grouped", "pointwise"]))
        channels = builder.types[edge].channels
        kernel = 1 if kind == "pointwise" else int(rng.choice([2, 3]))
        groups = {"depthwise": channels, "grouped": 2 - channels % 2}.get(kind, 1)
        rows = channels if groups > 1 else int(rng.choice([2, 4, 6]))
        terms = kernel * kernel * channels // groups
        tiles = [tile for tile in range(1, terms + 1) if terms % tile == 0]
        if kind == "depthwise" or channels // groups == 1:
            tiles = [1, terms]
        bits, drop = int(rng.integers(4, 10)), int(rng.integers(0, 5))
        low, high = -(1 << (bits - 1)), 1 << (bits - 1)
        weight = rng.integers(-8, 8, (rows, kernel, kernel, channels // groups))
        params = {"weight": weight, "bias": rng.integers(low, high, rows)}
        attrs = {
            "padding": (int(rng.integers(0, 2)),) * 4, "groups": groups, "weight_format": "int4",
            "weight_scale": (0.5,), "tile": int(rng.choice(tiles)), "drop": drop, "bits": bits,
        }  # fmt: skip
        if rng.integers(2):
            del params["bias"]
        edge = builder.add("conv_rounded", (edge,), name=f"conv{layer}", attrs=attrs, params=params)
        if layer + 1 < layers:
            clip = {"lo": 0, "hi": 15, "format": "uint4", "scale": (0.5,)}
            edge = builder.add(
                "requant",
                (edge,),
                name=f"act{layer}",
                attrs={"shift": max(0, bits - 5), "rounding": "half_up", **clip},
                params={"multiplier": np.array([1]), "offset": np.array([0])},
            )
    return builder.finish(edge)
