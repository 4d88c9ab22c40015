# SPDX-License-Identifier: Apache-2.0
"""Native steps of what joins, moves and sums elements without weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bitwright.ir.executor.activations import (
    activation_after,
    fuse,
    set_activation,
    takes_int16,
)
from bitwright.ir.executor.builder import Builder, View
from bitwright.ir.executor.layout import PAD_ROWS, COp, Kind, Op, storage
from bitwright.ir.executor.products import INT32_TOP
from bitwright.ir.node import IntArray, Node
from bitwright.ir.types import TensorType

_INT16_TOP = (1 << 15) - 1
_BYTE = 255
#: Thresholds from which a table beats comparing with all; as in epilogue.c.
_FEW = 32


def _move(builder: Builder, source: View, target: View, **fields: int) -> None:
    op = COp(op=Op.MOVE, kh=1, kw=1, sh=1, sw=1, dh=1, dw=1)
    for name, value in fields.items():
        setattr(op, name, value)
    builder.emit(op, source, target)


def _target(builder: Builder, edge: str) -> View:
    view = builder.views[edge] = builder.view(builder.graph.types[edge])
    return view


def _concat(builder: Builder, node: Node, fused: set[str]) -> None:
    target, first = _target(builder, node.output), 0
    for edge in node.inputs:
        source = builder.views[edge]
        _move(builder, source, target, port=first)
        first += source.shape[2]


def _space_to_depth(builder: Builder, node: Node, fused: set[str]) -> None:
    block = node.integer("block")
    target = _target(builder, node.output)
    source = builder.views[node.inputs[0]]
    _move(builder, source, target, kh=block, kw=block, sh=block, sw=block)


def _upsample(builder: Builder, node: Node, fused: set[str]) -> None:
    vertical, horizontal = node.ints("factor")
    target = _target(builder, node.output)
    _move(builder, builder.views[node.inputs[0]], target, dh=vertical, dw=horizontal)


def _add(builder: Builder, node: Node, fused: set[str]) -> None:
    op = COp(op=Op.ADD)
    op.times[0], op.times[1] = node.ints("multipliers")
    _summed(builder, node, fused, op)


def _sum_pool(builder: Builder, node: Node, fused: set[str]) -> None:
    op = COp(op=Op.SUM_POOL)
    op.kh, op.kw = node.ints("kernel")
    op.sh, op.sw = node.ints("stride")
    op.pt, op.pl = node.ints("padding")[:2]
    _summed(builder, node, fused, op)


def _summed(builder: Builder, node: Node, fused: set[str], op: COp) -> None:
    """Emit a step whose sums go through the activation that reads them, where that is all."""
    result = builder.graph.types[node.output]
    reader = activation_after(builder, node)
    op.wraps = not _within(result, INT32_TOP)
    op.narrow = _within(result, _INT16_TOP) and takes_int16(builder, reader)
    edge = node.output
    if reader is not None and not op.wraps:
        edge = reader.output
        fused.add(reader.name)
        fuse(builder, op, reader, np.arange(result.channels))
    sources = [builder.views[edge] for edge in node.inputs]
    builder.emit(op, sources[0], _target(builder, edge), *sources[1:])


def _within(kind: TensorType, top: int) -> bool:
    """All levels, and a threshold one above them, lie within +-top."""
    return -top <= kind.lo and kind.hi < top


def of_bytes(builder: Builder, node: Node, fused: set[str]) -> None:
    """Thresholds or a requantization that no step can take up, of a tensor of bytes: compared in
    vectors where the thresholds are few, else a table with an entry for every level of a channel.
    """
    source, result = (builder.graph.types[e] for e in (node.inputs[0], node.output))
    view = builder.views[node.inputs[0]]
    few = node.op == "threshold" and node.params["thresholds"].shape[1] < _FEW
    # A code of 255 leaves no byte for a threshold that is never reached.
    if few and source.hi - view.zero < _BYTE and storage(result)[0] is Kind.U8:
        op = COp(op=Op.THRESHOLD, narrow=True)
        rows = np.pad(np.arange(source.channels), (0, PAD_ROWS))
        set_activation(builder, op, node, rows, np.dtype(np.uint8), view.zero)
        builder.emit(op, view, _target(builder, node.output))
        return
    levels = np.arange(source.lo, source.hi + 1, dtype=np.int64)
    every = np.repeat(levels[:, None], source.channels, axis=1)
    (found,) = builder.graph.dialect.spec(node).reference(node, (source,), (every,))
    _tabulated(builder, node, found.T)


def _lookup(builder: Builder, node: Node, fused: set[str]) -> None:
    _tabulated(builder, node, node.params["table"])


def _tabulated(builder: Builder, node: Node, table: IntArray) -> None:
    """A table of levels (C or 1, entries), the first for the input's smallest level."""
    source = builder.graph.types[node.inputs[0]]
    result = builder.graph.types[node.output]
    kind, zero = storage(result)
    codes = table - zero
    # One table for all channels is read with a step of no entries from channel to channel.
    op = COp(op=Op.LOOKUP, lo=source.lo, fill=table.shape[1] if table.shape[0] > 1 else 0)
    op.table = builder.address(codes.astype(np.uint8 if kind is Kind.U8 else np.int64))
    builder.emit(op, builder.views[node.inputs[0]], _target(builder, node.output))


#: Operation -> what emits its steps.
JOINS: dict[str, Callable[[Builder, Node, set[str]], None]] = {
    "add": _add,
    "concat": _concat,
    "lookup": _lookup,
    "space_to_depth": _space_to_depth,
    "sum_pool": _sum_pool,
    "upsample": _upsample,
}
