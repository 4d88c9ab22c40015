# SPDX-License-Identifier: Apache-2.0
"""Lesson 13: a hardware block of your own, without editing the package.

A table of levels (`lookup`) takes a memory. Where it holds absolute values, two gates a bit do the
same: this block takes such tables. Its module is ``absolute.sv``, beside this file; it is mapped,
estimated, emitted and simulated as the blocks of the package are. In a recipe:

    hardware: {target: ecp5-25k, blocks: ["my_blocks:absolute_block"]}
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bitwright.base.figures import Resources
from bitwright.formats import parse_format
from bitwright.hw import (
    Folding,
    NodeFolding,
    OwnBlock,
    analyse,
    estimate,
    map_graph,
    register_block,
)
from bitwright.hw.blocks import Block, Firing, Fold, Instance, one_to_one, pe_foldings
from bitwright.hw.dialect import PE
from bitwright.ir import INTEGER, AttrSpec, Graph, GraphBuilder, Node, OpSpec, TensorType
from bitwright.rtl.emit import emit
from bitwright.sim import Simulator, random_stalls

LOOKUP = INTEGER.ops["lookup"]


def infer(node: Node, types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """The type rule: levels 0 .. most, in the format and scale of the table it stands for."""
    kind, scale = parse_format(node.string("format")), node.floats("scale")
    return (TensorType(types[0].shape, kind, scale, 0, node.integer("most")),)


def reference(
    node: Node, types: tuple[TensorType, ...], arrays: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, ...]:
    """The definition that RTL is compared with."""
    return (np.minimum(np.abs(arrays[0]), node.integer("most")),)


SPEC = OpSpec(
    "absolute", "min(|x|, most), PE channels a cycle", 1, infer, reference,
    attrs={**LOOKUP.attrs, "most": AttrSpec("int", "largest level"), "pe": PE},
)  # fmt: skip


@dataclass(frozen=True)
class Absolute(Block):
    """Timing, cost and instance of the module ``absolute``."""

    @property
    def lanes(self) -> tuple[int, int]:
        return self.integer("pe"), self.integer("pe")

    def foldings(self) -> tuple[Fold, ...]:
        return pe_foldings(self.input_type.channels)

    def firing(self) -> Firing:
        return one_to_one(self.inputs[0].beats, latency=2)

    def features(self, family: str) -> dict[str, float]:
        return {}  # no fitted line: more_cost says it all

    def more_cost(self, family: str) -> Resources:
        width_in, width_out = self.inputs[0].width, self.outputs[0].width
        return Resources(lut=2 * width_in + width_out, ff=3 * width_out + 4)

    def instance(self) -> Instance:
        return Instance(
            "absolute",
            {
                "PE": self.integer("pe"),
                "InWidth": self.input_type.wire_bits,
                "OutWidth": self.output_type.wire_bits,
                "Most": self.node.integer("most"),
            },
        )


def take(node: Node, types: tuple[TensorType, ...]) -> Node | None:
    """Every table of absolute values, one for all channels, from signed numbers to numbers.

    A block must itself refuse what its module does not read or make: here codes and bipolar bits.
    """
    if node.op != "lookup" or not types[0].is_signed:
        return None
    table = node.params["table"]
    most = int(table.max())
    levels = np.arange(types[0].lo, types[0].hi + 1)
    if len(table) > 1 or not np.array_equal(table[0], np.minimum(np.abs(levels), most)):
        return None
    attrs = {**node.attrs, "most": most}
    own = Node(node.name, "absolute", node.inputs, node.outputs, attrs, {}, node.source)
    return None if infer(own, types)[0].is_coded else own


def absolute_block() -> OwnBlock:
    """What the recipe names."""
    return OwnBlock(SPEC, Absolute, take, (Path(__file__).parent / "absolute.sv",))


def network() -> Graph:
    """An image of int4 levels, their absolute values, and a sum of all pixels."""
    builder = GraphBuilder("absolute_values", INTEGER)
    image = builder.input("x", TensorType((6, 6, 4), parse_format("int4"), (0.5,), -8, 7))
    table = np.minimum(np.abs(np.arange(-8, 8)), 7)[None]
    attrs = {"format": "uint3", "scale": (0.5,)}
    edge = builder.add("lookup", (image,), name="size", attrs=attrs, params={"table": table})
    attrs = {"kernel": (6, 6), "stride": (6, 6), "padding": (0, 0, 0, 0)}
    return builder.finish(builder.add("sum_pool", (edge,), name="total", attrs=attrs))


def main() -> None:
    register_block(absolute_block())
    graph = network()
    hardware = map_graph(graph, Folding({"size": NodeFolding(pe=2), "total": NodeFolding(pe=2)}))
    print(", ".join(f"{node.name} ({node.op})" for node in hardware))
    assert hardware.node("size").op == "absolute"
    block = Absolute(hardware.node("size"), hardware.types["x"], hardware.types["size"])
    print(f"estimated: {estimate(block, 'ecp5').resources}")
    feeds = {"x": np.random.default_rng(1).integers(-8, 8, (8, 6, 6, 4))}
    expected = graph.run(feeds)[graph.outputs[0]].reshape(8, -1)
    with tempfile.TemporaryDirectory() as folder:
        emit(hardware, Path(folder) / "rtl")
        simulator = Simulator.build(Path(folder) / "rtl")
        beats = simulator.pack({"s_axis_0": feeds["x"]})
        free, stalled = simulator.run(beats, 8), simulator.run(beats, 8, random_stalls(0.5))
    for result in (free, stalled):
        assert (result.levels["m_axis_0"] == expected).all()
    flow = analyse(hardware)
    print(f"RTL = graph; {free.interval} cycles a frame, {flow.interval} predicted")
    assert (free.interval, free.latency) == (flow.interval, flow.latency)


if __name__ == "__main__":
    main()
