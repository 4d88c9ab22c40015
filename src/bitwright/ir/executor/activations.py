# SPDX-License-Identifier: Apache-2.0
"""Thresholds and requantization as tables of a step, alone or inside the step that feeds them."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitwright.ir.executor.builder import Builder
from bitwright.ir.executor.layout import PAD_ROWS, COp, Epilogue, Kind, storage
from bitwright.ir.node import IntArray, Node
from bitwright.ir.types import TensorType

REQUANTS = ("requant", "requant_float")
#: One bit less than a double has, for the half that rounding adds.
_EXACT_DOUBLE = 1 << 52
_MAX_SHIFT = 52
_ROUNDINGS = {"half_even": 0, "half_up": 1, "floor": 2}


def set_activation(
    builder: Builder,
    op: COp,
    node: Node,
    rows: IntArray,
    dtype: np.dtype[Any],
    input_zero: int = 0,
) -> None:
    """Fill in the tables of a threshold, requant or requant_float node.

    Args:
        rows: channel of each padded row.
        dtype: of the accumulators that are compared, uint8 for codes.
        input_zero: the level of code 0, where codes are compared.
    """
    source = builder.graph.types[node.inputs[0]]
    zero = storage(builder.graph.types[node.output])[1]
    if node.op in REQUANTS:
        if node.op == "requant_float":
            op.significant, op.smallest = node.integer("significant"), node.integer("smallest")
        op.shift, op.rounding = node.integer("shift"), _ROUNDINGS[node.string("rounding")]
        op.lo, op.hi = node.integer("lo"), node.integer("hi")
        for name, key in (("multiplier", "multiplier"), ("addend", "offset")):
            values = np.broadcast_to(node.params[key], (source.channels,))
            setattr(op, name, builder.address(values[rows].astype(np.int64)))
        _in_doubles(builder, op, node, rows)
        return
    table, base, step = _threshold_tables(node, source)
    op.steps, op.padded = table.shape[1], rows.size
    op.threshold = builder.address((table - input_zero)[rows].T.astype(dtype))
    op.base = builder.address((base - zero)[rows].astype(dtype))
    op.step = builder.address(step[rows].astype(dtype))


def _in_doubles(builder: Builder, op: COp, node: Node, rows: IntArray) -> None:
    """Let a requantization to integers compute in doubles if they hold every value exactly."""
    source = builder.graph.types[node.inputs[0]]
    multiplier, offset = node.params["multiplier"], node.params["offset"]
    reach = max(abs(source.lo), abs(source.hi))
    peak = reach * int(np.abs(multiplier).max()) + int(np.abs(offset).max())
    if node.op != "requant" or peak >= _EXACT_DOUBLE or node.integer("shift") > _MAX_SHIFT:
        return
    op.steps = 1
    for name, values in (("threshold", multiplier), ("base", offset)):
        table = np.broadcast_to(values, (source.channels,))[rows].astype(np.float64)
        setattr(op, name, builder.address(table))


def _threshold_tables(node: Node, source: TensorType) -> tuple[IntArray, IntArray, IntArray]:
    """Thresholds ``(C, T)`` inside the interval, base and step per channel, without flips.

    ``-x >= t`` is ``not (x >= 1 - t)``, so a flipped channel counts down from the top.
    """
    channels = source.channels
    raw = node.params["thresholds"]
    table = np.broadcast_to(raw, (channels, raw.shape[1]))
    flip = np.broadcast_to(node.params.get("flip", np.zeros(1, np.int64)), (channels,)) == 1
    plain = np.clip(table, source.lo, source.hi + 1)
    flipped = 1 - np.clip(table, -source.hi, 1 - source.lo)
    step = np.where(flip, -node.integer("step"), node.integer("step"))
    base = node.integer("base") + np.where(flip, node.integer("step") * raw.shape[1], 0)
    return np.where(flip[:, None], flipped[:, ::-1], plain), base, step


def activation_after(builder: Builder, node: Node) -> Node | None:
    """The threshold or requant that may be done inside a product: its only reader."""
    graph = builder.graph
    readers = graph.consumers(node.output)
    if len(readers) != 1 or node.output in graph.outputs:
        return None
    (reader,) = readers
    if reader.op not in ("threshold", *REQUANTS):
        return None
    return None if storage(graph.types[reader.output])[0] is Kind.I64 else reader


def takes_int16(builder: Builder, reader: Node | None) -> bool:
    """Whether what follows takes accumulators of 16 bits: bytes come out, or a requantization."""
    if reader is None or reader.op in REQUANTS:
        return True
    return storage(builder.graph.types[reader.output])[0] is Kind.U8


def fuse(builder: Builder, op: COp, reader: Node, rows: IntArray) -> None:
    """Let a step do the activation that reads it.

    Args:
        rows: channel of each padded row of the step.
    """
    op.epilogue = Epilogue.THRESHOLD if reader.op == "threshold" else Epilogue.REQUANT
    dtype = np.dtype(np.int16) if op.narrow else np.dtype(np.int32)
    set_activation(builder, op, reader, np.pad(rows, (0, PAD_ROWS)), dtype)
