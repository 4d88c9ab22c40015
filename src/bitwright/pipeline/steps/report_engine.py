# SPDX-License-Identifier: Apache-2.0
"""What the report says of a network on the programmed engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bitwright.base.files import regular_bytes
from bitwright.base.records import EngineRow, EngineSpanRow
from bitwright.build.packing import lut_kind
from bitwright.build.target import load_target
from bitwright.engine.estimate import Timeline
from bitwright.engine.image import EngineImage
from bitwright.pipeline.steps.map_engine import layer_rows, timed, wait_rows
from bitwright.pipeline.steps.results_hardware import ENGINE_IMAGE

#: Parts of the run's time that a drawing can tell apart.
_RESOLUTION = 1500


def engine_fields(mapped: Path, target: str) -> dict[str, Any]:
    """Fields of the `Report`: the engine's timeline and its device.

    Args:
        mapped: folder of the step `map`.
        target: its name.

    Raises:
        ProgramError: the program in it is damaged.
    """
    path, device = mapped / ENGINE_IMAGE, load_target(target)
    image = EngineImage.from_bytes(regular_bytes(path), str(path))
    found, _ = timed(image)
    row = EngineRow(
        engine=image.config.name,
        cycles=found.cycles,
        layers=layer_rows(image, found),
        waits=wait_rows(image, found),
        spans=tuple(_spans(found, image.layers)),
    )
    return {
        "engine": row,
        "capacity": device.capacity,
        "target": device.name,
        "lut_kind": lut_kind(device.family),
    }


def _spans(found: Timeline, layers: Sequence[str]) -> list[EngineSpanRow]:
    """When each unit works for each layer; what no drawing could tell apart is joined."""
    gap = found.cycles / _RESOLUTION
    last: dict[str, EngineSpanRow] = {}
    rows: list[EngineSpanRow] = []
    for span in found.spans:
        unit, layer = span.unit.name.lower(), layers[span.number]
        before = last.get(unit)
        begin, end = round(span.begin), round(span.end)
        if before is not None and before.layer == layer and begin - before.end <= gap:
            last[unit] = before.model_copy(update={"end": max(end, before.end)})
            continue
        if before is not None:
            rows.append(before)
        last[unit] = EngineSpanRow(unit=unit, layer=layer, begin=begin, end=end)
    return sorted([*rows, *last.values()], key=lambda row: (row.unit, row.begin))
