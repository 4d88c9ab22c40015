# SPDX-License-Identifier: Apache-2.0
"""What one frame of a graph takes of memory and of work, found out before any frame is run.

What is counted is what the interpreter (`graph.run`) must hold, in int64: the edges that a later
node reads, the padded input of a window, and what a node makes besides its result.
"""

from __future__ import annotations

from math import prod

from bitwright.base.errors import GraphError
from bitwright.base.memory import LARGE, MOST_OF_A_FILE, is_chosen, room_for, shown
from bitwright.ir.graph import Graph
from bitwright.ir.kernels import STRIP
from bitwright.ir.node import Node
from bitwright.ir.types import TensorType

#: Bytes that are held at a time, if one frame has not more, where another program runs frames and
#: holds as much once more: far from the bound of what is made of a file (`base.bounded`).
AT_A_TIME = 1 << 28
_BYTES = 8
_OWN = f"; for a file of your own: {LARGE}=1"
#: A result, and one array of its size that is made on the way to it.
_COPIES = 2
#: A table, and what is made of it on the way to that of a step.
_TABLES = 3
_BYTE = 256
_CONVOLUTIONS = ("conv", "conv_rounded")
#: Operations on elements for one frame of a graph that only a file asks for, about a nanosecond
#: each: VGG-16 on images of 224 x 224 has 15 thousand million products.
MOST_WORK = 20_000_000_000


def held_bytes(graph: Graph, *, edges: bool = False) -> int:
    """Bytes that are held at a time, at the most, while one frame is run.

    Args:
        edges: every edge is kept, see `graph.run`.
    """
    dying: list[list[str]] = [[] for _ in graph.nodes]
    last = {edge: index for index, node in enumerate(graph) for edge in node.outputs}
    last |= {edge: index for index, node in enumerate(graph) for edge in node.inputs}
    kept = {*graph.outputs}
    for edge, index in last.items():
        if not edges and edge not in kept:
            dying[index].append(edge)
    now = peak = sum(graph.types[edge].size for edge in graph.inputs)
    for node, gone in zip(graph, dying, strict=True):
        made = sum(graph.types[edge].size for edge in node.outputs)
        peak = max(peak, now + _COPIES * made + _besides(graph, node))
        now += made - sum(graph.types[edge].size for edge in gone)
    return _BYTES * peak


def _besides(graph: Graph, node: Node) -> int:
    """Numbers that a window makes before it slides: its padded image, some rows of its patches;
    and those of tables that are spread to all channels.
    """
    if node.op not in (*_CONVOLUTIONS, "max_pool", "sum_pool"):
        return _spread(graph.types[node.inputs[0]], node)
    source, result = graph.types[node.inputs[0]], graph.types[node.output]
    found, padding = 0, node.ints("padding")
    if any(padding):
        found += padded_size(source, padding)
    if node.op in _CONVOLUTIONS:
        weight = node.params["weight"]
        row = result.shape[1] * prod(weight.shape[1:])
        every = row * result.shape[0]
        if node.op == "conv":
            found += min(max(row, STRIP // _BYTES), every)
        else:  # all patches, once more in the order of their sums, and sums on their way
            found += _COPIES * (every * node.integer("groups") + result.size)
    return found


def _spread(source: TensorType, node: Node) -> int:
    """Numbers that are made of thresholds and tables, which may have one row for all channels: the
    executor and the analysis of ranges look at every channel's. A requantization of bytes becomes a
    table.
    """
    columns = [value.shape[1] for value in node.params.values() if value.ndim == 2]
    if "multiplier" in node.params and source.hi - source.lo < _BYTE:
        columns.append(source.hi - source.lo + 1)
    known = node.op not in (*_CONVOLUTIONS, "dense")
    return _TABLES * source.channels * max(columns) if known and columns else 0


def padded_size(source: TensorType, padding: tuple[int, ...]) -> int:
    """Elements of an image (H, W, C) with a border of (top, left, bottom, right)."""
    height, width, channels = source.shape
    top, left, bottom, right = padding
    return (height + top + bottom) * (width + left + right) * channels


def work(graph: Graph) -> int:
    """Operations on elements that one frame takes: products, comparisons, sums."""
    return sum(_work(graph, node) for node in graph)


def _work(graph: Graph, node: Node) -> int:
    """For each element of the result: a row of weights, a window, a row of thresholds; all that the
    largest ones are chosen from.
    """
    made = sum(graph.types[edge].size for edge in node.outputs)
    if node.op == "top_k":
        return made * graph.types[node.inputs[0]].size
    rows = [node.params[name].shape[1:] for name in ("weight", "thresholds") if name in node.params]
    if "kernel" in node.attrs:
        rows.append(node.ints("kernel"))
    return made * max(map(prod, rows), default=1)


def check_frame(graph: Graph, where: str, *, chosen: bool = False) -> None:
    """Refuse the graph of a file whose frames take more than a stranger may ask for.

    Args:
        where: the file.
        chosen: see `base.memory.room_for`; then the work has no bound.

    Raises:
        GraphError: one frame takes too much memory or work; says how much.
    """
    frames_within(graph, 1, room_for(chosen=chosen), where)
    needed = work(graph)
    if not is_chosen(chosen) and needed > MOST_WORK:
        raise GraphError(
            f"one frame takes {needed / 1e9:.1f} thousand million operations on elements; "
            f"{MOST_WORK / 1e9:.1f} are done because a file says so",
            where=where,
            hint=f"use smaller images or a smaller network{_OWN}",
        )


def frames_within(
    graph: Graph, frames: int, room: int, where: str | None = None, *, edges: bool = False
) -> int:
    """How many frames of those that were wished for may be run at a time: at least one.

    Args:
        room: bytes.
        where: what asks for them, by default the graph.
        edges: every edge is kept.

    Raises:
        GraphError: not even one fits.
    """
    each = held_bytes(graph, edges=edges)
    if each > room:
        raise GraphError(
            f"one frame takes {shown(each)} of memory; {shown(room)} are allowed",
            where=where or graph.name,
            hint="use smaller images or fewer channels"
            + (", or leave layers out: all that they give is kept" if edges else "")
            + _OWN,
        )
    return max(1, min(frames, room // max(each, 1), MOST_WORK // max(work(graph), 1)))


def checked_frames(graph: Graph, frames: int) -> int:
    """How many random frames a graph is compared on: as many as were wished for, fewer of large
    ones (1 GiB at a time), at least one.
    """
    return frames_within(graph, frames, max(MOST_OF_A_FILE, held_bytes(graph)))
