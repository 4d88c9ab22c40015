# SPDX-License-Identifier: Apache-2.0
"""Small plots as inline SVG, coloured by the page's CSS variables so that dark mode works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from math import ceil, floor, log10

from markupsafe import Markup, escape

_LONG = 10_000  # counts with more digits do not fit into their cell
#: What two numbers differ by, of the larger one, that are the same in a drawing; and what is 0.
SAME, NOTHING = 1e-9, 1e-290
#: How the lines of the style sheet begin that a drawing needs.
_DRAWN = ("svg ", ".grid ", ".t.s ")
COLOURS = ("var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)")


def ticks(lo: float, hi: float, count: int = 5) -> list[float]:
    """Round numbers that cover [lo, hi]."""
    largest = max(abs(lo), abs(hi))
    span = hi - lo if hi - lo > SAME * largest else abs(hi)
    span = span if span > NOTHING else 1.0
    raw = span / count
    power = 10.0 ** floor(log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    first, last = floor(lo / step + 1e-9), ceil(hi / step - 1e-9)
    digits = max(10, 4 - floor(log10(step)))
    return [round(i * step, digits) for i in range(first, last + 1)]


def text_at(x: float, y: float, body: str, anchor: str = "middle", style: str = "") -> str:
    """A line of text; the baseline is at y."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="t {style}">'
        f"{escape(body)}</text>"
    )


def grid_line(left: float, right: float, y: float, label: str) -> list[str]:
    """A horizontal line with its label on the left."""
    line = f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
    return [line, text_at(left - 6, y + 4, label, "end")]


def polyline(points: Sequence[tuple[float, float]], colour: str) -> str:
    """A line through points; a single one is a dot."""
    if len(points) == 1:
        return dot(points[0], colour)
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{joined}" class="line" style="stroke:{colour}"/>'


def dot(point: tuple[float, float], colour: str, words: str = "", radius: float = 2.4) -> str:
    """A dot, with a tooltip if there are words."""
    tip = f"<title>{escape(words)}</title>" if words else ""
    place = f'cx="{point[0]:.1f}" cy="{point[1]:.1f}"'
    return f'<circle {place} r="{radius:g}" style="fill:{colour}">{tip}</circle>'


def drawing(width: float, height: float, title: str, parts: Sequence[str]) -> Markup:
    """The SVG element around the parts."""
    body = "".join(parts)
    return Markup(
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}" '
        f'style="max-width:{width:.0f}px"><title>{escape(title)}</title>{body}</svg>'
    )


def standalone(svg: str) -> str:
    """A drawing as a file of its own, with the colours of the style sheet inside."""
    style = files("bitwright.report").joinpath("style.css").read_text(encoding="utf-8")
    kept = [line for line in style.splitlines() if ":root" in line or line.startswith(_DRAWN)]
    head = '<svg xmlns="http://www.w3.org/2000/svg" '
    rules = "\n".join(kept)
    return (
        str(svg).replace("<svg ", head, 1).replace("<title>", f"<style>{rules}</style><title>", 1)
    )


def line_chart(
    title: str,
    xs: Sequence[float] | Mapping[str, Sequence[float]],
    series: Mapping[str, Sequence[float]],
    y_label: str,
    x_label: str = "epoch",
) -> Markup:
    """Lines over common x positions, or each over its own by its name, with a legend."""
    width, height, left, right, top, bottom = 460.0, 270.0, 52.0, 14.0, 40.0, 38.0
    values = [v for ys in series.values() for v in ys]
    places = xs if isinstance(xs, Mapping) else dict.fromkeys(series, xs)
    every = [x for name in series for x in places[name]]
    if not values or not every:
        return Markup("")
    y_ticks = ticks(min(values), max(values))
    y_lo, y_hi = y_ticks[0], y_ticks[-1] if y_ticks[-1] > y_ticks[0] else y_ticks[0] + 1
    x_lo, x_hi = min(every), max(every) if max(every) > min(every) else min(every) + 1

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            left + (x - x_lo) / (x_hi - x_lo) * (width - left - right),
            height - bottom - (y - y_lo) / (y_hi - y_lo) * (height - top - bottom),
        )

    parts = []
    for tick in y_ticks:
        parts += grid_line(left, width - right, at(x_lo, tick)[1], f"{tick:g}")
    for tick in ticks(x_lo, x_hi, 6):
        if x_lo <= tick <= x_hi and float(tick).is_integer():
            parts.append(text_at(at(tick, y_lo)[0], height - bottom + 16, f"{tick:g}"))
    parts.append(text_at((left + width - right) / 2, height - 6, x_label))
    parts.append(text_at(4, 12, title, "start", "b"))
    parts.append(text_at(4, 26, y_label, "start"))
    for index, (name, ys) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = [at(x, y) for x, y in zip(places[name], ys, strict=True)]
        parts.append(polyline(points, colour))
        for point, x, y in zip(points, places[name], ys, strict=True):
            parts.append(dot(point, colour, f"{name}, {x_label} {x:g}: {y:.4g}", 2.2))
        legend_x = width - right - 100 * (len(series) - index)
        parts.append(polyline([(legend_x, 22), (legend_x + 16, 22)], colour))
        parts.append(text_at(legend_x + 20, 26, name, "start"))
    return drawing(width, height, title, parts)


