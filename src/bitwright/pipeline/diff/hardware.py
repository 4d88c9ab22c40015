# SPDX-License-Identifier: Apache-2.0
"""Integer graph against hardware graph, and hardware graph against RTL, stream by stream."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bitwright.base.errors import RecipeError
from bitwright.hw.blocks import Flatten, Port, blocks_of
from bitwright.ir import Graph, IntArray, Node
from bitwright.pipeline.diff.results import First, Stage, StageResult, equal_edges
from bitwright.rtl import library_files
from bitwright.rtl.emit_top import Top, make_top
from bitwright.sim import Tap, Tapped, TapRun, run_tapped
from bitwright.sim.beats import StreamSpec

Edges = Mapping[str, IntArray]


def against_graph(graph: Graph, hardware: Graph, expected: Edges, found: Edges) -> StageResult:
    """Every edge that both graphs have, by ``==``; values are ``(1, *shape)``.

    Layers in order of the hardware graph.
    """
    pairs = (
        (maker.source, maker.name, expected[edge][0], found[edge][0])
        for node in hardware
        for edge in node.outputs
        if edge in graph.types and graph.types[edge].shape == hardware.types[edge].shape
        for maker in (_origin(hardware, node),)
    )
    return equal_edges(Stage.HARDWARE, pairs)


def against_rtl(hardware: Graph, design: Path, values: Edges) -> StageResult:
    """Every stream of the RTL as it lies in its folder against the edge it carries.

    Args:
        values: all edges of the hardware graph for one frame, ``(1, *shape)``.

    Raises:
        RecipeError: it is that of several devices.
        GraphError: the RTL is not that of the hardware graph.
        ToolError: no simulation is possible.
    """
    if (design.parent / "devices").is_dir():
        raise RecipeError(
            "the streams of a network on several devices cannot be looked into",
            where=str(design),
            hint=f"compare less: --until {Stage.HARDWARE}; `simulate` proves the RTL of all",
        )
    top = make_top(hardware, frozenset(path.stem for path in library_files()))
    ports = _ports(hardware)
    taps = [_tap(top, edge, port) for edge, port in ports.items()]
    inputs = {port.name: values[port.edge] for port in top.inputs}
    run = run_tapped(design, taps, inputs)
    compared, first = 0, None
    for edge, port in ports.items():
        found = run.streams[edge]
        compared += min(found.levels.size, port.type.size)
        if first is None:
            first = _first(hardware, edge, values[edge][0], found)
    if first is None and run.problem:
        first = _standing(hardware, ports, run, values)
    return StageResult(Stage.RTL, True, compared, first, problem=run.problem)


def _ports(hardware: Graph) -> dict[str, Port]:
    """The streams that exist as signals, in topological order: inputs, then what blocks make."""
    blocks = blocks_of(hardware)
    found: dict[str, Port] = {}
    for edge in hardware.inputs:
        (reader,) = hardware.consumers(edge)
        found[edge] = blocks[reader.name].inputs[reader.inputs.index(edge)]
    for block in blocks.values():
        if isinstance(block, Flatten):
            continue  # the same signals as its input
        found |= dict(zip(block.node.outputs, block.outputs, strict=True))
    return found


def _tap(top: Top, edge: str, port: Port) -> Tap:
    kind = port.type
    spec = StreamSpec(
        lanes=port.lanes,
        lane_bits=kind.wire_bits,
        beats=port.beats,
        width=port.width,
        signed=kind.is_signed,
        bipolar=kind.is_bipolar,
        codes=kind.code_format,
    )
    return Tap(edge, top.streams[edge], spec)


def _maker(hardware: Graph, edge: str) -> tuple[str, str]:
    """Layer and block that make an edge; a fork belongs to the layer that it copies."""
    node = hardware.producer(edge)
    if node is None:
        return "", f"input {edge}"
    return node.source or _origin(hardware, node).source, node.name


_PLUMBING = ("fork", "fifo", "dwc")


def _origin(hardware: Graph, node: Node) -> Node:
    """The block that makes the values that a fork, FIFO or converter passes on."""
    while node.op in _PLUMBING:
        before = hardware.producer(node.inputs[0])
        if before is None:
            return node
        node = before
    return node


def _first(hardware: Graph, edge: str, expected: IntArray, found: Tapped) -> First | None:
    """The first value of a stream that differs, of those that came, or the first that did not."""
    layer, name = _maker(hardware, edge)
    node = hardware.producer(edge)
    want, have = expected.reshape(-1), found.levels
    size = min(want.size, have.size)
    differs = want[:size] != have[:size]
    if not differs.any():
        return None
    index = int(np.argmax(differs))
    return _at(layer, name, node, expected, index, int(have[index]), int(differs.sum()))


def _at(
    layer: str,
    name: str,
    node: Node | None,
    expected: IntArray,
    index: int,
    got: int | None,
    count: int,
    detail: str = "",
) -> First:
    """The place of element ``index`` of a stream."""
    at = np.unravel_index(index, expected.shape)
    image = len(expected.shape) == 3
    channel, extra = _channel(node, int(at[-1]), expected.shape[-1])
    return First(
        layer=layer,
        node=name if node is None or node.name == node.op else f"{name} ({node.op})",
        pixel=(int(at[0]), int(at[1])) if image else None,
        channel=channel,
        expected=int(expected[at]),
        got=got,
        count=count,
        total=int(expected.size),
        detail="; ".join(part for part in (extra, detail) if part),
    )


def _channel(node: Node | None, element: int, elements: int) -> tuple[int, str]:
    """Channel of an element; a window holds several pixels: groups, kernel rows, columns, rest."""
    if node is None or node.op != "window":
        return element, ""
    kernel_h, kernel_w = node.ints("kernel")
    groups = node.attrs.get("groups", 1)
    groups = groups if isinstance(groups, int) else 1
    part = elements // (kernel_h * kernel_w * groups)
    group, rest = divmod(element, kernel_h * kernel_w * part)
    tap, lane = divmod(rest, part)
    row, column = divmod(tap, kernel_w)
    return group * part + lane, f"kernel row {row}, column {column} of the window"


def _standing(hardware: Graph, ports: Mapping[str, Port], run: TapRun, values: Edges) -> First:
    """The block that stands still: something waits at its input, nothing at its short output."""
    short = {e: run.streams[e].beats < ports[e].beats for e in ports}
    chosen = next((edge for edge in ports if short[edge]), None)
    for node in hardware:
        made = [edge for edge in node.outputs if edge in ports]
        waits = any(
            run.streams[e].valid and not run.streams[e].ready for e in node.inputs if e in ports
        )
        if waits and any(short[e] and not run.streams[e].valid for e in made):
            chosen = next(e for e in made if short[e] and not run.streams[e].valid)
            break
    if chosen is None:  # all frames came, and more
        chosen = hardware.outputs[0]
        layer, name = _maker(hardware, chosen)
        return First(layer, name, None, 0, 0, None, 0, values[chosen].size, run.problem)
    layer, name = _maker(hardware, chosen)
    stream, expected = run.streams[chosen], values[chosen][0]
    detail = f"it stands still after {stream.beats} of {ports[chosen].beats} beats"
    producer = hardware.producer(chosen)
    missing = expected.size - stream.levels.size
    return _at(layer, name, producer, expected, stream.levels.size, None, missing, detail)
