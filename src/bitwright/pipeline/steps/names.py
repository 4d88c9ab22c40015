# SPDX-License-Identifier: Apache-2.0
"""The names of the steps, and of their folders in a run directory."""

from __future__ import annotations

STEP_NAMES = (
    "teach", "train", "quantize", "lower", "map", "simulate", "implement", "report",
)  # fmt: skip
"""All steps; the first one is there only where a recipe names a teacher, so it has number 0."""


def step_folder(name: str) -> str:
    """Name of a step's folder inside a run directory."""
    return f"{STEP_NAMES.index(name):02d}-{name}"
