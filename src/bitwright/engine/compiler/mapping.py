# SPDX-License-Identifier: Apache-2.0
"""How layers were mapped, in words that a user knows: lanes, activations, strips, places."""

from __future__ import annotations

from dataclasses import dataclass

from bitwright.engine.compiler.segments import Plan, Segment
from bitwright.engine.compiler.values import Layer, Post, Value
from bitwright.engine.isa import Bits, Result

_RESULTS = {Result.EIGHT: 8, Result.FOUR: 4, Result.RAW: 32}
#: Where a value lies: whole in the features, in strips that a chain of layers makes and reads
#: there, or in the memory outside, moved by strips.
CHIP, CHAIN, MEMORY = "chip", "chain", "memory"


@dataclass(frozen=True)
class LayerMapping:
    """How a layer is done.

    Attributes:
        layer: its name; nodes: of the graph, that it does.
        lanes: bits of the lanes that it multiplies in; result: bits of its results.
        activation: what follows its sums.
        strips: how many its maps are cut into; rows: of one, of its result.
        chain: layers that are done with it, strip by strip, itself included.
        sources, target: where its operands and its result lie: `CHIP`, `CHAIN` or `MEMORY`.
    """

    layer: str
    nodes: tuple[str, ...]
    lanes: int
    result: int
    activation: str
    strips: int
    rows: int
    chain: tuple[str, ...]
    sources: tuple[str, ...]
    target: str


def layer_mappings(plan: Plan) -> tuple[LayerMapping, ...]:
    """How each layer of a plan is done, in the order of the program."""
    return tuple(
        _mapping(layer, segment, plan) for segment in plan.segments for layer in segment.layers
    )


def _mapping(layer: Layer, segment: Segment, plan: Plan) -> LayerMapping:
    needs = segment.needs(*segment.strips[0])
    first, end = needs.get(layer.out, (0, layer.out.height))
    return LayerMapping(
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
