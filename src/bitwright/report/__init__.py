# SPDX-License-Identifier: Apache-2.0
"""The report: one typed record of everything a run found, as JSON, as a table and as one HTML page.

`steps/report.py` gathers the steps' results and fills a `Report`; everything here only shows it.
"""

from __future__ import annotations

from bitwright.report.page import render_page, render_precision
from bitwright.report.record import (
    AccuracyStage,
    Baseline,
    BlockRow,
    Curve,
    Energy,
    FifoRow,
    LayerRow,
    OperandRow,
    Report,
    Sample,
    Stage,
    SummaryRow,
)
from bitwright.report.summary import markdown_summary

__all__ = [
    "AccuracyStage",
    "Baseline",
    "BlockRow",
    "Curve",
    "Energy",
    "FifoRow",
    "LayerRow",
    "OperandRow",
    "Report",
    "Sample",
    "Stage",
    "SummaryRow",
    "markdown_summary",
    "render_page",
    "render_precision",
]
