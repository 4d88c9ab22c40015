# SPDX-License-Identifier: Apache-2.0
"""Passes on the integer graph: the same function, cheaper in hardware. Table: docs/passes.md.

Each pass is pure and keeps every output equal for every input within the input intervals. It
returns the graph itself where there is nothing to do. `optimise` runs them all, in check mode
comparing every step by execution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bitwright.base.names import NameCounter
from bitwright.formats import Format, IntegerFormat, parse_format
from bitwright.ir import (
    ChannelRange,
    Graph,
    IntArray,
    Node,
    Pass,
    TensorType,
    bits_for_interval,
    pipeline,
)
from bitwright.lower.pass_tools import (
    rebuild_fitted,
    sole_consumer,
    with_nodes,
    without_edges,
)
from bitwright.lower.passes_joins import flatten_concats, merge_duplicates, remove_dead
from bitwright.lower.ranges import analyse, compared_range

_SCALED = ("conv", "dense")
_PRODUCT_LIMIT = 1 << 62


def _rows(array: IntArray, channels: int) -> IntArray:
    """A parameter of (C or 1) rows, spread to one row per channel."""
    return np.broadcast_to(array, (channels, *array.shape[1:])).astype(np.int64)


def _flips(node: Node) -> bool:
    return bool(np.any(node.params.get("flip", 0)))


def _flip(node: Node, channels: int) -> IntArray:
    flip = node.params.get("flip")
    return np.zeros(channels, np.int64) if flip is None else _rows(flip, channels)


def _params(node: Node, **new: IntArray | None) -> dict[str, IntArray]:
    """The node's parameters with some replaced, or removed where None."""
    merged: dict[str, IntArray | None] = {**node.params, **new}
    return {name: value for name, value in merged.items() if value is not None}


def _through_pools(graph: Graph, edge: str) -> Node | None:
    """The sole consumer of an edge, looking through max pools."""
    node = sole_consumer(graph, edge)
    while node is not None and node.op == "max_pool":
        node = sole_consumer(graph, node.output)
    return node


def _take_bias(consumer: Node, bias: IntArray, reach: int) -> Node | None:
    """The consumer of ``x + bias`` rewritten to read x; None if its numbers would not fit.

    Thresholds: ``x + b >= t`` is ``x >= t - b`` and ``-(x + b) >= t`` is ``-x >= t + b``.
    Requant: ``(x + b) * m + o = x * m + (o + b * m)``.
    """
    channels = len(bias)
    if consumer.op == "threshold":
        signed = np.where(_flip(consumer, channels) == 1, -bias, bias)
        thresholds = _rows(consumer.params["thresholds"], channels) - signed[:, np.newaxis]
        return replace(consumer, params=_params(consumer, thresholds=thresholds))
    if consumer.op not in ("requant", "requant_float"):
        return None
    multiplier = consumer.params["multiplier"]
    largest = int(np.abs(multiplier).max())
    old_offset = int(np.abs(consumer.params["offset"]).max())
    worst_offset = old_offset + int(np.abs(bias).max()) * largest
    if worst_offset + reach * largest >= _PRODUCT_LIMIT:
        return None
    offset = _rows(consumer.params["offset"], channels) + bias * multiplier
    return replace(consumer, params=_params(consumer, offset=offset))


def merge_bias(graph: Graph) -> Graph:
    """Move a conv's or dense layer's bias into the thresholds (or requant offsets) behind it.

    Looks through max pools: adding a constant per channel commutes with a maximum. A bias of
    zeros is dropped.
    """
    changed: dict[str, Node] = {}
    for node in graph:
        bias = node.params.get("bias")
        if bias is None or node.op not in _SCALED:
            continue
        bare = replace(node, params=_params(node, bias=None))
        if not bias.any():
            changed[node.name] = bare
            continue
        consumer = _through_pools(graph, node.output)
        if consumer is None:
            continue
        kind = graph.types[node.output]
        reach = max(abs(kind.lo), abs(kind.hi)) + int(np.abs(bias).max())
        taken = _take_bias(changed.get(consumer.name, consumer), bias, reach)
        if taken is not None:
            changed[node.name], changed[consumer.name] = bare, taken
    return with_nodes(graph, changed)


