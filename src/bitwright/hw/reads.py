# SPDX-License-Identifier: Apache-2.0
"""What of the memories of a design slows its clock."""

from __future__ import annotations

from dataclasses import dataclass

from bitwright.hw.blocks import blocks_of
from bitwright.ir import Graph


@dataclass(frozen=True)
class Reads:
    """The slowest reads of a design.

    Attributes:
        words: of its deepest LUT RAM, read in one cycle: a tree of multiplexers.
    """

    words: int = 0


def reads_of(graph: Graph) -> Reads:
    """The slowest reads of a hardware graph whose memories have their places."""
    return Reads(max((block.lut_words for block in blocks_of(graph).values()), default=0))
