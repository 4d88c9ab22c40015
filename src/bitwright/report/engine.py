# SPDX-License-Identifier: Apache-2.0
"""A network on the programmed engine: its three units over time, and what the array waits for."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

from bitwright.base.figures import number
from bitwright.base.records import EngineRow, EngineSpanRow
from bitwright.report.svg import COLOURS, bars, drawing, shorten, text_at, ticks

_LEFT, _WIDTH, _RIGHT = 62.0, 960.0, 14.0
_TOP, _LANE, _STEP = 26.0, 26.0, 40.0
_SIGN = 6.2  # width of a letter
#: Unit -> what stands beside its lane, from top to bottom.
UNITS = {"load": "load", "execute": "array", "store": "store"}
_MOST_WAITS, _LEAST_SHARE = 12, 0.001


def timeline_drawing(row: EngineRow | None) -> Markup:
    """When load, array and store work on which layer; empty without an engine.

    Neighbouring layers have different colours; where a lane is empty its unit stands still.
    """
    if row is None or not row.spans or not row.cycles:
        return Markup("")
    scale = _WIDTH / row.cycles
    colours = _colours(row)
    parts: list[str] = []
    for place, (unit, label) in enumerate(UNITS.items()):
        y = _TOP + place * _STEP
        parts.append(text_at(_LEFT - 8, y + _LANE / 2 + 4, label, "end", "b"))
        parts.append(f'<rect x="{_LEFT}" y="{y}" width="{_WIDTH}" height="{_LANE}" class="rail"/>')
        spans = [span for span in row.spans if span.unit == unit]
        parts += [_box(span, y, scale, colours[span.layer]) for span in spans]
        if unit == "execute":
            parts += _names(spans, y, scale)
    below = _TOP + len(UNITS) * _STEP
    for tick in ticks(0, row.cycles, 8):
        if tick <= row.cycles:
            x = _LEFT + tick * scale
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{below - 8}" class="grid"/>'
            )
            parts.append(text_at(x, below + 6, f"{tick:,.0f}"))
    parts.append(text_at(_LEFT + _WIDTH / 2, below + 22, "cycles of an image"))
    parts.append(text_at(_LEFT, 14, "The three units of the engine", "start", "b"))
    return drawing(_LEFT + _WIDTH + _RIGHT, below + 30, "The three units over time", parts)


def _colours(row: EngineRow) -> dict[str, str]:
    names = dict.fromkeys([layer.name for layer in row.layers] + [s.layer for s in row.spans])
    return {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}


def _box(span: EngineSpanRow, y: float, scale: float, colour: str) -> str:
    width = max(0.4, (span.end - span.begin) * scale)
    words = f"{span.layer}: cycles {span.begin:,} to {span.end:,}"
    return (
        f'<rect x="{_LEFT + span.begin * scale:.2f}" y="{y}" width="{width:.2f}" '
        f'height="{_LANE}" style="fill:{colour}"><title>{escape(words)}</title></rect>'
    )


def _names(spans: Sequence[EngineSpanRow], y: float, scale: float) -> list[str]:
    """Names of the layers whose part of the lane is wide enough for one."""
    parts = []
    for span in spans:
        signs = int((span.end - span.begin) * scale / _SIGN) - 1
        if signs >= 7:
            middle = _LEFT + (span.begin + span.end) / 2 * scale
            name = text_at(middle, y + _LANE / 2 + 4, shorten(span.layer, signs))
            parts.append(name.replace("<text ", '<text style="fill:var(--bg)" ', 1))
    return parts


def wait_words(row: EngineRow) -> list[tuple[str, int, str]]:
    """What the array stands still for, the longest first, in words, with cycles and share of the
    image's time; what is small or comes after a dozen is one row.
    """
    found: list[tuple[str, int, str]] = []
    rest = 0
    for wait in row.waits:
        if len(found) == _MOST_WAITS or wait.cycles < _LEAST_SHARE * row.cycles:
            rest += wait.cycles
            continue
        what = f"{wait.what} of {wait.of}" if wait.of else wait.what
        found.append((f"{wait.layer} waits for {what}", wait.cycles, _share(wait.cycles, row)))
    return [*found, ("everything else", rest, _share(rest, row))] if rest else found


def _share(cycles: int, row: EngineRow) -> str:
    return f"{100 * cycles / max(1, row.cycles):.1f} %"


def time_bars(row: EngineRow | None) -> Markup:
    """The array's time: products of each layer, and standing still."""
    if row is None:
        return Markup("")
    rows = [(layer.name, float(layer.busy + sum(layer.waits.values()))) for layer in row.layers]
    shown = [
        (name, cycles, f"{number(cycles)} ({_share(round(cycles), row)})") for name, cycles in rows
    ]
    return bars("Cycles of the array by layer, waiting included", shown)