def absorb_flips(graph: Graph) -> Graph:
    """Negate weight rows (and bias, and weight scale) so that their thresholds need no flip.

    Where a negated row would leave the weight format (-8 in ``int4``), the flip stays.
    """
    changed: dict[str, Node] = {}
    for node in graph:
        producer = graph.producer(node.inputs[0])
        if node.op != "threshold" or "flip" not in node.params or producer is None:
            continue
        if producer.op not in _SCALED or sole_consumer(graph, producer.output) is None:
            continue
        weight = producer.params["weight"]
        channels = weight.shape[0]
        flat = weight.reshape(channels, -1)
        limits = parse_format(producer.string("weight_format"))
        fits = limits.contains(-flat).all(axis=1)
        flip = _flip(node, channels)
        negate = (flip == 1) & fits
        sign = np.where(negate, -1, 1)
        left = np.where(negate, 0, flip)
        changed[node.name] = replace(node, params=_params(node, flip=left if left.any() else None))
        if negate.any():
            changed[producer.name] = _negated(producer, sign)
    return with_nodes(graph, changed)


def _negated(node: Node, sign: IntArray) -> Node:
    weight = node.params["weight"]
    bias = node.params.get("bias")
    scales = np.broadcast_to(np.array(node.floats("weight_scale")), sign.shape) * sign
    return replace(
        node,
        attrs={**node.attrs, "weight_scale": tuple(float(s) for s in scales)},
        params=_params(
            node,
            weight=weight * sign.reshape(-1, *[1] * (weight.ndim - 1)),
            bias=None if bias is None else bias * sign,
        ),
    )


