# SPDX-License-Identifier: Apache-2.0
"""Training in low precision as one drawing: precision, p against its threshold, loss, accuracy.

All panels share the axis of epochs; a line through them marks every switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from bitwright.report.svg import COLOURS, dot, drawing, grid_line, polyline, text_at, ticks
from bitwright.train.precision_rows import PrecisionRow

_WIDTH, _LEFT, _RIGHT = 920.0, 66.0, 14.0
_TOP, _GAP, _BOTTOM = 8.0, 30.0, 36.0
_LEVELS_STEP, _PANEL = 16.0, 120.0
_CHARACTER = 6.2  # width of one, about
_LEGEND_STEP = 104.0
Series = dict[str, tuple[float | None, ...]]


@dataclass(frozen=True)
class _Panel:
    """A part of the drawing: its title, lines (with gaps), and which are dots alone."""

    title: str
    series: Series
    dots: tuple[str, ...] = ()


def precision_chart(rows: Sequence[PrecisionRow]) -> Markup:
    """The drawing; empty without epochs."""
    if not rows:
        return Markup("")
    levels = list(dict.fromkeys(row.level for row in rows))
    left = max(_LEFT, 12 + _CHARACTER * max(map(len, levels)))
    axis = _Axis(rows[0].epoch, rows[-1].epoch, left)
    y = _TOP + _GAP
    parts = [*_steps(rows, levels, axis, y)]
    y += _LEVELS_STEP * len(levels) + _GAP
    for panel in _panels(rows):
        parts += _lines(panel, [row.epoch for row in rows], axis, y)
        y += _PANEL + _GAP
    y -= _GAP
    parts = [*_marks(rows, axis, y), *parts, *axis.labels(y)]
    return drawing(_WIDTH, y + _BOTTOM, "Precision, threshold, loss and accuracy by epoch", parts)


@dataclass(frozen=True)
class _Axis:
    """Epochs from left to right, behind the labels; each is one unit wide around its number."""

    first: int
    last: int
    left: float

    def at(self, epoch: float) -> float:
        share = (epoch - self.first + 0.5) / (self.last - self.first + 1)
        return self.left + share * (_WIDTH - self.left - _RIGHT)

    def line(self, y: float, label: str) -> list[str]:
        """Across the drawing."""
        return grid_line(self.left, _WIDTH - _RIGHT, y, label)

    def labels(self, y: float) -> list[str]:
        found = [
            text_at(self.at(tick), y + 16, f"{tick:g}")
            for tick in ticks(self.first, self.last, 10)
            if self.first <= tick <= self.last and float(tick).is_integer()
        ]
        return [*found, text_at((self.left + _WIDTH - _RIGHT) / 2, y + 31, "epoch")]


def _panels(rows: Sequence[PrecisionRow]) -> list[_Panel]:
    compared: Series = {
        "threshold": tuple(row.threshold for row in rows),
        "p": tuple(row.p for row in rows),
    }
    values: Series = {
        "training": tuple(row.train_metric for row in rows),
        "validation": tuple(row.validation_metric for row in rows),
        "top 5": tuple(row.validation_top5 for row in rows),
    }
    loss: Series = {
        "training": tuple(row.train_loss for row in rows),
        "validation": tuple(row.validation_loss for row in rows),
    }
    found = [
        _Panel("p and threshold: a violation where p is above it", compared, dots=("p",)),
        _Panel("loss, mean over images", loss),
        _Panel(rows[0].metric.replace("_", " ") if rows else "", values),
    ]
    kept = ({k: v for k, v in panel.series.items() if _known(v)} for panel in found)
    return [
        _Panel(panel.title, series, panel.dots)
        for panel, series in zip(found, kept, strict=True)
        if series
    ]


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _marks(rows: Sequence[PrecisionRow], axis: _Axis, bottom: float) -> list[str]:
    """A line through all panels at every switch, with its reason."""
    found = []
    for row in rows:
        if row.switched_to is None:
            continue
        x = axis.at(row.epoch + 0.5)
        why = f"epoch {row.epoch}: {row.level} to {row.switched_to}; {row.reason}"
        found.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP + _GAP}" y2="{bottom:.1f}" class="grid" '
            f'stroke-dasharray="4 3"><title>{escape(why)}</title></line>'
        )
    return found


def _steps(
    rows: Sequence[PrecisionRow], levels: Sequence[str], axis: _Axis, top: float
) -> list[str]:
    """The precision of every epoch, the first level lowest."""
    heights = {
        level: top + (len(levels) - index - 0.5) * _LEVELS_STEP
        for index, level in enumerate(levels)
    }
    parts = [text_at(4, top - 10, "precision", "start", "b")]
    for level, y in heights.items():
        parts += axis.line(y, level)
    points = []
    for row in rows:
        y = heights[row.level]
        points += [(axis.at(row.epoch - 0.5), y), (axis.at(row.epoch + 0.5), y)]
    return [*parts, polyline(points, COLOURS[0])]


def _lines(panel: _Panel, epochs: Sequence[int], axis: _Axis, top: float) -> list[str]:
    """One panel with its scale and legend."""
    values = [value for line in panel.series.values() for value in _known(line)]
    marks = ticks(min(values), max(values), 4)
    low, high = marks[0], marks[-1] if marks[-1] > marks[0] else marks[0] + 1

    def height(value: float) -> float:
        return top + _PANEL * (1 - (value - low) / (high - low))

    parts = [text_at(4, top - 10, panel.title, "start", "b")]
    for mark in marks:
        y = height(mark)
        parts += axis.line(y, f"{mark:g}")
    for index, (name, line) in enumerate(panel.series.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = [
            None if value is None else (axis.at(epoch), height(value))
            for epoch, value in zip(epochs, line, strict=True)
        ]
        x = _WIDTH - _RIGHT - _LEGEND_STEP * (len(panel.series) - index)
        if name in panel.dots:
            parts += [dot(point, colour) for point in points if point is not None]
            parts.append(dot((x + 8, top - 14), colour))
        else:
            parts += [polyline(part, colour) for part in _unbroken(points)]
            parts.append(polyline([(x, top - 14), (x + 16, top - 14)], colour))
        parts.append(text_at(x + 20, top - 10, name, "start"))
    return parts


def _unbroken(
    points: Sequence[tuple[float, float] | None],
) -> list[list[tuple[float, float]]]:
    """The parts of a line between its gaps."""
    parts: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is not None:
            parts[-1].append(point)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]
