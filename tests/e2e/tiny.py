# SPDX-License-Identifier: Apache-2.0
"""The tiny recipe of these tests."""

from __future__ import annotations

from typing import Any

from bitwright.pipeline.recipe import Recipe, recipe_from_dict

TINY: dict[str, Any] = {
    "name": "tiny",
    "description": "two small convolutions for 8x8 digits",
    "data": "digits",
    "model": {"name": "digits_cnn", "options": {"widths": [2, 3]}},
    "quant": {"input": "uint4", "weight": "int3", "activation": "uint2"},
    "train": {
        "float": {"epochs": 3, "batch_size": 32, "lr": 0.01, "threads": 1},
        "quantized": {"epochs": 2, "batch_size": 32, "lr": 0.005, "threads": 1},
    },
    "hardware": {"target": "ecp5-25k", "target_fps": 50_000},
    "simulate": {"images": 12, "stall_images": 4},
    "report": {"sample_images": 8},
}


def tiny_recipe(**changes: dict[str, Any]) -> Recipe:
    """The tiny recipe; a change of a section is merged into it."""
    fields = {**TINY}
    for name, value in changes.items():
        before = fields.get(name, {})
        merge = isinstance(before, dict) and isinstance(value, dict)
        fields[name] = {**before, **value} if merge else value
    return recipe_from_dict(fields)
