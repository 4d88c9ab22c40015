# SPDX-License-Identifier: Apache-2.0
"""Formats against an independent definition in rationals: every format of up to eight bits."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import FormatError
from bitwright.formats import (
    BipolarFormat,
    FixedFormat,
    Format,
    IntegerFormat,
    Overflow,
    Rounding,
    TernaryFormat,
    list_formats,
    parse_format,
    parse_overflow,
    parse_rounding,
    round_to_int,
)

DETERMINISTIC = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]


def small_formats() -> list[Format]:
    """Every integer format of up to 8 bits, and a spread of the other families."""
    found: list[Format] = [BipolarFormat(), TernaryFormat()]
    for bits in range(1, 9):
        found += [IntegerFormat(bits, False), IntegerFormat(bits, True)]
        found += [IntegerFormat(bits, True, narrow=True)] if bits > 1 else []
        for integer in (-2, bits + 3):
            found += [FixedFormat(bits, integer, True), FixedFormat(bits, integer, False)]
    return found


def exact_round(x: Fraction, mode: Rounding) -> int:
    """The rounding table of the documentation, in exact arithmetic."""
    low, high = math.floor(x), math.ceil(x)
    away = high if x > 0 else low
    towards = low if x > 0 else high
    if mode in (Rounding.FLOOR, Rounding.CEIL, Rounding.UP, Rounding.DOWN):
        return {"floor": low, "ceil": high, "up": away, "down": towards}[mode.value]
    if x - low != Fraction(1, 2):
        return low if x - low < Fraction(1, 2) else high
    ties = {
        Rounding.HALF_EVEN: low if low % 2 == 0 else high,
        Rounding.HALF_AWAY: away,
        Rounding.HALF_ZERO: towards,
        Rounding.HALF_UP: high,
        Rounding.HALF_DOWN: low,
    }
    return ties[mode]


def exact_levels(
    number_format: Format, values: list[int], overflow: Overflow, signs: np.ndarray
) -> list[int]:
    """Levels of rounded values; bipolar looks at the sign alone."""
    if isinstance(number_format, BipolarFormat):
        return [1 if positive else -1 for positive in signs]
    low, high = number_format.min_level, number_format.max_level
    if overflow is Overflow.WRAP:
        return [(value - low) % (high - low + 1) + low for value in values]
    if overflow is Overflow.SAT_SYM and low < 0:
        low = -high
    return [min(max(value, low), high) for value in values]


def interesting(number_format: Format) -> np.ndarray:
    """Every level, every tie, their neighbours in float64, and what lies beyond the ends."""
    span = range(2 * number_format.min_level - 3, 2 * number_format.max_level + 4)
    points = np.array([k / 2 for k in span]) * number_format.lsb
    near = [np.nextafter(points, -np.inf), points, np.nextafter(points, np.inf)]
    found = np.concatenate([*near, points[::3] * 2.75, points[::3] * 1000.5])
    # The division by a step above 1 may underflow below this; that is outside the definition.
    found = np.where((found != 0) & (np.abs(found) < 1e-300), np.copysign(1e-300, found), found)
    return np.concatenate([found, [0.0, -0.0]])


def can(number_format: Format, overflow: Overflow) -> bool:
    try:
        number_format.check(overflow)
    except FormatError:
        return False
    return True


@pytest.mark.parametrize("number_format", small_formats(), ids=str)
def test_encode_is_the_rational_definition(number_format: Format) -> None:
    x = interesting(number_format)
    ratios = [Fraction(v) / Fraction(number_format.lsb) for v in x.tolist()]
    for mode in DETERMINISTIC:
        rounded = [exact_round(ratio, mode) for ratio in ratios]
        for overflow in (o for o in Overflow if can(number_format, o)):
            codes = number_format.encode(x, rounding=mode, overflow=overflow)
            expected = exact_levels(number_format, rounded, overflow, x >= 0)
            assert number_format.levels(codes).tolist() == expected, (mode, overflow)


@pytest.mark.parametrize("number_format", small_formats(), ids=str)
def test_every_code_survives_the_round_trips(number_format: Format) -> None:
    codes = np.arange(number_format.min_code, number_format.max_code + 1)
    levels = number_format.levels(codes)
    assert np.array_equal(number_format.codes(levels), codes)
    assert levels.min() == number_format.min_level and levels.max() == number_format.max_level
    assert np.array_equal(number_format.from_bits(number_format.to_bits(codes)), codes)
    assert 0 <= number_format.to_bits(codes).min()
    assert number_format.to_bits(codes).max() < 1 << number_format.bits
    for scale in (1.0, 0.1, 3e-5):
        reals = number_format.decode(codes, scale)
        assert np.array_equal(number_format.encode(reals, scale), codes)
    assert parse_format(number_format.name) == number_format
    assert (0 in levels) == number_format.zero_is_representable
    assert set(np.diff(np.sort(levels)).tolist()) <= {number_format.level_step}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("INT4", "int4"),
        ("UINT8", "uint8"),
        ("BIPOLAR", "bipolar"),
        ("TERNARY", "ternary"),
        ("BINARY", "uint1"),
        ("FIXED<8,3>", "fixed<8,3>"),
        ("ufixed< 8, -2 >", "ufixed<8,-2>"),
        (" int4n ", "int4n"),
    ],
)
def test_aliases(text: str, name: str) -> None:
    assert parse_format(text).name == name


def test_every_listed_example_parses_to_itself() -> None:
    for family in list_formats():
        for example in family.examples:
            assert parse_format(example).name == example


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("int17", "1 to 16"),
        ("int0", "1 to 16"),
        ("int1n", "narrow"),
        ("uint4n", "narrow"),
        ("fixed<40,3>", "1 to 16"),
        ("e9m9", "no float has"),
        ("", "unknown format"),
        ("fixed<8>", "unknown format"),
    ],
)
def test_bad_names_say_why(text: str, part: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_format(text)
    assert part in str(caught.value)


def test_table_of_rounding_modes() -> None:
    x = np.array([2.5, -2.5, 2.7, -2.7])
    rows = {
        Rounding.HALF_EVEN: [2, -2, 3, -3],
        Rounding.HALF_AWAY: [3, -3, 3, -3],
        Rounding.HALF_ZERO: [2, -2, 3, -3],
        Rounding.HALF_UP: [3, -2, 3, -3],
        Rounding.HALF_DOWN: [2, -3, 3, -3],
        Rounding.FLOOR: [2, -3, 2, -3],
        Rounding.CEIL: [3, -2, 3, -2],
        Rounding.UP: [3, -3, 3, -3],
        Rounding.DOWN: [2, -2, 2, -2],
    }
    for mode, expected in rows.items():
        assert round_to_int(x, mode).tolist() == expected


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(DETERMINISTIC))
def test_rounding_is_exact_for_every_double(x: float, mode: Rounding) -> None:
    assert int(round_to_int(x, mode)) == exact_round(Fraction(x), mode)


def test_rounding_near_a_half_does_not_slip() -> None:
    below = math.nextafter(0.5, 0)
    for mode in (Rounding.HALF_UP, Rounding.HALF_AWAY, Rounding.HALF_EVEN):
        assert round_to_int(below, mode) == 0
        assert round_to_int(-below, mode) == 0


def test_stochastic_rounding_has_the_right_mean_and_neighbours() -> None:
    rng = np.random.default_rng(7)
    rounded = round_to_int(np.full(20000, 3.3), Rounding.STOCHASTIC, rng)
    assert set(rounded.tolist()) == {3.0, 4.0}
    assert abs(rounded.mean() - 3.3) < 0.02
    signs = BipolarFormat().encode(np.full(20000, 0.5), rounding=Rounding.STOCHASTIC, rng=rng)
    assert abs(signs.mean() - 0.75) < 0.02
    with pytest.raises(FormatError):
        round_to_int(1.5, Rounding.STOCHASTIC)


def test_qonnx_names() -> None:
    assert Rounding.from_qonnx("ROUND") is Rounding.HALF_EVEN
    assert Rounding.from_qonnx("HALF_UP") is Rounding.HALF_AWAY  # QONNX's word, not ours
    assert Rounding.from_qonnx("HALF_DOWN") is Rounding.HALF_ZERO
    with pytest.raises(FormatError):
        Rounding.from_qonnx("sideways")
    assert parse_rounding("ROUND") is Rounding.HALF_EVEN
    assert parse_rounding("half_up") is Rounding.HALF_UP
    assert parse_overflow("SAT_SYM") is Overflow.SAT_SYM
    with pytest.raises(FormatError):
        parse_rounding("sideways")
    with pytest.raises(FormatError):
        parse_overflow("explode")


def test_zero_point_moves_codes_not_reals() -> None:
    number_format = parse_format("uint8")
    x = np.linspace(-1, 1, 41)
    codes = number_format.encode(x, 2 / 255, 128)
    assert codes.min() == 0 and codes.max() == 255
    assert np.array_equal(number_format.levels(codes, 128), codes - 128)
    assert np.abs(number_format.decode(codes, 2 / 255, 128) - x).max() <= 1 / 255 + 1e-12
    with pytest.raises(FormatError):
        parse_format("bipolar").encode([0.5], zero_point=1)


def test_scale_per_channel_broadcasts() -> None:
    scale = np.array([[0.5], [2.0]])
    codes = parse_format("int4").encode(np.array([[1.0, 2.0], [1.0, 2.0]]), scale)
    assert codes.tolist() == [[2, 4], [0, 1]]


@pytest.mark.parametrize("centroid", ["9" * 90, str(1 << 63), "128"])
def test_centroids_are_of_their_format(centroid: str) -> None:
    for first in (f"{{0,1,2,{centroid}}}", f"{{-{centroid},-129,1,2}}"):
        with pytest.raises(FormatError, match="centroid"):
            parse_format(f"cb4:int8{first}")


def test_bad_values_are_refused() -> None:
    number_format = parse_format("int4")
    for scale in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(FormatError):
            number_format.encode([1.0], scale)
    with pytest.raises(FormatError):
        number_format.encode([np.nan])
    with pytest.raises(FormatError):
        number_format.encode([np.inf], overflow=Overflow.WRAP)
    assert number_format.encode([np.inf, -np.inf]).tolist() == [7, -8]
    with pytest.raises(FormatError):
        number_format.levels([8])
    with pytest.raises(FormatError):
        number_format.codes([0.5])
    with pytest.raises(FormatError):
        parse_format("ternary").from_bits([2])
    with pytest.raises(FormatError):
        parse_format("int4n").encode([1.0], overflow=Overflow.WRAP)


def test_formats_are_values() -> None:
    assert parse_format("int4") == IntegerFormat(4, True)
    assert parse_format("int4") != parse_format("int4n")
    assert len({parse_format("int4"), parse_format("INT4")}) == 1
    with pytest.raises(AttributeError):
        parse_format("int4").width = 5  # type: ignore[attr-defined]
