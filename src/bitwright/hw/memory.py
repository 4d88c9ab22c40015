# SPDX-License-Identifier: Apache-2.0
"""Memory images: packed words as bits, written as hex for ``$readmemh`` and read back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError
from bitwright.base.figures import Resources
from bitwright.ir import IntArray

KNOWN = 1 << 16
"""Memories whose kind and cost are kept: a search asks for the same ones over and over."""

Bits = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Memory:
    """A memory image.

    Attributes:
        bits: ``(depth, width)`` of 0 and 1, least significant first.
        layout: one line that says what stands where; the header comment of the file.
    """

    bits: Bits
    layout: str

    @property
    def depth(self) -> int:
        return int(self.bits.shape[0])

    @property
    def width(self) -> int:
        return int(self.bits.shape[1])

    @cached_property
    def text(self) -> str:
        """The file: a header comment, then one hexadecimal word a line."""
        digits = math.ceil(self.width / 4)
        padded = np.zeros((self.depth, 8 * math.ceil(self.width / 8)), dtype=np.uint8)
        padded[:, : self.width] = self.bits
        words = np.packbits(padded[:, ::-1], axis=1)
        lines = [bytes(row).hex()[-digits:] for row in words]
        head = f"// {self.layout}\n// {self.depth} words of {self.width} bits\n"
        return head + "\n".join(lines) + "\n"


def pack_lanes(lanes: IntArray, width: int, layout: str) -> Memory:
    """Pack ``(depth, lanes)`` integers into words, lane 0 least significant, two's complement.

    Raises:
        GraphError: a value does not fit into `width` bits (signed or unsigned).
    """
    low, high = int(lanes.min()), int(lanes.max())
    if low < -(1 << (width - 1)) or high >= 1 << (width if low >= 0 else width - 1):
        raise GraphError(f"values [{low}, {high}] do not fit into {width} bits", where=layout)
    bits = np.empty((*lanes.shape, width), dtype=np.uint8)
    for place in range(width):  # not at once: that takes eight bytes for each bit
        bits[:, :, place] = (lanes >> min(place, 63)) & 1
    return Memory(bits.reshape(lanes.shape[0], -1), layout)


def unpack_lanes(memory: Memory, lanes: int, *, signed: bool) -> IntArray:
    """Inverse of `pack_lanes`."""
    width = memory.width // lanes
    bits = memory.bits.reshape(memory.depth, lanes, width)
    found = np.zeros((memory.depth, lanes), dtype=np.int64)
    for place in range(width):
        value = bits[:, :, place] * (np.int64(1) << np.int64(place))
        found += -value if signed and place == width - 1 else value
    return found


def parse_memory(text: str, width: int) -> Bits:
    """The bits of a memory file as `Memory.text` writes it.

    Raises:
        GraphError: a line is not a hexadecimal word of `width` bits.
    """
    lines = [line for line in text.splitlines() if line and not line.startswith("//")]
    rows = []
    for number, line in enumerate(lines):
        try:
            word = int(line, 16)
        except ValueError as error:
            raise GraphError(f"{line!r} is no hexadecimal word", where=f"word {number}") from error
        if word >> width or len(line) != math.ceil(width / 4):
            raise GraphError(f"{line!r} is no word of {width} bits", where=f"word {number}")
        rows.append(np.frombuffer(word.to_bytes(math.ceil(width / 8), "little"), dtype=np.uint8))
    return np.unpackbits(np.stack(rows), axis=1, bitorder="little")[:, :width]


# Shapes of one block RAM, as (depth, width): the family's native primitive.
_BRAM_SHAPES: dict[str, tuple[tuple[int, int], ...]] = {
    # DP16KD; the 512 x 36 shape exists as simple dual port (PDPW16KD).
    "ecp5": ((16384, 1), (8192, 2), (4096, 4), (2048, 9), (1024, 18), (512, 36)),
    # SB_RAM40_4K.
    "ice40": ((2048, 2), (1024, 4), (512, 8), (256, 16)),
    # RAMB18E1 / E2, simple dual port.
    "xc7": ((16384, 1), (8192, 2), (4096, 4), (2048, 9), (1024, 18), (512, 36)),
    "xcup": ((16384, 1), (8192, 2), (4096, 4), (2048, 9), (1024, 18), (512, 36)),
    # M10K, simple dual port.
    "cyclonev": ((8192, 1), (4096, 2), (2048, 5), (1024, 10), (512, 20), (256, 40)),
}

FAMILIES = tuple(_BRAM_SHAPES)
# Whose block RAMs take in a plain register behind them (`build/registers`).
_OUTPUT_REGISTERS = frozenset({"ecp5"})


def block_shapes(family: str) -> tuple[tuple[int, int], ...]:
    """Shapes of one block RAM, as (words, bits of a word)."""
    return _BRAM_SHAPES[family]


def registers_in_brams(family: str) -> bool:
    """Whether a plain register behind a block RAM becomes part of it."""
    return family in _OUTPUT_REGISTERS


def bram_count(family: str, depth: int, width: int) -> int:
    """Block RAMs of a ``depth x width`` memory, in the best of the primitive's shapes."""
    shapes = _BRAM_SHAPES[family]
    return min(math.ceil(depth / d) * math.ceil(width / w) for d, w in shapes)


