# SPDX-License-Identifier: Apache-2.0
"""Tables: the same values in Markdown, CSV, JSON and on the page."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bitwright.base.figures import Measured
from bitwright.report.scatter import Point, Scatter
from bitwright.report.table import Column, Kind, Table, value_from_json
from bitwright.report.table_page import Section, write_report

COLUMNS = (
    Column("format", "format"),
    Column("accuracy", "accuracy", Kind.SHARE, about="top-1"),
    Column("loss", "loss", Kind.POINTS),
    Column("size", "size", Kind.NUMBER, "bytes"),
    Column("rate", "rate", Kind.RATE),
)
ROWS = (
    {"format": "e4m3", "accuracy": Measured(0.98046, 0.00204), "loss": -0.00154, "size": 47736},
    {"format": "a|b <i>", "accuracy": Measured(0.5), "loss": 0.000001, "rate": 4.0175},
)
TABLE = Table("Formats & more", COLUMNS, ROWS, ("10 % of the images.",))


def test_markdown_rounds_for_people_and_escapes_bars() -> None:
    text = TABLE.to_markdown()
    assert "| e4m3 | 98.05 \u00b1 0.20 % | -0.15 | 47\u202f736 | - |" in text
    assert "| a\\|b &lt;i> | 50.00 % | 0.00 | - | \u00d74.02 |" in text
    assert "|---|---:|---:|---:|---:|" in text
    assert "* accuracy: top-1" in text


def test_a_name_ends_no_cell_of_markdown() -> None:
    """Of a backslash and a bar the backslash must not escape that of the bar."""
    for name, cell in (("a\\|b", "a\\\\\\|b"), ("c\\d", "c\\d"), ("||", "\\|\\|")):
        text = Table("t", (Column("n", "name"),), ({"n": name},)).to_markdown()
        assert f"| {cell} |" in text


def test_texts_of_strangers_are_neither_html_nor_links_in_markdown() -> None:
    notes = ("[y]: javascript:alert(1)", "[see][y], ![a](b), <b>")
    text = Table("n <img src=x>\n# m", (Column("n", "a"),), ({"n": "[x](y)"},), notes).to_markdown()
    assert text.startswith("## n &lt;img src=x> # m\n")
    assert "[y]\\: javascript" in text and "[see]\\[y], ![a]\\(b), &lt;b>" in text
    assert "| [x]\\(y) |" in text


def test_csv_and_json_keep_every_digit_and_come_back() -> None:
    rows = list(csv.DictReader(io.StringIO(TABLE.to_csv())))
    assert float(rows[0]["accuracy"]) == 0.98046
    assert float(rows[0]["accuracy_error"]) == 0.00204
    assert rows[1]["accuracy_error"] == "" and rows[1]["size"] == ""
    assert rows[1]["format"] == "a|b <i>"
    stored = json.loads(json.dumps(TABLE.to_json()))
    back = [{k: value_from_json(v) for k, v in row.items()} for row in stored["rows"]]
    assert back == [dict(row) for row in ROWS]


def test_a_row_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="acuracy"):
        Table("T", COLUMNS, ({"acuracy": 1.0},))
    with pytest.raises(ValueError, match="two columns"):
        Table("T", (COLUMNS[0], COLUMNS[0]), ())


def test_the_report_is_four_whole_files(tmp_path: Path) -> None:
    plot = Scatter(
        "Accuracy",
        "bits",
        "percent",
        (Point("e4m3", "minifloat", 8, 98.0, 0.2), Point("po2 <4>", "po2", 4, 30.0)),
        floor=80.0,
        baseline=("float", 98.2),
    )
    paths = write_report(
        tmp_path,
        "compare",
        title="A < B",
        lead="lead",
        sections=[Section(TABLE, (plot,))],
        facts={"command": "bitwright formats compare"},
    )
    assert {p.name for p in tmp_path.iterdir()} == {
        f"compare.{e}" for e in ("md", "csv", "json", "html")
    }
    page = paths["html"].read_text()
    assert "A &lt; B" in page and "A < B" not in page
    assert "po2 &lt;4&gt; (30.0)" in page  # below the floor: its value is written beside it
    assert not re.search(r"""(src|href)=["']http""", page)
    assert json.loads(paths["json"].read_text())["tables"][0]["rows"][0]["size"] == 47736


def test_several_tables_have_a_csv_each(tmp_path: Path) -> None:
    sections = [Section(TABLE), Section(Table("Second one", COLUMNS, ROWS))]
    paths = write_report(tmp_path, "m", title="T", lead="", sections=sections, facts={})
    assert paths["csv-second-one"].name == "m-second-one.csv"


