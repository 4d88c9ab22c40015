# SPDX-License-Identifier: Apache-2.0
"""The report page: self-contained, escaped, every figure with its source."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from bitwright.base.figures import Figure, Source, number, show
from bitwright.report.page import markdown_summary, render_page
from bitwright.report.record import Curve, MetricStage, Report, Sample, Stage, SummaryRow
from bitwright.report.svg import ticks


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
