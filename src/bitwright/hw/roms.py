# SPDX-License-Identifier: Apache-2.0
"""Deep read-only memories as wide ones: rows side by side, a register behind them, and a choice.

A memory with more words than a block RAM that is as wide as a word, or than look-up tables that
are fast enough, is kept as lines of one word of each row (module `mem_rom`). What chooses the row
stands behind a register, which a block RAM takes in, and costs a cycle a choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from bitwright.base.errors import GraphError
from bitwright.base.figures import Resources
from bitwright.hw.memory import (
    KNOWN,
    Memory,
    block_shapes,
    registers_in_brams,
    rom_brams,
    rom_resources,
)

_GROUP = 16  # rows that one choice takes one of
_MOST_ROWS = _GROUP * _GROUP
_LUT_LINES = 256  # words of look-up tables that are read in one cycle
_PART = 16384  # table bits at the ends of the wires of one address register, of deep tables
_MUX = {"ecp5": 1.0, "ice40": 1.0}  # LUTs that take one word more into a choice; else 1/3


@dataclass(frozen=True)
class Rom:
    """How a read-only memory is kept.

    Attributes:
        depth: words.
        width: bits of a word.
        rows: words side by side in a line; 1: a line is a word.
    """

    depth: int
    width: int
    rows: int = 1

    @property
    def lines(self) -> int:
        """Lines of the memory: a power of two where there are rows."""
        if self.rows == 1:
            return self.depth
        return 1 << (math.ceil(self.depth / self.rows) - 1).bit_length()

    @property
    def choices(self) -> int:
        """Cycles that a word takes more than one of a memory without rows."""
        return 0 if self.rows == 1 else 1 if self.rows <= _GROUP else 2

    def arranged(self, memory: Memory) -> Memory:
        """The lines of a memory of words."""
        if self.rows == 1:
            return memory
        bits = np.zeros((self.rows * self.lines, self.width), dtype=np.uint8)
        bits[: self.depth] = memory.bits
        lines = bits.reshape(self.rows, self.lines, self.width).transpose(1, 0, 2)
        layout = f"{memory.layout}; line l has words l, l + {self.lines}, .. side by side"
        return Memory(np.ascontiguousarray(lines.reshape(self.lines, -1)), layout)

    def words(self, memory: Memory) -> Memory:
        """The words of a memory of lines: inverse of `arranged`.

        Raises:
            GraphError: it has another size.
        """
        if memory.bits.shape != (self.lines, self.rows * self.width):
            raise GraphError(
                f"expected {self.lines} lines of {self.rows * self.width} bits, found "
                f"{memory.depth} of {memory.width}",
                where=memory.layout,
            )
        if self.rows == 1:
            return memory
        bits = memory.bits.reshape(self.lines, self.rows, self.width).transpose(1, 0, 2)
        return replace(memory, bits=bits.reshape(-1, self.width)[: self.depth])

    def resources(self, family: str, style: str) -> Resources:
        """The memory with its choice and the registers in front of it.

        Args:
            style: `distributed` or `block`.
        """
        if self.rows == 1:
            return rom_resources(family, self.depth, self.width, style)
        select = (self.rows - 1).bit_length()
        groups = math.ceil(self.rows / _GROUP)
        registers = 2 * select
        if groups > 1:
            registers += groups * self.width + select - _GROUP.bit_length() + 1
        luts = self.width * (self.rows - 1) * _MUX.get(family, 1 / 3)
        line = self.rows * self.width
        if style == "block":
            brams = math.ceil(line / self._line_width(family))
            own = 0 if registers_in_brams(family) else line
            return Resources(lut=luts, ff=registers + own, bram=brams)
        tables = rom_resources(family, self.depth, self.width, style)
        parts = math.ceil(line / max(1, _PART // self.lines))
        address = parts * (self.lines - 1).bit_length()
        return tables + Resources(lut=luts, ff=registers + line + address)

    def _line_width(self, family: str) -> int:
        return max(w for d, w in block_shapes(family) if d >= self.lines)


@lru_cache(KNOWN)
def rom_of(family: str, depth: int, width: int, style: str) -> Rom:
    """How a memory is kept: in rows where that takes fewer block RAMs, where it is deeper than one,
    and where look-up tables would be too deep.

    Args:
        style: `distributed` or `block`.
    """
    plain = Rom(depth, width)
    if style == "distributed":
        lines = max(_LUT_LINES, 1 << (math.ceil(depth / _MOST_ROWS) - 1).bit_length())
        return replace(plain, rows=math.ceil(depth / lines))
    shapes = block_shapes(family)
    whole = [w for d, w in shapes if d >= depth]
    least = rom_brams(family, depth, width)
    if whole and math.ceil(width / max(whole)) <= least:
        return plain
    rows = [
        count
        for d, w in shapes
        if 1 < (count := math.ceil(depth / d)) <= _MOST_ROWS
        and math.ceil(count * width / w) == least
    ]
    # A memory of more block RAMs than a choice takes is left to synthesis.
    return replace(plain, rows=min(rows)) if rows else plain
