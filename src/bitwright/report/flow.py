# SPDX-License-Identifier: Apache-2.0
"""What runs where, as a drawing: boxes from top to bottom in frames, arrows between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup, escape

from bitwright.ir.placement import first_fit
from bitwright.report.svg import COLOURS, drawing, shorten, text_at

_WIDTH, _HEIGHT, _STEP = 250.0, 34.0, 52.0
_LEFT, _TOP, _LANE = 130.0, 34.0, 9.0
_LANES = 10
_GAP = 34.0  # above the first box of a frame, for its title
_SIGNS = 38
_MOST_EDGES = 4000  # that pass other boxes by: of a graph of a stranger 100 000 may


@dataclass(frozen=True)
class Bypass:
    """An edge that passes other boxes by: its ends, as places in the order, and its lane."""

    start: int
    end: int
    lane: int
    words: str


def lanes_of(edges: Sequence[tuple[int, int, str]]) -> list[Bypass]:
    """Lanes such that no two edges that overlap share one; short edges lie inside. Of thousands of
    edges the short ones are drawn: nobody sees a line among so many.

    Args:
        edges: first place, last place, words for a tooltip.
    """
    shown = sorted(edges, key=lambda e: (e[1] - e[0], e[0]))[:_MOST_EDGES]
    lanes, _ = first_fit([1] * len(shown), [(start, end - 1) for start, end, _ in shown])
    return [Bypass(*edge[:2], lane, edge[2]) for edge, lane in zip(shown, lanes, strict=True)]


@dataclass(frozen=True)
class FlowBox:
    """One box.

    Attributes:
        title, under: its two lines.
        words: its tooltip.
        frame: boxes that follow each other with one title here stand in one frame.
        other: drawn as something apart.
    """

    title: str
    under: str
    words: str
    frame: str
    other: bool = False


def flow_chart(title: str, boxes: Sequence[FlowBox], edges: Sequence[tuple[int, int]]) -> Markup:
    """The drawing; empty if there are no boxes.

    Args:
        boxes: in an order in which every edge goes down.
        edges: pairs of places in that order.
    """
    if not boxes:
        return Markup("")
    tops = _tops(boxes)
    parts = _frames(boxes, tops)
    names = [box.title for box in boxes]
    far = [(a, b, f"{names[a]} to {names[b]}") for a, b in sorted(set(edges)) if b != a + 1]
    for bypass in lanes_of(far):
        parts.append(_bypass(bypass, tops))
    near = {(a, b) for a, b in edges if b == a + 1}
    for index, (box, top) in enumerate(zip(boxes, tops, strict=True)):
        parts += _box(box, top)
        if (index, index + 1) in near:
            x, end = _LEFT + 24, tops[index + 1] - 1
            path = f"M{x:.1f} {top + _HEIGHT:.1f}V{end:.1f}m-4 -6l4 6l4 -6"
            parts.append(f'<path d="{path}" class="flow"/>')
    return drawing(_LEFT + _WIDTH + 40, tops[-1] + _STEP, title, parts)


def _tops(boxes: Sequence[FlowBox]) -> list[float]:
    found, y = [], _TOP - _GAP
    for index, box in enumerate(boxes):
        if index == 0 or boxes[index - 1].frame != box.frame:
            y += _GAP
        found.append(y)
        y += _STEP
    return found


def _frames(boxes: Sequence[FlowBox], tops: Sequence[float]) -> list[str]:
    parts = []
    for name, group in groupby(range(len(boxes)), key=lambda index: boxes[index].frame):
        inside = list(group)
        top, bottom = tops[inside[0]] - 20, tops[inside[-1]] + _HEIGHT + 8
        style = "limit" if boxes[inside[0]].other else "block"
        parts.append(
            f'<rect x="{_LEFT - 10:.1f}" y="{top:.1f}" width="{_WIDTH + 40:.1f}" '
            f'height="{bottom - top:.1f}" rx="8" class="{style}"/>'
        )
        parts.append(text_at(_LEFT + _WIDTH + 22, top + 13, shorten(name, 36), "end", "b"))
    return parts


def _box(box: FlowBox, top: float) -> list[str]:
    style = "limit" if box.other else "block"
    return [
        f'<rect x="{_LEFT:.1f}" y="{top:.1f}" width="{_WIDTH:.1f}" height="{_HEIGHT:.1f}" rx="5" '
        f'class="{style}"><title>{escape(box.words)}</title></rect>',
        text_at(_LEFT + 8, top + 14, shorten(box.title, _SIGNS), "start", "b"),
        text_at(_LEFT + 8, top + 27, shorten(box.under, _SIGNS), "start"),
    ]


def _bypass(edge: Bypass, tops: Sequence[float]) -> str:
    colour = COLOURS[1 + edge.lane % (len(COLOURS) - 1)]
    lane = _LEFT - 20 - _LANE * (edge.lane % _LANES)
    path = (
        f"M{_LEFT:.1f} {tops[edge.start] + 24:.1f}H{lane:.1f}V{tops[edge.end] + 10:.1f}"
        f"H{_LEFT - 1:.1f}m-6 -4l6 4l-6 4"
    )
    return (
        f'<path d="{path}" class="flow" style="stroke:{colour}">'
        f"<title>{escape(edge.words)}</title></path>"
    )
