# SPDX-License-Identifier: Apache-2.0
"""How layers were mapped, in words that a user knows: lanes, activations, strips, places."""

from __future__ import annotations

from bitwright.base.records import EngineMappingRow
from bitwright.engine.compiler.segments import Plan, Segment
from bitwright.engine.compiler.values import Layer, Post, Value
from bitwright.engine.isa import Bits, Result

_RESULTS = {Result.EIGHT: 8, Result.FOUR: 4, Result.RAW: 32}
#: Where a value lies: see `EngineMappingRow`.
CHIP, CHAIN, MEMORY = "chip", "chain", "memory"


def layer_mappings(plan: Plan) -> tuple[EngineMappingRow, ...]:
    """How each layer of a plan is done, in the order of the program."""
    return tuple(
        _mapping(layer, segment, plan) for segment in plan.segments for layer in segment.layers
    )


def _mapping(layer: Layer, segment: Segment, plan: Plan) -> EngineMappingRow:
    needs = segment.needs(*segment.strips[0])
    first, end = needs.get(layer.out, (0, layer.out.height))
    return EngineMappingRow(
        layer=layer.name,
        nodes=layer.nodes,
        lanes=4 if layer.bits == Bits.FOUR else 8,
        result=_RESULTS[layer.out.result],
        activation="moves words" if layer.upsample is not None else _activation(layer.post),
        strips=len(segment.strips),
        rows=end - first,
        chain=tuple(other.name for other in segment.layers),
        sources=tuple(_place(value, plan) for value in layer.sources),
        target=_place(layer.out, plan),
    )


def _place(value: Value, plan: Plan) -> str:
    if value in plan.hidden:
        return CHAIN
    return CHIP if value.root[0] in plan.resident else MEMORY


def _activation(post: Post | None) -> str:
    if post is None:
        return "none"
    if post.thresholds is not None:
        return f"{post.thresholds.shape[1]} thresholds"
    if post.result == Result.RAW:
        return "none (sums)"
    return "requantization" if post.tables is None else "requantization, table"
