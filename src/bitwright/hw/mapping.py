# SPDX-License-Identifier: Apache-2.0
"""Integer graph -> hardware graph: blocks, then folding, width converters and FIFOs, each a pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd, lcm, prod

from bitwright.errors import ModelError, RecipeError
from bitwright.hw.blocks import Block, MatVec, Pad, Window, block_of, blocks_of, divisors
from bitwright.hw.dataflow import DIRECT_BEATS, FIFO_LATENCY, Dataflow, analyse
from bitwright.hw.dialect import HARDWARE
from bitwright.hw.folding import Folding, NodeFolding, resolve_reuse
from bitwright.hw.memory import FAMILIES, ram_style
from bitwright.ir import Attr, Graph, GraphBuilder, Node
from bitwright.ir.graph import rebuild

_SMALLEST_FIFO = 4


@dataclass(frozen=True)
class MapOptions:
    """How to map.

    Attributes:
        family: device family, for the choice between LUT and block memories.
        fifos: put FIFOs where the timing model needs them (off: blocks are connected directly, which is
            correct but may run slower).
    """

    family: str = "ecp5"
    fifos: bool = True

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise RecipeError(f"unknown family {self.family!r}; known are {', '.join(FAMILIES)}")


def map_graph(
    graph: Graph, folding: Folding | None = None, options: MapOptions | None = None
) -> Graph:
    """The hardware graph of an integer graph.

    Its inputs and outputs have the names of the integer graph's; running it gives the same integers.

    Raises:
        ModelError: a node has no hardware; says which, why, and what to do.
        RecipeError: the folding is not legal for this graph.
    """
    options = options or MapOptions()
    folding = folding or Folding()
    hardware = apply_folding(template(graph), folding, options)
    hardware = convert_widths(hardware)
    return insert_fifos(hardware, folding, options) if options.fifos else hardware


# ---------------------------------------------------------------------------------------- template


def template(graph: Graph) -> Graph:
    """The blocks of an integer graph, completely folded (PE = SIMD = 1), without converters and FIFOs.

    Raises:
        ModelError: a node has no hardware.
    """
    builder = GraphBuilder(graph.name, HARDWARE)
    streams = _Streams(graph, builder)
    for edge in graph.inputs:
        streams.define(edge, lambda name, edge=edge: builder.input(name, graph.types[edge]))
    for node in graph:
        if node.op not in _MAPPERS:
            raise ModelError(
                f"the operation {node.op!r} has no hardware block",
                where=node.source or node.name,
                hint=f"operations with hardware are {', '.join(sorted(_MAPPERS))}",
            )
        _MAPPERS[node.op](node, streams)
    return builder.finish(*(streams.outputs[edge] for edge in graph.outputs))


class _Streams:
    """Which stream each reader of an integer edge gets: streams have one reader, so others are forked."""

    def __init__(self, graph: Graph, builder: GraphBuilder) -> None:
        self.graph, self.builder = graph, builder
        self._free: dict[str, list[str]] = {}
        self.outputs: dict[str, str] = {}

    def define(self, edge: str, make: Callable[[str], str]) -> None:
        """Make the stream of an integer edge, and a tree of forks if it has several readers.

        A graph output keeps the edge's name, so that hardware and integer graph have the same outputs.
        """
        is_output = edge in self.graph.outputs
        readers = len(self.graph.consumers(edge)) + is_output
        is_input = edge in self.graph.inputs
        stream = make(edge if readers < 2 or is_input else f"{edge}_all")
        if readers == 0:
            where = (self.graph.producer(edge) or self.graph.nodes[0]).name
            raise ModelError(f"nothing reads {edge!r}", where=where, hint="remove dead nodes first")
        if is_input and is_output:
            raise ModelError(f"input {edge!r} is also an output: there is nothing to build")
        streams = []
        for index in range(readers - 1):
            last = index == readers - 2
            first = edge if is_output and index == 0 else f"{edge}_{index}"
            rest = f"{edge}_{index + 1}" if last else f"{edge}_rest{index}"
            name = self.builder.unique(f"{edge}_fork")
            self.builder.add("fork", (stream,), name=name, outputs=(first, rest))
            streams.append(first)
            stream = rest
        streams.append(stream)
        if is_output:
            self.outputs[edge] = streams.pop(0)
        self._free[edge] = streams

    def take(self, node: Node) -> str:
        """The stream that a node of the integer graph reads."""
        (edge,) = node.inputs
        return self._free[edge].pop(0)

    def image(self, node: Node) -> None:
        """Make sure that a node reads an image.

        Raises:
            ModelError: it does not.
        """
        shape = self.graph.types[node.inputs[0]].shape
        if len(shape) != 3:
            raise ModelError(f"{node.op} needs an image, got shape {shape}", where=node.name)


def _add_border(node: Node, streams: _Streams, stream: str, value: int) -> str:
    padding = node.ints("padding")
    if not any(padding):
        return stream
    attrs: dict[str, Attr] = {"padding": padding, "value": value}
    name = streams.builder.unique(f"{node.name}_pad")
    return streams.builder.add("pad", (stream,), name=name, attrs=attrs, source=node.source)


def _add_window(
    node: Node, streams: _Streams, stream: str, kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> str:
    stride = node.ints("stride")
    if prod(kernel) == 1 and prod(stride) == 1:
        return stream
    attrs: dict[str, Attr] = {
        "kernel": kernel,
        "stride": stride,
        "dilation": dilation,
        "rows": dilation[0] * (kernel[0] - 1) + 1 + stride[0],
    }
    name = streams.builder.unique(f"{node.name}_window")
    return streams.builder.add("window", (stream,), name=name, attrs=attrs, source=node.source)


def _map_conv(node: Node, streams: _Streams) -> None:
    groups = node.integer("groups")
    if groups != 1:
        raise ModelError(
            f"a convolution with groups={groups} has no streaming hardware block yet",
            where=node.source or node.name,
            hint="use groups=1 in this layer",
        )
    weight = node.params["weight"]
    rows, kernel_h, kernel_w, _ = weight.shape
    stream = _add_border(node, streams, streams.take(node), 0)
    stream = _add_window(node, streams, stream, (kernel_h, kernel_w), node.ints("dilation"))
    params = {**node.params, "weight": weight.reshape(rows, -1)}
    streams.define(node.output, lambda name: _add_matvec(node, streams, stream, name, params))


def _add_matvec(
    node: Node, streams: _Streams, stream: str, output: str, params: dict[str, object]
) -> str:
    attrs = {key: node.attrs[key] for key in ("weight_format", "weight_scale")}
    return streams.builder.append(
        Node(node.name, "matvec", (stream,), (output,), attrs, params, node.source)  # type: ignore[arg-type]
    )


def _map_dense(node: Node, streams: _Streams) -> None:
    stream = streams.take(node)
    params = dict(node.params)
    streams.define(node.output, lambda name: _add_matvec(node, streams, stream, name, params))  # type: ignore[arg-type]


def _map_same(node: Node, streams: _Streams) -> None:
    """An operation that the hardware dialect has under the same name with the same attributes."""
    stream = streams.take(node)
    streams.define(
        node.output,
        lambda name: streams.builder.append(replace(node, inputs=(stream,), outputs=(name,))),
    )


def _map_pool(node: Node, streams: _Streams) -> None:
    streams.image(node)
    kernel = node.ints("kernel")
    lowest = streams.graph.types[node.inputs[0]].lo
    stream = _add_border(node, streams, streams.take(node), lowest)
    stream = _add_window(node, streams, stream, kernel, (1, 1))
    attrs: dict[str, Attr] = {"window": prod(kernel)}
    streams.define(
        node.output,
        lambda name: streams.builder.append(
            Node(node.name, "pool_max", (stream,), (name,), attrs, {}, node.source)
        ),
    )


_MAPPERS: dict[str, Callable[[Node, _Streams], None]] = {
    "conv": _map_conv,
    "dense": _map_dense,
    "threshold": _map_same,
    "requant": _map_same,
    "max_pool": _map_pool,
    "flatten": _map_same,
    "argmax": _map_same,
}


# ----------------------------------------------------------------------------------------- folding


def apply_folding(hardware: Graph, folding: Folding, options: MapOptions) -> Graph:
    """Set PE, SIMD and styles of every block of a template.

    What the folding leaves open follows from the neighbours, so that few width converters are needed: a
    threshold takes the PE of its matrix unit, a pad the SIMD of its window, a window the largest divisor of
    its channels that its consumer can use.

    Raises:
        RecipeError: an entry names no node, or its value is not legal there.
    """
    folding.check_names(node.name for node in hardware)
    nodes: dict[str, Node] = {}
    choices = {n.name: _choice(hardware, n, folding) for n in hardware}
    lanes: dict[str, int] = {}
    for node in hardware:
        block = block_of(hardware, node)
        attrs = dict(node.attrs)
        before = lanes.get(node.inputs[0])
        attrs.update(_fold_attrs(hardware, block, choices, before))
        attrs.update(_style_attrs(block, choices[node.name]))
        folded = _checked(hardware, replace(node, attrs=attrs))
        nodes[node.name] = folded.node
        for edge in node.outputs:
            lanes[edge] = folded.lanes[1]
    folded_graph = rebuild(hardware, tuple(nodes[n.name] for n in hardware))
    return rebuild(hardware, tuple(b.resolve(options.family) for b in blocks_of(folded_graph).values()))


def _choice(hardware: Graph, node: Node, folding: Folding) -> NodeFolding:
    return resolve_reuse(folding.of(node.name, node.op), block_of(hardware, node))


def _fold_attrs(
    hardware: Graph, block: Block, choices: dict[str, NodeFolding], before: int | None
) -> dict[str, int]:
    """PE and SIMD of a block: as chosen, else as the neighbours suggest."""
    node, choice = block.node, choices[block.name]
    channels = block.input_type.channels
    if isinstance(block, MatVec):
        return {"pe": choice.pe or 1, "simd": choice.simd or 1}
    if isinstance(block, Pad | Window):
        wanted = choice.simd or _wanted_lanes(hardware, node, choices, before)
        rows = {} if choice.rows is None or isinstance(block, Pad) else {"rows": choice.rows}
        simd = wanted if choice.simd else gcd(channels, wanted)
        return {"simd": simd, **rows}
    if "lanes" in node.attrs:
        return {"lanes": gcd(before or 1, channels)}
    per_pixel = channels // node.integer("window") if node.op == "pool_max" else channels
    return {"pe": choice.pe or gcd(before or 1, per_pixel)}


def _wanted_lanes(
    hardware: Graph, node: Node, choices: dict[str, NodeFolding], before: int | None
) -> int:
    """Lanes that the reader of a pad or window would like to get."""
    (reader,) = hardware.consumers(node.output)
    choice = choices[reader.name]
    if reader.op in ("pad", "window"):
        return choice.simd or _wanted_lanes(hardware, reader, choices, before)
    if reader.op == "matvec":
        return choice.simd or 1
    return choice.pe or before or 1


def _style_attrs(block: Block, choice: NodeFolding) -> dict[str, str]:
    attrs: dict[str, str] = {}
    if "ram_style" in block.node.attrs:
        attrs["ram_style"] = choice.ram_style or "auto"
    if "res_type" in block.node.attrs:
        attrs["res_type"] = choice.res_type or "auto"
    return attrs


def _checked(hardware: Graph, node: Node) -> Block:
    """The block of a folded node.

    Raises:
        RecipeError: the folding is not legal; says which values are.
    """
    plain = block_of(hardware, hardware.node(node.name))
    rows, columns = plain.output_type.channels, plain.input_type.channels
    if node.op == "pool_max":
        columns = rows
    for attr, total in (("pe", rows), ("simd", columns)):
        value = node.attrs.get(attr)
        limit = columns if node.op in ("threshold", "requant", "argmax") else total
        if isinstance(value, int) and limit % value:
            raise RecipeError(
                f"{attr.upper()}={value} does not divide {limit}",
                where=f"folding, {node.name}",
                hint=f"legal are {', '.join(map(str, divisors(limit)))}",
            )
    if isinstance(plain, Window) and node.integer("rows") < plain.span:
        raise RecipeError(
            f"rows={node.integer('rows')} is less than the {plain.span} rows of a window",
            where=f"folding, {node.name}",
            hint=f"use {plain.span} or more; {plain.span + node.ints('stride')[0]} is the default",
        )
    return block_of(hardware, node)


# ----------------------------------------------------------------------------- converters and FIFOs


def convert_widths(hardware: Graph) -> Graph:
    """Width converters wherever producer and consumer differ in lanes.

    Where neither count divides the other, two converters go through their least common multiple, which
    costs no throughput, or through the greatest common divisor where the multiple does not divide the frame.
    """
    blocks = blocks_of(hardware)
    lanes = {edge: b.lanes[1] for b in blocks.values() for edge in b.node.outputs}
    nodes: list[Node] = []
    for node in hardware:
        (edge,) = node.inputs
        have, want = lanes.get(edge), blocks[node.name].lanes[0]
        if have is not None and have != want:
            for name, before, after in converter_steps(node.name, have, want, hardware.types[edge].size):
                attrs: dict[str, Attr] = {"in_lanes": before, "out_lanes": after}
                nodes.append(Node(name, "dwc", (edge,), (name,), attrs, {}, node.source))
                edge = name
        nodes.append(replace(node, inputs=(edge,)))
    return rebuild(hardware, tuple(nodes))


def converter_steps(stem: str, have: int, want: int, size: int) -> list[tuple[str, int, int]]:
    """The converters between two lane counts: (node name, lanes in, lanes out), one or two."""
    if have % want == 0 or want % have == 0:
        return [(f"{stem}_dwc", have, want)]
    middle = lcm(have, want)
    if size % middle:
        middle = gcd(have, want)
    return [(f"{stem}_dwc0", have, middle), (f"{stem}_dwc1", middle, want)]


def insert_fifos(hardware: Graph, folding: Folding, options: MapOptions) -> Graph:
    """FIFOs as deep as the timing model says; see `hw.dataflow`."""
    depths = fifo_depths(hardware)
    for node in hardware:
        given = folding.of(node.name, node.op).depth
        if given is not None and node.inputs[0] not in hardware.inputs:
            depths[node.inputs[0]] = given
    nodes: list[Node] = []
    for node in hardware:
        (edge,) = node.inputs
        depth = depths.get(edge, 0)
        if depth > DIRECT_BEATS:
            block = block_of(hardware, node)
            lanes = block.lanes[0]
            width = block.inputs[0].width
            style = ram_style(options.family, depth, width)
            attrs: dict[str, Attr] = {"depth": depth, "lanes": lanes, "ram_style": style}
            name = f"{node.name}_fifo"
            nodes.append(Node(name, "fifo", (edge,), (name,), attrs, {}, node.source))
            edge = name
        nodes.append(replace(node, inputs=(edge,)))
    return rebuild(hardware, tuple(nodes))


def fifo_depths(hardware: Graph) -> dict[str, int]:
    """Depth of every edge that needs a FIFO."""
    blocks = blocks_of(hardware)
    delays: dict[str, int] = {}
    while True:
        flow = analyse(hardware, delays)
        needed = {edge for edge, beats in flow.beats.items() if beats > DIRECT_BEATS}
        needed |= _tight_edges(hardware, blocks, flow)
        new = needed - set(delays) - set(hardware.inputs)
        if not new:
            break
        delays.update(dict.fromkeys(new, FIFO_LATENCY))
    slack = _pipeline_latency(hardware, blocks, set(delays))
    return {
        edge: _round_depth(max(_SMALLEST_FIFO, flow.beats[edge] + slack[edge])) for edge in delays
    }


def _tight_edges(hardware: Graph, blocks: dict[str, Block], flow: Dataflow) -> set[str]:
    """Edges whose consumer has too little spare time to wait for bubbles of a pipeline that stood still."""
    tight: set[str] = set()
    for node in hardware:
        (edge,) = node.inputs
        producer = hardware.producer(edge)
        if producer is None or isinstance(blocks[node.name], Window | Pad):
            continue
        if not isinstance(blocks[node.name], MatVec):
            continue
        shape = hardware.types[edge].shape
        bursts = prod(shape[:-1]) if len(shape) == 3 else 1
        spare = flow.interval - flow.intervals[node.name]
        if spare < bursts * blocks[producer.name].pipeline:
            tight.add(edge)
    return tight


def _pipeline_latency(
    hardware: Graph, blocks: dict[str, Block], buffered: set[str]
) -> dict[str, int]:
    """Cycles from the last FIFO before an edge to that edge: what may be bubbles when it stands still."""
    total: dict[str, int] = dict.fromkeys(hardware.inputs, 0)
    for node in hardware:
        (edge,) = node.inputs
        before = 0 if edge in buffered else total[edge]
        for out in node.outputs:
            total[out] = before + blocks[node.name].pipeline
    return total


def _round_depth(depth: int) -> int:
    """The next size that costs no more: multiples of 16 are free in LUT RAM."""
    return depth if depth <= 2 else -(-depth // 16) * 16
