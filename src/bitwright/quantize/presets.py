# SPDX-License-Identifier: Apache-2.0
"""Presets: whole ``quant`` sections under a name, which a recipe takes and changes.

::

    quant: dpu                                    # as it is
    quant: {preset: dpu, activation: {scale: learned}}     # with one field of one operand changed

A preset is a mapping such as a recipe writes, under a name that a plug-in adds (`Plugin.presets`).
It is written out where it is read, so that what is kept of a run names formats, no presets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitwright.base.errors import RecipeError
from bitwright.base.plugins import load_attribute, plugged

KEY = "preset"


def list_presets() -> dict[str, Mapping[str, Any]]:
    """Every preset by its name."""
    return {name: load_attribute(place) for name, place in plugged("presets").items()}


def without_preset(data: Any, where: str = "quant") -> Any:
    """A ``quant`` section with its preset written out; what is no such section comes back as it is.

    A field of an operand changes that field, a format given by its name alone replaces the operand;
    rules come behind those of the preset, everything else replaces what the preset says.

    Raises:
        RecipeError: there is no preset of that name.
    """
    name = data if isinstance(data, str) else data.get(KEY) if isinstance(data, Mapping) else None
    if name is None:
        return data
    known = list_presets()
    if name not in known:
        raise RecipeError(
            f"there is no preset {name!r}",
            where=where if isinstance(data, str) else f"{where}.{KEY}",
            hint=f"one of {', '.join(known)}; or a mapping with formats",
        )
    merged = dict(known[name])
    own = {} if isinstance(data, str) else {k: v for k, v in data.items() if k != KEY}
    for key, value in own.items():
        before = merged.get(key)
        if key == "rules" and isinstance(value, list | tuple):
            merged[key] = [*(before or ()), *value]
        elif isinstance(before, Mapping) and isinstance(value, Mapping):
            merged[key] = dict(value) if "format" in value else {**before, **value}
        else:
            merged[key] = value
    return merged
