# SPDX-License-Identifier: Apache-2.0
"""Deep read-write memories as rows of shallower ones, each with a register (module `mem_rows`).

A memory deeper than one block RAM, or than LUT RAM that is fast enough, needs a choice between
its parts. Synthesis puts it right behind the memory, so that the memory's clock-to-output time and
a tree of multiplexers share a cycle. Where two registers stand behind a memory anyway (the buffers
of windows, upsamplings and FIFOs), rows have the choice behind one of them at no cycle more.
"""

from __future__ import annotations

import math

from bitwright.base.figures import Resources
from bitwright.hw.memory import block_shapes, bram_count, ram_resources

_WHOLE_LUTS = 128  # words of LUT RAM that are read in one cycle
_LUT_LINES = 64  # of a deeper one: four or fewer LUT RAMs, whose multiplexer is a slice's own
_CHOICE = {"ecp5": 1.0, "ice40": 1.0}  # LUTs that take one row more into a bit's choice; else 1/3
_SHAPES = block_shapes("ecp5")  # those of UltraScale+, too


def ram_lines(words: int, bits: int, style: str) -> int:
    """Words of a row; 0: the memory is kept whole.

    Of block RAM as many as take no block RAM more than the best arrangement: bits side by side,
    which need no choice, come first.

    Args:
        style: `distributed` or `block`; another one is kept whole.
    """
    if style == "distributed":
        return _LUT_LINES if words > _WHOLE_LUTS else 0
    if style != "block":
        return 0
    least = bram_count("ecp5", words, bits)
    if _columns(words, bits) == least:
        return 0
    return next(
        (depth for depth, _ in _SHAPES if depth < words and _in_rows(words, bits, depth) <= least),
        0,
    )


def _columns(words: int, bits: int) -> float:
    """Block RAMs side by side, each as deep as the memory; infinite where there are none."""
    widths = [width for depth, width in _SHAPES if depth >= words]
    return math.ceil(bits / max(widths)) if widths else math.inf


def _in_rows(words: int, bits: int, lines: int) -> float:
    whole, rest = divmod(words, lines)
    return whole * _columns(lines, bits) + (_columns(rest, bits) if rest else 0)


def rows_resources(family: str, words: int, bits: int, style: str) -> Resources:
    """A memory that may be in rows: the choice between them and its registers included, the two
    that stand behind any not.

    The rows are those of ECP5 on all families: block RAM of others may be one or two more, or
    fewer, than of a memory that is kept whole (`memory.ram_resources`).
    """
    lines, whole = ram_lines(words, bits, style), ram_resources(family, words, bits, style)
    if not lines:
        return whole
    rows = math.ceil(words / lines)
    select = (rows - 1).bit_length()
    if style == "distributed":  # the choice is that of the memory's words, partly moved
        inside = family == "cyclonev"  # Yosys makes block RAM of it, which has the register
        return whole + Resources(ff=select if inside else (rows - 1) * bits + select)
    full, rest = divmod(words, lines)
    brams = full * bram_count(family, lines, bits)
    brams += bram_count(family, rest, bits) if rest else 0
    choice = bits * (rows - 1) * _CHOICE.get(family, 1 / 3)
    return Resources(lut=choice, ff=2 * select, bram=brams)
