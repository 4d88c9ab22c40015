# SPDX-License-Identifier: Apache-2.0
"""Range analysis: the exact interval of every channel of every edge, and of every partial sum.

An edge's type carries one interval for the whole tensor. This analysis is finer: it keeps one
interval per channel (per element behind a flatten), and it looks at which taps of a padded window
can hold pixels at all. Every bound of one node is attained for some input within the intervals of
its input edge, so it cannot be improved by looking at that node alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError
from bitwright.ir import (
    Attr,
    ChannelRange,
    DotInterval,
    Graph,
    IntArray,
    Node,
    TensorType,
    dot_interval,
    kernels,
)


@dataclass(frozen=True, eq=False)
class DotRange:
    """Intervals of one accumulator of a conv, dense or sum_pool node, per output channel.

    Attributes:
        final: the finished sum, bias included.
        partial: every value the sum can have on the way, whatever the order of the terms and
            whether the bias comes first, last or is added elsewhere. See `ir.dot_interval`.
        low_at, high_at: output position (oh, ow) of a window that attains the final bound; (0, 0)
            for a dense node. Shape (channels, 2).
    """

    final: ChannelRange
    partial: ChannelRange
    low_at: IntArray
    high_at: IntArray


def _constant(tensor: TensorType) -> ChannelRange:
    return ChannelRange(
        np.full(tensor.channels, tensor.lo, np.int64), np.full(tensor.channels, tensor.hi, np.int64)
    )


def _grouped(weight: IntArray, inputs: ChannelRange, bias: IntArray, groups: int) -> DotInterval:
    """`dot_interval` of rows in groups, each of which reads its own input channels."""
    if groups == 1:
        return dot_interval(weight, inputs.lo, inputs.hi, bias)
    shape = (len(weight), *(1,) * (weight.ndim - 2), -1)
    lo, hi = (
        np.repeat(end.reshape(groups, -1), len(weight) // groups, axis=0).reshape(shape)
        for end in (inputs.lo, inputs.hi)
    )
    return dot_interval(weight, lo, hi, bias)


def _joined(parts: Sequence[ChannelRange]) -> ChannelRange:
    return ChannelRange(
        np.concatenate([part.lo for part in parts]), np.concatenate([part.hi for part in parts])
    )


def _axis_masks(
    size: int, out: int, kernel: int, stride: int, before: int, dilation: int
) -> dict[tuple[bool, ...], int]:
    """Distinct sets of taps that fall on pixels along one axis -> the first such output index."""
    # Only windows at the two ends can differ from one another; all between are whole.
    ahead = min(out, -(-before // stride) + 1)
    behind = max(ahead, (size + before - (kernel - 1) * dilation) // stride)
    index = np.r_[0:ahead, min(behind, out) : out]
    at = index[:, None] * stride - before + np.arange(kernel) * dilation
    rows, first = np.unique((at >= 0) & (at < size), axis=0, return_index=True)
    order = np.argsort(first)
    return {tuple(bool(v) for v in rows[k]): int(index[first[k]]) for k in order}


def conv_masks(
    node: Node, source: TensorType, target: TensorType
) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_], tuple[int, int]]]:
    """Every distinct pattern of taps on pixels: (rows, columns, an output position with it)."""
    kernel = node.params["weight"].shape[1:3]
    stride, padding, dilation = node.ints("stride"), node.ints("padding"), node.ints("dilation")
    rows, columns = (
        _axis_masks(source.shape[a], target.shape[a], kernel[a], stride[a], padding[a], dilation[a])
        for a in (0, 1)
    )
    return [
        (np.array(r), np.array(c), (at_r, at_c))
        for r, at_r in rows.items()
        for c, at_c in columns.items()
    ]


def _bias(node: Node, rows: int) -> IntArray:
    return node.params.get("bias", np.zeros(rows, np.int64))


def _whole_range(node: Node, inputs: ChannelRange) -> DotRange:
    """The range of a node all of whose taps always fall on inputs.

    Raises:
        GraphError: it needs more than 62 bits.
    """
    weight = node.params["weight"]
    groups = node.integer("groups") if node.op == "conv" else 1
    found = _grouped(weight, inputs, _bias(node, len(weight)), groups)
    if found.partial.lo.dtype == object:
        raise GraphError(
            f"the accumulator can reach {found.partial.hull}, more than 62 bits",
            where=node.name,
            hint="use fewer bits or a smaller layer",
        )
    at = np.zeros((len(weight), 2), np.int64)
    return DotRange(found.final, found.partial, at, at)


def _conv_range(
    node: Node, inputs: ChannelRange, source: TensorType, target: TensorType
) -> DotRange:
    """Not every window sees every tap: the widest of all patterns, and where it is."""
    whole = _whole_range(node, inputs)
    weight, masks = node.params["weight"], conv_masks(node, source, target)
    bias, groups = _bias(node, len(weight)), node.integer("groups")
    seen = [
        _grouped(weight[:, rows][:, :, columns], inputs, bias, groups).final
        for rows, columns, _ in masks
    ]
    low, high = np.stack([found.lo for found in seen]), np.stack([found.hi for found in seen])
    places = np.array([at for _, _, at in masks], np.int64)
    return DotRange(
        ChannelRange(low.min(axis=0), high.max(axis=0)),
        whole.partial,
        places[low.argmin(axis=0)],
        places[high.argmax(axis=0)],
    )


def dot_range(graph: Graph, node: Node, inputs: ChannelRange) -> DotRange:
    """Accumulator intervals of a conv, dense or sum_pool node for given input channels.

    Raises:
        GraphError: the node has no accumulator, or it needs more than 62 bits.
    """
    if node.op == "dense":
        return _whole_range(node, inputs)
    source, target = graph.types[node.inputs[0]], graph.types[node.output]
    if node.op == "conv":
        return _conv_range(node, inputs, source, target)
    if node.op == "sum_pool":
        return _conv_range(as_conv(node, source.channels), inputs, source, target)
    raise GraphError(f"{node.op} has no accumulator", where=node.name)


def product_range(node: Node, inputs: ChannelRange) -> ChannelRange:
    """Interval of ``x * multiplier + offset`` of a requant(_float) node, before the shift."""
    ends = np.stack([inputs.lo * node.params["multiplier"], inputs.hi * node.params["multiplier"]])
    ends = ends + node.params["offset"]
    return ChannelRange(ends.min(axis=0), ends.max(axis=0))


def _requant_range(node: Node, inputs: ChannelRange) -> ChannelRange:
    """Multiplying, rounding (to a float's levels, too) and clipping are monotone."""
    product = product_range(node, inputs)
    shift, rounding = node.integer("shift"), node.string("rounding")

    def rounded(end: IntArray) -> IntArray:
        if node.op == "requant":
            return kernels.round_shift(end, shift, rounding)
        kept = (node.integer("significant"), node.integer("smallest"))
        return kernels.round_float(end, shift, *kept, rounding)

    lo, hi = (
        np.clip(rounded(end), node.integer("lo"), node.integer("hi"))
        for end in (product.lo, product.hi)
    )
    return ChannelRange(lo, hi)


def compared_range(node: Node, inputs: ChannelRange) -> ChannelRange:
    """Interval of what a threshold node compares: x, or -x in the flipped channels."""
    if "flip" not in node.params:
        return inputs
    flip = node.params["flip"] == 1
    return ChannelRange(
        np.where(flip, -inputs.hi, inputs.lo), np.where(flip, -inputs.lo, inputs.hi)
    )


def _threshold_range(node: Node, inputs: ChannelRange) -> ChannelRange:
    seen = compared_range(node, inputs)
    base, step = node.integer("base"), node.integer("step")
    lo, hi = (
        base + step * kernels.count_thresholds(end, node.params["thresholds"])
        for end in (seen.lo, seen.hi)
    )
    return ChannelRange(lo, hi)


def as_conv(node: Node, channels: int) -> Node:
    """A sum pool as the depthwise convolution with ones that it is."""
    weight = np.ones((channels, *node.ints("kernel"), 1), np.int64)
    attrs: dict[str, Attr] = {
        "stride": node.ints("stride"),
        "padding": node.ints("padding"),
        "dilation": (1, 1),
        "groups": channels,
        "weight_format": "uint1",
    }
    return replace(node, op="conv", attrs=attrs, params={"weight": weight})


def add_min_max(node: Node, operands: Sequence[ChannelRange]) -> tuple[IntArray, IntArray]:
    """Smallest and largest value of each product of a sum: two arrays (products, channels).

    The sum of a tensor with itself is one product.
    """
    first, second = node.ints("multipliers")
    same = node.inputs[0] == node.inputs[1]
    pairs = [(first + second, operands[0])] if same else zip((first, second), operands, strict=True)
    ends = np.stack([np.stack([m * r.lo, m * r.hi]) for m, r in pairs])
    return ends.min(axis=1), ends.max(axis=1)


def _add_range(node: Node, operands: Sequence[ChannelRange]) -> ChannelRange:
    low, high = add_min_max(node, operands)
    return ChannelRange(low.sum(axis=0), high.sum(axis=0))


def _lookup_range(node: Node, source: TensorType, inputs: ChannelRange) -> ChannelRange:
    """Extremes of each channel's table over the levels the channel can have."""
    table, levels = node.params["table"], np.arange(source.lo, source.hi + 1)
    inside = (levels >= inputs.lo[:, np.newaxis]) & (levels <= inputs.hi[:, np.newaxis])
    wide = np.broadcast_to(table, inside.shape)
    top, bottom = int(table.max()), int(table.min())
    return ChannelRange(
        np.where(inside, wide, top).min(axis=1), np.where(inside, wide, bottom).max(axis=1)
    )


def _repeated(inputs: ChannelRange, count: int) -> ChannelRange:
    return ChannelRange(np.tile(inputs.lo, count), np.tile(inputs.hi, count))


def _node_range(graph: Graph, node: Node, operands: Sequence[ChannelRange]) -> ChannelRange:
    source, target = graph.types[node.inputs[0]], graph.types[node.output]
    inputs = operands[0]
    match node.op:
        case "conv" | "dense" | "sum_pool":
            return dot_range(graph, node, inputs).final
        case "threshold":
            return _threshold_range(node, inputs)
        case "requant" | "requant_float":
            return _requant_range(node, inputs)
        case "lookup":
            return _lookup_range(node, source, inputs)
        case "max_pool" | "upsample":
            return inputs
        case "flatten":
            return _repeated(inputs, source.size // source.channels)
        case "space_to_depth":
            return _repeated(inputs, node.integer("block") ** 2)
        case "add":
            return _add_range(node, operands)
        case "concat":
            return _joined(operands)
        case _:
            return _constant(target)


def analyse(graph: Graph) -> dict[str, ChannelRange]:
    """The interval of every channel of every edge of an integer graph.

    Raises:
        GraphError: an interval leaves the one its edge's type states (a bug in a type rule).
    """
    ranges = {edge: _constant(graph.types[edge]) for edge in graph.inputs}
    for node in graph:
        found = _node_range(graph, node, [ranges[edge] for edge in node.inputs])
        lo, hi = found.hull
        stated = graph.types[node.output]
        if lo < stated.lo or hi > stated.hi:
            raise GraphError(
                f"range analysis finds [{lo}, {hi}], the type states [{stated.lo}, {stated.hi}]",
                where=node.name,
            )
        ranges[node.output] = found
    return ranges
