# SPDX-License-Identifier: Apache-2.0
"""Unevenly spaced formats in torch are those of numpy, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bitwright.base.errors import FormatError
from bitwright.formats import (
    CodebookFormat,
    Format,
    MinifloatFormat,
    Overflow,
    PowerOfTwoFormat,
    Rounding,
    Specials,
    parse_format,
)
from bitwright.formats.pytorch.noise import counter_noise
from bitwright.formats.pytorch.rounding import encode_levels, quantize_ratio
from bitwright.formats.rounding import Rules


#: Every width of 8 bits and less, with every option that the width allows.
def minifloats() -> list[Format]:
    found = []
    for exponent in range(1, 8):
        for mantissa in range(0, 8 - exponent):
            for denormals in (True, False):
                for specials in Specials:
                    try:
                        found.append(MinifloatFormat(exponent, mantissa, None, denormals, specials))
                    except FormatError:
                        continue  # special codes leave no number
    return found


def others() -> list[Format]:
    powers = [
        PowerOfTwoFormat(bits, zero, linear)
        for bits in range(2, 7)
        for zero in (False, True)
        for linear in (False, True)
    ]
    names = ("cb4{-7,-2,1,6}", "cb2{-5,3}", "cb4{5}", "cb8{0,1,3,9}", "cb4:e4m3{-448,-3,0,96}",
             "cb16:int8{-128,-3,0,2,100}", "mx<e2m1,32>", "mxint8", "e4m3<bias=11>",
             "e5m2<bias=-3>")  # fmt: skip
    rng = np.random.default_rng(0)
    big = CodebookFormat(256).fitted(rng.normal(size=256))
    return [*powers, *map(parse_format, names), big]


def wide() -> list[Format]:
    floats = CodebookFormat(16, parse_format("e8m23"))
    fitted = floats.fitted(np.random.default_rng(0).normal(size=16).astype(np.float32))
    return [*map(parse_format, ("e5m10", "e8m7", "e8m23", "e8m0", "e3m12<flush>")), fitted]


def levels_of(number_format: Format) -> np.ndarray:
    if number_format.bits <= 10 and number_format.exact_levels:
        return number_format.grid().astype(np.float64)
    rng = np.random.default_rng(3)
    span = np.log2(float(number_format.max_level))
    spread = 2.0 ** rng.uniform(-2, span + 1, 500) * rng.choice([-1, 1], 500)
    codes = number_format.quantize(spread, np.int64(0), Rules())
    return np.unique(number_format.float_levels(codes))


def points(number_format: Format, scale: float) -> np.ndarray:
    """Levels, midpoints arithmetic and geometric, float64 neighbours of all, and far values."""
    grid = levels_of(number_format)
    middle = (grid[1:] + grid[:-1]) / 2
    positive = grid[grid > 0]
    geometric = np.sqrt(positive[1:]) * np.sqrt(positive[:-1])
    base = np.concatenate([grid, middle, geometric, -geometric, [0.5, -0.5, 1.0, -1.0, 0.0, -0.0]])
    base = base * (scale * number_format.lsb)
    rng = np.random.default_rng(number_format.bits)
    loose = rng.uniform(1.2 * base.min() - 1e-9, 1.2 * base.max() + 1e-9, 200)
    near = [np.nextafter(base, -np.inf), base, np.nextafter(base, np.inf)]
    far = [np.inf, -np.inf, 1e300, -1e300, 5e-324, -5e-324]
    return np.concatenate([*near, loose, base * 1e6, base * 1e-6, far])


@pytest.mark.parametrize("number_format", [*minifloats(), *others(), *wide()], ids=str)
def test_equal_to_numpy(number_format: Format) -> None:
    for scale in (1.0, 0.1):
        x = points(number_format, scale)
        noise = np.random.default_rng(5).random(x.shape)
        for mode in Rounding if scale == 1.0 else (Rounding.HALF_EVEN, Rounding.STOCHASTIC):
            rng = np.random.default_rng(5)
            expected = number_format.quantized(x, scale, mode, Overflow.SAT, rng)
            got = encode_levels(
                torch.from_numpy(x), number_format, scale, rounding=mode,
                noise=torch.from_numpy(noise),
            ) * (scale * number_format.lsb)  # fmt: skip
            assert np.array_equal(got.numpy(), expected), mode
            if not number_format.uniform:
                assert not np.signbit(got.numpy()[expected == 0]).any()


def test_float32_holds_the_same_levels() -> None:
    for number_format in [*minifloats(), *others()]:
        ratio = points(number_format, 1.0 / number_format.lsb)
        ratio = torch.from_numpy(ratio[np.abs(ratio) < 1e30]).to(torch.float32)
        for rounding in (Rounding.HALF_EVEN, Rounding.HALF_AWAY, Rounding.CEIL, Rounding.UP):
            single = quantize_ratio(ratio, number_format, rounding=rounding)
            double = quantize_ratio(ratio.double(), number_format, rounding=rounding)
            assert single.dtype == torch.float32
            assert torch.equal(single.to(torch.float64), double), (number_format, rounding)


def test_everything_stays_on_the_device() -> None:
    """Of a GPU that need not be there: torch's fake tensors refuse to mix devices."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    names = ("int8", "e3m2<flush>", "po2_4<zero>", "po2_4<linear>", "cb4{-7,-2,1,6}", "mxfp4")
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(3, 64, device="cuda")
        assert counter_noise(3, 100, "cuda").device.type == "cuda"
        for number_format in map(parse_format, names):
            for rounding in (Rounding.HALF_EVEN, Rounding.HALF_AWAY, Rounding.STOCHASTIC):
                levels = quantize_ratio(x, number_format, rounding=rounding)
                assert levels.device.type == "cuda" and levels.dtype == x.dtype


def test_bad_values() -> None:
    number_format = parse_format("e4m3")
    with pytest.raises(FormatError, match="NaN"):
        encode_levels(torch.tensor([float("nan")]), number_format)
    with pytest.raises(FormatError, match="wrap"):
        encode_levels(torch.ones(1), number_format, overflow=Overflow.WRAP)
    with pytest.raises(FormatError, match="zero point"):
        encode_levels(torch.ones(1), number_format, 1.0, 3)
    with pytest.raises(FormatError, match="no table"):
        encode_levels(torch.ones(1), parse_format("cb16"))
