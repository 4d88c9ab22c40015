# SPDX-License-Identifier: Apache-2.0
"""Integer graph -> hardware graph: blocks, folding, width converters and FIFOs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import gcd, lcm

from bitwright.base.errors import RecipeError
from bitwright.hw.blocks import (
    Block,
    Depthwise,
    MatVec,
    Pad,
    ParallelWindow,
    Window,
    block_of,
    blocks_of,
    divisors,
)
from bitwright.hw.blocks.products import ProductUnit
from bitwright.hw.dataflow import DIRECT_BEATS
from bitwright.hw.external import WeightMemory, check_modes, place_weights
from bitwright.hw.fifos import insert_fifos, is_fifo_name
from bitwright.hw.folding import Folding, NodeFolding, resolve_reuse
from bitwright.hw.memory import FAMILIES
from bitwright.hw.template import template
from bitwright.ir import Attr, Graph, Node, rebuild

# Time in which one more adder fits between two registers, with the way to it; generous.
_ADDER_NS = {"ecp5": 6.0, "ice40": 9.0, "xc7": 2.5, "xcup": 1.4, "cyclonev": 4.5}
_MOST_ADDERS = 4


@dataclass(frozen=True)
class MapOptions:
    """How to map.

    Attributes:
        family: device family, for the choice between LUT and block memories.
        fifos: put FIFOs where the timing model needs them (off: blocks are connected directly,
            which is correct but may run slower).
        memory: what external weights are read from.
        clock_mhz: the clock that is wanted: a slow one needs fewer registers; None: every adder
            has one.
    """

    family: str = "ecp5"
    fifos: bool = True
    memory: WeightMemory = field(default_factory=WeightMemory)
    clock_mhz: float | None = None

    @property
    def adders(self) -> int:
        """Adders in a line between registers of a unit that multiplies."""
        if self.clock_mhz is None:
            return 1
        fitting = int(1000.0 / self.clock_mhz / _ADDER_NS[self.family])
        return max(1, min(fitting, _MOST_ADDERS))

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
        TargetError: external weights need more bandwidth than there is.
    """
    options = options or MapOptions()
    folding = folding or Folding()
    hardware = apply_folding(template(graph), folding, options)
    check_modes(hardware, folding)
    hardware = place_weights(hardware, options.memory, options.family)
    hardware = convert_widths(hardware)
    return insert_fifos(hardware, folding, options.family) if options.fifos else hardware


def apply_folding(hardware: Graph, folding: Folding, options: MapOptions) -> Graph:
    """Set PE, SIMD and styles of every block of a template.

    What the folding leaves open follows from the neighbours, so that few width converters are
    needed: a threshold takes the PE of its matrix unit, a pad the SIMD of its window, a window the
    largest divisor of its channels that its consumer can use, a join the lanes of its wider input.
    A depthwise unit and its window are parallel together, whichever of the two says so.

    Raises:
        RecipeError: an entry names no node, or its value is not legal there.
    """
    names = {node.name for node in hardware}
    fifos = {name for name in folding.nodes if is_fifo_name(name, names)}
    folding.check_names(names | fifos)
    nodes: list[Node] = []
    choices = {n.name: _choice(hardware, n, folding) for n in hardware}
    lanes: dict[str, int] = {}
    for node in hardware:
        block = block_of(hardware, node)
        attrs = dict(node.attrs)
        # Where the inputs of a join differ, the wider one needs no converter.
        before = max((lanes[edge] for edge in node.inputs if edge in lanes), default=None)
        attrs.update(_fold_attrs(hardware, block, choices, before))
        attrs.update(_style_attrs(block, choices[node.name]))
        if "adders" in attrs:
            attrs["adders"] = options.adders
        legal = _checked(hardware, replace(node, attrs=attrs))
        _check_order(hardware, legal, lanes)
        nodes.append(legal.node)
        for edge in node.outputs:
            lanes[edge] = legal.lanes[1]
    folded = rebuild(hardware, tuple(nodes))
    resolved = (block.resolve(options.family) for block in blocks_of(folded).values())
    return rebuild(hardware, tuple(resolved))


