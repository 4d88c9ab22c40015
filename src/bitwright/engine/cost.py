# SPDX-License-Identifier: Apache-2.0
"""DSP blocks and block RAMs of an engine on an ECP5, counted from its configuration alone."""

from __future__ import annotations

from bitwright.engine.config import PARAMETER_ROW_BITS, TABLE_ENTRIES, EngineConfig

#: Of one block RAM of an ECP5: bits of a row -> rows.
_ROWS = {9: 2048, 18: 1024, 36: 512}
#: Words of the FIFO of unit L, which is one in block RAM.
_LOAD_PLACES = 64
#: 18 x 18 multipliers of a post lane, whose product has 32 x 18 bits.
_POST_LANE = 2


def dsp_blocks(config: EngineConfig, dsps: int | None = None) -> int:
    """Multipliers of the array and of the post lanes.

    Args:
        dsps: lanes of a dot product that are multipliers of the device; None: all.
    """
    lanes = config.lanes if dsps is None else dsps
    return config.pixels * (config.outputs * lanes + _POST_LANE * config.post_lanes)


def fitting_dsps(config: EngineConfig, multipliers: float) -> int:
    """Lanes of a dot product that can be multipliers of a device with so many."""
    left = int(multipliers) - dsp_blocks(config, 0)
    return max(0, min(config.lanes, left // (config.pixels * config.outputs)))


def block_rams(config: EngineConfig) -> int:
    """Block RAMs: features by columns of a byte, weights and parameters by banks, tables by pixels,
    and the FIFO of unit L.
    """
    word = 8 * config.lanes
    bank = -(-config.feature_words // config.pixels // _ROWS[9])
    features = config.pixels * config.lanes * bank
    weights = config.outputs * _blocks(word, config.weight_rows)
    parameters = max(1, PARAMETER_ROW_BITS // word) * _blocks(word, config.parameter_rows)
    tables = 0
    if config.tables:
        tables = config.pixels * -(-config.outputs * TABLE_ENTRIES // _ROWS[18])
    return features + weights + parameters + tables + _blocks(word, _LOAD_PLACES)


def _blocks(width: int, rows: int) -> int:
    """Of a memory of so many bits, the form that takes fewest."""
    return min(-(-width // bits) * -(-rows // deep) for bits, deep in _ROWS.items())
