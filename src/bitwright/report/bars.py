# SPDX-License-Identifier: Apache-2.0
"""A bar chart as a value, for pages that hold plots."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from bitwright.report.svg import bars


@dataclass(frozen=True)
class Bars:
    """Horizontal bars under a title.

    Attributes:
        rows: label, value, text shown; the longest fills the width.
    """

    title: str
    rows: tuple[tuple[str, float, str], ...]

    def to_svg(self) -> Markup:
        """The chart; empty if there are no rows."""
        return bars(self.title, self.rows, titled=True)
