# SPDX-License-Identifier: Apache-2.0
"""Resources of a block: exact memories and multipliers, plus a fitted line through its features."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from bitwright.errors import TargetError
from bitwright.figures import Resources
from bitwright.hw.blocks.base import Block
from bitwright.ir import Graph

_TABLE = "cost.json"


@cache
def coefficients() -> dict[str, Any]:
    """The committed table: ``families -> family -> op -> {"lut": {feature: x}, "ff": {feature: x}}``.

    Made by ``benchmarks/estimates.py`` from synthesis of our own modules; it says by which tool, when, and
    with which error.
    """
    text = files("bitwright.hw").joinpath(_TABLE).read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def block_resources(block: Block, family: str) -> Resources:
    """Predicted resources of one block.

    Raises:
        TargetError: there are no coefficients for the family.
    """
    families = coefficients()["families"]
    if family not in families:
        raise TargetError(f"no cost model for family {family!r}; known are {sorted(families)}")
    line = families[family].get(block.node.op, {"lut": {}, "ff": {}})
    values = {"one": 1.0, **block.features(family)}
    if not block.features(family):
        return block.memory_cost(family)
    lut, ff = (sum(line[k].get(n, 0.0) * v for n, v in values.items()) for k in ("lut", "ff"))
    return block.memory_cost(family) + Resources(lut=lut, ff=ff)


def graph_resources(graph: Graph, family: str) -> Resources:
    """Predicted resources of a hardware graph: the sum over its blocks."""
    from bitwright.hw.blocks import blocks_of

    total = Resources()
    for block in blocks_of(graph).values():
        total = total + block_resources(block, family)
    return total
