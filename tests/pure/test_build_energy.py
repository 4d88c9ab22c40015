# SPDX-License-Identifier: Apache-2.0
"""The energy estimate: its formula, its label, and that more work never costs less."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.figures import Source
from bitwright.build.energy import CompareWork, MacWork, Work, energy_costs, estimate_energy


def _total(work: Work, cycles: float = 0.0) -> float:
    return estimate_energy(
        work, interval_cycles=cycles, clock_mhz=100, static_watts=0.5, static_source="x"
    ).total


def test_formula_by_hand() -> None:
    work = Work((MacWork(1000, 4, 4, 12),), (CompareWork(10, 12),), memory_bits=8000)
    found = estimate_energy(
        work, interval_cycles=1000, clock_mhz=100, static_watts=0.5, static_source="a guess"
    )
    logic = 1000 * (0.0031 * 16 + 0.0035 * 12) + 10 * 0.0035 * 12
    assert math.isclose(found.arithmetic, logic * 14 * 1e-12)
    assert math.isclose(found.memory, 8000 * 0.156e-12)
    assert math.isclose(found.static, 0.5 * 1e-5)
    assert "Horowitz" in found.sources
    assert "a guess" in found.sources
    assert found.figure().source is Source.MODEL
    assert math.isclose(found.figure().value, found.total * 1e6)


def test_costs_follow_their_table() -> None:
    # 8-bit multiply 0.2 pJ, 32-bit add 0.1 pJ: within a fifth of the published figures.
    costs = energy_costs().arithmetic
    assert abs(costs.multiply_pj_per_bit2 * 64 - 0.2) < 0.04
    assert abs(costs.add_pj_per_bit * 32 - 0.1) < 0.02


_macs = st.builds(
    MacWork, st.integers(1, 10**6), st.integers(1, 8), st.integers(1, 8), st.integers(1, 32)
)


@given(st.lists(_macs, max_size=4), st.lists(_macs, min_size=1, max_size=3))
def test_work_adds_up(first: list[MacWork], second: list[MacWork]) -> None:
    a, b = Work(tuple(first), (), 100), Work(tuple(second))
    assert math.isclose(_total(a + b), _total(a) + _total(b))
    assert _total(a + b) > _total(a)
