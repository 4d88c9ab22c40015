# SPDX-License-Identifier: Apache-2.0
"""Streams in which many blocks have hardly any time to spare, drawn by a seed: windows with
borders, strides and dilations, pools, joins, upsamplings, folded close to the slowest's interval.
"""

from __future__ import annotations

import numpy as np
from tests.hw_networks import Net

from bitwright.hw import Folding, NodeFolding, blocks_of, template
from bitwright.hw.blocks import Block, Fold
from bitwright.ir import Graph

_FASTEST = 8  # intervals that are tried
_CLOSE = 0.9  # of the slowest that is fast enough


class _Drawn:
    """A network that grows block after block."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        shape = (self.pick(*range(3, 11)), self.pick(*range(2, 11)), self.pick(1, 2, 3, 4))
        self.net = Net(shape, "int4", "int4", seed)

    def pick(self, *values: int) -> int:
        return int(self.rng.choice(values))

    def often(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.net.builder.types[self.net.edge].shape

    def conv(self) -> None:
        """A convolution of any geometry: of all channels, of each by itself, or in two groups."""
        height, width, channels = self.shape
        pads = tuple(int(self.rng.integers(0, 3)) if self.often(0.6) else 0 for _ in range(4))
        room = (height + pads[0] + pads[2], width + pads[1] + pads[3])
        kernel = tuple(int(self.rng.integers(1, min(3, size) + 1)) for size in room)
        dilation = tuple(
            2 if 2 * (k - 1) + 1 <= size and self.often(0.25) else 1
            for k, size in zip(kernel, room, strict=True)
        )
        stride = tuple(int(self.rng.integers(1, 3)) for _ in range(2))
        kind = self.rng.random()
        if kind < 0.25:
            rows, groups = channels, channels
        elif kind < 0.35 and channels % 2 == 0:
            rows, groups = 2 * self.pick(1, 2), 2
        else:
            rows, groups = self.pick(1, 2, 3, 4, 6), 1
        weight = self.rng.integers(-8, 8, (rows, *kernel, channels // groups))
        attrs = {"padding": pads, "stride": stride, "dilation": dilation, "groups": groups}
        attrs |= {"weight_format": "int4", "weight_scale": (0.5,)}
        builder, source = self.net.builder, (self.net.edge,)
        name, params = builder.unique("conv"), {"weight": weight}
        self.net.edge = builder.add("conv", source, name=name, attrs=attrs, params=params)

    def pool(self) -> None:
        kernel = tuple(int(self.rng.integers(1, min(3, size) + 1)) for size in self.shape[:2])
        pads = tuple(
            int(self.rng.integers(0, kernel[side % 2])) if self.often(0.4) else 0
            for side in range(4)
        )
        stride = (self.pick(1, 2, 3), self.pick(1, 2, 3))
        self.net.plain("max_pool", kernel=kernel, stride=stride, padding=pads)

    def join(self) -> None:
        """Two ways to a sum, or to the channels of both."""
        start, channels = self.net.edge, self.shape[2]
        short = start if self.often(0.5) else self.net.conv(channels, 1).threshold().edge
        kernel = 3 if self.often(0.5) else 1
        self.net.at(start).conv(channels, kernel, kernel // 2).threshold()
        if self.often(0.5):
            self.net.add(short, (self.pick(1, 2, -3), self.pick(1, 3))).threshold()
        else:
            self.net.concat(short)

    def block(self) -> None:
        self.conv()
        if self.often(0.3):
            self.pool()
        self.net.threshold()
        if self.often(0.3):
            self.pool()
        if self.often(0.3):
            self.join()
        if self.often(0.3) and max(self.shape[:2]) <= 8:
            self.net.plain("upsample", factor=(self.pick(1, 2), self.pick(1, 2)))


def drawn_stream(seed: int) -> tuple[Graph, Folding]:
    """A network of one to three convolutions, and a folding that leaves little time to spare."""
    drawn = _Drawn(seed)
    for _ in range(drawn.pick(1, 1, 2, 2, 3)):
        drawn.block()
    if drawn.often(0.4):
        graph = drawn.net.flatten().dense(drawn.pick(1, 2, 5), name="scores").finish()
    else:
        graph = drawn.net.finish(label=False)
    return graph, close_folding(graph, drawn.rng)


def close_folding(graph: Graph, rng: np.random.Generator) -> Folding:
    """A folding of one of the smallest intervals that a network can have, in which most blocks are
    hardly faster than that.
    """
    folds: dict[str, list[tuple[int, Fold]]] = {}
    blocks = blocks_of(template(graph))
    for name, block in blocks.items():
        choices = block.foldings()
        if len(choices) > 1:
            folds[name] = [(_interval(block.folded(fold)), fold) for fold in choices]
    if not folds:
        return Folding()
    least = max(min(cycles for cycles, _ in rows) for rows in folds.values())
    intervals = sorted({c for rows in folds.values() for c, _ in rows if c >= least})[:_FASTEST]
    goal = intervals[rng.integers(len(intervals))]
    nodes: dict[str, NodeFolding] = {}
    for name, rows in folds.items():
        legal = [row for row in rows if row[0] <= goal]
        slowest = max(cycles for cycles, _ in legal)
        if rng.random() < 0.85:
            legal = [row for row in legal if row[0] >= _CLOSE * slowest]
        chosen = legal[rng.integers(len(legal))][1].as_dict()
        if blocks[name].node.attrs.get("groups") == 0:
            del chosen["simd"]  # a depthwise unit's window follows it
            chosen.pop("parallel_window", None)
        nodes[name] = NodeFolding.from_attrs(chosen)
    return Folding(nodes)


def _interval(block: Block) -> int:
    return max(block.interval, *(port.beats for port in (*block.inputs, *block.outputs)))