def _choice(hardware: Graph, node: Node, folding: Folding) -> NodeFolding:
    block = block_of(hardware, node)
    choice = resolve_reuse(folding.of(node.name, node.op), block)
    if isinstance(block, ProductUnit) and choice.simd is None and block.tile > 1:
        return replace(choice, simd=block.tile)
    if not isinstance(block, Window):
        return choice
    if block.out_pixels and choice.parallel_window is None:
        (unit,) = hardware.consumers(node.output)
        asked = folding.of(unit.name, unit.op)
        steps = asked.simd or 1 if asked.pe is not None else 1
        if max(steps, unit.integer("tile") if "tile" in unit.attrs else 1) > 1:
            choice = replace(choice, parallel_window=1)
    if choice.parallel_window and choice.simd is None:
        choice = replace(choice, simd=block.input_type.channels)
    return choice


def _fold_attrs(
    hardware: Graph, block: Block, choices: dict[str, NodeFolding], before: int | None
) -> dict[str, int]:
    """PE and SIMD of a block: as chosen, else as the neighbours suggest."""
    node, choice = block.node, choices[block.name]
    limits = lane_limits(block)
    if isinstance(block, MatVec):
        return {"pe": choice.pe or 1, "simd": choice.simd or 1}
    if isinstance(block, Pad | Window):
        wanted = choice.simd or _wanted_lanes(hardware, node, choices, before)
        simd, more = wanted if choice.simd else gcd(limits["simd"], wanted), {}
        if isinstance(block, Window):
            more["parallel_window"] = choice.parallel_window or 0
            if choice.pixels is not None and not choice.parallel_window:  # that has whole rows
                more["pixels"] = choice.pixels
        return {"simd": simd, **more}
    if "lanes" in node.attrs:
        # At an input of the graph there is nothing to follow but the reader.
        lanes = before or _wanted_lanes(hardware, node, choices, before)
        return {"lanes": gcd(lanes, block.input_type.size)}
    if isinstance(block, Depthwise) and _is_parallel(hardware, block, choices):
        return {"pe": choice.pe or limits["pe"], "simd": choice.simd or block.window}
    if isinstance(block, Depthwise) and choice.pe is not None:
        return {"pe": choice.pe, "simd": choice.simd or 1}
    # FINN gives the units of one channel a lane (VVAU, pooling, channels-wise ones) PE or SIMD.
    return {"pe": choice.pe or choice.simd or gcd(before or 1, limits["pe"])}


def _is_parallel(hardware: Graph, block: Depthwise, choices: dict[str, NodeFolding]) -> bool:
    """Whether the window in front of a depthwise unit gives all its pixels at once."""
    window = _window_of(hardware, block) if block.window > 1 else None
    return window is not None and bool(choices[window.name].parallel_window)


def _window_of(hardware: Graph, block: Block) -> Node | None:
    """The window in front of a depthwise unit; None where it is a factor a channel."""
    producer = hardware.producer(block.node.inputs[0])
    if producer is None or producer.op != "window" or producer.integer("groups") != 0:
        return None
    return producer


