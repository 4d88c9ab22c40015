# SPDX-License-Identifier: Apache-2.0
"""Integer graph -> hardware graph: blocks, folding, width converters and FIFOs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, lcm

from bitwright.errors import RecipeError
from bitwright.hw.blocks import Block, MatVec, Pad, Window, block_of, blocks_of, divisors
from bitwright.hw.fifos import insert_fifos
from bitwright.hw.folding import Folding, NodeFolding, resolve_reuse
from bitwright.hw.memory import FAMILIES
from bitwright.hw.template import template
from bitwright.ir import Attr, Graph, Node
from bitwright.ir.graph import rebuild


@dataclass(frozen=True)
class MapOptions:
    """How to map.

    Attributes:
        family: device family, for the choice between LUT and block memories.
        fifos: put FIFOs where the timing model needs them (off: blocks are connected directly,
            which is correct but may run slower).
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

    Its inputs and outputs have the names of the integer graph's; running it gives the same
    integers.

    Raises:
        ModelError: a node has no hardware; says which, why, and what to do.
        RecipeError: the folding is not legal for this graph.
    """
    options = options or MapOptions()
    folding = folding or Folding()
    hardware = apply_folding(template(graph), folding, options)
    hardware = convert_widths(hardware)
    return insert_fifos(hardware, folding, options.family) if options.fifos else hardware


def apply_folding(hardware: Graph, folding: Folding, options: MapOptions) -> Graph:
    """Set PE, SIMD and styles of every block of a template.

    What the folding leaves open follows from the neighbours, so that few width converters are
    needed: a threshold takes the PE of its matrix unit, a pad the SIMD of its window, a window the
    largest divisor of its channels that its consumer can use.

    Raises:
        RecipeError: an entry names no node, or its value is not legal there.
    """
    folding.check_names(node.name for node in hardware)
    nodes: list[Node] = []
    choices = {n.name: _choice(hardware, n, folding) for n in hardware}
    lanes: dict[str, int] = {}
    for node in hardware:
        block = block_of(hardware, node)
        attrs = dict(node.attrs)
        before = lanes.get(node.inputs[0])
        attrs.update(_fold_attrs(hardware, block, choices, before))
        attrs.update(_style_attrs(block, choices[node.name]))
        legal = _checked(hardware, replace(node, attrs=attrs))
        nodes.append(legal.node)
        for edge in node.outputs:
            lanes[edge] = legal.lanes[1]
    folded = rebuild(hardware, tuple(nodes))
    resolved = (block.resolve(options.family) for block in blocks_of(folded).values())
    return rebuild(hardware, tuple(resolved))


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
        # At an input of the graph there is nothing to follow but the reader.
        lanes = before or _wanted_lanes(hardware, node, choices, before)
        return {"lanes": gcd(lanes, block.input_type.size)}
    per_pixel = channels // node.integer("window") if node.op == "pool_max" else channels
    return {"pe": choice.pe or gcd(before or 1, per_pixel)}


def _wanted_lanes(
    hardware: Graph, node: Node, choices: dict[str, NodeFolding], before: int | None
) -> int:
    """Lanes that the (first) reader of a block would like to get."""
    readers = hardware.consumers(node.outputs[0])
    if not readers:
        return 1
    reader = readers[0]
    choice = choices[reader.name]
    if reader.op in ("pad", "window", "flatten", "fork"):
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
    if isinstance(plain, MatVec):
        rows, columns = plain.matrix
    if node.op == "pool_max":
        columns = rows
    for attr, total in (("pe", rows), ("simd", columns)):
        value = node.attrs.get(attr)
        limit = columns if node.op in ("threshold", "requant", "top_k") else total
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


def convert_widths(hardware: Graph) -> Graph:
    """Width converters wherever producer and consumer differ in lanes.

    Where neither count divides the other, two converters go through their least common multiple,
    which costs no throughput, or through the greatest common divisor where the multiple does not
    divide the frame.
    """
    blocks = blocks_of(hardware)
    lanes = {edge: b.lanes[1] for b in blocks.values() for edge in b.node.outputs}
    nodes: list[Node] = []
    for node in hardware:
        (edge,) = node.inputs
        have, want = lanes.get(edge), blocks[node.name].lanes[0]
        if have is not None and have != want:
            for name, before, after in converter_steps(
                node.name, have, want, hardware.types[edge].size
            ):
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


def folding_of(hardware: Graph) -> Folding:
    """The complete folding of a hardware graph: mapping with it again gives the same design."""
    nodes: dict[str, NodeFolding] = {}
    for node in hardware:
        if node.op in _UNFOLDED:
            continue
        names = [n for n in ("pe", "simd", "ram_style", "res_type", "rows") if n in node.attrs]
        choice = NodeFolding.from_attrs({n: _plain(node, n) for n in names})
        producer = hardware.producer(node.inputs[0])
        if producer is not None and producer.op == "fifo":
            choice = replace(choice, depth=producer.integer("depth"))
        nodes[node.name] = choice
    return Folding(nodes)


_UNFOLDED = ("fifo", "dwc", "fork", "flatten")


def _plain(node: Node, attr: str) -> int | str:
    value = node.attrs[attr]
    if not isinstance(value, int | str):
        raise RecipeError(f"{attr} is no choice of a folding: {value!r}", where=node.name)
    return value