def _composed(first: Node, second: Node, channels: int, reach: int) -> Node:
    """One threshold node for ``second(first(x))``.

    With n = count of first's thresholds, first gives ``base + step * n``. Second asks
    ``base + step * n >= t``, that is ``n >= k`` with ``k = ceil((t - base) / step)``: always for
    k <= 0, never for k > T, else ``x >= t1[k]``. With second's flip it asks ``n <= m``, which is
    ``not x >= t1[m + 1]``, that is ``-x >= 1 - t1[m + 1]``.

    Args:
        reach: largest absolute value of x.
    """
    inner, outer = (_rows(n.params["thresholds"], channels) for n in (first, second))
    flips = _flip(second, channels)
    base, step, count = first.integer("base"), first.integer("step"), inner.shape[1]
    always, never = -reach, reach + 1
    padded = np.pad(inner, ((0, 0), (1, 1)), constant_values=((0, 0), (always, never)))
    flipped = flips[:, np.newaxis] == 1
    index = np.where(flipped, (-outer - base) // step + 1, -((base - outer) // step))
    found = np.take_along_axis(padded, np.clip(index, 0, count + 1), axis=1)
    thresholds = np.where(flipped, 1 - found, found)
    flip = _flip(first, channels) ^ flips
    return replace(
        second,
        inputs=first.inputs,
        params=_params(
            second,
            thresholds=np.clip(thresholds, always, never),
            flip=flip if flip.any() else None,
        ),
    )


def fuse_thresholds(graph: Graph) -> Graph:
    """Threshold nodes in a row become one."""
    removed: dict[str, str] = {}
    changed: dict[str, Node] = {}
    for node in graph:
        follower = sole_consumer(graph, node.output) if node.op == "threshold" else None
        if follower is None or follower.op != "threshold":
            continue
        # What came before it in the row is in it already.
        first = changed.pop(node.name, node)
        kind = graph.types[first.inputs[0]]
        reach = max(abs(kind.lo), abs(kind.hi)) + 1
        changed[follower.name] = _composed(first, follower, kind.channels, reach)
        removed[node.output] = first.inputs[0]
    return without_edges(graph, removed, changed)


def sink_pool(graph: Graph) -> Graph:
    """Swap ``max_pool -> threshold`` to ``threshold -> max_pool`` where that narrows the pool.

    A threshold without flip is monotone, so it commutes with a maximum; the pool and its line
    buffer then carry the few bits behind the threshold. An upsampling commutes with anything done
    to each pixel, and the threshold then sees fewer pixels. The edge behind both keeps its name,
    the one between them gets a new one, so equal names still carry equal values.
    """
    nodes, types = [*graph], dict(graph.types)
    makers = {edge: place for place, node in enumerate(nodes) for edge in node.outputs}
    readers = Counter(edge for node in nodes for edge in node.inputs)
    readers.update(graph.outputs)
    names, moved = NameCounter(), False
    for start in range(len(nodes)):
        at = start
        while nodes[at].op == "threshold" and nodes[at].inputs[0] in makers:
            node, before = nodes[at], makers[nodes[at].inputs[0]]
            pool = nodes[before]
            if pool.op not in ("max_pool", "upsample") or readers[pool.output] > 1:
                break
            if not (_narrows if pool.op == "max_pool" else _grows)(types, pool, node):
                break
            between = names.free(f"{nodes[start].output}_full", types)
            early = replace(node, inputs=pool.inputs, outputs=(between,))
            late = replace(pool, inputs=(between,), outputs=node.outputs)
            nodes[before], nodes[at] = early, late
            del types[pool.output], makers[pool.output]
            readers[between] = 1
            for place, one in ((before, early), (at, late)):
                (types[one.output],) = graph.dialect.infer(one, (types[one.inputs[0]],))
                makers[one.output] = place
            at, moved = before, True
    return rebuild_fitted(graph, tuple(nodes)) if moved else graph


def _narrows(types: Mapping[str, TensorType], pool: Node, node: Node) -> bool:
    return not _flips(node) and types[node.output].wire_bits < types[pool.output].wire_bits


def _grows(types: Mapping[str, TensorType], pool: Node, node: Node) -> bool:
    """An upsampling by 1 does nothing: thousands of them would be passed, one by one."""
    return types[pool.output].size > types[pool.inputs[0]].size


def _is_identity(graph: Graph, node: Node, seen: ChannelRange) -> bool:
    source, target = graph.types[node.inputs[0]], graph.types[node.output]
    if source.scale != target.scale or source.is_bipolar != target.is_bipolar:
        return False
    lo, hi = seen.hull
    if node.op == "requant":
        plain = (node.params["multiplier"] == 1).all() and not node.params["offset"].any()
        inside = node.integer("lo") <= lo and hi <= node.integer("hi")
        return bool(plain) and node.integer("shift") == 0 and inside
    if node.op == "threshold":
        count = node.params["thresholds"].shape[1]
        base, step = node.integer("base"), node.integer("step")
        if _flips(node) or base > lo or base + step * count < hi:
            return False
        levels = np.array([lo, hi]) if source.is_bipolar else np.arange(lo, hi + 1)
        passed, rest = np.divmod(levels - base, step)  # that many thresholds, which ascend
        some, not_all = passed > 0, passed < count
        thresholds = node.params["thresholds"]
        return bool(
            not rest.any()
            and (thresholds[:, passed[some] - 1] <= levels[some]).all()
            and (thresholds[:, passed[not_all]] > levels[not_all]).all()
        )
    if node.op in ("max_pool", "sum_pool"):
        single = node.ints("kernel") == (1, 1) and node.ints("stride") == (1, 1)
        return single and not any(node.ints("padding"))
    if node.op == "upsample":
        return node.ints("factor") == (1, 1)
    return node.op == "space_to_depth" and node.integer("block") == 1


def remove_identities(graph: Graph) -> Graph:
    """Remove thresholds, requants, pools and the like that give back their input unchanged."""
    ranges = analyse(graph)
    removed = {
        node.output: node.inputs[0]
        for node in graph
        if node.output not in graph.outputs and _is_identity(graph, node, ranges[node.inputs[0]])
    }
    return without_edges(graph, removed, {})


def tighten_thresholds(graph: Graph) -> Graph:
    """Clip thresholds into [lo, hi + 1] of their channel; drop those without effect.

    A threshold that every channel always passes moves into ``base``, one that none ever passes
    goes. The output interval, and so the wire, narrows with them. One threshold always remains.
    """
    ranges = analyse(graph)
    changed: dict[str, Node] = {}
    for node in graph:
        if node.op != "threshold":
            continue
        seen = compared_range(node, ranges[node.inputs[0]])
        old = node.params["thresholds"]
        if old.shape[0] == 1:
            lo, hi = (np.array([end], np.int64) for end in seen.hull)
        else:
            lo, hi = seen.lo, seen.hi
        clipped = np.clip(old, lo[:, np.newaxis], hi[:, np.newaxis] + 1)
        always = int((clipped <= lo[:, np.newaxis]).all(axis=0).sum())
        never = int((clipped > hi[:, np.newaxis]).all(axis=0).sum())
        first = min(always, old.shape[1] - 1)
        last = max(old.shape[1] - never, first + 1)
        kept = clipped[:, first:last]
        if np.array_equal(kept, old):
            continue
        base = node.integer("base") + first * node.integer("step")
        changed[node.name] = replace(
            node, attrs={**node.attrs, "base": base}, params=_params(node, thresholds=kept)
        )
    return with_nodes(graph, changed)


def share_thresholds(graph: Graph) -> Graph:
    """Keep one row of thresholds where every channel has the same."""
    changed: dict[str, Node] = {}
    for node in graph:
        if node.op != "threshold" or node.params["thresholds"].shape[0] == 1:
            continue
        thresholds = node.params["thresholds"]
        flip = _flip(node, thresholds.shape[0])
        if (thresholds == thresholds[:1]).all() and (flip == flip[0]).all():
            changed[node.name] = replace(
                node,
                params=_params(
                    node, thresholds=thresholds[:1], flip=flip[:1] if flip.any() else None
                ),
            )
    return with_nodes(graph, changed)


def _narrow_weight(old: Format, lo: int, hi: int) -> Format:
    if not old.is_integer:
        return old
    if not old.signed:
        return IntegerFormat(max(1, hi.bit_length()), False)
    if old.min_code == -old.max_code:
        return IntegerFormat(max(2, max(-lo, hi).bit_length() + 1), True, True)
    return IntegerFormat(max(2, bits_for_interval(min(lo, -1), hi)), True)


def _narrow_output(old: Format, lo: int, hi: int) -> Format:
    if not old.is_integer:
        return old
    bits = bits_for_interval(lo, hi)
    return IntegerFormat(bits, lo < 0) if bits < old.bits else old


def narrow_formats(graph: Graph) -> Graph:
    """Give weights and activations the smallest integer format that holds them.

    Only ``intN``, ``intNn`` and ``uintN`` are narrowed, within their kind; an activation that
    never goes below zero becomes unsigned where that is smaller.
    """
    changed: dict[str, Node] = {}
    for node in graph:
        if node.op in _SCALED:
            key, weight = "weight_format", node.params["weight"]
            old = parse_format(node.string(key))
            new = _narrow_weight(old, int(weight.min()), int(weight.max()))
        elif node.op in ("threshold", "requant", "lookup"):
            key, kind = "format", graph.types[node.output]
            old = parse_format(node.string(key))
            new = _narrow_output(old, kind.lo, kind.hi)
        else:
            continue
        if new.bits < old.bits:
            changed[node.name] = replace(node, attrs={**node.attrs, key: new.name})
    return with_nodes(graph, changed)


PASSES: tuple[Pass, ...] = (
    remove_dead,
    merge_duplicates,
    flatten_concats,
    fuse_thresholds,
    merge_bias,
    absorb_flips,
    sink_pool,
    remove_identities,
    tighten_thresholds,
    share_thresholds,
    narrow_formats,
)


def optimise(graph: Graph, *, passes: Sequence[Pass] = PASSES, check: int = 0) -> Graph:
    """Run the passes in order.

    Args:
        check: number of random frames on which every pass is compared with `Graph.run`.

    Raises:
        MismatchError: a pass changed an output (a bug).
    """
    return pipeline(graph, passes, check=check)
