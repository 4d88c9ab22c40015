# SPDX-License-Identifier: Apache-2.0
"""The gradient of a layer's weights on the engine: images in the lanes.

Of ``dW[o, c, ky, kx] = sum over n, y, x of g[n, o, y, x] * input[n, c, y s + ky d - p, ..]`` the
rows of the array are input channels, its outputs output channels, its lanes images; the steps are
pixels of g. A word of the features is a pixel of one channel in as many images as there are lanes,
so windows stay whole words, whatever stride and padding are. The sums of a strip of g and a word of
images leave raw; the host adds these up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.engine.compiler.steps import Access, Action, Space, Step
from bitwright.engine.config import EngineConfig
from bitwright.engine.isa import Buffer, Exec, Input, Load, Output, Post, Result, Store
from bitwright.engine.training.program import Bytes, Levels, Program, padded

Pair = tuple[int, int]


@dataclass(frozen=True)
class Shapes:
    """Input (N, C, H, W), gradient of the output (N, O, H', W'), kernels (O, C, KH, KW)."""

    images: int
    channels: int
    size: Pair
    kernels: int
    grad: Pair
    kernel: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: Pair = (0, 0)

    def input_rows(self, first: int, end: int) -> Pair:
        """Rows of the input that rows ``first .. end - 1`` of the gradient meet; one at least."""
        low = first * self.stride[0] - self.padding[0]
        high = (end - 1) * self.stride[0] + (self.kernel[0] - 1) * self.dilation[0]
        low = max(0, min(low, self.size[0] - 1))
        return low, max(low + 1, min(high - self.padding[0] + 1, self.size[0]))


@dataclass(frozen=True)
class _Piece:
    """What one step computes: channels, images of a word, rows of g, output groups."""

    tile: int
    word: int
    rows: Pair
    groups: Pair


class Gradient(Program):
    """The program of a weight gradient.

    Raises:
        ModelError: a row of the gradient, or what it meets of one channel, does not fit.
    """

    def __init__(self, shapes: Shapes, config: EngineConfig) -> None:
        self.shapes = shapes
        self.groups = -(-shapes.kernels // config.outputs)
        super().__init__(config, self.groups * config.outputs, None)
        self.image_words = -(-shapes.images // config.lanes)
        half, across = config.weight_rows // 2, shapes.grad[1]
        if across > min(half, 255) or max(shapes.kernel) > 255:
            raise ModelError(
                f"a row of {across} pixels of the output's gradient; at most {min(half, 255)} fit",
                where=f"engine {config.name}",
                hint="use an engine with more weight rows",
            )
        self.strip = min(shapes.grad[0], half // across, 255)
        self.batch = max(1, min(self.groups, half // (self.strip * across), 255))
        self.tile = self._fit()
        self.tiles = -(-shapes.channels // self.tile)
        height, width = shapes.size
        self._x = self.area(self.tiles * self.image_words * height * width * self.tile)
        pixels = shapes.grad[0] * across
        self._g = self.area(self.image_words * self.groups * pixels * config.outputs)
        self._out: dict[_Piece, int] = {}
        self._emit()

    def _words(self, tile: int) -> tuple[int, int]:
        """Of a strip of so many channels, and of its results."""
        shapes = self.shapes
        spans = [
            shapes.input_rows(first, min(first + self.strip, shapes.grad[0]))
            for first in range(0, shapes.grad[0], self.strip)
        ]
        held = max(end - first for first, end in spans) * shapes.size[1] * tile
        made = self.batch * self.planes * shapes.kernel[0] * shapes.kernel[1] * tile
        return held, made

    def _fit(self) -> int:
        """Channels at a time: all, or as many as fit the features twice."""
        pixels, tile = self.config.pixels, self.shapes.channels
        while sum(self._words(tile)) > self.config.feature_words // 2:
            if self.batch > 1:
                self.batch = -(-self.batch // 2)
            elif self.strip > 1 and self._words(tile)[0] > 4 * self._words(tile)[1]:
                self.strip = -(-self.strip // 2)
            elif tile > pixels:
                tile = -(-(tile // 2) // pixels) * pixels
            elif self.strip > 1:
                self.strip = -(-self.strip // 2)
            else:
                raise ModelError(
                    f"{sum(self._words(tile))} words of {tile} channels do not fit "
                    f"{self.config.feature_words // 2}",
                    where=f"engine {self.config.name}",
                    hint="use an engine with more feature words",
                )
        return tile

    def _pieces(self) -> Iterator[_Piece]:
        for tile in range(self.tiles):
            for word in range(self.image_words):
                for first in range(0, self.shapes.grad[0], self.strip):
                    end = min(first + self.strip, self.shapes.grad[0])
                    for group in range(0, self.groups, self.batch):
                        count = min(self.batch, self.groups - group)
                        yield _Piece(tile, word, (first, end), (group, group + count))

    def _emit(self) -> None:
        loads, x_turn, turn, weights, before = [self.load_parameters()], 0, 0, 0, None
        for piece in self._pieces():
            strip = (piece.tile, piece.word, piece.rows)
            if strip != before:
                x_turn, before = 1 - x_turn, strip
                loads.append(self._load_input(piece, x_turn))
            rows = self._weight_rows(piece)
            if weights + rows > self.config.weight_rows:
                weights = 0
            loads.append(self.load_weights(self._grad_at(piece), weights, rows))
            place = self._place(turn)
            execs = list(self._execs(piece, self._base(x_turn), place, weights))
            self.steps.append(Step(loads, execs, [self._store(piece, place)]))
            loads, turn, weights = [], 1 - turn, weights + rows

    def _base(self, turn: int) -> int:
        return turn * self._words(self.tile)[0]

    def _place(self, turn: int) -> int:
        held, made = self._words(self.tile)
        return 2 * held + turn * made

    def _weight_rows(self, piece: _Piece) -> int:
        count = piece.groups[1] - piece.groups[0]
        return count * (piece.rows[1] - piece.rows[0]) * self.shapes.grad[1]

    def _grad_at(self, piece: _Piece) -> int:
        """Where a strip's output groups lie: by words of images, strips, groups."""
        pixels, across = self.shapes.grad[0] * self.shapes.grad[1], self.shapes.grad[1]
        start = piece.word * self.groups * pixels + piece.rows[0] * across * self.groups
        start += piece.groups[0] * (piece.rows[1] - piece.rows[0]) * across
        return self._g + start * self.config.outputs

    def _load_input(self, piece: _Piece, turn: int) -> Action:
        height, width = self.shapes.size
        first, end = self.shapes.input_rows(*piece.rows)
        row = width * self.tile
        at = (piece.tile * self.image_words + piece.word) * height + first
        memory, words, base = self._x + at * row, (end - first) * row, self._base(turn)
        load = Load(
            buffer=Buffer.FEATURES, memory=memory, x=row, y=end - first, memory_y=row,
            address=base, buffer_y=row,
        )  # fmt: skip
        accesses = (
            Access(Space.MEMORY, memory, memory + words, False),
            Access(Space.FEATURES, base, base + words, True),
        )
        return Action(load, accesses, "input")

    def _execs(self, piece: _Piece, base: int, place: int, weights: int) -> Iterator[Action]:
        """One for each column of the kernel: its rows are groups of the array's pixels."""
        shapes, config, tile = self.shapes, self.config, self.tile
        (height, width), (kh, kw) = shapes.size, shapes.kernel
        first, end = shapes.input_rows(*piece.rows)
        down, across = width * tile, piece.groups[1] - piece.groups[0]
        count = min(tile, shapes.channels - piece.tile * tile)
        groups = -(-count // config.pixels)
        given = Input(
            pixel=1, row=shapes.dilation[0] * down % (1 << 16), tap_x=shapes.stride[1] * tile,
            tap_y=shapes.stride[0] * down % (1 << 16), height=height, width=width,
            stride_y=shapes.dilation[0], stride_x=0, dilation_y=shapes.stride[0],
            dilation_x=shapes.stride[1], patch=config.pixel_bits, first=1, signed_first=1,
            signed_rest=1,
        )  # fmt: skip
        finish = Output(
            plane=kh * kw * tile, row=kw * tile, post=Post.REQUANT, result=Result.RAW
        )  # fmt: skip
        y = piece.rows[0] * shapes.stride[0] - shapes.padding[0]
        records = config.outputs // 8
        parameters = piece.groups[0] * records, piece.groups[1] * records
        accesses = (
            Access(Space.FEATURES, base, base + (end - first) * down, False),
            Access(
                Space.FEATURES, place, place + across * self.planes * kh * kw * tile, True
            ),
            Access(Space.WEIGHTS, weights, weights + self._weight_rows(piece), False),
            Access(Space.PARAMETERS, parameters[0], parameters[1], False),
        )  # fmt: skip
        for column in range(kw):
            x = column * shapes.dilation[1] - shapes.padding[1]
            start = base + (y - first) * down + x * tile
            job = Exec(
                features=start % config.feature_words, weights=weights,
                parameters=parameters[0], out=place + column * tile,
                y=y, x=x, groups_y=kh, groups_x=groups,
                last_x=count - (groups - 1) * config.pixels,
                kh=piece.rows[1] - piece.rows[0], kw=shapes.grad[1], outputs=across,
            )  # fmt: skip
            yield Action(job, accesses, "gradient", (given, finish))

    def _store(self, piece: _Piece, place: int) -> Action:
        kh, kw = self.shapes.kernel
        words = (piece.groups[1] - piece.groups[0]) * self.planes * kh * kw * self.tile
        memory = self._out[piece] = self.area(words)
        store = Store(memory=memory, x=words, address=place)
        accesses = (
            Access(Space.FEATURES, place, place + words, False),
            Access(Space.MEMORY, memory, memory + words, True),
        )
        return Action(store, accesses, "sums")

    def operands(self, left: Levels, right: Levels) -> list[tuple[int, Levels]]:
        """Input (N, C, H, W) and gradient of the output (N, O, H', W'), int8."""
        lanes, outputs = self.config.lanes, self.config.outputs
        x = padded(padded(left, 0, lanes), 1, self.tile)
        x = x.reshape(self.image_words, lanes, self.tiles, self.tile, *self.shapes.size)
        g = padded(padded(right, 0, lanes), 1, outputs)
        g = g.reshape(self.image_words, lanes, self.groups, outputs, *self.shapes.grad)
        found = [(self._x, x.transpose(2, 0, 4, 5, 3, 1))]
        g = g.transpose(0, 2, 4, 5, 3, 1)  # word, group, y, x, output, image
        for piece in self._pieces():
            if piece.tile == 0:
                part = g[piece.word, piece.groups[0] : piece.groups[1]]
                found.append((self._grad_at(piece), part[:, piece.rows[0] : piece.rows[1]]))
        return found

    def results(self, words: Bytes) -> Levels:
        """(O, C, KH, KW), the sums of all pieces."""
        (kh, kw), outputs = self.shapes.kernel, self.config.outputs
        total = np.zeros(
            (self.groups * outputs, self.tiles * self.tile, kh, kw), np.int64
        )  # fmt: skip
        for piece, start in self._out.items():
            count = piece.groups[1] - piece.groups[0]
            area = words[start : start + count * self.planes * kh * kw * self.tile]
            found = area.reshape(count, self.planes, kh, kw, self.tile, -1)
            sums = self.raw(found.transpose(0, 2, 3, 4, 1, 5))  # group, kh, kw, channel, output
            part = sums.transpose(0, 4, 3, 1, 2).reshape(count * outputs, self.tile, kh, kw)
            rows = slice(piece.groups[0] * outputs, piece.groups[1] * outputs)
            columns = slice(piece.tile * self.tile, (piece.tile + 1) * self.tile)
            total[rows, columns] += part
        return total[: self.shapes.kernels, : self.shapes.channels]
