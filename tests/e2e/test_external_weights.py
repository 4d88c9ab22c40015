# SPDX-License-Identifier: Apache-2.0
"""A recipe whose weights lie outside, from the model to the simulated RTL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.tiny import tiny_recipe

from bitwright.base.errors import RecipeError, TargetError
from bitwright.pipeline.api import build_recipe


def test_recipe_with_weights_outside(copied: Path) -> None:
    """Trained already; mapping and simulation are done again."""
    recipe = tiny_recipe(
        hardware={
            "target_fps": 20_000,
            "weights": {"external": "all", "port_bits": 32, "gbytes_per_s": 0.2},
        },
    )
    build_recipe(recipe, copied, until="simulate")
    place = copied / "04-map"
    table = json.loads((place / "estimate_weight_memory.json").read_text())
    assert list(table["units"]) == ["conv1", "conv2", "fc1"]
    assert table["units"]["conv1"]["reads_per_frame"] == 64
    assert table["gbytes_per_s"] <= table["peak_gbytes_per_s"] <= 0.2
    assert table["available_gbytes_per_s"] == pytest.approx(0.2)
    assert (place / "rtl" / "weights.bin").stat().st_size == table["image_bytes"]
    folding = json.loads((place / "final_hw_config.json").read_text())
    assert folding["conv1"]["mem_mode"] == "external"
    result = json.loads((copied / "05-simulate" / "result.json").read_text())
    assert result["differences"] == 0 and result["interval"] == result["predicted_interval"]


def test_what_the_memory_cannot_give_is_refused_before_training() -> None:
    from bitwright.pipeline.api import estimate_recipe

    weights = {"external": ["conv2"], "gbytes_per_s": 0.01}
    with pytest.raises(TargetError, match=r"the memory gives 0\.1") as caught:
        estimate_recipe(tiny_recipe(hardware={"target_fps": 50_000, "weights": weights}))
    assert "a faster memory" in str(caught.value)
    with pytest.raises(RecipeError, match="matrix unit of that name"):
        estimate_recipe(tiny_recipe(hardware={"weights": {"external": ["pool1"]}}))
    with pytest.raises(RecipeError, match="port_bits"):
        tiny_recipe(hardware={"weights": {"external": "all", "port_bits": 48}})
