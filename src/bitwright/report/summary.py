# SPDX-License-Identifier: Apache-2.0
"""Figures in words, and the summary as a Markdown table."""

from __future__ import annotations

from bitwright.base.figures import Figure
from bitwright.report.record import Report


def show(figure: Figure | None) -> str:
    """A figure as people write it: 98.05 %, 1 234, 12.3 MHz; a dash where there is none."""
    if figure is None:
        return "-"
    if figure.unit == "share":
        return f"{100 * figure.value:.2f} %"
    text = number(figure.value)
    return text if figure.unit in ("", "count") else f"{text} {figure.unit}"


def number(value: float | int | None) -> str:
    """A number with thin groups of thousands and no more digits than it carries."""
    if value is None:
        return "-"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace(",", "\u202f")
    if 0 < abs(value) < 1e-3:
        return f"{value:.2g}"
    digits = 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 4
    return f"{value:,.{digits}f}".replace(",", "\u202f")


def markdown_summary(report: Report) -> str:
    """The summary table with the source of every figure."""
    lines = [f"| {report.name} | figure | source |", "|---|---:|---|"]
    for row in report.summary:
        source = str(row.figure.source) if row.figure is not None else ""
        note = f"{source}; {row.note}" if source and row.note else source or row.note
        lines.append(f"| {row.label} | {show(row.figure)} | {note} |")
    return "\n".join(lines) + "\n"
