# SPDX-License-Identifier: Apache-2.0
"""The accelerator as a diagram: its blocks from top to bottom, and what flows on every edge.

Blocks stand in columns, in the order of the graph, so that an edge leads to the next block or,
around others, through a lane at the side: the branches of a fork, the bypass of a residual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from markupsafe import Markup, escape

from bitwright.base.figures import number
from bitwright.base.records import BlockRow, EdgeRow
from bitwright.report.flow import Bypass, lanes_of
from bitwright.report.svg import drawing, shorten, text_at

_BOX_WIDTH, _BOX_HEIGHT, _STEP = 214.0, 34.0, 58.0
_COLUMN, _LANE, _TOP = 326.0, 9.0, 26.0
_LEAST_LANES = 4  # that a column has room for at its left
_ROWS = 12  # of a column, before another one is begun
_COLUMNS = 3
_METER = 92.0
_TIMES = "\u00d7"


@dataclass(frozen=True)
class _Grid:
    """Where boxes stand: rows of a column, and lanes at the left of each."""

    rows: int
    lanes: int

    @property
    def margin(self) -> float:
        return 10.0 + _LANE * max(self.lanes, _LEAST_LANES)

    @property
    def column(self) -> float:
        """Width of a column with its lanes."""
        return _COLUMN + self.margin

    def at(self, place: int) -> tuple[float, float]:
        """The upper left corner of the box at a place."""
        column, row = divmod(place, self.rows)
        return column * self.column + self.margin, _TOP + row * _STEP


def folding_words(pe: int | None, simd: int | None) -> str:
    """How far a block is unfolded: ``PE 4 x SIMD 8``, ``PE 16``; empty if it is not."""
    parts = [f"{name} {value}" for name, value in (("PE", pe), ("SIMD", simd)) if value]
    return f" {_TIMES} ".join(parts)


def edge_words(edge: EdgeRow, interval: int, clock_mhz: float) -> str:
    """What flows on an edge: transfers of how many bits, how busy it is, and bits a second."""
    words = f"{number(edge.beats)} {_TIMES} {edge.width} bit"
    if interval:
        words += f" · {100 * edge.beats / interval:.0f} %"
    if interval and clock_mhz:
        words += f" · {_bits(edge.beats * edge.width * clock_mhz * 1e6 / interval)}"
    return words


def pipeline_diagram(
    blocks: Sequence[BlockRow],
    edges: Sequence[EdgeRow],
    interval: int,
    clock_mhz: float,
    each: str = "an image",
) -> Markup:
    """The diagram; empty if there are no edges.

    Args:
        blocks: in the order of the graph.
        edges: as in `MapResult.edges`.
        interval: cycles of an input of the whole.
        clock_mhz: at which rates are said; 0: none are.
        each: what one input is called, with its article.
    """
    if not blocks or not edges:
        return Markup("")
    order = {block.name: place for place, block in enumerate(blocks, 1)}
    last = len(blocks) + 1  # place 0 is the input, the last one the outputs
    ends = [(order.get(e.source, 0), order.get(e.target, last), e) for e in edges]
    words = {id(e): edge_words(e, interval, clock_mhz) for e in edges}
    straight = {a: words[id(e)] for a, b, e in ends if b == a + 1}
    bypasses = lanes_of([(a, b, words[id(e)]) for a, b, e in ends if b != a + 1])
    count = last + 1
    columns = min(_COLUMNS, ceil(count / _ROWS))
    rows = ceil(count / columns)
    grid = _Grid(rows, 1 + max((bypass.lane for bypass in bypasses), default=0))
    parts: list[str] = []
    starting: dict[int, list[Bypass]] = {}
    for bypass in bypasses:
        parts += _bypass(bypass, grid)
        starting.setdefault(bypass.start, []).append(bypass)
    for place in range(count):
        x, y = grid.at(place)
        block = blocks[place - 1] if 0 < place < last else None
        parts += (
            _end(x, y, "outputs" if place else "input")
            if block is None
            else (_box(x, y, block, interval, each))
        )
        if place in straight:
            parts += _arrow(x, y, straight[place], last_of_column=place % rows == rows - 1)
        parts += _notes(x, y, starting.get(place, ()), blocks, beside=place in straight)
    width = columns * grid.column
    return drawing(width, _TOP + rows * _STEP + 6, "The pipeline", parts)


def _box(x: float, y: float, block: BlockRow, interval: int, each: str) -> list[str]:
    share = block.cycles / interval if interval else 0.0
    style = "limit" if interval and block.cycles >= interval else "block"
    folding = folding_words(block.pe, block.simd)
    under = f"{block.kind}, {folding}" if folding else block.kind
    tip = f"{block.name} ({under}): {number(block.cycles)} cycles {each}, layer {block.layer}"
    meter = x + _BOX_WIDTH + 8
    return [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="5" '
        f'class="{style}"><title>{escape(tip)}</title></rect>',
        text_at(x + 8, y + 14, shorten(block.name, 32), "start", "b"),
        text_at(x + 8, y + 27, shorten(under, 36), "start"),
        f'<rect x="{meter:.1f}" y="{y + 20:.1f}" width="{_METER}" height="6" class="rail"/>',
        f'<rect x="{meter:.1f}" y="{y + 20:.1f}" width="{max(1.0, _METER * min(1.0, share)):.1f}" '
        f'height="6" class="{"busy" if style == "limit" else "bar"}"/>',
        text_at(meter, y + 14, f"{number(block.cycles)} cycles", "start"),
    ]


def _end(x: float, y: float, word: str) -> list[str]:
    middle = y + _BOX_HEIGHT / 2 + 4
    return [
        f'<rect x="{x:.1f}" y="{y + 4:.1f}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT - 8}" '
        'rx="13" class="block"/>',
        text_at(x + _BOX_WIDTH / 2, middle, word, style="b"),
    ]


def _arrow(x: float, y: float, words: str, *, last_of_column: bool) -> list[str]:
    """From a box to the one below; at the end of a column, on to the top of the next."""
    middle, top, end = x + 24, y + _BOX_HEIGHT, y + _STEP - 1
    where = f"{words} ↗ next column" if last_of_column else words
    return [
        f'<path d="M{middle:.1f} {top:.1f}V{end:.1f}m-4 -6l4 6l4 -6" class="flow"/>',
        text_at(middle + 10, top + 16, where, "start"),
    ]


def _bypass(edge: Bypass, grid: _Grid) -> list[str]:
    """A line down its lane, in every column that it passes."""
    rows = grid.rows
    parts, colour = [], f"var(--c{2 + edge.lane % 3})"
    for column in range(edge.start // rows, edge.end // rows + 1):
        first, last = max(edge.start, column * rows), min(edge.end, column * rows + rows - 1)
        x, top = grid.at(first)
        _, bottom = grid.at(last)
        lane = x - 14 - _LANE * edge.lane
        begins, ends = first == edge.start, last == edge.end
        path = f"M{x:.1f} {top + 24:.1f}H{lane:.1f}" if begins else f"M{lane:.1f} {top - 14:.1f}"
        path += (
            f"V{bottom + 10:.1f}H{x - 1:.1f}m-6 -4l6 4l-6 4"
            if ends
            else f"V{bottom + _STEP - 8:.1f}"
        )
        parts.append(
            f'<path d="{path}" class="flow" style="stroke:{colour}">'
            f"<title>{escape(edge.words)}</title></path>"
        )
    return parts


def _notes(
    x: float, y: float, starting: Sequence[Bypass], blocks: Sequence[BlockRow], *, beside: bool
) -> list[str]:
    """What flows on the edges that leave a block for its side."""
    if not starting:
        return []
    last = len(blocks)
    there = [blocks[e.end - 1].name if e.end <= last else "outputs" for e in starting]
    said = "; ".join(f"to {name}: {e.words}" for name, e in zip(there, starting, strict=True))
    if beside:
        x, y, shown = x + _BOX_WIDTH + 8, y + 40, f"and to {', '.join(there)}"
    else:
        x, y, shown = x + 34, y + _BOX_HEIGHT + 16, said
    line = text_at(x, y, shorten(shown, 18 if beside else 52), "start")
    return [line.replace("</text>", f"<title>{escape(said)}</title></text>")]


def _bits(rate: float) -> str:
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if rate >= size:
            return f"{rate / size:.3g} {unit}"
    return f"{rate:.3g} bit/s"
