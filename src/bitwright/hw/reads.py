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
        chosen: whether a word of weights comes out of a block RAM with others, and is chosen behind
            it: such a block RAM has no output register.
    """

    words: int = 0
    chosen: bool = False


def reads_of(graph: Graph, family: str) -> Reads:
    """The slowest reads of a hardware graph whose memories have their places."""
    blocks = blocks_of(graph).values()
    words = max((block.lut_words for block in blocks), default=0)
    return Reads(words, any(block.chooses_words(family) for block in blocks))
