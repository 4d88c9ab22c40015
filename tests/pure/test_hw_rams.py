# SPDX-License-Identifier: Apache-2.0
"""Deep read-write memories in rows: no block RAM more, and no row that needs a choice itself."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.hw.memory import FAMILIES, block_shapes, bram_count, ram_resources
from bitwright.hw.rams import ram_lines, rows_resources

SHAPES = block_shapes("ecp5")


def _side_by_side(words: int, bits: int) -> int:
    """Block RAMs that are all as deep as the memory."""
    return math.ceil(bits / max(width for depth, width in SHAPES if depth >= words))


@given(st.integers(1, 200_000), st.integers(1, 200))
def test_block_rams_are_as_few_as_without_rows(words: int, bits: int) -> None:
    lines, least = ram_lines(words, bits, "block"), bram_count("ecp5", words, bits)
    if not lines:
        assert _side_by_side(words, bits) == least  # nothing to choose
        return
    assert lines in {depth for depth, _ in SHAPES} and lines < words
    whole, rest = divmod(words, lines)
    parts = [lines] * whole + [rest] * (rest > 0)
    assert sum(_side_by_side(part, bits) for part in parts) <= least


@pytest.mark.parametrize(
    ("words", "bits", "lines"),
    [
        (16_384, 4, 0),  # four of 16 384 x 1
        (8_016, 4, 0),
        (600, 36, 0),  # two of 1 024 x 18
        (115_200, 4, 16_384),  # the buffer of SkyNet's last window: 8 rows and not 29
        (5_000, 9, 2_048),  # more words in a row would leave the ninth bits out
        (1_100, 32, 1_024),
    ],
)
def test_rows_of_block_ram_are_as_deep_as_they_can_be(words: int, bits: int, lines: int) -> None:
    assert ram_lines(words, bits, "block") == lines


@pytest.mark.parametrize(("words", "lines"), [(1, 0), (128, 0), (129, 64), (480, 64)])
def test_deep_lut_ram_has_rows(words: int, lines: int) -> None:
    assert ram_lines(words, 8, "distributed") == lines
    assert ram_lines(words, 8, "auto") == 0  # its place is not known yet


@pytest.mark.parametrize("style", ["distributed", "block"])
def test_a_shallow_memory_costs_nothing_more(style: str) -> None:
    whole = [ram_resources(family, 100, 8, style) for family in FAMILIES]
    assert [rows_resources(family, 100, 8, style) for family in FAMILIES] == whole
    deep, kept = (cost("ecp5", 20_000, 4, style) for cost in (rows_resources, ram_resources))
    assert deep.ff > kept.ff and deep.bram == kept.bram
    assert (deep.lut > kept.lut) is (style == "block")


@given(st.sampled_from(FAMILIES), st.integers(1, 40_000), st.integers(1, 200))
def test_block_ram_of_rows_is_that_of_each_row(family: str, words: int, bits: int) -> None:
    lines = ram_lines(words, bits, "block") or words
    parts = [min(lines, words - start) for start in range(0, words, lines)]
    need = rows_resources(family, words, bits, "block").bram
    assert need == sum(bram_count(family, part, bits) for part in parts)
    assert family != "ecp5" or need <= bram_count(family, words, bits)


def test_rows_may_take_fewer_or_more() -> None:
    for family, words, bits, rows, whole in (
        ("ecp5", 3_351, 256, 53, 56),
        ("cyclonev", 15_549, 32, 61, 56),
    ):
        assert rows_resources(family, words, bits, "block").bram == rows
        assert bram_count(family, words, bits) == whole
