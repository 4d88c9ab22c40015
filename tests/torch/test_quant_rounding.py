# SPDX-License-Identifier: Apache-2.0
"""The torch encode rule equals numpy's, for every format of up to eight bits and every mode."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bitwright.base.errors import FormatError
from bitwright.formats import (
    BipolarFormat,
    FixedFormat,
    Format,
    IntegerFormat,
    Overflow,
    Rounding,
    TernaryFormat,
)
from bitwright.formats.pytorch.rounding import encode_levels, round_to_int
from bitwright.quantize.straight_through import LevelRange, to_levels_


def small_formats() -> list[Format]:
    found: list[Format] = [BipolarFormat(), TernaryFormat()]
    for bits in range(1, 9):
        found += [IntegerFormat(bits, False), IntegerFormat(bits, True)]
        found += [IntegerFormat(bits, True, narrow=True)] if bits > 1 else []
        found += [
            FixedFormat(bits, integer, signed)
            for integer in (-2, bits + 3)
            for signed in (True, False)
        ]
    return found


def points(number_format: Format, scale: float) -> np.ndarray:
    """Levels, ties, their float64 neighbours, far values, and random ones."""
    span = range(2 * number_format.min_level - 3, 2 * number_format.max_level + 4)
    grid = np.array([k / 2 for k in span]) * number_format.lsb * scale
    near = [np.nextafter(grid, -np.inf), grid, np.nextafter(grid, np.inf)]
    rng = np.random.default_rng(number_format.bits)
    loose = rng.uniform(2 * grid.min(), 2 * grid.max() + 1e-9, 200)
    return np.concatenate([*near, loose, grid * 1e6, [0.0, -0.0]])


def reference(number_format: Format, x: np.ndarray, scale: float, mode, overflow, zero, seed):
    rng = np.random.default_rng(seed)
    codes = number_format.encode(x, scale, zero, mode, overflow, rng)
    return number_format.levels(codes, zero)


@pytest.mark.parametrize("number_format", small_formats(), ids=str)
def test_equal_to_numpy(number_format: Format) -> None:
    has_zero_point = isinstance(number_format, IntegerFormat | FixedFormat)
    for scale in (1.0, 0.1):
        x = points(number_format, scale)
        noise = torch.from_numpy(np.random.default_rng(5).random(x.shape))
        for mode in Rounding:
            for overflow in Overflow:
                for zero in (0, 1) if has_zero_point else (0,):
                    options = {"rounding": mode, "overflow": overflow, "noise": noise}
                    try:
                        expected = reference(number_format, x, scale, mode, overflow, zero, 5)
                    except FormatError:
                        with pytest.raises(FormatError):
                            encode_levels(torch.zeros(1), number_format, overflow=overflow)
                        continue
                    got = encode_levels(torch.from_numpy(x), number_format, scale, zero, **options)
                    assert np.array_equal(got.numpy(), expected), (mode, overflow, zero)


@pytest.mark.parametrize("mode", [m for m in Rounding if m is not Rounding.STOCHASTIC])
def test_the_training_staircase_is_the_same_rule(mode: Rounding) -> None:
    x = torch.from_numpy(points(IntegerFormat(4, True), 1.0))
    expected = encode_levels(x, IntegerFormat(4, True), rounding=mode)
    assert torch.equal(to_levels_(x.clone(), LevelRange(-8, 7, mode)), expected)


def test_stochastic_without_noise_uses_torch() -> None:
    torch.manual_seed(0)
    drawn = round_to_int(torch.full((20000,), 3.3), Rounding.STOCHASTIC)
    assert set(drawn.tolist()) == {3.0, 4.0}
    assert abs(float(drawn.mean()) - 3.3) < 0.02


def test_bad_values() -> None:
    number_format = IntegerFormat(4, True)
    with pytest.raises(FormatError):
        encode_levels(torch.tensor([float("nan")]), number_format)
    with pytest.raises(FormatError):
        encode_levels(torch.ones(1), number_format, 0.0)
    with pytest.raises(FormatError):
        encode_levels(torch.tensor([float("inf")]), number_format, overflow=Overflow.WRAP)
