# SPDX-License-Identifier: Apache-2.0
"""Deep ROMs as wide ones: every word comes back, and no memory takes more block RAMs for it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import GraphError
from bitwright.hw.memory import FAMILIES, Memory, block_shapes, bram_count, rom_brams, rom_style
from bitwright.hw.roms import Rom, rom_of

_STYLES = st.sampled_from(("distributed", "block"))


@given(st.sampled_from(FAMILIES), st.integers(1, 30000), st.integers(1, 3), _STYLES)
def test_every_word_stands_where_the_module_looks(
    family: str, depth: int, width: int, style: str
) -> None:
    rom = rom_of(family, depth, width, style)
    bits = np.random.default_rng(depth).integers(0, 2, (depth, width), dtype=np.uint8)
    lines = rom.arranged(Memory(bits, "words"))
    assert lines.bits.shape == (rom.lines, rom.rows * width)
    assert np.array_equal(rom.words(lines).bits, bits)
    number = np.arange(depth)
    row, line = number // rom.lines, number % rom.lines
    found = lines.bits.reshape(rom.lines, rom.rows, width)[line, row]
    assert np.array_equal(found, bits)


@given(st.sampled_from(FAMILIES), st.integers(1, 40000), st.integers(1, 200))
def test_block_rams_with_rows_are_as_few_as_without(family: str, depth: int, width: int) -> None:
    rom = rom_of(family, depth, width, "block")
    used = rom.resources(family, "block")
    assert used.bram == rom_brams(family, depth, width) <= bram_count(family, depth, width)
    whole = [math.ceil(width / w) for d, w in block_shapes(family) if d >= depth]
    if whole and min(whole) == used.bram:
        assert rom.rows == 1  # a word comes out of one line of block RAMs, nothing behind them
    elif rom.rows > 1:
        assert any(d >= rom.lines for d, _ in block_shapes(family))


@given(st.sampled_from(FAMILIES), st.integers(1, 65536), st.integers(1, 64))
def test_no_look_up_table_is_deeper_than_a_cycle_reads(family: str, depth: int, width: int) -> None:
    rom = rom_of(family, depth, width, "distributed")
    assert rom.lines <= 256
    assert (rom.rows == 1) is (depth <= 256)
    assert rom.choices == (0 if depth <= 256 else 1 if rom.rows <= 16 else 2)
    if rom.rows > 1:
        plain = Rom(depth, width).resources(family, "distributed")
        assert rom.resources(family, "distributed").ff >= plain.ff + rom.rows * width


def test_lines_of_another_size_are_refused() -> None:
    rom = Rom(20, 3, 3)
    with pytest.raises(GraphError, match="expected 8 lines of 9 bits, found 20 of 3"):
        rom.words(Memory(np.zeros((20, 3), dtype=np.uint8), "words"))


def test_the_case_of_skynet() -> None:
    """11 520 words of 4 bits: 45 rows of look-up tables; in block RAMs no more than bits need."""
    assert rom_style("ecp5", 11520, 4, "distributed") == "distributed"
    luts = rom_of("ecp5", 11520, 4, "distributed")
    assert (luts.rows, luts.lines, luts.choices) == (45, 256, 2)
    block = rom_of("ecp5", 11520, 4, "block")
    assert (block.rows, block.lines) == (3, 4096)
    assert block.resources("ecp5", "block").bram == 3
