# SPDX-License-Identifier: Apache-2.0
"""The cost model beside whole designs that were synthesised and placed (docs/results/placed.md)."""

from __future__ import annotations

import json

import numpy as np
import pytest
from benchmarks.placed import DESIGNS, ROWS, errors, link, unseen

from bitwright.hw.cost import coefficients


@pytest.mark.slow
def test_the_model_says_what_whole_designs_take() -> None:
    """Seventeen designs of three sizes: LUTs and flip-flops within 5 % on average and 15 % each,
    block RAMs and multipliers exact.
    """
    rows = json.loads(ROWS.read_text())
    assert {DESIGNS[name].size for name in rows} == {"small", "middle", "large"}
    assert len(rows) >= 10
    wrong = errors(rows)
    for kind in ("lut", "ff"):
        sizes = np.array([abs(each[kind]) for each in wrong.values()])
        assert sizes.mean() <= 0.05, kind
        assert sizes.max() <= 0.15, kind
    for name, each in wrong.items():
        assert each["bram"] == each["dsp"] == 0, name


@pytest.mark.slow
def test_the_kept_link_is_that_of_the_kept_designs() -> None:
    """The one coefficient that comes from whole designs is fitted to all of docs/results/placed,
    and each of them is predicted by the others within 15 %.
    """
    rows = json.loads(ROWS.read_text())
    kept = coefficients()["families"]["ecp5"]["link"]
    assert kept["designs"] == sorted(rows) == sorted(DESIGNS)
    assert kept["lut"] == pytest.approx(link(rows), abs=5e-4)
    assert max(unseen(rows)) <= 0.15
