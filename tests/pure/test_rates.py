# SPDX-License-Identifier: Apache-2.0
"""Rates are said at clocks that can be had, of the core and of the link, with what limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bitwright.base.figures import Figure, Resources, Source
from bitwright.base.nouns import ROWS
from bitwright.build.implement import ImplementResult
from bitwright.pipeline.steps.rates import BOARD, LINK, MEMORY, clock_of, core_label, rate_rows
from bitwright.pipeline.steps.results_hardware import LinkRow, MapResult
from bitwright.pipeline.steps.results_run import Results
from bitwright.pipeline.steps.summary import summary_rows
from bitwright.report.record import SummaryRow

CORE = core_label()
LINK_ROW = LinkRow(board="ulx3s", baud=1e6, bytes_in=2700, bytes_out=21, images_per_s=1e5 / 2700)
MAPPED = MapResult(
    target="ecp5-85k",
    clock_mhz=200.0,
    rated_mhz=145.0,
    clock_note="asked for 200",
    link=LINK_ROW,
    lut_kind="packed",
    interval=10_000,
    latency=20_000,
    bottleneck="conv2",
    resources=Resources(lut=1000),
    capacity=Resources(lut=83640),
    blocks=(),
    fifos=(),
)


def _made(fmax: float, bitstream_mhz: float | None, baud: float | None) -> ImplementResult:
    figures = {
        "lut": Figure(1300, "LUT", Source.PLACE_AND_ROUTE),
        "lut_cells": Figure(1100, "LUT", Source.SYNTHESIS),
        "fmax_mhz": Figure(fmax, "MHz", Source.PLACE_AND_ROUTE),
    }
    return ImplementResult(
        target="ecp5-85k",
        part="",
        flow="place-and-route",
        clock_mhz=200.0,
        figures=figures,
        capacity=Resources(),
        design=Resources(),
        shell=Resources(),
        instances={},
        critical_path=None,
        clock_met=fmax >= 200,
        bitstream_clock_mhz=bitstream_mhz,
        seed=1,
        files={},
        runs={},
        notes=(),
        baud=baud,
    )


def _rows(found: Results) -> dict[str, SummaryRow]:
    return {row.label.removeprefix(f"{CORE}, "): row for row in rate_rows(found)}


def _value(row: SummaryRow) -> float:
    assert row.figure is not None and row.figure.unit == "images/s"
    return row.figure.value


def test_before_placement_no_rate_is_beyond_what_the_family_reaches() -> None:
    rows = _rows(Results(map=MAPPED))
    assert _value(rows[CORE]) == 14_500
    assert "145 MHz" in rows[CORE].note and "asked for 200" in rows[CORE].note
    assert "conv2 limits" in rows[CORE].note


def test_core_and_link_always_stand_together_and_the_slower_one_is_named() -> None:
    rows = _rows(Results(map=MAPPED))
    assert _value(rows[LINK]) == 37.04 and "2700 bytes in" in rows[LINK].note
    assert _value(rows[BOARD]) == 37.04 and rows[BOARD].note == "the serial link limits"
    fast = MAPPED.model_copy(update={"link": LINK_ROW.model_copy(update={"images_per_s": 1e6})})
    assert _rows(Results(map=fast))[BOARD].note == "the core (conv2) limits"
    bare = _rows(Results(map=MAPPED.model_copy(update={"link": None})))
    assert set(bare) == {CORE}


@pytest.mark.parametrize(
    ("fmax", "clock", "words"),
    [(105.8, 105.8, "reached; 200 were asked for"), (210.0, 200.0, "asked for and met")],
)
def test_after_placement_rates_are_said_at_the_clock_that_was_reached(
    fmax: float, clock: float, words: str
) -> None:
    found = Results(map=MAPPED, implement=_made(fmax, 100.0, 3e6))
    rows = _rows(found)
    assert clock_of(found) == clock
    assert _value(rows[CORE]) == clock * 100
    assert words in rows[CORE].note
    assert _value(rows[LINK]) == 111  # at the baud rate of the bitstream
    slow = replace(_made(fmax, 50.0, 3e6))
    quick = MAPPED.model_copy(update={"link": LINK_ROW.model_copy(update={"images_per_s": 1e6})})
    board = _rows(Results(map=quick, implement=slow))[BOARD]
    assert _value(board) == 5000 and "50 MHz, the clock of the bitstream" in board.note


def test_rows_of_a_table_are_not_called_images() -> None:
    rows = rate_rows(Results(map=MAPPED, inputs=ROWS))
    assert [row.label for row in rows] == [
        "rows a second",
        "rows a second, serial link",
        "rows a second, on the board",
    ]
    assert {row.figure.unit for row in rows if row.figure is not None} == {"rows/s"}
    assert "a row" in rows[1].note
    labels = [row.label for row in summary_rows(Results(map=MAPPED, inputs=ROWS))]
    assert "cycles a row, predicted" in labels
    assert not any("image" in label for label in labels)


def test_without_a_bitstream_there_is_no_link() -> None:
    rows = _rows(Results(map=MAPPED, implement=_made(105.8, None, None)))
    assert set(rows) == {CORE}


def test_a_weight_memory_that_limits_is_named() -> None:
    plan = {"bytes_per_frame": 1e6, "available_gbytes_per_s": 1.16}
    mapped = MAPPED.model_copy(update={"link": None, "weight_memory": plan})
    rows = _rows(Results(map=mapped))
    assert _value(rows[MEMORY]) == 1160
    assert rows["core and memory"].note == "the weight memory limits"


def test_both_counts_of_luts_are_named() -> None:
    rows = {row.label: row for row in summary_rows(Results(map=MAPPED))}
    assert rows["LUT"].note == "of 83,640, packed"
    found = Results(map=MAPPED, implement=_made(105.8, None, None))
    rows = {row.label: row for row in summary_rows(found)}
    assert rows["LUT"].note == "of 83,640, packed; 1,100 cells of synthesis"
    other = MAPPED.model_copy(update={"lut_kind": "synthesis"})
    rows = {row.label: row for row in summary_rows(Results(map=other))}
    assert rows["LUT"].note == "of 83,640, as synthesis counts"
