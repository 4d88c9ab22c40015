# SPDX-License-Identifier: Apache-2.0
"""The tiny recipe of these tests."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

import bitwright
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


def assert_tells_nothing_of_the_machine(run: Path, *others: Path) -> None:
    """A run directory is given away as it is: no path of this machine, nor its name."""
    homes = {run, Path(sys.prefix), Path(bitwright.__file__).parents[2], *others}
    places = {str(place).encode() for home in homes for place in (home, home.resolve())}
    for path in (path for path in run.rglob("*") if path.is_file()):
        body = path.read_bytes()
        assert not [place for place in places if place + b"/" in body], path
        assert platform.node() not in path.name.split("."), path
    assert not (run / ".lock").read_bytes()