@pytest.mark.parametrize("ys", [[5.0], [5.0, 5.0], [0.1, 99.0]])
def test_plots_of_few_or_equal_points(ys: list[float]) -> None:
    points = tuple(Point(str(i), "s", 8.0, y) for i, y in enumerate(ys))
    for log_x in (False, True):
        text = str(Scatter("t", "x", "y", points, log_x=log_x).to_svg())
        assert "nan" not in text and "inf" not in text
        assert text.count("<circle") == len(ys) + 1  # and one in the legend
    assert str(Scatter("t", "x", "y", ()).to_svg()) == ""
    below = Scatter("t", "x", "y", points, floor=1e3)
    assert "nan" not in str(below.to_svg())


def test_bits_have_no_halves_and_long_series_do_not_run_into_each_other() -> None:
    points = tuple(
        Point("", f"train.quantized.self_study.lr={i}", x, y)
        for i in range(8)
        for x, y in ((2.0, 90.0), (4.0, 91.0))
    )
    svg = str(Scatter("t", "bits", "%", points).to_svg())
    assert ">3<" in svg and ">2.5<" not in svg
    starts = [
        (float(x), float(y))
        for x, y in re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>train\.', svg)
    ]
    assert all(b[0] - a[0] > 200 for a, b in itertools.pairwise(starts) if a[1] == b[1])
    highest = min(float(y) for y in re.findall(r'<line [^>]*y1="([\d.]+)"', svg))
    assert highest > max(y for _, y in starts) + 10


@pytest.mark.parametrize("error", [0.0, 0.14])
def test_names_cover_nothing_where_all_accuracies_are_the_same(error: float) -> None:
    """29 networks at 100 %, as on an easy data set: names stand beside each other, all of them."""
    sizes = [1, 2, 3, 4, 4.01, 4.02, 4.03, 5, 6, 6.01, 6.02, 6.03, 8, 8.01, 8.02, 8.03, 16]
    points = tuple(
        Point(f"e{i}m{i}<x>", f"family {i % 9}", size, y, error)
        for i, (size, y) in enumerate([(s, 100.0) for s in sizes] + [(s, 99.7) for s in sizes[3:]])
    )
    plot = Scatter("t", "kB", "%", points, log_x=True, baseline=("float32: 100", 100.0))
    root = ElementTree.fromstring(f"<svg>{re.sub('^<svg.*?>', '', str(plot.to_svg()))}")
    boxes = [_box(text) for text in root.iter("text") if text.text]
    names = {text.text for text in root.iter("text")}
    assert {point.label for point in points} <= names
    for one, other in itertools.combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one, other)
    dashed = next(e for e in root.iter("line") if "dasharray" in e.get("style", ""))
    line = float(dashed.get("y1", "nan"))
    assert not [box for box in boxes if box[1] < line < box[3] and box[2] > 58]


def _box(text: ElementTree.Element) -> tuple[float, float, float, float]:
    """Left, top, right, bottom of a text of 11 pixels; its letters are about 5.5 wide."""
    x, y = float(text.get("x", "nan")), float(text.get("y", "nan"))
    width = 5.5 * len(text.text or "")
    left = x - {"start": 0.0, "middle": width / 2, "end": width}[text.get("text-anchor", "start")]
    return left, y - 9, left + width, y + 2


def test_no_text_of_a_table_becomes_html_or_more_lines(tmp_path: Path) -> None:
    """Names of figures and machines come from results in a folder that may be a stranger's."""
    wrong = "<img src=x onerror=alert(1)>\n\n# <!-- other\u2028words"
    column = Column("a", wrong, about=wrong)
    table = Table("T", (column,), ({"a": wrong}, {"a": "<0.01 | <1"}), (wrong,))
    paths = write_report(
        tmp_path, "x", title="t", lead=wrong, sections=[Section(table)], facts={wrong: wrong}
    )
    text = paths["md"].read_text()
    assert "<img" not in text and "<!--" not in text and "&lt;img" in text
    assert [line for line in text.splitlines() if line.startswith("#")] == ["# t", "## T"]
    assert "| <0.01 \\| <1 |" in text


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("=cmd|'/C calc'!A0", "'=cmd|'/C calc'!A0"),
        ("@SUM(1)", "'@SUM(1)"),
        ("+1+cmd", "'+1+cmd"),
        ("-x", "'-x"),
        ("-1.5e-3", "-1.5e-3"),
        ("+7", "+7"),
        ("-", "-"),
        ("conv=1", "conv=1"),
    ],
)
def test_a_strangers_name_is_no_formula_of_a_spreadsheet(name: str, written: str) -> None:
    table = Table("t", (Column("layer", "layer"),), ({"layer": name},))
    (row,) = csv.DictReader(io.StringIO(table.to_csv()))
    assert row["layer"] == written
