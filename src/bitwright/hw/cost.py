# SPDX-License-Identifier: Apache-2.0
"""Resources of a block: exact memories and multipliers, plus a fitted line through its features."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from bitwright.base.errors import TargetError
from bitwright.base.figures import Resources
from bitwright.hw.blocks import Block, blocks_of
from bitwright.ir import Graph

_TABLE = "cost.json"
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
    return {"one": 1.0, "memory": block.memory_cost(family).lut, **block.features(family)}


def block_resources(block: Block, family: str) -> Resources:
    """Predicted resources of one block: multipliers, block RAMs and memories of registers counted,
    LUTs and other registers fitted.

    Raises:
        TargetError: there are no coefficients for the family.
    """
    families = coefficients()["families"]
    if family not in families:
        raise TargetError(f"no cost model for family {family!r}; known are {sorted(families)}")
    counted = block.memory_cost(family)
    line = _line(families, family, block.cost_kind)
    terms = block_terms(block, family)
    lut, ff = (sum(line[k].get(n, 0.0) * v for n, v in terms.items()) for k in ("lut", "ff"))
    fitted = Resources(lut=lut, ff=ff + counted.ff, dsp=counted.dsp, bram=counted.bram)
    return fitted + block.more_cost(family)


def _line(families: dict[str, Any], family: str, kind: str) -> dict[str, Any]:
    """Coefficients of a kind of block; those of ECP5 where a family has none measured."""
    none: dict[str, Any] = {"lut": {"memory": 1.0}, "ff": {}}
    own, measured = families[family]["blocks"], families[_MEASURED]["blocks"]
    line: dict[str, Any] = own.get(kind) or measured.get(kind, none)
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
    """Predicted resources of a hardware graph: its blocks and the registers at the top's ends."""
    blocks = blocks_of(graph)
    ends = [blocks[graph.consumers(edge)[0].name].inputs[0].width for edge in graph.inputs]
    for edge in graph.outputs:
        producer = graph.producer(edge)
        if producer is not None:
            ends.append(blocks[producer.name].outputs[0].width)
    # A two-entry register: two flip-flops and one multiplexer a bit, and its control.
    registers = [Resources(lut=width + 3, ff=2 * width + 3) for width in ends]
    costs = (block_resources(block, family) for block in blocks.values())
    return sum((*costs, *registers), Resources())
