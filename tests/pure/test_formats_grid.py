# SPDX-License-Identifier: Apache-2.0
"""Minifloat, power of two, codebook, block: exhaustive up to 8 bits."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import FormatError
from bitwright.formats import (
    BlockFormat,
    CodebookFormat,
    Format,
    MinifloatFormat,
    Overflow,
    PowerOfTwoFormat,
    Rounding,
    parse_format,
    ristretto_minifloat,
)

NEAREST = (
    Rounding.HALF_EVEN,
    Rounding.HALF_AWAY,
    Rounding.HALF_ZERO,
    Rounding.HALF_UP,
    Rounding.HALF_DOWN,
)


def minifloats() -> list[str]:
    """Every minifloat of up to 8 bits, each with and without denormals and special codes."""
    names = []
    for exponent in range(1, 8):
        for mantissa in range(8 - exponent):
            for options in ("", "<finite>", "<nan>", "<ieee>", "<flush>", "<finite,flush>"):
                try:
                    names.append(parse_format(f"e{exponent}m{mantissa}{options}"))
                except FormatError:
                    continue
    return sorted({f.name for f in names if f.exact_levels and f.max_level < 1 << 52})


POWERS = [f"po2_{n}{o}" for n in range(2, 7) for o in ("", "<zero>", "<linear>", "<zero,linear>")]
BOOKS = ["cb2{-3,5}", "cb4{-7,-2,1,6}", "cb8:int8{-127,-3,0,9,88}", "cb16:e4m3{-256,0,3,448}"]
ALL = [*minifloats(), *POWERS, *BOOKS, "mxfp8", "mxfp6_e3m2", "mxfp4", "mxint8"]


@pytest.mark.parametrize("name", ALL)
def test_every_code_survives_and_every_level_has_one(name: str) -> None:
    f = parse_format(name)
    assert parse_format(f.name) == f
    grid = f.grid()
    assert (np.diff(grid) > 0).all()
    assert (grid[0], grid[-1]) == (f.min_level, f.max_level)
    codes = f.codes(grid)
    assert np.array_equal(f.levels(codes), grid)
    assert np.array_equal(f.from_bits(f.to_bits(codes)), codes)
    assert np.array_equal(f.encode(grid * f.lsb), codes)
    assert np.array_equal(f.decode(codes, 0.5), grid * f.lsb * 0.5)
    assert f.contains(grid).all()
    beyond = np.setdiff1d(np.arange(grid[0] - 3, min(grid[-1] + 4, grid[0] + 70000)), grid)
    assert not f.contains(beyond).any()
    for level in (int(grid[0]) - 1, int(grid[-1]) + 1):
        with pytest.raises(FormatError):
            f.codes([level])


def value(f: MinifloatFormat, code: int) -> Fraction | None:
    """The textbook value of a code, by exact fractions; None for infinities and NaN."""
    sign = -1 if code >> (f.exponent + f.mantissa) else 1
    field = (code >> f.mantissa) & ((1 << f.exponent) - 1)
    rest = Fraction(code & ((1 << f.mantissa) - 1), 1 << f.mantissa)
    if field == (1 << f.exponent) - 1:
        full = rest == Fraction((1 << f.mantissa) - 1, 1 << f.mantissa)
        if f.specials == "ieee" or (f.specials == "nan" and full):
            return None
    two = Fraction(2)
    if f.denormals and field == 0:
        return sign * rest * two ** (1 - f.point)
    if not f.denormals and field == 0 and rest == 0:
        return Fraction(0)
    return sign * (1 + rest) * two ** (field - f.point)


@pytest.mark.parametrize("name", minifloats())
def test_minifloat_codes_have_their_textbook_values(name: str) -> None:
    f = parse_format(name)
    assert isinstance(f, MinifloatFormat)
    for code in range(1 << f.bits):
        expected = value(f, code)
        got = float(f.decode(code))
        if expected is None:
            assert not math.isfinite(got)
            with pytest.raises(FormatError, match="infinity or NaN"):
                f.levels([code])
        else:
            assert Fraction(got) == expected
            assert Fraction(int(f.levels(code))) * Fraction(f.lsb) == expected


def expected_level(f: Format, x: Fraction, mode: Rounding) -> set[int]:
    """What nearest rounding may give: by definition of distance, over all levels."""
    grid = [int(level) for level in f.grid()]
    best = min(abs(x - level) for level in grid)
    near = [level for level in grid if abs(x - level) == best]
    if len(near) == 1 or mode is Rounding.HALF_EVEN:
        return set(near)
    chosen = {
        Rounding.HALF_UP: max(near),
        Rounding.HALF_DOWN: min(near),
        Rounding.HALF_AWAY: max(near, key=abs),
        Rounding.HALF_ZERO: min(near, key=abs),
    }[mode]
    return {chosen}


@pytest.mark.parametrize("mode", NEAREST)
@pytest.mark.parametrize(
    "name", ["e4m3", "e5m2", "e2m1", "e3m0", "e3m2<finite,flush>", "po2_4<zero,linear>", BOOKS[1]]
)
def test_nearest_rounding_at_and_beside_every_middle(name: str, mode: Rounding) -> None:
    f = parse_format(name)
    grid = f.grid().astype(np.float64)
    middles = (grid[1:] + grid[:-1]) / 2
    points = np.concatenate(
        [grid, middles, np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf)]
    )
    if isinstance(f, MinifloatFormat) and not f.denormals:
        points = points[np.abs(points) > (1 << f.mantissa) + 1]  # below, it flushes
    got = f.levels(f.encode(points * f.lsb, rounding=mode))
    assert points.size
    step = max(1, len(points) // 300)
    for x, level in zip(points[::step], got[::step], strict=True):
        assert int(level) in expected_level(f, Fraction(float(x)), mode), (x, level)


@pytest.mark.parametrize("name", ["e4m3", "e2m1", "po2_4<zero>", "cb4{-7,-2,1,6}", "mxfp4"])
def test_directed_rounding_keeps_its_direction(name: str) -> None:
    f = parse_format(name)
    grid = f.grid()
    x = np.random.default_rng(0).uniform(float(grid[0]), float(grid[-1]), 500)
    x = np.concatenate([x, x / 100, grid.astype(np.float64)])
    x = np.clip(x, float(grid[0]), float(grid[-1]))
    down = f.levels(f.encode(x * f.lsb, rounding=Rounding.FLOOR))
    up = f.levels(f.encode(x * f.lsb, rounding=Rounding.CEIL))
    zero = f.levels(f.encode(x * f.lsb, rounding=Rounding.DOWN))
    assert (down <= x).all() and (x <= up).all()
    # Nothing of the format lies between.
    assert np.array_equal(down, grid[np.searchsorted(grid, x, side="right") - 1])
    assert np.array_equal(up, grid[np.searchsorted(grid, x, side="left")])
    assert (np.abs(zero)[(down < 0) == (up <= 0)] <= np.abs(x)[(down < 0) == (up <= 0)]).all()


@pytest.mark.parametrize("name", ["e4m3", "e3m2<finite,flush>", "po2_4<zero>", "cb4{-7,-2,1,6}"])
def test_stochastic_rounding_is_seeded_and_unbiased(name: str) -> None:
    f = parse_format(name)
    grid = f.grid()
    low, high = int(grid[-2]), int(grid[-1])
    x = np.full(20000, (0.3 * high + 0.7 * low) * f.lsb)
    one = f.quantized(x, rounding=Rounding.STOCHASTIC, rng=np.random.default_rng(5))
    two = f.quantized(x, rounding=Rounding.STOCHASTIC, rng=np.random.default_rng(5))
    assert np.array_equal(one, two)
    share = float((one == high * f.lsb).mean())
    expected = 0.3
    if isinstance(f, PowerOfTwoFormat):  # unbiased in the logarithm
        expected = math.log2(x[0] / (low * f.lsb))
    # Six standard deviations: a false alarm once in 5e8 runs.
    assert abs(share - expected) < 6 * math.sqrt(expected * (1 - expected) / len(x))


def test_ocp_and_ristretto_ranges() -> None:
    for name, smallest, largest in (
        ("e4m3", 2.0**-9, 448.0),
        ("e5m2", 2.0**-16, 57344.0),
        ("e2m1", 0.5, 6.0),
        ("e2m3", 0.125, 7.5),
        ("e3m2", 0.0625, 28.0),
    ):
        f = parse_format(name)
        reals = f.grid() * f.lsb
        assert (reals[reals > 0][0], reals[-1]) == (smallest, largest)
        assert float(f.quantized(1e30)) == largest
        assert float(f.quantized(-math.inf)) == -largest
    for exponent, mantissa, smallest, largest in ((4, 3, 2.0**-7, 480.0), (5, 2, 2.0**-15, 114688)):
        x = np.array([smallest, np.nextafter(smallest, 0), -smallest, 1e30, 0.0])
        got = ristretto_minifloat(x, exponent, mantissa)
        assert got.tolist() == [smallest, 0.0, -smallest, largest, 0.0]
        own = parse_format(f"e{exponent}m{mantissa}<finite,flush>")
        assert own.max_level * own.lsb == largest
        # The one difference: what Ristretto calls the smallest number is the code of zero.
        assert float(own.quantized(smallest)) == 0.0


def test_ristretto_equals_the_format_above_its_smallest_binade() -> None:
    f = parse_format("e4m3<finite,flush>")
    x = np.random.default_rng(1).normal(size=5000) * 3
    x = x[np.abs(x) >= 1.0625 * 2.0**-7]
    assert np.array_equal(f.quantized(x, rounding=Rounding.HALF_AWAY), ristretto_minifloat(x, 4, 3))


def test_power_of_two_rounds_the_logarithm() -> None:
    f = parse_format("po2_4")
    middle = math.sqrt(2)
    x = np.array([0.0, 0.01, 1.41421, 1.41422, 5.65, 5.66, 1000, -1.41422])
    assert f.quantized(x).tolist() == [1, 1, 1, 2, 4, 8, 128, -2]
    assert middle > 1.41421
    assert f.quantized(2.0**-20 * 3, scale=2.0**-20) == 2.0**-18
    linear = parse_format("po2_4<linear>")
    assert linear.quantized([1.49, 1.51, 2.99, 3.01]).tolist() == [1, 2, 2, 4]
    zero = parse_format("po2_4<zero>")
    assert zero.quantized([0.0, 0.49, 0.5, 0.51, -0.51, 300]).tolist() == [0, 0, 0, 1, -1, 64]


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=16, unique=True))
def test_a_fitted_codebook_holds_its_centroids(centroids: list[float]) -> None:
    book = parse_format("cb16")
    assert isinstance(book, CodebookFormat)
    scale = book.scale_for(centroids)
    fitted = book.fitted(centroids)
    assert parse_format(fitted.name) == fitted
    assert fitted.unfitted == book
    error = np.abs(fitted.quantized(centroids, scale) - centroids)
    assert (error <= max(scale * fitted.lsb, 1e-300)).all()


def test_float_centroids_are_simulated_exactly() -> None:
    book = parse_format("cb4:e8m23")
    assert isinstance(book, CodebookFormat)
    reals = np.array([-0.1, 1e-3, 0.7], dtype=np.float32).astype(np.float64)
    fitted = book.fitted(reals)
    assert parse_format(fitted.name) == fitted
    assert not fitted.exact_levels
    assert np.array_equal(fitted.quantized(reals), reals)
    with pytest.raises(FormatError, match="62 bits"):
        fitted.levels([0])


def test_blocks_share_the_exponent_of_the_standard() -> None:
    f = parse_format("mxfp4")
    assert isinstance(f, BlockFormat)
    assert (f.block, f.bits, f.top_exponent) == (32, 4, 2)
    x = np.concatenate([np.linspace(-6, 6, 32), np.zeros(32), np.linspace(-0.1, 0.7, 16)])
    assert f.block_exponents(x).tolist() == [0, -127, -3]
    scales = f.block_scales(x)
    assert scales.shape == x.shape
    quantized = f.quantized(x, scales)
    assert float(np.abs(quantized - x)[:32].max()) <= 1.0
    assert (quantized[32:64] == 0).all()
    stacked = f.block_scales(np.stack([x, x * 4]).T, axis=0)
    assert np.array_equal(stacked[:, 0], scales)
    with pytest.raises(FormatError, match="NaN or infinity"):
        f.block_exponents([1.0, math.nan])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("e0m0", "no float has"),
        ("e0m3", "without exponent bits use fixed"),
        ("e9m3", "no float has"),
        ("e4m24", "no float has"),
        ("e1m0<ieee>", "no number but zero"),
        ("e4m3<bias=9999>", "out of range"),
        ("e4m3<nonsense>", "unknown option"),
        ("po2_1", "no power-of-two format"),
        ("po2_7", "no power-of-two format"),
        ("po2_4<up>", "unknown option"),
        ("cb1", "impossible"),
        ("cb99999", "impossible"),
        ("cb2{1,2,3}", "cannot have 3 centroids"),
        ("cb4{2,1}", "ascending"),
        ("cb4:int4{-100,1}", "no int4"),
        ("cb4:cb4", "centroids cannot be"),
        ("mx<cb4{1,2},32>", "element of a block"),
        ("mx<e4m3,1>", "block of 1"),
        ("mx<mxfp4,32>", "element of a block"),
    ],
)
def test_impossible_formats_say_why(name: str, said: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_format(name)
    assert said in f"{caught.value} {caught.value.hint}"


def test_what_a_grid_cannot_do_is_refused() -> None:
    f = parse_format("e4m3")
    with pytest.raises(FormatError, match="NaN"):
        f.encode(math.nan)
    with pytest.raises(FormatError, match="wrap"):
        f.encode(1.0, overflow=Overflow.WRAP)
    with pytest.raises(FormatError, match="zero point"):
        f.encode(1.0, zero_point=3)
    with pytest.raises(FormatError, match="no table"):
        parse_format("cb16").encode(1.0)
    with pytest.raises(FormatError, match="generator"):
        f.encode(1.0, rounding=Rounding.STOCHASTIC)
