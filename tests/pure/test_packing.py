# SPDX-License-Identifier: Apache-2.0
"""Codes of any width as a string of bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import FormatError
from bitwright.formats import parse_format
from bitwright.formats.packing import pack, packed_size, unpack


def slow_pack(codes: list[int], bits: int) -> bytes:
    """The definition, as text."""
    text = "".join(f"{code:0{bits}b}" for code in codes)
    text += "0" * (-len(text) % 8)
    return bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))


@pytest.mark.parametrize("bits", range(1, 17))
def test_every_code_of_every_width(bits: int) -> None:
    codes = np.arange(1 << bits)
    packed = pack(codes, bits)
    assert packed.tobytes() == slow_pack(codes.tolist(), bits)
    assert np.array_equal(unpack(packed, bits, len(codes)), codes)


@given(st.integers(1, 16), st.data())
def test_any_codes_come_back(bits: int, data) -> None:
    codes = data.draw(st.lists(st.integers(0, (1 << bits) - 1), max_size=40))
    packed = pack(codes, bits)
    assert packed.dtype == np.uint8 and len(packed) == packed_size(len(codes), bits)
    assert packed.tobytes() == slow_pack(codes, bits)
    assert unpack(packed, bits, len(codes)).tolist() == codes


@pytest.mark.parametrize(
    "name", ["int3", "int8n", "ternary", "bipolar", "fixed<7,2>", "e4m3", "e5m2", "po2_5<zero>"]
)
def test_codes_of_formats_travel_as_their_bits(name: str) -> None:
    number_format = parse_format(name)
    codes = number_format.codes(number_format.grid())
    packed = pack(number_format.to_bits(codes), number_format.bits)
    back = number_format.from_bits(unpack(packed, number_format.bits, len(codes)))
    assert np.array_equal(number_format.levels(back), number_format.grid())


def test_shape_is_forgotten() -> None:
    codes = np.arange(12).reshape(3, 4)
    assert np.array_equal(unpack(pack(codes, 4), 4, 12), np.arange(12))


def test_bad_input() -> None:
    with pytest.raises(FormatError, match="8 is no code of 3 bits"):
        pack([8], 3)
    with pytest.raises(FormatError, match="-1 is no code"):
        pack([-1], 3)
    with pytest.raises(FormatError, match="integer"):
        pack([0.5], 3)
    for bits in (0, 17, True, 2.0):
        with pytest.raises(FormatError, match="can be packed"):
            pack([0], bits)
    packed = pack([1, 2, 3], 3)
    with pytest.raises(FormatError, match="6 codes of 3 bits are 3 bytes"):
        unpack(packed, 3, 6)
    with pytest.raises(FormatError, match="beyond the last"):
        unpack(np.array([0, 0b11], np.uint8), 3, 3)
    with pytest.raises(FormatError):
        unpack(packed.astype(np.int64), 3, 3)
    with pytest.raises(FormatError):
        unpack(packed, 3, -1)
