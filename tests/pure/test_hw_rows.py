# SPDX-License-Identifier: Apache-2.0
"""Products side by side in one multiplication: exact for all levels, and where they fit."""

from __future__ import annotations

from itertools import product as pairs

import numpy as np
import pytest

from bitwright.hw.blocks.rows import Packing, Row, packing_of
from bitwright.hw.memory import fits_multiplier
from bitwright.hw.operands import Operand, Product


def _middle(acts: list[np.ndarray], weights: list[np.ndarray], field: int) -> np.ndarray:
    """Field len - 1 of one product of the packed operands, as `mul_packed` puts it together."""
    last = len(acts) - 1
    act = sum(value << (field * n) for n, value in enumerate(acts))
    weight = sum(value << (field * (last - n)) for n, value in enumerate(weights))
    whole = act * weight
    term = (whole >> (field * last)) & ((1 << field) - 1)
    signed = term - ((term >> (field - 1)) << field)
    return np.asarray(signed + (whole >> (field * last - 1) & 1))


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("act", "weight", "count"), [(4, 4, 2), (3, 3, 2), (2, 2, 3), (1, 2, 3)])
def test_sums_of_products_are_exact_for_all_levels(
    act: int, weight: int, count: int, signed: bool
) -> None:
    low = -(1 << (act - 1)) if signed else 0
    acts = np.arange(low, low + (1 << act))
    weights = np.arange(-(1 << (weight - 1)), 1 << (weight - 1))
    grids = np.meshgrid(*[acts] * count, *[weights] * count, indexing="ij", sparse=True)
    field = act + weight + (count - 1).bit_length()
    exact = sum(a * w for a, w in zip(grids[:count], grids[count:], strict=True))
    got = _middle(list(grids[:count]), list(grids[count:]), field)
    assert (got == exact).all()


@pytest.mark.parametrize(
    ("family", "act", "weight", "packing"),
    [
        ("ecp5", Operand(4, False), Operand(4), Packing(2)),
        ("ice40", Operand(4, False), Operand(4), Packing(2)),
        ("ecp5", Operand(8, False), Operand(8), Packing()),
        ("xcup", Operand(8, False), Operand(8), Packing(1, True)),
        ("xc7", Operand(8), Operand(8), Packing(1, True)),
        ("ecp5", Operand(2, False), Operand(2), Packing(3)),
        ("xcup", Operand(16), Operand(8), Packing()),
    ],
)
def test_what_a_family_packs(family: str, act: Operand, weight: Operand, packing: Packing) -> None:
    assert packing_of(Product(act, weight), 8, family, shares=True) == packing


@pytest.mark.parametrize("family", ["ecp5", "xc7", "xcup", "ice40", "cyclonev"])
def test_packed_operands_fit_one_multiplier(family: str) -> None:
    for act, weight, signed in pairs(range(1, 10), range(2, 10), (False, True)):
        kind = Product(Operand(act, signed), Operand(weight), dsp=True)
        found = packing_of(kind, 8, family, shares=False)
        row = Row(kind, 8, found)
        if found.products > 1:
            place = row.term_bits * (found.products - 1)
            assert fits_multiplier(family, place + act + 1, place + weight + 1)
            assert row.dsps(family) < Row(kind, 8).dsps(family)
