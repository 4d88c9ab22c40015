# SPDX-License-Identifier: Apache-2.0
"""A scatter plot with error bars as inline SVG, in the colours of the house's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from markupsafe import Markup, escape

from bitwright.report.svg import COLOURS, NOTHING, SAME, dot, drawing, grid_line, text_at, ticks

_WIDTH, _HEIGHT = 960.0, 480.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 20.0, 62.0, 44.0
#: Free space above and below all points, for their names.
_ROOM = 18.0
_LETTER, _LINE = 6.2, 12.0
#: How far up and down a name may be moved where points lie close together.
_STEPS = 8
_LEGEND_STEP, _LEGEND_MARK = 150.0, 28.0
_LEGEND_TOP, _LEGEND_LINE = 42.0, 14.0
_SHAPES = ("circle", "square", "diamond", "triangle")


@dataclass(frozen=True)
class Point:
    """One point.

    Attributes:
        label: written beside it where there is room, and always in its tooltip.
        series: points of one series share colour and shape.
        error: standard error of y; the bar reaches this far up and down.
    """

    label: str
    series: str
    x: float
    y: float
    error: float | None = None


@dataclass(frozen=True)
class Scatter:
    """A plot of points.

    Attributes:
        log_x: the x axis is logarithmic (powers of two).
        floor: points below this y are drawn on the lower edge, pointing down, with their value.
        baseline: a dashed horizontal line with its name, such as the float network's accuracy.
    """

    title: str
    x_label: str
    y_label: str
    points: tuple[Point, ...]
    log_x: bool = False
    floor: float | None = None
    baseline: tuple[str, float] | None = None

    def to_svg(self) -> Markup:
        """The plot; empty text if there are no points."""
        if not self.points:
            return Markup("")
        return _Drawer(self).draw()


class _Drawer:
    """Axes and placed labels of one plot."""

    def __init__(self, plot: Scatter) -> None:
        self.plot = plot
        inside = [p for p in plot.points if plot.floor is None or p.y >= plot.floor]
        ys = [p.y + sign * (p.error or 0.0) for p in inside for sign in (-1, 1)]
        ys += [plot.baseline[1]] if plot.baseline else []
        ys += [plot.floor] if plot.floor is not None and len(inside) < len(plot.points) else []
        self.y_ticks = ticks(min(ys), max(ys), 6) if ys else [0.0, 1.0]
        if len(self.y_ticks) < 2:
            self.y_ticks.append(self.y_ticks[0] + max(1.0, abs(self.y_ticks[0]) / 16))
        self.y_lo, self.y_hi = self.y_ticks[0], self.y_ticks[-1]
        xs = [self._x(p.x) for p in plot.points]
        self.x_ticks = ticks(min(xs), max(xs), 8)
        if not plot.log_x and all(x == int(x) for x in xs):  # no 2.5 bits or epochs
            self.x_ticks = [tick for tick in self.x_ticks if tick == int(tick)]
        width, largest = max(xs) - min(xs), max(map(abs, xs))
        apart = width > max(SAME * largest, NOTHING)
        margin = 0.04 * width if apart else max(0.5, largest / 16)
        self.x_lo, self.x_hi = min(xs) - margin, max(xs) + margin
        self.taken: list[tuple[float, float, float, float]] = []
        names = list(dict.fromkeys(p.series for p in plot.points))
        self.style = {
            name: (COLOURS[i % len(COLOURS)], _SHAPES[(i // len(COLOURS) + i) % len(_SHAPES)])
            for i, name in enumerate(names)
        }
        self.step = max(_LEGEND_STEP, _LEGEND_MARK + _LETTER * max(map(len, names)))
        self.columns = max(1, int((_WIDTH - _LEFT) // self.step))
        rows = -(-len(names) // self.columns)
        self.top = max(_TOP, _LEGEND_TOP + _LEGEND_LINE * rows)  # below the legend

    def draw(self) -> Markup:
        parts = [*self._axes(), *self._legend()]
        parts += [self._bar(point) for point in self.plot.points]
        for point in self.plot.points:
            px, py = self._at(point)
            self.taken.append((px - 5, py - 5, px + 5, py + 5))
            top, low = self._ends(point)
            self.taken.append((px - 4, top, px + 4, low))
        parts += [self._mark(point) for point in self.plot.points]
        parts += [self._name(point) for point in self.plot.points]
        return drawing(_WIDTH, _HEIGHT, self.plot.title, parts)

    def _x(self, x: float) -> float:
        return log2(x) if self.plot.log_x else x

    def _place(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point in the units of the axes."""
        return (
            _LEFT + (x - self.x_lo) / (self.x_hi - self.x_lo) * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT
            - _BOTTOM
            - _ROOM
            - (y - self.y_lo)
            / (self.y_hi - self.y_lo)
            * (_HEIGHT - self.top - _BOTTOM - 2 * _ROOM),
        )

    def _at(self, point: Point) -> tuple[float, float]:
        return self._place(self._x(point.x), max(point.y, self.y_lo))

    def _axes(self) -> list[str]:
        parts = []
        right, low = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        for tick in self.y_ticks:
            _, y = self._place(self.x_lo, tick)
            parts += grid_line(_LEFT, right, y, f"{tick:g}")
        for tick in self.x_ticks:
            if self.x_lo <= tick <= self.x_hi and (not self.plot.log_x or tick == int(tick)):
                x, _ = self._place(tick, self.y_lo)
                shown = 2.0**tick if self.plot.log_x else tick
                parts.append(text_at(x, low + 16, f"{shown:g}"))
        parts.append(text_at((_LEFT + right) / 2, _HEIGHT - 8, self.plot.x_label))
        parts.append(text_at(4, 12, self.plot.title, "start", "b"))
        parts.append(text_at(4, 26, self.plot.y_label, "start"))
        if self.plot.baseline:
            name, value = self.plot.baseline
            _, y = self._place(self.x_lo, value)
            parts.append(
                f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" class="line" '
                'style="stroke:var(--soft);stroke-width:1;stroke-dasharray:5 4"/>'
            )
            parts.append(text_at(right, y - 5, name, "end"))
            self.taken.append((right - _LETTER * len(name), y - 16, right, y))
            self.taken.append((_LEFT, y - 1, right, y + 1))  # no name is struck through
        return parts

    def _legend(self) -> list[str]:
        parts = []
        for index, (name, (colour, shape)) in enumerate(self.style.items()):
            x = _LEFT + (index % self.columns) * self.step
            y = _LEGEND_TOP + _LEGEND_LINE * (index // self.columns)
            parts.append(_shape(shape, x, y - 4, colour, ""))
            parts.append(text_at(x + 9, y, name, "start"))
        return parts

    def _ends(self, point: Point) -> tuple[float, float]:
        """Pixels of the upper and lower end of a point's bar."""
        if not point.error or point.y < self.y_lo:
            return (self._at(point)[1],) * 2
        _, top = self._place(self.x_lo, min(point.y + point.error, self.y_hi))
        _, low = self._place(self.x_lo, max(point.y - point.error, self.y_lo))
        return top, low

    def _bar(self, point: Point) -> str:
        top, low = self._ends(point)
        if top == low:
            return ""
        x, _ = self._at(point)
        colour, _ = self.style[point.series]
        return (
            f'<path d="M{x:.1f} {top:.1f}V{low:.1f}M{x - 3:.1f} {top:.1f}h6'
            f'M{x - 3:.1f} {low:.1f}h6" class="line" '
            f'style="stroke:{colour};stroke-width:1;opacity:.6"/>'
        )

    def _mark(self, point: Point) -> str:
        x, y = self._at(point)
        colour, shape = self.style[point.series]
        error = "" if point.error is None else f" \u00b1 {point.error:.2g}"
        words = f"{point.label}: {point.y:.4g}{error} at {point.x:g}"
        return _shape("down" if point.y < self.y_lo else shape, x, y, colour, words)

    def _name(self, point: Point) -> str:
        """The label where it covers nothing, far ones with a line to it; none if all is full."""
        x, y = self._at(point)
        text = f"{point.label} ({point.y:.1f})" if point.y < self.y_lo else point.label
        width = _LETTER * len(text)
        for dx, dy, anchor in _PLACES:
            left = x + dx - {"start": 0.0, "end": width, "middle": width / 2}[anchor]
            box = (left - 2, y + dy - _LINE + 2, left + width + 2, y + dy + 2)
            inside = box[0] >= _LEFT and box[2] <= _WIDTH - 2
            inside = inside and box[1] >= self.top - 4 and box[3] <= _HEIGHT - _BOTTOM + 2
            if inside and not any(_overlap(box, other) for other in self.taken):
                self.taken.append(box)
                far = abs(dy) > _LINE + 8
                return (_leader(x, y, dx, dy) if far else "") + text_at(
                    x + dx, y + dy, text, anchor
                )
        return ""


def _places() -> tuple[tuple[float, float, str], ...]:
    """Where a name may stand beside its point, the best first: x, y of the baseline, anchor."""
    near = [
        (8.0, 4.0, "start"), (-8.0, 4.0, "end"), (0.0, -9.0, "middle"), (0.0, 17.0, "middle"),
        (7.0, -6.0, "start"), (7.0, 14.0, "start"), (-7.0, -6.0, "end"), (-7.0, 14.0, "end"),
    ]  # fmt: skip
    far = [
        (sign * 10.0, middle + step * _LINE * up, anchor)
        for step in range(1, _STEPS)
        for up, middle in ((1, 14.0), (-1, -6.0))
        for sign, anchor in ((1, "start"), (-1, "end"))
    ]
    return (*near, *far)


_PLACES = _places()


def _leader(x: float, y: float, dx: float, dy: float) -> str:
    """A thin line from a point to its name."""
    side = dx - (2 if dx > 0 else -2)
    return (
        f'<path d="M{x:.1f} {y:.1f}l{side:.1f} {dy - 4:.1f}" class="line" '
        'style="stroke:var(--soft);stroke-width:.7;opacity:.6"/>'
    )


def _overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _shape(kind: str, x: float, y: float, colour: str, words: str) -> str:
    tip = f"<title>{escape(words)}</title>" if words else ""
    if kind == "circle":
        return dot((x, y), colour, words, 4)
    path = {
        "square": "m-3.6 -3.6h7.2v7.2h-7.2z",
        "diamond": "m0 -5l5 5l-5 5l-5 -5z",
        "triangle": "m0 -5l4.8 8.4h-9.6z",
        "down": "m0 5l4.8 -8.4h-9.6z",
    }[kind]
    return f'<path d="M{x:.1f} {y:.1f}{path}" style="fill:{colour}">{tip}</path>'
