# SPDX-License-Identifier: Apache-2.0
"""The engine on a board, as far as nothing is simulated: blocks, times of the SDRAM, its pins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bitwright.base.errors import TargetError
from bitwright.build.pins import pin_file
from bitwright.build.plls import choose_clock
from bitwright.build.sdram import needs_memory
from bitwright.build.target import load_board
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.cost import BOARD, block_rams, dsp_blocks, engine_resources, fitting_dsps
from bitwright.engine.sdram import ULX3S

SIZES = json.loads(
    (Path(__file__).parents[2] / "docs" / "results" / "engine_sizes.json").read_text()
)


def test_blocks_of_e256_are_those_of_its_synthesis() -> None:
    """`benchmarks/engine_area.py e256 --dsps 4`, Yosys 0.70: 136 MULT18X18D, 186 DP16KD."""
    assert dsp_blocks(ENGINES["e256"], 4) == 136
    assert block_rams(ENGINES["e256"]) == 186


@pytest.mark.parametrize("name", SIZES)
def test_the_model_says_what_synthesis_found(name: str) -> None:
    """Rows of `benchmarks/engine_sizes.py`: LUTs and flip-flops within 5 %, blocks exactly."""
    row = SIZES[name]
    config = EngineConfig(**{k: v for k, v in row["config"].items() if k != "constants"})
    found, measured = engine_resources(config, row["dsps"]), row["whole"]
    assert (found.dsp, found.bram) == (measured["dsp"], measured["bram"])
    assert found.lut == pytest.approx(measured["lut"], rel=0.05)
    assert found.ff == pytest.approx(measured["ff"], rel=0.05)


@pytest.mark.parametrize(
    ("name", "lut", "ff", "blocks"),
    [
        ("e256", 45_181, 37_872, 188),
        ("e256-int8", 37_348, 36_967, 188),
        ("e256-int8-16k", 37_048, 36_778, 124),
    ],
)
def test_a_board_adds_the_same_to_every_engine(name: str, lut: int, ff: int, blocks: int) -> None:
    """`benchmarks/engine_area.py NAME --dsps 4 --clock 62.5 --board ulx3s --not-placed`, Yosys
    0.70.
    """
    whole = engine_resources(ENGINES[name], 4) + BOARD
    assert whole.lut == pytest.approx(lut, rel=0.05) and whole.bram == blocks
    assert whole.ff == pytest.approx(ff, rel=0.05)


def test_multipliers_go_to_post_lanes_first() -> None:
    for name, lanes in (("e256", 4), ("e256-2", 4), ("e2048", 0)):
        config = ENGINES[name]
        assert fitting_dsps(config, 156) == lanes
        assert lanes == 0 or dsp_blocks(config, lanes) <= 156 < dsp_blocks(config, lanes + 1)
    assert dsp_blocks(ENGINES["e256-2"], 4) == 144


def test_pixels_that_share_multipliers_take_half_of_them() -> None:
    config = ENGINES["e2048"]  # 2 048 products of 8 bits, for 2 520 multipliers of an XCZU9EG
    assert (dsp_blocks(config), dsp_blocks(config, paired=True)) == (2048 + 32, 1024 + 32)
    assert fitting_dsps(ENGINES["e512"], 360, paired=True) == 8  # all of them on an XCZU3EG
    assert fitting_dsps(ENGINES["e512"], 360) == 5


@pytest.mark.parametrize("mhz", [25.0, 40.0, 50.0, 62.5])
def test_cycles_keep_the_times_of_the_data_sheet(mhz: float) -> None:
    """Rows are commanded in the first clock of a cycle, columns in the second."""
    cycles, clock = ULX3S.cycles(mhz), 1000 / (2 * mhz)
    assert (2 * max(2, cycles["Rcd"]) + 1) * clock >= ULX3S.rcd
    assert 2 * cycles["Rp"] * clock >= ULX3S.rp
    assert 2 * cycles["Ras"] * clock >= ULX3S.ras
    assert 2 * (cycles["Ras"] + cycles["Rp"]) * clock >= ULX3S.rc
    assert 2 * cycles["Rfc"] * clock >= ULX3S.rfc
    assert 2 * cycles["Rrd"] * clock >= ULX3S.rrd
    assert (2 * cycles["Close"] - 1 - 3) * clock >= ULX3S.wr
    assert 2 * cycles["PowerUp"] * clock >= 1000 * ULX3S.power_up
    assert cycles["Refresh"] * 1000 / mhz * ULX3S.refreshes <= ULX3S.refresh * 1e6


def test_a_slower_chip_takes_more_cycles() -> None:
    slow = replace(ULX3S, rcd=60.0, rp=60.0, rfc=200.0)
    for name in ("Rcd", "Rp", "Rfc"):
        assert slow.cycles(62.5)[name] > ULX3S.cycles(62.5)[name]


def test_pins_of_the_memory_are_written_where_a_design_has_one() -> None:
    board = load_board("ulx3s")
    text = pin_file(board, "ecp5", sdram=True)
    assert 'LOCATE COMP "sdram_clk" SITE "F19";' in text
    assert 'LOCATE COMP "sdram_d[15]" SITE "J17";' in text
    assert "sdram" not in pin_file(board, "ecp5")
    needs_memory(board)
    with pytest.raises(TargetError, match="this board has none"):
        needs_memory(board.model_copy(update={"sdram": {}}))


def test_a_doubled_clock_comes_from_an_even_divider() -> None:
    clock = choose_clock(25.0, 62.5, double=True)
    assert clock.mhz == 62.5 and clock.out_div % 2 == 0
    assert choose_clock(25.0, 25.0).ref_div == 0
    assert choose_clock(25.0, 25.0, double=True).ref_div > 0, "the oscillator itself has no double"
