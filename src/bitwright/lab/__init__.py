# SPDX-License-Identifier: Apache-2.0
"""The post-training laboratory: many variants of one network in one table and one plot."""

from __future__ import annotations

from bitwright.lab.page import Section, write_report
from bitwright.lab.plot import Point, Scatter
from bitwright.lab.table import Column, Kind, Measured, Table, Value

__all__ = [
    "Column",
    "Kind",
    "Measured",
    "Point",
    "Scatter",
    "Section",
    "Table",
    "Value",
    "write_report",
]
