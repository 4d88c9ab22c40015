# SPDX-License-Identifier: Apache-2.0
"""Type rules and definitions of `threshold`, `requant`, `requant_float` and `lookup`."""

from __future__ import annotations

import numpy as np

from bitwright.base.errors import GraphError
from bitwright.formats import Format, MinifloatFormat, parse_format
from bitwright.ir import kernels
from bitwright.ir.node import Node
from bitwright.ir.op_common import Arrays, Types, need, per_channel
from bitwright.ir.types import TensorType


def _check_ends(node: Node, lo: int, hi: int) -> Format:
    """The output's format, which must have both ends as levels."""
    out_format = parse_format(node.string("format"))
    inside = lo <= hi and out_format.min_level <= lo and hi <= out_format.max_level
    need(inside, f"outputs [{lo}, {hi}] exceed {out_format.name}")
    return out_format


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
    out_format = _check_ends(node, lo, hi)
    levels = np.arange(count + 1) * step + base
    need(
        out_format.uniform or bool(out_format.contains(levels).all()),
        f"{out_format.name} has not all levels {base}, {base + step} .. {hi}",
    )
    return (TensorType(tensor.shape, out_format, node.floats("scale"), lo, hi),)


def run_threshold(node: Node, types: Types, arrays: Arrays) -> Arrays:
    x = arrays[0]
    if "flip" in node.params:
        x = np.where(node.params["flip"] == 1, -x, x)
    count = kernels.count_thresholds(x, node.params["thresholds"])
    return (node.integer("base") + node.integer("step") * count,)


def _check_product(node: Node, tensor: TensorType) -> None:
    """Multiplier, offset, shift and rounding of the requantizations."""
    multiplier = per_channel(node, "multiplier", tensor.channels)
    offset = per_channel(node, "offset", tensor.channels)
    shift = node.integer("shift")
    need(0 <= shift < 63, f"shift must be 0 .. 62, got {shift}")
    # Python's integers: numpy's have no absolute value of the smallest one.
    most, plus = (max(abs(int(v.min())), abs(int(v.max()))) for v in (multiplier, offset))
    bound = max(abs(tensor.lo), abs(tensor.hi)) * most + plus
    need(bound < 1 << 62, f"the product needs {bound.bit_length() + 1} bits, at most 63 fit")


def infer_requant(node: Node, types: Types) -> Types:
    (tensor,) = types
    _check_product(node, tensor)
    lo, hi = node.integer("lo"), node.integer("hi")
    out_format = _check_ends(node, lo, hi)
    need(out_format.uniform, f"{out_format.name} has uneven levels: use requant_float or lookup")
    return (TensorType(tensor.shape, out_format, node.floats("scale"), lo, hi),)


def run_requant(node: Node, types: Types, arrays: Arrays) -> Arrays:
    product = arrays[0] * node.params["multiplier"] + node.params["offset"]
    rounded = kernels.round_shift(product, node.integer("shift"), node.string("rounding"))
    return (np.clip(rounded, node.integer("lo"), node.integer("hi")),)


def infer_requant_float(node: Node, types: Types) -> Types:
    (tensor,) = types
    _check_product(node, tensor)
    lo, hi = node.integer("lo"), node.integer("hi")
    out_format = _check_ends(node, lo, hi)
    need(
        out_format.is_float and out_format.exact_levels,
        f"{out_format.name} is no float with levels below 2^62",
    )
    significant, smallest = float_rule(out_format)
    need(
        node.integer("significant") == significant and node.integer("smallest") == smallest,
        f"{out_format.name} has {significant} significant bits and nothing below {smallest}",
    )
    need(bool(out_format.contains([lo, hi]).all()), f"[{lo}, {hi}] are no {out_format.name} levels")
    return (TensorType(tensor.shape, out_format, node.floats("scale"), lo, hi),)


def float_rule(number_format: Format) -> tuple[int, int]:
    """``significant`` and ``smallest`` of `requant_float` for a minifloat format."""
    if not isinstance(number_format, MinifloatFormat):
        raise GraphError(f"{number_format.name} is no minifloat")
    flushed = 0 if number_format.denormals else (1 << number_format.mantissa) + 1
    return number_format.mantissa + 1, flushed


def run_requant_float(node: Node, types: Types, arrays: Arrays) -> Arrays:
    product = arrays[0] * node.params["multiplier"] + node.params["offset"]
    rounded = kernels.round_float(
        product,
        node.integer("shift"),
        node.integer("significant"),
        node.integer("smallest"),
        node.string("rounding"),
    )
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
    out_format = _check_ends(node, lo, hi)
    need(out_format.name != "bipolar" or bool((table != 0).all()), "a bipolar level cannot be 0")
    need(
        out_format.uniform or bool(out_format.contains(table).all()),
        f"the table holds what is no level of {out_format.name}",
    )
    return (TensorType(tensor.shape, out_format, node.floats("scale"), lo, hi),)


def run_lookup(node: Node, types: Types, arrays: Arrays) -> Arrays:
    table, index = node.params["table"], arrays[0] - types[0].lo
    if table.shape[0] == 1:
        return (table[0][index],)
    return (table[np.arange(table.shape[0]), index],)
