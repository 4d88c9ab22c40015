# SPDX-License-Identifier: Apache-2.0
"""The text of the generated top level: instances and constants, nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from bitwright.hw.blocks import Block, Flatten, Instance, Port, blocks_of
from bitwright.hw.describe import type_words
from bitwright.hw.memory import Memory
from bitwright.hw.names import identifier, identifiers, instance_names
from bitwright.hw.operands import wire_words
from bitwright.hw.weight_image import BASE, PORT, MemoryPlan, memory_plan
from bitwright.ir import Graph
from bitwright.rtl.emit_memory import port_lines, reader_lines, weight_pins
from bitwright.rtl.text import axis_ports, instance_lines, listed

FRAME_ERROR = "frame_error"
"""Output with one bit an input: its tlast was misplaced since the last reset."""


@dataclass(frozen=True)
class TopPort:
    """One AXI-Stream port of the top: its name and the stream behind it."""

    name: str
    edge: str
    port: Port

    @property
    def tdata_width(self) -> int:
        """Whole bytes."""
        return 8 * ceil(self.port.width / 8)

    @property
    def fill(self) -> int:
        """Pattern of a beat that stands for a lost one: of level 0 where there is one."""
        kind = self.port.type
        zero = kind.lo <= 0 <= kind.hi and not kind.is_bipolar
        if zero and kind.code_format is not None:
            zero = bool(kind.code_format.contains(0).all())
        lane = int(wire_words(kind, np.array(0 if zero else kind.lo)))
        return sum(lane << (i * kind.wire_bits) for i in range(self.port.lanes))

    def to_json(self) -> dict[str, object]:
        """The entry of design.json."""
        kind = self.port.type
        codes = {} if kind.code_format is None else {"codes": kind.code_format.name}
        return {
            "name": self.name,
            "tensor": self.edge,
            "width": self.tdata_width,
            "lane_bits": kind.wire_bits,
            "lanes": self.port.lanes,
            "beats": self.port.beats,
            "signed": kind.is_signed,
            "bipolar": kind.is_bipolar,
            **codes,
        }


@dataclass(frozen=True)
class Top:
    """Everything that the text of the top level is made of.

    Attributes:
        name: module name.
        blocks: by node name, in topological order, without renamings.
        instances: node name -> module, parameters and images.
        instance_names: node name -> instance name.
        streams: edge -> prefix of its signals (renamed edges share one).
        stream_widths: prefix -> bits.
        plan: where external weights lie, if there are any.
        weight_streams: matrix unit with external weights -> prefix of its weight stream.
    """

    name: str
    inputs: tuple[TopPort, ...]
    outputs: tuple[TopPort, ...]
    blocks: Mapping[str, Block]
    instances: Mapping[str, Instance]
    instance_names: Mapping[str, str]
    streams: Mapping[str, str]
    stream_widths: Mapping[str, int]
    plan: MemoryPlan | None = None
    weight_streams: Mapping[str, str] = field(default_factory=dict)

    def memory_path(self, node: str, parameter: str) -> str:
        """What a parameter says of where its image lies in the design folder."""
        stem = self.instance_names[node].removeprefix("i_")
        path = f"mem/{stem}_{parameter.replace('File', '').lower()}"
        return f"{path}_" if parameter in self.instances[node].lane_memories else f"{path}.mem"

    def images(self, node: str) -> dict[str, Memory]:
        """Path in the design folder -> image, of all memories of a block."""
        instance = self.instances[node]
        found = {self.memory_path(node, name): m for name, m in instance.memories.items()}
        for name, lanes in instance.lane_memories.items():
            stem = self.memory_path(node, name)
            found.update({f"{stem}{lane:04}.mem": memory for lane, memory in enumerate(lanes)})
        return found


def make_top(graph: Graph, modules: frozenset[str]) -> Top:
    """Lay out the top level of a hardware graph.

    Args:
        modules: names of library modules, which the top may not take.
    """
    blocks = blocks_of(graph)
    # The signals of one prefix end in _valid, _ready, _data, so distinct prefixes are distinct
    # signals.
    roots: dict[str, str] = {}
    widths: dict[str, int] = {}
    lanes: dict[str, Port] = {}
    for edge in graph.inputs:
        (consumer,) = graph.consumers(edge)
        lanes[edge] = blocks[consumer.name].inputs[0]
    for block in blocks.values():
        for edge, port in zip(block.node.outputs, block.outputs, strict=True):
            lanes[edge] = port
    for edge in (*graph.inputs, *(e for node in graph for e in node.outputs)):
        producer = graph.producer(edge)
        renamed = producer is not None and isinstance(blocks[producer.name], Flatten)
        roots[edge] = roots[producer.inputs[0]] if renamed and producer is not None else edge
    prefixes = identifiers((e for e in roots if roots[e] == e), taken=_PORT_WORDS)
    for edge, prefix in prefixes.items():
        widths[prefix] = lanes[edge].width
    plan = memory_plan(graph)
    units = [] if plan is None else [region.node for region in plan.regions]
    taken = {*_PORT_WORDS, *prefixes.values()}
    named = identifiers((f"gmem0_{unit}" for unit in units), taken)
    readers = dict(zip(units, named.values(), strict=True))
    real = {name: b for name, b in blocks.items() if not isinstance(b, Flatten)}
    instances = {name: block.instance() for name, block in real.items()}
    return Top(
        name=_top_name(graph.name, modules),
        inputs=tuple(TopPort(f"s_axis_{i}", e, lanes[e]) for i, e in enumerate(graph.inputs)),
        outputs=tuple(TopPort(f"m_axis_{i}", e, lanes[e]) for i, e in enumerate(graph.outputs)),
        blocks=real,
        instances=instances,
        instance_names=instance_names(graph),
        streams={edge: prefixes[root] for edge, root in roots.items()},
        stream_widths=widths,
        plan=plan,
        weight_streams=readers,
    )


#: What begins a comment that some tool takes for an order; elsewhere a name may stand first, and
#: designs stay what they were: their serial top knows them by the hash of their text.
_ORDER = re.compile(
    r"verilator|verific|verilog|synopsys|synthesis|rtl_synthesis|pragma|cadence|ambit|altera|"
    r"quartus|xilinx|vivado|exemplar|leonardo|mentor|siemens|leda|spyglass|lint|coverage|vcs|vcd|"
    r"psl|sva|0in|hds|translate|full_case|parallel_case|yosys|icarus|iverilog|slang|formal|"
    r"conformal|genus|lattice|synplify|syn_|efinity|gowin|microsemi|actel",
    re.IGNORECASE,
)
_PORT_WORDS = (
    "ap_clk",
    "ap_rst_n",
    FRAME_ERROR,
    BASE,
    PORT,
    "gmem0_ar",
    "gmem0_r",
    "gmem0_arbiter",
)


def _top_name(name: str, modules: frozenset[str]) -> str:
    top = identifier(name)
    return f"{top}_top" if top in modules else top


def top_text(top: Top, banner: str) -> str:
    """The SystemVerilog of the top level.

    Args:
        banner: comment lines that say what made it.
    """
    lines = [*banner.splitlines(), "`default_nettype none", f"module {top.name} ("]
    lines += [*_port_lines(top), ");"]
    for prefix, width in top.stream_widths.items():
        lines.append(f"  logic {prefix}_valid, {prefix}_ready;")
        lines.append(f"  logic [{width - 1}:0] {prefix}_data;")
    for number, port in enumerate(top.inputs):
        fill = {"FillValue": f"{port.port.width}'h{port.fill:x}"} if port.fill else {}
        pins = [_stream_pins("out", top.streams[port.edge])]
        pins.append(f".frame_error_o({FRAME_ERROR}[{number}])")
        lines += ["", *_axis("axis_in", port, pins, **fill)]
    if top.plan is not None:
        lines += ["", *reader_lines(top.plan, top.weight_streams, top.blocks)]
    for name in top.blocks:
        lines += ["", *_instance(top, name)]
    for port in top.outputs:
        pins = [_stream_pins("in", top.streams[port.edge])]
        lines += ["", *_axis("axis_out", port, pins)]
    lines += ["endmodule", "`default_nettype wire", ""]
    return "\n".join(lines)


def _port_lines(top: Top) -> list[str]:
    lines = ["input  logic ap_clk", "input  logic ap_rst_n"]
    for output, ports in enumerate((top.inputs, top.outputs)):
        for port in ports:
            lines += axis_ports(port.name, port.tdata_width, output=bool(output))
    if top.inputs:
        lines.append(f"output logic [{len(top.inputs) - 1}:0] {FRAME_ERROR}")
    if top.plan is not None:
        lines += port_lines(top.plan)
    return listed(lines, 2)


def _axis(module: str, port: TopPort, pins: list[str], **more: str) -> list[str]:
    """The converter between an AXI stream of the top and a stream inside."""
    side = "s_axis" if module == "axis_in" else "m_axis"
    values = {
        "Width": port.port.width,
        "TdataWidth": port.tdata_width,
        "Beats": port.port.beats,
        **more,
    }
    wires = [f".{side}_t{s}({port.name}_t{s})" for s in ("data", "valid", "ready", "last")]
    outside = [", ".join(wires[:2]), ", ".join(wires[2:])]
    pins = [*outside, *pins] if module == "axis_in" else [*pins, *outside]
    return instance_lines(module, f"i_{port.name}", pins, values)


def _stream_pins(side: str, prefix: str) -> str:
    """Pins of a stream; `side` is in, in0, out, out0, ..."""
    valid, ready, data = ("i", "o", "i") if side.startswith("in") else ("o", "i", "o")
    return (
        f".{side}_valid_{valid}({prefix}_valid), .{side}_ready_{ready}({prefix}_ready), "
        f".{side}_data_{data}({prefix}_data)"
    )


def _instance(top: Top, name: str) -> list[str]:
    block, instance = top.blocks[name], top.instances[name]
    values = {key: str(value) for key, value in instance.parameters.items()}
    for parameter in (*instance.lane_memories, *instance.memories):
        values[parameter] = f'"{top.memory_path(name, parameter)}"'
    ports, edges = (*block.inputs, *block.outputs), (*block.node.inputs, *block.node.outputs)
    pins = [_stream_pins(p.name, top.streams[e]) for p, e in zip(ports, edges, strict=True)]
    if name in top.weight_streams:
        pins.append(weight_pins(top.weight_streams[name]))
    text = instance_lines(instance.module, top.instance_names[name], pins, values)
    origin = f" ({block.node.source})" if block.node.source else ""
    given = ", ".join(type_words(kind) for kind in block.input_types)
    shapes = f"{given} -> {type_words(block.output_type)}"
    first = "block " if _ORDER.match(name) else ""
    return [f"  // {first}{name}{origin}: {shapes}", *text]