def rom_brams(family: str, depth: int, width: int) -> int:
    """Block RAMs of a read-only memory. Yosys also puts the rows of several block RAMs side by
    side, as one wider word from which a multiplexer chooses, where that takes fewer.
    """
    shapes = _BRAM_SHAPES[family]
    return min(math.ceil(math.ceil(depth / d) * width / w) for d, w in shapes)


STYLE_CODES = {"auto": 0, "block": 1, "distributed": 2}

# One LUT memory primitive, as (depth, width, LUTs it takes): TRELLIS_DPR16X4 (two slices and the
# write port of a third), RAM32M, RAM32M16, MLAB (ten ALMs as 32 x 20, two ALUTs each).
# iCE40 has none: there every bit is a flip-flop, and what is counted here is the read multiplexer.
_LUTRAM: dict[str, tuple[int, int, int]] = {
    "ecp5": (16, 4, 6),
    "ice40": (1, 1, 0),
    "xc7": (32, 6, 4),
    "xcup": (32, 14, 8),
    "cyclonev": (32, 20, 20),
}
# Bits of read-only memory in one LUT.
_LUTROM = {"ecp5": 16, "ice40": 16, "xc7": 64, "xcup": 64, "cyclonev": 64}
# Words whose LUTs the slices' own multiplexers choose from, so that a tree of them is whole, and
# LUTs of a deeper memory to those of its bits (synthesis of random contents, 12 to 512 words).
_ROM_CHOICE = {"ecp5": (128, 1.4)}
_ROM_PART = 256  # bits of a word that have an address register of their own
_DISTINCT = 40  # words of random contents in which no two columns of a part are expected equal
# A block RAM is taken where it saves more LUTs than this.
_LUTS_WORTH_A_BRAM = 96
_DEEPEST_CHOICE = 256  # words of a read-write memory that a tool may make of LUT RAM unasked


def ram_luts(family: str, depth: int, width: int) -> float:
    """LUTs of a simple dual-port memory in LUT RAM, read multiplexer included."""
    rows, lanes, cost = _LUTRAM[family]
    banks = math.ceil(depth / rows)
    return banks * math.ceil(width / lanes) * cost + width * (banks - 1) / 2 + (banks > 1) * banks


def rom_luts(family: str, depth: int, width: int) -> float:
    """LUTs of a read-only memory made of logic, of random contents."""
    return rom_outputs(depth, width) * output_luts(family, depth)


def output_luts(family: str, depth: int) -> float:
    """LUTs of one bit of the words of a read-only memory; one word is wires."""
    if depth == 1:
        return 0.0
    luts = max(1.0, depth / _LUTROM[family])
    free, beyond = _ROM_CHOICE.get(family, (0, 1.0))
    return 1 << math.ceil(math.log2(luts)) if depth <= free else luts * beyond


def rom_outputs(depth: int, width: int, *, registered: bool = False) -> int:
    """Bits of a word of random contents that synthesis makes: few words have few columns that
    differ, those of all zeros or all ones are constants, and one that is another's complement is
    made of it, but has a register of its own if all are `registered`. Expected number, of the
    parts that `mem_rom` keeps apart.
    """
    if depth > _DISTINCT:
        return width
    chance = 2.0 ** (-depth if registered else 1 - depth)  # that a column is one of these
    kinds = (1 << depth) - 2 if registered else (1 << (depth - 1)) - 1
    whole, rest = divmod(width, _ROM_PART)
    return round(
        sum(k * kinds * (1 - (1 - chance) ** n) for k, n in ((whole, _ROM_PART), (1, rest)))
    )


