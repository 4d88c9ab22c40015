# SPDX-License-Identifier: Apache-2.0
"""Resources of a block: exact memories and multipliers, plus a fitted line through its features.

The lines are fitted to single blocks whose hierarchy is kept. In a design blocks are flattened:
where two meet, the logic of their handshake becomes less. How many LUTs that is for each stream is
one more coefficient of a family, from whole designs (`link`); it is taken off at every input of a
block.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from bitwright.base.errors import TargetError
from bitwright.base.figures import Resources
from bitwright.hw.blocks import Block, Port, blocks_of
from bitwright.ir import Graph

_TABLE = "cost.json"
_NONE: dict[str, Any] = {"lut": {"memory": 1.0}, "ff": {}}  # what is in no line: its memory
_MEASURED = "ecp5"  # the family that every kind of block is measured on


@dataclass(frozen=True)
class Estimate:
    """What a block costs and how fast it is; a pure function of block and family.

    Attributes:
        interval: cycles between two frames when the block alone limits them.
        latency: cycles from the first input beat to the first output beat, never stalled.
        beats_in, beats_out: transfers of one frame, per port.
        resources: predicted.
    """

    interval: int
    latency: int
    beats_in: tuple[int, ...]
    beats_out: tuple[int, ...]
    resources: Resources


@cache
def coefficients() -> dict[str, Any]:
    """The committed table: ``families -> family -> op -> {"lut": {feature: x}, "ff": {feature:
    x}}``.

    Made by ``benchmarks/estimates.py`` from synthesis of our own modules; it says by which tool,
    when, and with which error.
    """
    text = files("bitwright.hw").joinpath(_TABLE).read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def block_terms(block: Block, family: str) -> dict[str, float]:
    """The terms that a block's cost is a line through: 1, LUTs of memories, and its features."""
    return _terms(block, family, block.memory_cost(family))


def _terms(block: Block, family: str, counted: Resources) -> dict[str, float]:
    return {"one": 1.0, "memory": counted.lut, **block.features(family)}


def block_resources(block: Block, family: str) -> Resources:
    """Predicted resources of one block: multipliers, block RAMs and memories of registers counted,
    LUTs and other registers fitted. It stands in a design: what its inputs share with the blocks
    in front of it is taken off.

    Raises:
        TargetError: there are no coefficients for the family.
    """
    own = _module_resources(block, family)
    return _joined(own, family, block.cost_kind, len(block.inputs)) + block.more_cost(family)


def lone_resources(block: Block, family: str) -> Resources:
    """Predicted resources of a block that is synthesised alone.

    Raises:
        TargetError: there are no coefficients for the family.
    """
    return _module_resources(block, family) + block.more_cost(family)


def _module_resources(block: Block, family: str) -> Resources:
    counted = block.memory_cost(family)
    fitted = _fitted(family, block.cost_kind, _terms(block, family, counted))
    return fitted + replace(counted, lut=0.0)


def end_resources(port: Port, family: str, kind: str) -> Resources:
    """Predicted resources of an AXI end of the top. Of a family whose blocks were measured in flat
    netlists, which count part of the ends as the blocks', it is a two-entry register: two
    flip-flops and one multiplexer a bit, and its control.

    Args:
        port: the stream inside.
        kind: `axis_in` or `axis_out`.

    Raises:
        TargetError: there are no coefficients for the family.
    """
    blocks = coefficients()["families"].get(family, {}).get("blocks", {})
    if blocks and kind not in blocks:
        return Resources(lut=port.width + 3, ff=2 * port.width + 3)
    own = _fitted(family, kind, end_terms(port))
    return _joined(own, family, kind, int(kind == "axis_out"))


def end_terms(port: Port) -> dict[str, float]:
    """The terms that the cost of an AXI end is a line through."""
    beats = (port.beats - 1).bit_length()
    return {
        "one": 1.0,
        "width": port.width,
        "counter": beats,
        "wraps": float(port.beats != 1 << beats),
    }


def _fitted(family: str, kind: str, terms: dict[str, float]) -> Resources:
    families = coefficients()["families"]
    if family not in families:
        raise TargetError(f"no cost model for family {family!r}; known are {sorted(families)}")
    line = _line(families, family, kind)
    lut, ff = (sum(line[k].get(n, 0.0) * v for n, v in terms.items()) for k in ("lut", "ff"))
    return Resources(lut=lut, ff=ff)


def _joined(alone: Resources, family: str, kind: str, inputs: int) -> Resources:
    """What is left of something fitted when so many of its inputs come from others of the design;
    what is in no line has no handshake that is known.
    """
    families = coefficients()["families"]
    if _line(families, family, kind) is _NONE:
        return alone
    same = family if families[family]["blocks"] else _MEASURED
    saved = inputs * families[same].get("link", {}).get("lut", 0.0)
    return replace(alone, lut=max(0.0, alone.lut - saved))


def _line(families: dict[str, Any], family: str, kind: str) -> dict[str, Any]:
    """Coefficients of a kind of block; of units that compare bits, and of those with constants
    for weights, those of other units where a family has none; those of ECP5 where it has neither.
    """
    own, measured = families[family]["blocks"], families[_MEASURED]["blocks"]
    plain = kind.removesuffix("_xnor").removesuffix("_constant")
    line: dict[str, Any] = own.get(kind) or own.get(plain) or measured.get(kind, _NONE)
    return line


def estimate(block: Block, family: str) -> Estimate:
    """Cycles and cells of a block on a device family."""
    return Estimate(
        interval=block.interval,
        latency=block.latency,
        beats_in=tuple(port.beats for port in block.inputs),
        beats_out=tuple(port.beats for port in block.outputs),
        resources=block_resources(block, family),
    )


def graph_resources(graph: Graph, family: str) -> Resources:
    """Predicted resources of a hardware graph: its blocks and the AXI ends of the top."""
    blocks = blocks_of(graph)
    ends = []
    for edge in graph.inputs:
        (reader,) = graph.consumers(edge)
        port = blocks[reader.name].inputs[reader.inputs.index(edge)]
        ends.append(end_resources(port, family, "axis_in"))
    for edge in graph.outputs:
        producer = graph.producer(edge)
        if producer is not None:
            port = blocks[producer.name].outputs[producer.outputs.index(edge)]
            ends.append(end_resources(port, family, "axis_out"))
    costs = (block_resources(block, family) for block in blocks.values())
    return sum((*costs, *ends), Resources())
