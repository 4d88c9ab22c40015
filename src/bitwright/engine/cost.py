# SPDX-License-Identifier: Apache-2.0
"""What an engine takes of an ECP5, from its configuration alone.

DSP blocks and block RAMs are counted as Yosys maps them. LUTs and flip-flops are a sum over what
there is of each part, with the cost of one fitted to syntheses (``cost.json``, made by
``benchmarks/engine_cost.py``, which also says how far the fit is off).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from math import log2
from typing import Any

from bitwright.base.figures import Resources
from bitwright.engine.config import PARAMETER_ROW_BITS, TABLE_ENTRIES, EngineConfig

FILE = "cost.json"
#: Of one block RAM of an ECP5 as they are used: rows at 9, 18 and 36 bits.
_ROWS = {9: 2048, 18: 1024, 36: 512}
#: Words of the FIFO of unit L, which is one in block RAM.
_LOAD_PLACES = 64


def parts(config: EngineConfig, dsps: int) -> dict[str, float]:
    """How many there are of what LUTs and flip-flops are spent on.

    Args:
        dsps: lanes of a dot product that are multipliers of the device.
    """
    products = config.pixels * config.outputs
    return {
        "engine": 1.0,
        "pixel": float(config.pixels),
        "turn": config.pixels * log2(config.pixels),  # bringing banks to pixels
        "sum": float(products),
        "lane in LUTs": float(products * (config.lanes - dsps)),
        "lane in a DSP block": float(products * dsps),
        "output": float(config.outputs),
    }


def block_rams(config: EngineConfig) -> int:
    """Block RAMs of an ECP5."""
    bank = -(-config.feature_words // config.pixels // _ROWS[9])
    features = config.pixels * config.lanes * bank
    weights = config.outputs * _narrow(8 * config.lanes, config.weight_rows)
    columns = PARAMETER_ROW_BITS // (8 * config.lanes) or 1
    parameters = columns * _narrow(8 * config.lanes, config.parameter_rows)
    tables = 0
    if config.tables:
        tables = config.pixels * -(-config.outputs * TABLE_ENTRIES // _ROWS[18])
    return features + weights + parameters + tables + _narrow(8 * config.lanes, _LOAD_PLACES)


def _narrow(width: int, rows: int) -> int:
    """Of a memory of so many bits, the form that takes fewest blocks."""
    return min(-(-width // bits) * -(-rows // deep) for bits, deep in _ROWS.items())


def estimate(config: EngineConfig, dsps: int | None = None) -> Resources:
    """LUTs (unpacked, as synthesis counts them), flip-flops, DSP blocks and block RAMs of an ECP5.

    Args:
        dsps: as `parts` has it; None: all.
    """
    lanes = config.lanes if dsps is None else dsps
    counts, table = parts(config, lanes), coefficients()
    lut, ff = (
        round(sum(table[kind].get(name, 0.0) * count for name, count in counts.items()))
        for kind in ("lut", "ff")
    )
    multipliers = config.pixels * config.outputs * lanes + 2 * config.pixels
    return Resources(lut=lut, ff=ff, dsp=multipliers, bram=block_rams(config))


@cache
def measurements() -> Mapping[str, Any]:
    """The file with what was synthesised, and what one of each part takes."""
    text = resources.files("bitwright.engine").joinpath(FILE).read_text()
    found: Mapping[str, Any] = json.loads(text)
    return found


def coefficients() -> Mapping[str, Mapping[str, float]]:
    """``lut`` and ``ff`` -> part -> cost of one."""
    table: Mapping[str, Mapping[str, float]] = measurements()["cost"]
    return table
