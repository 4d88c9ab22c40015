# SPDX-License-Identifier: Apache-2.0
"""The report's picture of the programmed engine."""

from __future__ import annotations

import re

from bitwright.base.records import EngineLayerRow, EngineRow, EngineSpanRow, EngineWaitRow
from bitwright.report.engine import time_bars, timeline_drawing, wait_words

ROW = EngineRow(
    engine="4x8x8",
    cycles=10_000,
    layers=(
        EngineLayerRow(
            name="conv<1>", busy=6000, waits={"load": 1500}, macs=10**6, utilisation=0.5
        ),
        EngineLayerRow(name="conv2", busy=2500, waits={}, macs=10**5, utilisation=0.2),
    ),
    waits=(
        EngineWaitRow(layer="conv<1>", what="weights", of="conv<1>", cycles=1500),
        EngineWaitRow(layer="conv2", what="instructions", of="", cycles=12),
        EngineWaitRow(layer="conv2", what="results", of="conv<1>", cycles=9),
        EngineWaitRow(layer="conv2", what="room", of="conv2", cycles=3),
    ),
    spans=(
        EngineSpanRow(unit="load", layer="conv<1>", begin=0, end=1500),
        EngineSpanRow(unit="execute", layer="conv<1>", begin=1500, end=7500),
        EngineSpanRow(unit="execute", layer="conv2", begin=7500, end=10_000),
        EngineSpanRow(unit="store", layer="conv2", begin=9000, end=9900),
    ),
)


def test_the_timeline_has_a_lane_a_unit_and_boxes_where_they_worked() -> None:
    svg = str(timeline_drawing(ROW))
    boxes = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', svg)
    rails = {y: (float(x), float(width)) for x, y, width in boxes if width == "960.0"}
    assert len(rails) == 3
    left, width = next(iter(rails.values()))
    spans = [(float(x), float(w), y) for x, y, w in boxes if w != "960.0"]
    found = sorted(
        (list(rails).index(y), round((x - left) / width * 10_000), round(w / width * 10_000))
        for x, w, y in spans
    )
    assert found == [(0, 0, 1500), (1, 1500, 6000), (1, 7500, 2500), (2, 9000, 900)]
    assert "conv&lt;1&gt;" in svg and "conv<1>" not in svg


def test_the_longest_waits_are_told_and_small_ones_are_one() -> None:
    words = wait_words(ROW)
    assert words == [
        ("conv<1> waits for weights of conv<1>", 1500, "15.0 %"),
        ("conv2 waits for instructions", 12, "0.1 %"),
        ("everything else", 12, "0.1 %"),
    ]
    assert "7,500 (75.0 %)" in str(time_bars(ROW)).replace("\u2009", ",").replace("\u202f", ",")


def test_without_an_engine_nothing_is_drawn() -> None:
    assert str(timeline_drawing(None)) == str(time_bars(None)) == ""
