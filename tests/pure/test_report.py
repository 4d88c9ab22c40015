# SPDX-License-Identifier: Apache-2.0
"""The report page: self-contained, escaped, every figure with its source."""

from __future__ import annotations

from html.parser import HTMLParser
from itertools import pairwise

import pytest
from tests.pace import within

from bitwright.base.figures import Figure, Resources, Source, number, show
from bitwright.base.nouns import ROWS
from bitwright.base.records import BlockRow, EdgeRow, PathRow
from bitwright.report.flow import lanes_of
from bitwright.report.page import markdown_summary, render_page
from bitwright.report.record import Curve, MetricStage, Report, Sample, Stage, SummaryRow
from bitwright.report.svg import heatmap, shorten, ticks


def small_report(**more: object) -> Report:
    fields: dict[str, object] = {
        "name": "a<b",
        "description": "few bits & more",
        "bitwright": "0",
        "summary": (
            SummaryRow(label="Fmax", figure=Figure(123.44, "MHz", Source.PLACE_AND_ROUTE)),
            SummaryRow(label="energy", figure=None, note="not run"),
        ),
        "stages": (
            Stage(name="train", headline="done", seconds=1.25),
            Stage(name="map", headline=""),
        ),
        "quality": (
            MetricStage(
                stage="float", figure=Figure(0.9875, "share", Source.MEASUREMENT), images=359
            ),
        ),
    }
    return Report.model_validate({**fields, **more})


class _Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]
        self.open.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_page_needs_nothing_beside_it_and_escapes_what_users_write() -> None:
    sample = Sample(index=3, label="<7>", prediction="1", png="AAAA")
    curve = Curve(title="Loss", y_label="loss", epochs=(1, 2), series={"a&b": (2.0, 1.0)})
    page = render_page(small_report(samples=(sample,), curves=(curve,), recipe="name: <x>"))
    seen = _Collector()
    seen.feed(page)
    assert all(link.startswith("data:") for link in seen.links)
    assert "script" not in seen.open
    words = " ".join(seen.text)
    for part in ("a<b", "few bits & more", "1 (is <7>)", "name: <x>", "a&b"):
        assert part in words
    assert "<7>" not in page


def test_signs_that_turn_text_or_hide_in_it_are_not_shown() -> None:
    hidden = "\u202e\u2066\u200b\x1b"
    curve = Curve(title="Loss", y_label="loss", epochs=(1, 2), series={f"a{hidden}b": (2.0, 1.0)})
    page = render_page(small_report(curves=(curve,), recipe=f"name: x{hidden}\n  y: 1"))
    assert not set(hidden) & set(page)
    assert "a____b" in page and "name: x____\n  y: 1" in page


def test_every_figure_shows_value_unit_and_source() -> None:
    report = small_report()
    table = markdown_summary(report)
    assert "| Fmax | 123.4 MHz | place-and-route |" in table
    assert "| energy | - | not run |" in table
    page = render_page(report)
    assert "98.75 %" in page and "measurement" in page and "not run" in page


def test_report_json_round_trip() -> None:
    report = small_report()
    assert Report.model_validate_json(report.model_dump_json()) == report


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234567, "1\u202f234\u202f567"), (12.3456, "12.35"), (0.01234, "0.0123"), (250.55, "250.6")],
)
def test_numbers_carry_no_false_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_records_of_earlier_versions_are_read() -> None:
    fields = small_report().model_dump(mode="json")
    (stage,) = fields.pop("quality")
    fields["accuracy"] = [{**stage, "accuracy": stage.pop("figure")}]
    fields["accuracy"][0].pop("figure")
    del fields["metric"], fields["task"], fields["distribution"], fields["legend"]
    fields["samples"] = [{"index": 1, "label": "a", "prediction": "b", "png": ""}]
    found = Report.model_validate(fields)
    assert (found.quality, found.metric) == (small_report().quality, "accuracy")
    assert found.samples[0].right is False


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure(0.95, "share", Source.MODEL, 0.0244, 80), "95.0 \u00b1 2.4 %, 80 images"),
        (Figure(0.5, "share", Source.MODEL, 0.5, 1), "50 \u00b1 50 %, 1 image"),
        (
            Figure(0.02601, "", Source.MODEL, 0.00061, 1400),
            "0.02601 \u00b1 0.00061, 1\u202f400 images",
        ),
        (Figure(3.0, "mm", Source.MODEL, 0.0), "3.00 \u00b1 0.00 mm"),
        (Figure(1.0, "share", Source.MODEL, None, 1).of(ROWS), "100.00 %, 1 row"),
        (Figure(1.0, "share", Source.MODEL, None, 2), "100.00 %, 2 images"),
        (Figure(float("nan"), "mm", Source.MODEL, 1.0), "nan \u00b1 1.0 mm"),
    ],
)
def test_what_is_measured_bears_its_error_and_its_number_of_images(
    figure: Figure, text: str
) -> None:
    assert show(figure) == text


