# SPDX-License-Identifier: Apache-2.0
"""The integers of a weight, as narrow as its format allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bitwright.base.errors import ModelError
from bitwright.formats import (
    CodebookFormat,
    Format,
    IntegerFormat,
    MinifloatFormat,
    Specials,
)
from bitwright.formats.base import IntArray
from bitwright.formats.integer import MAX_BITS
from bitwright.formats.minifloat import MAX_EXPONENT, MAX_MANTISSA
from bitwright.quantize.weight_quantizer import WeightQuantizer

_EXACT = 1 << 53


def integer_weight(
    quantizer: WeightQuantizer, weight: Tensor, path: str
) -> tuple[Tensor, Tensor, Format]:
    """Levels, the unit of one level, and the format whose levels they are.

    Floats and powers of two seldom use their smallest levels: a power of two that divides all of a
    layer's levels goes over into the unit, which narrows every accumulator. Blocks become one
    tensor of integers, each shifted by its block's exponent: small integers, or floats with as many
    exponent bits as that takes.

    Raises:
        ModelError: exponents so far apart that no exact integers hold them.
    """
    levels, unit = quantizer.levels(weight)
    number_format = quantizer.format
    if number_format.uniform and not number_format.block:
        return levels, unit, number_format
    largest = float(levels.abs().max()) if levels.numel() else 0.0
    if largest >= _EXACT * 2.0**9:
        raise ModelError(
            f"its {number_format} weights reach {largest:.3g} times the smallest: no integers of "
            "62 bits hold them",
            where=path,
            hint="use a format with fewer exponents",
        )
    whole = levels.to(torch.int64).cpu().numpy()
    reduced, shift, narrowed = _without_common_power(whole, number_format)
    chosen = _of_blocks(reduced, narrowed, path)
    return (
        torch.from_numpy(reduced).to(torch.float64).to(levels.device),
        unit * 2.0**shift,
        chosen,
    )


def _without_common_power(levels: IntArray, number_format: Format) -> tuple[IntArray, int, Format]:
    """The levels less a common factor 2^k, as long as they remain levels; k; and their format,
    which for a codebook has another table.
    """
    table = number_format.table if isinstance(number_format, CodebookFormat) else None
    used = levels[levels != 0] if table is None else np.array([t for t in table if t != 0])
    if not used.size:
        return levels, 0, number_format
    common = int(np.bitwise_or.reduce(np.abs(used)))
    shift = (common & -common).bit_length() - 1
    if isinstance(number_format, CodebookFormat) and table is not None:
        while shift and not number_format.centroid.contains(np.array(table) >> shift).all():
            shift -= 1
        narrowed = replace(number_format, table=tuple(entry >> shift for entry in table))
        return levels >> shift, shift, narrowed
    if not number_format.block:
        while shift and not number_format.contains(levels >> shift).all():
            shift -= 1
    return levels >> shift, shift, number_format


def _of_blocks(levels: IntArray, number_format: Format, path: str) -> Format:
    """The format itself, or for blocks the smaller of an integer and a float that hold them."""
    if not number_format.block:
        return number_format
    low, high = int(levels.min()), int(levels.max())
    bits = max(2, max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0) + 1)
    found: list[Format] = [IntegerFormat(bits, True)] if bits <= MAX_BITS else []
    used = np.unique(np.abs(levels[levels != 0]))
    significant = int((used // (used & -used)).max()).bit_length() if used.size else 1
    for exponent in range(1, MAX_EXPONENT + 1):
        if significant - 1 > MAX_MANTISSA:
            break
        wide = MinifloatFormat(exponent, significant - 1, specials=Specials.FINITE)
        if wide.exact_levels and wide.contains(levels).all():
            found.append(wide)
            break
    if not found:
        raise ModelError(
            f"the exponents of its {number_format} blocks lie too far apart: as integers the "
            f"weights need {bits} bits",
            where=path,
            hint="use a larger block or another format",
        )
    return min(found, key=lambda chosen: chosen.bits)