@lru_cache(KNOWN)
def ram_resources(family: str, depth: int, width: int, style: str) -> Resources:
    """A simple dual-port memory in LUT RAM or block RAM (`auto`: as `ram_style` decides)."""
    if ram_style(family, depth, width, style) == "block":
        return Resources(bram=bram_count(family, depth, width))
    in_registers = _LUTRAM[family][2] == 0
    return Resources(lut=ram_luts(family, depth, width), ff=depth * width if in_registers else 0)


def rom_resources(family: str, depth: int, width: int, style: str) -> Resources:
    """A read-only memory in LUTs or block RAM (`auto`: as `rom_style` decides)."""
    if rom_style(family, depth, width, style) == "block":
        return Resources(bram=rom_brams(family, depth, width))
    return Resources(lut=rom_luts(family, depth, width))


def ram_style(family: str, depth: int, width: int, style: str = "auto") -> str:
    """`distributed` or `block` for a read-write memory; `auto` is made definite."""
    if family == "cyclonev" and depth > _LUTRAM[family][0]:
        return "block"  # Yosys maps no deeper memory to MLABs
    if style == "auto" and depth > _DEEPEST_CHOICE:
        return "block"  # as `mem_ram` asks for
    costs = ram_luts(family, depth, width), bram_count(family, depth, width)
    return choose_style(style, *costs)


@lru_cache(KNOWN)
def tool_style(family: str, depth: int, width: int) -> str:
    """`distributed` or `block` for a read-write memory whose place synthesis chooses (`mem_ram`
    with style 0): on ECP5 by the costs of Yosys, 4 for a LUT RAM and 128 for a block RAM.
    """
    if depth > _DEEPEST_CHOICE:
        return "block"
    if family != "ecp5":
        return ram_style(family, depth, width)
    rows, lanes, _ = _LUTRAM[family]
    logic = 4 * math.ceil(depth / rows) * math.ceil(width / lanes)
    return "block" if logic > 128 * bram_count(family, depth, width) else "distributed"


@lru_cache(KNOWN)
def rom_style(family: str, depth: int, width: int, style: str = "auto") -> str:
    """`distributed` or `block` for a read-only memory; `auto` is made definite."""
    costs = rom_luts(family, depth, width), bram_count(family, depth, width)
    return choose_style(style, *costs)


def choose_style(style: str, luts: float, brams: float) -> str:
    """Block RAM where the LUT version would take more LUTs than the block RAMs are worth."""
    if style != "auto":
        return style
    return "block" if luts > _LUTS_WORTH_A_BRAM * brams else "distributed"


_CELL_BITS = 1024  # widest cell, where a word is not wider
_GOOD = 0.9  # share of the best packing that a narrower cell must reach


def packing(word_bits: int, words: int, data_bits: int) -> tuple[int, int]:
    """(cell_beats, cell_words): how weight words lie in memory words.

    The narrowest cell whose share of useful bits is nearly the best; the words of a cell divide
    all words, so that none is left over at the end.
    """
    least = math.ceil(word_bits / data_bits)
    found: list[tuple[float, int, int]] = []
    for beats in range(least, max(least, _CELL_BITS // data_bits) + 1):
        fitting = beats * data_bits // word_bits
        count = next(d for d in range(min(fitting, words), 0, -1) if words % d == 0)
        found.append((count * word_bits / (beats * data_bits), beats, count))
    best = max(share for share, _, _ in found)
    return next((beats, count) for share, beats, count in found if share >= _GOOD * best)


# Operand widths (signed) of one hardware multiplier, and what one counts as.
_MULTIPLIER: dict[str, tuple[int, int, float]] = {
    "ecp5": (18, 18, 1.0),
    "ice40": (16, 16, 1.0),
    "xc7": (25, 18, 1.0),
    "xcup": (27, 18, 1.0),
    "cyclonev": (18, 18, 0.5),
}


def dsp_count(family: str, a_bits: int, b_bits: int) -> float:
    """Hardware multipliers of one signed product of these widths."""
    wide, narrow, cost = _MULTIPLIER[family]
    long, short = max(a_bits, b_bits), min(a_bits, b_bits)
    return math.ceil(long / wide) * math.ceil(short / narrow) * cost


def fits_multiplier(family: str, a_bits: int, b_bits: int) -> bool:
    """Whether one hardware multiplier holds signed operands of these widths."""
    wide, narrow, _ = _MULTIPLIER[family]
    return max(a_bits, b_bits) <= wide and min(a_bits, b_bits) <= narrow


def multiplier_cost(family: str) -> float:
    """What one hardware multiplier counts as."""
    return _MULTIPLIER[family][2]
