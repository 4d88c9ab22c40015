# SPDX-License-Identifier: Apache-2.0
"""Folding files: FINN's JSON in and out, and what is said about a bad one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import RecipeError
from bitwright.hw import Folding, NodeFolding, load_folding, parse_folding

_counts = st.none() | st.integers(1, 999)
_choices = st.builds(
    NodeFolding,
    pe=_counts,
    simd=_counts,
    ram_style=st.sampled_from((None, "auto", "block", "distributed")),
    res_type=st.sampled_from((None, "auto", "lut", "dsp")),
    mem_mode=st.sampled_from((None, "internal_embedded", "external")),
    depth=_counts,
    pixels=_counts,
    parallel_window=st.none() | st.integers(0, 1),
)


@given(st.dictionaries(st.text("abc_0", min_size=1), _choices))
def test_round_trip(nodes: dict[str, NodeFolding]) -> None:
    folding = Folding(nodes)
    assert parse_folding(json.loads(json.dumps(folding.to_json()))) == folding


def test_finn_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "folding.json"
    path.write_text(
        json.dumps(
            {
                "Defaults": {"ram_style": ["block", ["all"]], "resType": ["dsp", ["matvec"]]},
                "conv1": {"PE": 2, "SIMD": 3, "ram_style": "distributed"},
                "conv2": {"ReuseFactor": 12, "depth": 64, "mem_mode": "internal_embedded"},
            }
        )
    )
    folding = load_folding(path)
    assert folding.of("conv1", "matvec") == NodeFolding(
        pe=2, simd=3, ram_style="distributed", res_type="dsp"
    )
    assert folding.of("conv2", "matvec").reuse_factor == 12
    assert folding.of("other", "window") == NodeFolding(ram_style="block")
    folding.save(tmp_path / "again.json")
    assert load_folding(tmp_path / "again.json") == folding


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"c": {"PE": 0}}, "PE must be a positive integer, got 0"),
        ({"c": {"PE": True}}, "PE must be a positive integer, got True"),
        ({"c": {"SIMD": "4"}}, "SIMD must be a positive integer, got '4'"),
        ({"c": {"parallel_window": 2}}, "parallel_window must be 0 or 1, got 2"),
        ({"c": {"parallel_window": True}}, "parallel_window must be 0 or 1, got True"),
        ({"c": {"pe": 4}}, "unknown key 'pe'"),
        ({"c": {"ram_style": "ultra"}}, "ram_style must be one of auto, distributed, block"),
        ({"c": {"mem_mode": "internal"}}, "mem_mode must be one of internal_embedded, external"),
        ({"c": {"PE": 2, "ReuseFactor": 4}}, "either ReuseFactor or PE and SIMD"),
        ({"c": 4}, "expected an object, got 4"),
        ({"Defaults": {"PE": [1, "all"]}}, r"expected a value or \[value, \[operations\]\]"),
        ([], "expected an object, got list"),
    ],
)
def test_bad_folding_is_refused(table: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        parse_folding(table)
    assert "folding" in str(caught.value.where)


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "folding.json"
    path.write_text('{"conv1": ')
    with pytest.raises(RecipeError, match="cannot be read"):
        load_folding(path)
    with pytest.raises(RecipeError, match="cannot be read"):
        load_folding(tmp_path / "absent.json")