def shorten(words: str, most: int) -> str:
    """The words, or as many signs of them as there is room for: both ends, they tell names apart.

    >>> shorten("stem_2_quantizer_fork", 11)
    'stem_…_fork'
    """
    if len(words) <= most:
        return words
    tail = (most - 1) // 2
    return f"{words[: most - 1 - tail]}…{words[-tail:]}"


def bars(
    title: str,
    rows: Sequence[tuple[str, float, str]],
    limit: float | None = None,
    *,
    titled: bool = False,
) -> Markup:
    """Horizontal bars: (label, value, text shown); the longest fills the width.

    Args:
        limit: the value that fills the width, if not the largest.
        titled: write the title above the bars; else it is a tooltip alone.
    """
    if not rows:
        return Markup("")
    label_width, bar_width = 176.0, 294.0
    step = 24.0 if len(rows) <= 16 else 17.0
    thick = step - 8 if len(rows) <= 16 else step - 5
    top = max([value for _, value, _ in rows] + ([limit] if limit else [])) or 1.0
    above = 18.0 if titled else 0.0
    parts = [text_at(4, 13, title, "start", "b")] if titled else []
    for index, (label, value, shown) in enumerate(rows):
        y = above + 6 + index * step
        length = max(1.0, bar_width * value / top)
        base = y + 2 + thick / 2 + 4
        parts.append(
            text_at(label_width - 8, base, shorten(label, 27), "end").replace(
                "</text>", f"<title>{escape(label)}</title></text>"
            )
        )
        for size, style in ((bar_width, "rail"), (length, "bar")):
            parts.append(
                f'<rect x="{label_width}" y="{y + 2}" width="{size:.1f}" height="{thick:.0f}" '
                f'class="{style}"/>'
            )
        parts.append(text_at(label_width + bar_width + 8, base, shown, "start", "b"))
    return drawing(label_width + bar_width + 110, above + 12 + len(rows) * step, title, parts)


def _brief(count: int) -> str:
    """A count in four signs at most."""
    for size, sign in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size and count >= _LONG:
            return f"{count // size}{sign}"
    return str(count)


MOST_CLASSES = 120
"""More classes than this have no confusion matrix: its cells could not be told apart."""


def heatmap(title: str, labels: Sequence[str], matrix: Sequence[Sequence[int]]) -> Markup:
    """A confusion matrix: rows are the true class, columns the predicted one.

    Up to a dozen classes have counts in their cells, up to `MOST_CLASSES` are drawn, each with its
    label on both sides.
    """
    if not matrix or len(labels) > MOST_CLASSES:
        return Markup("")
    many = len(labels) > 12
    cell = 34.0 if not many else 18.0 if len(labels) <= 30 else 10.0
    small = "s" if cell < 12 else ""
    size = 5.0 if small else 6.5  # of a sign
    names = [shorten(label, 16) for label in labels]
    longest = max(len(name) for name in names)
    upright = many or size * longest > cell
    left, top = 30.0 + size * longest, 24.0 + (size * longest if upright else 6.0)
    side = cell * len(labels)
    parts = [
        text_at(left + side / 2, 12, "predicted", style="b"),
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{side:.1f}" height="{side:.1f}" class="none"/>',
    ]
    for row, (label, counts) in enumerate(zip(labels, matrix, strict=True)):
        total, y = sum(counts) or 1, top + row * cell
        middle = left + (row + 0.5) * cell
        parts.append(text_at(left - 6, y + cell / 2 + 3.5, names[row], "end", small))
        above = text_at(middle, top - 5, names[row], "start" if upright else "middle", small)
        turned = f'<text transform="rotate(-90 {middle + 3:.1f} {top - 5:.1f})" '
        parts.append(above.replace("<text ", turned, 1) if upright else above)
        for column, count in enumerate(counts):
            if not count:
                continue
            style = "hit" if row == column else "miss"
            x = left + column * cell
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{cell - 1}" height="{cell - 1}" '
                f'class="{style}" style="fill-opacity:{0.15 + 0.8 * count / total:.2f}">'
                f"<title>{escape(label)} taken for {escape(labels[column])}: {count}</title></rect>"
            )
            if not many:
                parts.append(text_at(x + cell / 2, y + cell / 2 + 4, _brief(count), style="b"))
    return drawing(left + side + 6, top + side + 6, title, parts)