def lane_limits(block: Block) -> dict[str, int]:
    """The number that PE, and that SIMD, of a block must divide."""
    node, channels = block.node, block.input_type.channels
    if isinstance(block, MatVec):
        return dict(zip(("pe", "simd"), block.matrix, strict=True))
    if isinstance(block, Window):
        return {"simd": channels // (node.integer("groups") or 1)}
    if isinstance(block, Pad | ParallelWindow):
        return {"simd": channels}
    if isinstance(block, Depthwise):
        return {"pe": block.output_type.channels, "simd": block.window}
    if "pe" not in node.attrs:
        return {}
    if node.op == "top_k":
        return {"pe": channels if node.integer("k") == 1 else 1}
    sizes = (block.output_type.channels, *(kind.channels for kind in block.input_types))
    return {"pe": gcd(*sizes)}


def _check_order(hardware: Graph, block: Block, lanes: dict[str, int]) -> None:
    """Make sure that a depthwise unit takes the beats of its window as they come.

    Raises:
        RecipeError: one of the two is parallel, or their lanes differ and neither is; no converter
            can restore the order.
    """
    producer = _window_of(hardware, block) if isinstance(block, Depthwise) else None
    if producer is None or not isinstance(block, Depthwise) or block.window == 1:
        return
    have, want = lanes[block.node.inputs[0]], block.lanes[0]
    parallel = have > block.output_type.channels
    if block.simd != (block.window if parallel else 1):
        raise RecipeError(
            f"SIMD={block.simd} behind {producer.name}, which gives "
            f"{'all pixels of a window' if parallel else 'one pixel of a window'} a beat",
            where=f"folding, {block.name}",
            hint=f"SIMD={block.window} goes with parallel_window=1 there, SIMD=1 with 0; one of "
            "the two is enough",
        )
    if have != want and not parallel:
        raise RecipeError(
            f"PE={want} differs from SIMD={have} of {producer.name}",
            where=f"folding, {block.name}",
            hint="a depthwise unit and its window take the same number of channels a beat; give "
            "only one of the two",
        )


def _wanted_lanes(
    hardware: Graph, node: Node, choices: dict[str, NodeFolding], before: int | None
) -> int:
    """Lanes that the (first) reader of a block would like to get."""
    while True:
        readers = hardware.consumers(node.outputs[0])
        if not readers:
            return 1
        node = reader = readers[0]
        choice = choices[reader.name]
        if reader.op not in ("pad", "window", "flatten", "fork"):
            break
        if choice.simd:
            return choice.simd
    if reader.op == "matvec":
        return choice.simd or 1
    return choice.pe or choice.simd or before or 1


def _style_attrs(block: Block, choice: NodeFolding) -> dict[str, str | int]:
    attrs: dict[str, str | int] = {}
    if "ram_style" in block.node.attrs:
        attrs["ram_style"] = choice.ram_style or "auto"
    if "res_type" in block.node.attrs:
        attrs["res_type"] = choice.res_type or "auto"
    if "dsp_pe" in block.node.attrs:
        attrs["dsp_pe"] = choice.dsp_pe or 0
    if "mem_mode" in block.node.attrs and choice.mem_mode is not None:
        attrs["mem_mode"] = choice.mem_mode
    return attrs


def _checked(hardware: Graph, node: Node) -> Block:
    """The block of a folded node.

    Raises:
        RecipeError: the folding is not legal; says which values are.
    """
    plain = block_of(hardware, hardware.node(node.name))
    folded = block_of(hardware, node)
    for attr, limit in lane_limits(folded).items():
        value = node.integer(attr)
        if limit % value:
            raise RecipeError(
                f"{attr.upper()}={value} does not divide {limit}",
                where=f"folding, {node.name}",
                hint=f"legal are {', '.join(map(str, divisors(limit)))}",
            )
    if "dsp_pe" in node.attrs and node.integer("dsp_pe") > node.integer("pe"):
        raise RecipeError(
            f"DspPE={node.integer('dsp_pe')} is more than PE={node.integer('pe')}",
            where=f"folding, {node.name}",
            hint="it is how many of the PE rows multiply in DSP blocks",
        )
    if isinstance(folded, ProductUnit) and folded.rounds and folded.simd != folded.tile:
        raise RecipeError(
            f"SIMD={folded.simd}, but its sum is rounded after every {folded.tile} products",
            where=f"folding, {node.name}",
            hint=f"SIMD={folded.tile}: other steps would give other numbers",
        )
    if isinstance(folded, ParallelWindow):
        _check_parallel(folded)
    elif isinstance(plain, Window) and node.integer("pixels") < plain.span:
        raise RecipeError(
            f"pixels={node.integer('pixels')} is less than the {plain.span} that a window spans",
            where=f"folding, {node.name}",
            hint=f"{plain.foldings()[0].as_dict()['pixels']} let it read and write side by side",
        )
    return folded


def _check_parallel(block: ParallelWindow) -> None:
    """Raises RecipeError: a window that cannot give all its pixels in one beat."""
    channels, simd = block.input_type.channels, block.integer("simd")
    if simd != channels:
        raise RecipeError(
            f"SIMD={simd} of a parallel window of {channels} channels",
            where=f"folding, {block.name}",
            hint=f"it takes all channels of a pixel in one beat: SIMD={channels}, or none",
        )


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
        want = blocks[node.name].lanes[0]
        inputs = list(node.inputs)
        for number, edge in enumerate(node.inputs):
            have = lanes.get(edge)
            if have is None or have == want:
                continue
            stem = node.name if len(inputs) == 1 else f"{node.name}_in{number}"
            size = hardware.types[edge].size
            for name, before, after in converter_steps(stem, have, want, size):
                attrs: dict[str, Attr] = {"in_lanes": before, "out_lanes": after}
                source = (inputs[number],)
                nodes.append(Node(name, "dwc", source, (name,), attrs, {}, node.source))
                inputs[number] = name
        nodes.append(replace(node, inputs=tuple(inputs)))
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
        if node.op == "fifo":
            nodes[node.name] = NodeFolding(ram_style=node.string("ram_style"))
        if node.op in UNFOLDED:
            continue
        names = [n for n in _CHOICES if n in node.attrs]
        if "dsp_pe" in names and node.integer("dsp_pe") in (0, node.integer("pe")):
            names.remove("dsp_pe")  # res_type says it
        if "parallel_window" in names:
            names.remove("pixels" if node.integer("parallel_window") else "parallel_window")
        choice = NodeFolding.from_attrs({n: _plain(node, n) for n in names})
        depths = tuple(_depth_before(hardware, edge) for edge in node.inputs)
        if any(depth is not None for depth in depths):
            each = tuple(DIRECT_BEATS if depth is None else depth for depth in depths)
            choice = replace(choice, depth=each if len(each) > 1 else each[0])
        nodes[node.name] = choice
    return Folding(nodes)


def _depth_before(hardware: Graph, edge: str) -> int | None:
    producer = hardware.producer(edge)
    fifo = producer is not None and producer.op == "fifo"
    return producer.integer("depth") if fifo and producer is not None else None


_CHOICES = (
    "pe", "simd", "ram_style", "res_type", "dsp_pe", "mem_mode", "pixels", "parallel_window",
)  # fmt: skip
#: Blocks that no folding names: they have the lanes of the streams they pass on.
UNFOLDED = ("fifo", "dwc", "fork", "flatten")


def folded_maker(hardware: Graph, edge: str) -> Node | None:
    """The folded block whose beats come on an edge; None at an input of the graph."""
    producer = hardware.producer(edge)
    while producer is not None and producer.op in UNFOLDED:
        producer = hardware.producer(producer.inputs[0])
    return producer


def folded_reader(hardware: Graph, edge: str) -> Node | None:
    """The first folded block that takes the beats of an edge, by any branch of a fork; None where
    all lead to outputs of the graph.
    """
    waiting = [edge]
    while waiting:
        for reader in hardware.consumers(waiting.pop()):
            if reader.op not in UNFOLDED:
                return reader
            waiting += reversed(reader.outputs)
    return None


def _plain(node: Node, attr: str) -> int | str:
    value = node.attrs[attr]
    if not isinstance(value, int | str):
        raise RecipeError(f"{attr} is no choice of a folding: {value!r}", where=node.name)
    return value
