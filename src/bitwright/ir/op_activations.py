# SPDX-License-Identifier: Apache-2.0
"""Type rules and definitions of `threshold`, `requant` and `lookup`."""

from __future__ import annotations

import numpy as np

from bitwright.formats import parse_format
from bitwright.ir import kernels
from bitwright.ir.graph import Node
from bitwright.ir.op_common import Arrays, Types, need, per_channel
from bitwright.ir.types import TensorType


def infer_threshold(node: Node, types: Types) -> Types:
    (tensor,) = types
    thresholds = per_channel(node, "thresholds", tensor.channels)
    need(thresholds.ndim == 2 and thresholds.shape[1] >= 1, "thresholds must be (C or 1, T)")
    need(bool((np.diff(thresholds, axis=1) >= 0).all()), "thresholds must ascend")
    if "flip" in node.params:
        flip = per_channel(node, "flip", tensor.channels)
        need(bool(np.isin(flip, (0, 1)).all()), "flip must be 0 or 1")
    base, step, count = node.integer("base"), node.integer("step"), thresholds.shape[1]
    lo, hi = base, base + step * count
    need(step >= 1, f"step must be positive, got {step}")
    out_format = parse_format(node.string("format"))
    need(
        out_format.min_level <= lo and hi <= out_format.max_level,
        f"outputs [{lo}, {hi}] exceed {out_format.name}",
    )
    return (TensorType(tensor.shape, out_format, node.floats("scale"), lo, hi),)


def run_threshold(node: Node, types: Types, arrays: Arrays) -> Arrays:
    x = arrays[0]
    if "flip" in node.params:
        x = np.where(node.params["flip"] == 1, -x, x)
    count = kernels.count_thresholds(x, node.params["thresholds"])
    return (node.integer("base") + node.integer("step") * count,)


def infer_requant(node: Node, types: Types) -> Types:
    (tensor,) = types
    multiplier = per_channel(node, "multiplier", tensor.channels)
    offset = per_channel(node, "offset", tensor.channels)
    need(node.integer("shift") >= 0, "shift must be >= 0")
    need(node.string("rounding") in kernels.SHIFT_ROUNDINGS, "unknown rounding")
    bound = max(abs(tensor.lo), abs(tensor.hi)) * int(np.abs(multiplier).max()) + int(
        np.abs(offset).max()
    )
    need(bound < 1 << 62, f"the product needs {bound.bit_length() + 1} bits, at most 63 fit")
    out_format = parse_format(node.string("format"))
    lo, hi = node.integer("lo"), node.integer("hi")
    need(
        out_format.min_level <= lo <= hi <= out_format.max_level,
        f"outputs [{lo}, {hi}] exceed {out_format.name}",
    )
    return (TensorType(tensor.shape, out_format, node.floats("scale"), lo, hi),)


def run_requant(node: Node, types: Types, arrays: Arrays) -> Arrays:
    product = arrays[0] * node.params["multiplier"] + node.params["offset"]
    rounded = kernels.round_shift(product, node.integer("shift"), node.string("rounding"))
    return (np.clip(rounded, node.integer("lo"), node.integer("hi")),)


#: Largest number of entries of a `lookup` table: 16 address bits.
MAX_TABLE = 1 << 16


def infer_lookup(node: Node, types: Types) -> Types:
    (tensor,) = types
    table = per_channel(node, "table", tensor.channels)
    entries = tensor.hi - tensor.lo + 1
    need(entries <= MAX_TABLE, f"a table of {entries} entries; at most {MAX_TABLE}: quantize first")
    need(
        table.ndim == 2 and table.shape[1] == entries,
        f"table must be (C or 1, {entries}), one entry for each level of [{tensor.lo}, "
        f"{tensor.hi}], got {table.shape}",
    )
    lo, hi = int(table.min()), int(table.max())
    out_format = parse_format(node.string("format"))
    need(
        out_format.min_level <= lo and hi <= out_format.max_level,
        f"outputs [{lo}, {hi}] exceed {out_format.name}",
    )
    need(out_format.name != "bipolar" or bool((table != 0).all()), "a bipolar level cannot be 0")
    return (TensorType(tensor.shape, out_format, node.floats("scale"), lo, hi),)


def run_lookup(node: Node, types: Types, arrays: Arrays) -> Arrays:
    table, index = node.params["table"], arrays[0] - types[0].lo
    if table.shape[0] == 1:
        return (table[0][index],)
    return (table[np.arange(table.shape[0]), index],)
