# SPDX-License-Identifier: Apache-2.0
"""The one self-contained HTML page of a run: no scripts, no fonts, no files beside it."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from bitwright.base.figures import Figure, number, show
from bitwright.base.nouns import noun_of
from bitwright.report.engine import time_bars, timeline_drawing, wait_words
from bitwright.report.pipeline import folding_words, pipeline_diagram
from bitwright.report.precision import precision_chart
from bitwright.report.record import Report
from bitwright.report.svg import bars, heatmap, line_chart
from bitwright.train.precision_rows import PrecisionRow


def render_page(report: Report) -> str:
    """The page as HTML text; every value is escaped."""
    noun = noun_of(report.inputs)
    each = noun.each
    return render_template(
        "template.html",
        title=report.name,
        report=report,
        each=each,
        quality_plot=bars(
            f"{_capital(report.metric)} at every stage",
            [(s.stage, s.figure.value, _without_count(s.figure)) for s in report.quality],
            limit=1.0 if report.quality and report.quality[0].figure.unit == "share" else None,
        ),
        distribution_plot=bars(
            f"{_capital(report.metric)} of {report.inputs}, integer graph",
            [
                (words, count, f"{number(count)} {noun.one if count == 1 else noun.many}")
                for words, count in report.distribution
            ],
        ),
        curves=[line_chart(c.title, c.epochs, dict(c.series), c.y_label) for c in report.curves],
        precision_plot=precision_chart(report.precision),
        confusion_plot=heatmap("Confusion matrix", report.classes, report.confusion),
        cycles_plot=bars(
            f"Cycles {each}, by block",
            [(b.name, b.cycles, number(b.cycles)) for b in report.blocks],
        ),
        pipeline_plot=pipeline_diagram(
            report.blocks, report.edges, report.interval, report.clock_mhz, each
        ),
        timeline_plot=timeline_drawing(report.engine),
        time_plot=time_bars(report.engine),
        waits=[] if report.engine is None else wait_words(report.engine),
        confused=_confused(report),
        lut=f"LUT {report.lut_kind}".rstrip(),
        energy_plot=bars(
            "Energy of one inference by cause (estimate)",
            [(k, v, f"{number(v)} µJ") for k, v in report.energy.parts.items()]
            if report.energy is not None
            else [],
        ),
        usage=_usage(report),
        columns=_columns(report),
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _without_count(figure: Figure) -> str:
    return show(replace(figure, count=None))


def markdown_summary(report: Report) -> str:
    """The summary table with the source of every figure."""
    lines = [f"| {report.name} | figure | source |", "|---|---:|---|"]
    for row in report.summary:
        source = str(row.figure.source) if row.figure is not None else ""
        note = f"{source}; {row.note}" if source and row.note else source or row.note
        lines.append(f"| {row.label} | {show(row.figure)} | {note} |")
    return "\n".join(lines) + "\n"


def render_precision(rows: Sequence[PrecisionRow], title: str) -> str:
    """The part of the page about training in low precision as a page of its own."""
    chart = precision_chart(rows)
    return render_template("precision_page.html", title=title, rows=rows, precision_plot=chart)


def render_template(name: str, **values: Any) -> str:
    """A page from a template in this folder, which extends ``base.html``; values are escaped.

    Args:
        values: what the template names; ``title`` always.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_part),
    )
    environment.filters["show"] = show
    environment.filters["number"] = number
    environment.globals["folding"] = folding_words
    environment.filters["capital"] = _capital
    page = environment.get_template(name).render(style=Markup(_part("style.css")), **values)
    return "".join(sign if _is_seen(sign) else "_" for sign in page)


def _is_seen(sign: str) -> bool:
    """No control or format sign: those turn the text around them, or hide in a name."""
    return sign in "\n\t" or unicodedata.category(sign) not in ("Cc", "Cf", "Cs")


def _part(name: str) -> str:
    return files("bitwright.report").joinpath(name).read_text(encoding="utf-8")


def _confused(report: Report) -> list[tuple[str, str, int, int]]:
    """The dozen pairs most often confused: (true, predicted, images, images of the true class)."""
    found = [
        (report.classes[row], report.classes[column], count, sum(counts))
        for row, counts in enumerate(report.confusion)
        for column, count in enumerate(counts)
        if count and row != column
    ]
    return sorted(found, key=lambda pair: -pair[2])[:12]


def _columns(report: Report) -> list[str]:
    """Resources that the design or its device has at all."""
    names = ["lut", "ff", "bram", "dsp"]
    rows = [b.predicted for b in report.blocks] + [b.measured for b in report.blocks if b.measured]
    return [n for n in names if n in ("lut", "ff") or any(getattr(r, n) for r in rows)]


def _usage(report: Report) -> list[tuple[str, float, float, float]]:
    """(resource, used, capacity, share) of the summary's measured resources."""
    if report.capacity is None:
        return []
    used = {row.label: row.figure.value for row in report.summary if row.figure is not None}
    table: list[tuple[str, float, float, float]] = []
    for label in ("LUT", "FF", "BRAM", "DSP"):
        capacity = getattr(report.capacity, label.lower())
        if label in used and capacity:
            table.append((label, used[label], capacity, used[label] / capacity))
    return table
