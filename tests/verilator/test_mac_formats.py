# SPDX-License-Identifier: Apache-2.0
"""Multiply elements of every family: all pairs of codes, against the formats' own levels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.verilator.mac_bench import Element, write_bench

from bitwright.formats import CodebookFormat, parse_format
from bitwright.sim import Simulator

MINIFLOATS = ("e2m1", "e3m0", "e2m3", "e3m2", "e4m3", "e4m3<finite,flush>", "e5m2")
POWERS = tuple(f"po2_{bits}{zero}" for bits in range(3, 7) for zero in ("", "<zero>"))


def codebook(size: int, centroid: str) -> str:
    """A codebook with a random table."""
    kind, rng = parse_format(centroid), np.random.default_rng(size)
    grid = kind.grid()
    levels = np.sort(rng.choice(grid, min(size, len(grid)), replace=False))
    return CodebookFormat(size, kind, tuple(int(level) for level in levels)).name


def _small() -> list[Element]:
    small = [name for name in MINIFLOATS if parse_format(name).bits <= 6]
    pairs = [Element(name, "int6") for name in (*POWERS, *small)]
    pairs += [Element(name, "uint5") for name in ("po2_4", "po2_6<zero>", "e2m1", "e3m2")]
    pairs += [Element(codebook(size, "int8n"), "uint5") for size in (4, 8, 16, 32, 64)]
    pairs += [Element(codebook(16, "e4m3"), "int6"), Element(codebook(8, "po2_5"), "int6")]
    pairs += [Element(name, name) for name in small]
    pairs += [Element("e2m1", "e2m3"), Element("e2m3", "e2m1"), Element("e3m0", "e3m2")]
    pairs += [Element("bipolar", "e3m2"), Element("e3m2", "bipolar"), Element("po2_4", "bipolar")]
    pairs += [Element("int5", "e3m2"), Element("int2", "e3m0"), Element("po2_4", "e2m3")]
    pairs += [Element("e3m2", "int6", dsp=True), Element("e2m3", "e2m3", dsp=True)]
    return pairs


def _large() -> list[Element]:
    large = [name for name in MINIFLOATS if parse_format(name).bits == 8]
    pairs = [Element(weight, act) for weight in large for act in (*large, "int8", "uint8")]
    pairs += [Element("int8", act) for act in large]
    pairs += [Element(codebook(size, "int16n"), "int8") for size in (64, 128, 256)]
    pairs += [Element(codebook(128, "e4m3"), "e4m3"), Element("e4m3", "e4m3", dsp=True)]
    return pairs


@pytest.mark.parametrize(
    "elements", [_small(), pytest.param(_large(), marks=pytest.mark.long)], ids=["small", "large"]
)
def test_all_pairs_of_codes(elements: list[Element], tmp_path: Path) -> None:
    write_bench(elements, tmp_path / "bench")
    simulator = Simulator.build(tmp_path / "bench")
    width = max(element.bits for element in elements)
    given = np.arange(1 << width).reshape(1, -1)
    result = simulator.run(simulator.pack({"in": given}), 1)
    for number, element in enumerate(elements):
        act, weight, known = element.levels()
        assert known.sum() >= len(element.act_format.grid()) * len(element.weight_format.grid())
        # Exact beyond 64 bits: Python's integers, modulo the bits of the output.
        lanes, bits = element.lanes
        exact = (act[known].astype(object) * weight[known].astype(object)) % (1 << lanes * bits)
        got = result.levels[f"o{number}"].reshape(-1, lanes)[: 1 << element.bits][known]
        whole = sum(got[:, lane].astype(object) << (bits * lane) for lane in range(lanes))
        wrong = np.flatnonzero(whole != exact)
        assert not len(wrong), (element, act[known][wrong[0]], weight[known][wrong[0]])
