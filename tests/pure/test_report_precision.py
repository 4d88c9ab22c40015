# SPDX-License-Identifier: Apache-2.0
"""The report's section on training in low precision, from the files that a run leaves."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bitwright.base.errors import DataError
from bitwright.low_precision.log import LOG, write_log
from bitwright.low_precision.policy import Entry
from bitwright.report.page import render_page, render_precision
from bitwright.report.precision import precision_chart
from bitwright.report.record import Report
from bitwright.train.precision_rows import read_precision
from bitwright.train.records import METRICS, EpochMetrics, write_metrics

LOG_OF_FIVE = (
    Entry(1, "int8", "1 of 2 gradients stored"),
    Entry(2, "int8", "nothing to compare with", None, 0.5, None, 2.36, 0),
    Entry(3, "int8", "p 2.5 > threshold 2.23: int8 is left", "int12", 0.2, 2.5, 2.23, 1),
    Entry(4, "int12", "the last epoch <begins>", "float32", 0.4, None, 2.11, 0),
    Entry(5, "float32", "the policy is off"),
)


def metrics(epoch: int, top5: float | None = None) -> EpochMetrics:
    others = {} if top5 is None else {"top5": top5}
    losses = (2.0 / epoch, 0.1 * epoch, 2.2 / epoch, 0.09 * epoch)
    return EpochMetrics(epoch, 0.1, *losses, 1.0, others=others)


def run_folder(path: Path, top5: float | None = None) -> Path:
    write_log(path / LOG, LOG_OF_FIVE)
    write_metrics(path / METRICS, [metrics(epoch, top5) for epoch in range(1, 6)])
    return path


def drawn(path: Path, top5: float | None = None) -> tuple[ElementTree.Element, str]:
    chart = str(precision_chart(read_precision(run_folder(path, top5))))
    root = ElementTree.fromstring(chart)
    return root, " ".join("".join(each.itertext()) for each in root)


def points(root: ElementTree.Element) -> list[list[tuple[float, float]]]:
    return [
        [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]  # type: ignore[misc]
        for line in root.iter("polyline")
    ]


def test_rows_join_both_files(tmp_path: Path) -> None:
    rows = read_precision(run_folder(tmp_path))
    assert [row.level for row in rows] == ["int8"] * 3 + ["int12", "float32"]
    assert rows[2].p == 2.5 and rows[2].validation_metric == 0.09 * 3
    assert read_precision(tmp_path / "elsewhere") == ()
    (tmp_path / LOG).write_text("{}")
    with pytest.raises(DataError):
        read_precision(tmp_path)


def test_levels_by_product_have_room_and_their_changes_are_switches(tmp_path: Path) -> None:
    """A policy of one's own need not say what it switches to, and its levels have long names."""
    run_folder(tmp_path)
    names = ["int8 to int12", "int8 to int12", "int16 to float32"]
    write_log(tmp_path / LOG, [Entry(i, name, "why") for i, name in enumerate(names, 1)])
    rows = read_precision(tmp_path)
    assert [row.switched_to for row in rows] == [None, "int16 to float32", None]
    assert "throughout" not in render_precision(rows, "title")
    root = ElementTree.fromstring(str(precision_chart(rows)))
    labels = [each for each in root.iter("text") if each.text == names[-1]]
    assert float(labels[0].attrib["x"]) > 6 * len(names[-1])


def test_the_drawing_shows_levels_thresholds_losses_and_switches(tmp_path: Path) -> None:
    root, words = drawn(tmp_path)
    for part in ("precision", "int8", "int12", "float32", "threshold", "loss", "accuracy"):
        assert part in words
    assert "top 5" not in words
    levels = points(root)[0]
    assert [x for x, _ in levels] == sorted(x for x, _ in levels)
    heights = [y for _, y in levels[::2]]
    assert heights[0] == heights[1] == heights[2] > heights[3] > heights[4]
    marks = [line for line in root.iter("line") if "stroke-dasharray" in line.attrib]
    assert len(marks) == 2
    # A switch is marked between the epoch that led to it and the next one: where its step is.
    assert [float(mark.attrib["x1"]) for mark in marks] == [levels[5][0], levels[7][0]]
    assert "the last epoch <begins>" in "".join(marks[1].itertext())


def test_gaps_stay_gaps_and_p_is_dots(tmp_path: Path) -> None:
    root, _ = drawn(tmp_path)
    threshold = points(root)[1]
    assert len(threshold) == 3  # epochs 2 to 4
    assert len(list(root.iter("circle"))) == 2  # p of epoch 3, and its legend
    p = next(iter(root.iter("circle")))
    # Above its threshold: a violation.
    assert float(p.attrib["cy"]) < threshold[1][1]
    assert float(p.attrib["cx"]) == threshold[1][0]


def test_top_five_is_drawn_where_it_is_known(tmp_path: Path) -> None:
    assert "top 5" in drawn(tmp_path, top5=0.9)[1]


def report_of(rows: object) -> Report:
    return Report.model_validate(
        {
            "name": "n",
            "description": "d",
            "bitwright": "0",
            "summary": (),
            "stages": (),
            "accuracy": (),
            "precision": rows,
        }
    )


def test_the_page_has_the_section_only_where_there_is_something_to_say(tmp_path: Path) -> None:
    rows = read_precision(run_folder(tmp_path))
    page = render_page(report_of(rows))
    assert "Training precision" in page
    assert "int8 → int12" in page and "int12 → float32" in page
    assert "the last epoch &lt;begins&gt;" in page and "<begins>" not in page
    assert len(re.findall(r"<svg", page)) == 1
    assert "int8 throughout: 1 of 2 gradients stored" in render_page(report_of(rows[:2]))
    assert "Training precision" not in render_page(report_of(()))


def test_the_part_can_be_a_page_of_its_own(tmp_path: Path) -> None:
    rows = read_precision(run_folder(tmp_path))
    page = render_precision(rows, "mine & yours")
    assert "<title>mine &amp; yours" in page and "int8 → int12" in page
    whole = render_page(report_of(rows))
    part = page[page.index("<h2>Training precision") : page.index("</main>")].strip()
    assert part in whole