def test_shares_are_shown_in_percent() -> None:
    assert show(Figure(0.5, "share", Source.MODEL)) == "50.00 %"


@pytest.mark.parametrize(("lo", "hi"), [(0.0, 1.0), (0.93, 0.981), (-3.0, 250.0), (5.0, 5.0)])
def test_ticks_cover_the_range_with_few_round_numbers(lo: float, hi: float) -> None:
    found = ticks(lo, hi)
    assert found[0] <= lo and found[-1] >= hi - 1e-9 and 1 <= len(found) <= 8


def _blocks(count: int) -> tuple[BlockRow, ...]:
    return tuple(
        BlockRow(
            name=f"block_{n}",
            kind="matvec",
            layer="a",
            pe=16,
            simd=None,
            cycles=100 + n,
            latency=1,
            predicted=Resources(lut=10),
        )
        for n in range(count)
    )


def _chain(count: int) -> tuple[EdgeRow, ...]:
    names = ["", *(f"block_{n}" for n in range(count)), ""]
    return tuple(EdgeRow(source=a, target=b, beats=64, width=4) for a, b in pairwise(names))


def test_the_diagram_has_every_block_and_a_rate_on_every_edge() -> None:
    bypass = EdgeRow(source="block_3", target="block_40", beats=32, width=8)
    report = small_report(
        blocks=_blocks(60), edges=(*_chain(60), bypass), interval=159, clock_mhz=100.0
    )
    page = render_page(report)
    words = _Collector()
    words.feed(page)
    seen = " ".join(words.text)
    diagram = page[page.index('aria-label="The pipeline"') :].split("</svg>")[0]
    assert all(f">block_{n}</text>" in diagram for n in range(60))
    # 64 transfers of 4 bits in 159 cycles of 10 ns
    assert diagram.count("64 \u00d7 4 bit \u00b7 40 % \u00b7 161 Mbit/s") >= 60
    assert "to block_40: 32 \u00d7 8 bit \u00b7 20 %" in diagram
    assert diagram.count('class="limit"') == 1
    cycles = page[page.index('aria-label="Cycles an image, by block"') :].split("</svg>")[0]
    assert all(f"block_{n}" in cycles for n in range(60))
    assert "PE 16" in seen and "None" not in page


def test_lanes_of_branches_never_share_a_line() -> None:
    spans = [(0, 5), (2, 9), (5, 8), (1, 3), (9, 12)]
    lanes = lanes_of([(a, b, "") for a, b in spans])
    for one in lanes:
        for two in lanes:
            if one is not two and one.lane == two.lane:
                assert one.end <= two.start or two.end <= one.start


def test_thousands_of_edges_that_pass_a_box_take_no_time_each() -> None:
    """Lanes were tried one after the other: three minutes for 30 000 edges, a file of 500 kB."""
    with within(5):
        found = lanes_of([(0, end, "") for end in range(2, 30_000)])
    assert [edge.lane for edge in found] == list(range(len(found)))  # the shortest, inside


def test_the_critical_path_names_blocks() -> None:
    rows = (
        PathRow(block="conv2_pad_fifo", levels=0, logic_ns=5.83, routing_ns=0.0),
        PathRow(block="conv2_window", levels=1, logic_ns=0.24, routing_ns=1.05),
    )
    page = render_page(small_report(blocks=_blocks(1), critical_path=rows))
    assert "conv2_pad_fifo" in page and "5.83" in page and "TRELLIS" not in page


@pytest.mark.parametrize("classes", [10, 30, 100])
def test_every_class_has_its_label_on_both_sides(classes: int) -> None:
    labels = [f"class_{n}" for n in range(classes)]
    table = [[int(r == c) * 5 + int(c == r + 1) for c in range(classes)] for r in range(classes)]
    drawn = str(heatmap("Confusion matrix", labels, table))
    for label in labels:
        assert drawn.count(f">{label}</text>") == 2
    assert drawn.count("taken for") == 2 * classes - 1  # what never happened is not drawn
    if classes > 12:
        assert drawn.count("rotate(-90") == classes


def test_a_thousand_classes_are_a_table_of_the_pairs_most_confused() -> None:
    table = [[int(r == c) + 7 * int((r, c) == (3, 5)) for c in range(1000)] for r in range(1000)]
    labels = tuple(f"class_{n}" for n in range(1000))
    page = render_page(small_report(classes=labels, confusion=table))
    assert "Confusion matrix" not in page
    assert "<td>class_3</td><td>class_5</td>" in page


def test_names_are_shortened_in_the_middle() -> None:
    assert shorten("stem_2_quantizer_fork", 11) == "stem_\u2026_fork"
    assert shorten("conv1", 5) == "conv1"
