# SPDX-License-Identifier: Apache-2.0
"""What an engine takes of an ECP5, from its configuration alone.

Multipliers and block RAMs are counted. LUTs (packed) and flip-flops are sums over the parts of the
circuit, with the figures of a part taken from netlists: `benchmarks/engine_sizes.py` synthesises
engines with Yosys 0.70 and shows both. Measured were engines with 8 lanes; of wider ones only what
grows with lanes is known.
"""

from __future__ import annotations

from math import log2

from bitwright.base.figures import Resources
from bitwright.engine.config import PARAMETER_ROW_BITS, TABLE_ENTRIES, EngineConfig

#: Of one block RAM of an ECP5: bits of a row -> rows.
_ROWS = {9: 2048, 18: 1024, 36: 512}
#: Words of the FIFO of unit L, which is one in block RAM (256 of wide engines take no more).
_LOAD_PLACES = 64
#: Families whose multipliers have 25 bits or more beside 18, enough for two pixels (`engine_quad`).
PAIRING_FAMILIES = frozenset({"xc7", "xcup"})
#: 18 x 18 multipliers of a post lane, whose product has 32 x 18 bits.
_POST_LANE = 2

# LUTs and flip-flops of the parts: of a lane of a dot product, its product in a multiplier or in
# look-up tables, with and without values of 4 bits; and of the others.
_DSP_PAIR = {True: Resources(28.0, 53.7), False: Resources(0.1, 50.1)}
_LUT_PAIR = {True: Resources(115.6, 92.0), False: Resources(89.3, 87.4)}
_TREE = Resources(19.9, 19.0)  # an adder of the tree of a dot product
_SUM = Resources(178.0, 64.0)  # its accumulator, and the register that drains
_SECOND_SUM = Resources(47.0, 10.8)  # that drains by twos
# A byte of weights, or of a pixel, that goes to multipliers.
_WEIGHT = {True: Resources(18.0, 13.0), False: Resources(0.0, 10.0)}
_FEATURE = {True: Resources(18.0, 14.0), False: Resources(6.0, 14.0)}
_BYTE = Resources(0.0, 8.0)  # of a pixel
_REQUANT = Resources(590.0, 397.0)  # a post lane
_PIXEL = Resources(1045.0 + 90.0 + 258.0, 338.0 + 27.0 + 92.0)  # thresholds, writer, operands
_ADDRESS = Resources(44.0, 40.5)  # a bit of the addresses of the three memories
_BASE = Resources(3664.0, 1000.0 + 2995.0)
#: The SDRAM's controller, the console and the serial shell, synthesised for the ULX3S.
BOARD = Resources(1808.0, 1245.0, 0, 2)


def dsp_blocks(config: EngineConfig, dsps: int | None = None, *, paired: bool = False) -> int:
    """Multipliers of the array and of the post lanes.

    Args:
        dsps: lanes of a dot product that are multipliers of the device; None: all.
        paired: two pixels share one (`PAIRING_FAMILIES`).
    """
    lanes = config.lanes if dsps is None else dsps
    return config.pixels * _POST_LANE * config.post_lanes + lanes * _of_a_lane(config, paired)


def fitting_dsps(config: EngineConfig, multipliers: float, *, paired: bool = False) -> int:
    """Lanes of a dot product that can be multipliers of a device with so many; `paired` as in
    `dsp_blocks`.
    """
    left = int(multipliers) - dsp_blocks(config, 0)
    return max(0, min(config.lanes, left // _of_a_lane(config, paired)))


def _of_a_lane(config: EngineConfig, paired: bool) -> int:
    return config.pixels * config.outputs // (2 if paired else 1)


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


def engine_resources(config: EngineConfig, dsps: int | None = None) -> Resources:
    """All that an engine takes of an ECP5, without what its board adds (`BOARD`).

    Args:
        dsps: as `dsp_blocks` has it.
    """
    lanes, pixels = config.lanes, config.pixels
    inner = lanes if dsps is None else dsps
    kind = config.nibbles
    dot = _DSP_PAIR[kind] * inner + _LUT_PAIR[kind] * (lanes - inner) + _TREE * (lanes - 1) + _SUM
    if config.post_lanes == 2:
        dot += _SECOND_SUM
    array = dot * (pixels * config.outputs)
    shared = _WEIGHT[kind] * (config.outputs * inner) + _FEATURE[kind] * (pixels * inner)
    # A pixel takes its word from any bank: a LUT for each bit and bank but one.
    words = _BYTE * (pixels * lanes) + Resources(8 * lanes * pixels * (pixels - 1))
    wide = lanes / 8  # what handles whole words of a pixel
    post = (_REQUANT * config.post_lanes + _PIXEL * wide) * pixels
    sizes = (config.feature_words, config.weight_rows, config.parameter_rows)
    rest = _BASE + _ADDRESS * sum(map(log2, sizes))
    counted = Resources(0, _beside(config), dsp_blocks(config, dsps), block_rams(config))
    return array + shared + words + post + rest + counted


def _beside(config: EngineConfig) -> float:
    """Flip-flops that stand beside each memory and each output's accumulators (`engine_own`)."""
    word = 8 * config.lanes
    row = log2(config.feature_words / config.pixels)
    features = config.pixels * config.lanes * (2 * row + 3 + 8)
    weights = config.outputs * (2 * log2(config.weight_rows) + 2 + word)
    parameters = max(1, PARAMETER_ROW_BITS // word) * (log2(config.parameter_rows) + 1)
    sums = (config.outputs - 1) * (3 + config.pixels)
    return features + weights + parameters + sums


def _blocks(width: int, rows: int) -> int:
    """Of a memory of so many bits, the form that takes fewest."""
    return min(-(-width // bits) * -(-rows // deep) for bits, deep in _ROWS.items())
