# SPDX-License-Identifier: Apache-2.0
"""The gradient of a layer's weights on the engine: images in the lanes.

Of ``dW[o, c, ky, kx] = sum over n, y, x of g[n, o, y, x] * input[n, c, y s + ky d - p, ..]`` the
rows of the array are input channels, its outputs output channels, its lanes images; the steps are
pixels of g. A word of the features is a pixel of one channel in as many images as there are lanes,
so windows stay whole words, whatever stride and padding are. The sums of a strip of g in some words
of images leave raw; the host adds these up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.engine.compiler.steps import Access, Action, Space, Step
from bitwright.engine.config import EngineConfig
from bitwright.engine.isa import Buffer, Exec, Input, Load, Output, Post, Result, Store
from bitwright.engine.training.program import (
    MOST,
    Bytes,
    Levels,
    Pair,
    Program,
    Window,
    check_taps,
    padded,
)


@dataclass(frozen=True)
class _Piece:
    """What one step computes: channels, words of images, rows of g, output groups."""

    tile: int
    words: Pair
    rows: Pair
    groups: Pair


@dataclass(frozen=True)
class _Cut:
    """How a product is cut.

    Attributes:
        strip: rows of the output's gradient at a time; depth: words of images; tile: channels;
        batch: output groups.
    """

    strip: int
    depth: int
    tile: int
    batch: int


class Gradient(Program):
    """The program of a weight gradient.

    Raises:
        ModelError: a row of the gradient, or what it meets of one channel, does not fit.
    """

    def __init__(self, window: Window, config: EngineConfig) -> None:
        self.window = window
        self.groups = -(-window.kernels // config.outputs)
        super().__init__(config, self.groups * config.outputs, None)
        self.image_words = -(-window.images // config.lanes)
        check_taps(window, config)
        across, most = window.out[1], min(config.weight_rows // 2, MOST)
        if across > most:
            raise ModelError(
                f"a row of {across} pixels of the output's gradient; at most {most} fit",
                where=f"engine {config.name}",
                hint="use an engine with more weight rows"
                if most < MOST
                else "train on narrower images: no engine takes more in an instruction",
            )
        self.cut = self._choose()
        self.tiles = -(-window.channels // self.cut.tile)
        height, width = window.size
        self._x = self.area(self.tiles * self.image_words * height * width * self.cut.tile)
        pixels = window.out[0] * across
        self._g = self.area(self.image_words * self.groups * pixels * config.outputs)
        self._out: dict[_Piece, int] = {}
        self._emit()

    def _words(self, cut: _Cut) -> tuple[int, int]:
        """Of what a piece reads of the input, and of its results."""
        window = self.window
        spans = [
            window.input_rows(first, min(first + cut.strip, window.out[0]))
            for first in range(0, window.out[0], cut.strip)
        ]
        held = max(end - first for first, end in spans) * window.size[1] * cut.tile * cut.depth
        made = cut.batch * self.planes * window.kernel[0] * window.kernel[1] * cut.tile
        return held, made

    def _cuts(self) -> Iterator[_Cut]:
        """Those whose weights fit half of the weight memory, the rest half of the features."""
        window, half = self.window, self.config.weight_rows // 2
        most = min(window.out[0], half // window.out[1], MOST)
        for strip in _halves(most):
            for depth in _halves(self.image_words) if strip == window.out[0] else (1,):
                steps = strip * window.out[1] * depth
                if steps > half:
                    continue
                for tile in _halves(window.channels, self.config.pixels):
                    for batch in _halves(min(self.groups, half // steps, MOST)):
                        cut = _Cut(strip, depth, tile, batch)
                        if sum(self._words(cut)) <= self.config.feature_words // 2:
                            yield cut

    def _cost(self, cut: _Cut) -> float:
        """Cycles, about: the array's, or those of what is moved. A STORE reads the features every
        other cycle."""
        window, config = self.window, self.config
        pieces = -(-window.channels // cut.tile) * -(-window.out[0] // cut.strip)
        pieces *= -(-self.image_words // cut.depth)
        groups = -(-self.groups // cut.batch)
        steps = cut.strip * window.out[1] * cut.depth
        held, made = self._words(cut)
        taps = window.kernel[0] * window.kernel[1]
        rows = -(-cut.tile // config.pixels) * taps
        array = cut.batch * rows * max(steps, config.drain) + window.kernel[1] * config.drain
        word = max(1.0, config.word_bytes / config.constants.bytes_per_cycle)
        moved = (held / groups + cut.batch * steps * config.outputs) * word + made * max(2.0, word)
        return pieces * groups * max(array, moved)

    def _choose(self) -> _Cut:
        best = min(self._cuts(), key=self._cost, default=None)
        if best is None:
            words = sum(self._words(_Cut(1, 1, min(self.window.channels, self.config.pixels), 1)))
            raise ModelError(
                f"a row of the gradient and what it meets take {words} words of "
                f"{self.config.feature_words // 2}",
                where=f"engine {self.config.name}",
                hint="use an engine with more feature words",
            )
        return best

    def _pieces(self) -> Iterator[_Piece]:
        cut = self.cut
        for tile in range(self.tiles):
            for words in _parts(self.image_words, cut.depth):
                for rows in _parts(self.window.out[0], cut.strip):
                    for groups in _parts(self.groups, cut.batch):
                        yield _Piece(tile, words, rows, groups)

    def _emit(self) -> None:
        loads, x_turn, turn, weights, before = [self.load_parameters()], 0, 0, 0, None
        for piece in self._pieces():
            strip = (piece.tile, piece.words, piece.rows)
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
        return turn * self._words(self.cut)[0]

    def _place(self, turn: int) -> int:
        held, made = self._words(self.cut)
        return 2 * held + turn * made

    def _weight_rows(self, piece: _Piece) -> int:
        count = (piece.groups[1] - piece.groups[0]) * (piece.words[1] - piece.words[0])
        return count * (piece.rows[1] - piece.rows[0]) * self.window.out[1]

    def _grad_at(self, piece: _Piece) -> int:
        """Where a piece's part of g lies: by words of images, strips, output groups."""
        pixels, across = self.window.out[0] * self.window.out[1], self.window.out[1]
        depth = piece.words[1] - piece.words[0]
        start = piece.words[0] * self.groups * pixels
        start += piece.rows[0] * across * self.groups * depth
        start += piece.groups[0] * (piece.rows[1] - piece.rows[0]) * across * depth
        return self._g + start * self.config.outputs

    def _load_input(self, piece: _Piece, turn: int) -> Action:
        height, width = self.window.size
        first, end = self.window.input_rows(*piece.rows)
        row, depth = width * self.cut.tile, piece.words[1] - piece.words[0]
        at = (piece.tile * self.image_words + piece.words[0]) * height + first
        memory, base, each = self._x + at * row, self._base(turn), (end - first) * row
        load = Load(
            buffer=Buffer.FEATURES, memory=memory, x=row, y=end - first, z=depth, memory_y=row,
            memory_z=height * row, address=base, buffer_y=row, buffer_z=each,
        )  # fmt: skip
        accesses = (
            Access(Space.MEMORY, memory, memory + (depth - 1) * height * row + each, False),
            Access(Space.FEATURES, base, base + depth * each, True),
        )
        return Action(load, accesses, "input")

    def _execs(self, piece: _Piece, base: int, place: int, weights: int) -> Iterator[Action]:
        """One for each column of the kernel: its rows are groups of the array's pixels."""
        window, config, tile = self.window, self.config, self.cut.tile
        (height, width), (kh, kw) = window.size, window.kernel
        first, end = window.input_rows(*piece.rows)
        down, across = width * tile, piece.groups[1] - piece.groups[0]
        depth = piece.words[1] - piece.words[0]
        count = min(tile, window.channels - piece.tile * tile)
        groups = -(-count // config.pixels)
        given = Input(
            pixel=1, row=window.dilation[0] * down % (1 << 16), tap_x=window.stride[1] * tile,
            tap_y=window.stride[0] * down % (1 << 16), height=height, width=width,
            plane=(end - first) * down % (1 << 16), stride_y=window.dilation[0], stride_x=0,
            dilation_y=window.stride[0], dilation_x=window.stride[1], patch=config.pixel_bits,
            signed_rest=1,
        )  # fmt: skip
        finish = Output(
            plane=kh * kw * tile, row=kw * tile, post=Post.REQUANT, result=Result.RAW
        )  # fmt: skip
        y = piece.rows[0] * window.stride[0] - window.padding[0]
        records = config.outputs // 8
        parameters = piece.groups[0] * records, piece.groups[1] * records
        accesses = (
            Access(Space.FEATURES, base, base + depth * (end - first) * down, False),
            Access(
                Space.FEATURES, place, place + across * self.planes * kh * kw * tile, True
            ),
            Access(Space.WEIGHTS, weights, weights + self._weight_rows(piece), False),
            Access(Space.PARAMETERS, parameters[0], parameters[1], False),
        )  # fmt: skip
        for column in range(kw):
            x = column * window.dilation[1] - window.padding[1]
            start = base + (y - first) * down + x * tile
            job = Exec(
                features=start % config.feature_words, weights=weights,
                parameters=parameters[0], out=place + column * tile,
                y=y, x=x, groups_y=kh, groups_x=groups,
                last_x=count - (groups - 1) * config.pixels,
                kh=piece.rows[1] - piece.rows[0], kw=window.out[1],
                kc=depth, outputs=across,
            )  # fmt: skip
            yield Action(job, accesses, "gradient", (given, finish))

    def _store(self, piece: _Piece, place: int) -> Action:
        kh, kw = self.window.kernel
        words = (piece.groups[1] - piece.groups[0]) * self.planes * kh * kw * self.cut.tile
        memory = self._out[piece] = self.area(words)
        store = Store(memory=memory, x=words, address=place)
        accesses = (
            Access(Space.FEATURES, place, place + words, False),
            Access(Space.MEMORY, memory, memory + words, True),
        )
        return Action(store, accesses, "sums")

    def operands(self, left: Levels, right: Levels) -> list[tuple[int, Levels]]:
        """Input (N, C, H, W) and gradient of the output (N, O, H', W'), int8."""
        lanes, outputs, tile = self.config.lanes, self.config.outputs, self.cut.tile
        x = padded(padded(left, 0, lanes), 1, tile)
        x = x.reshape(self.image_words, lanes, self.tiles, tile, *self.window.size)
        g = padded(padded(right, 0, lanes), 1, outputs)
        g = g.reshape(self.image_words, lanes, self.groups, outputs, *self.window.out)
        found = [(self._x, x.transpose(2, 0, 4, 5, 3, 1))]
        g = g.transpose(2, 0, 4, 5, 3, 1)  # group, word, y, x, output, image
        for piece in self._pieces():
            if piece.tile == 0:
                groups, words, rows = (
                    slice(*each) for each in (piece.groups, piece.words, piece.rows)
                )
                found.append((self._grad_at(piece), g[groups, words, rows]))
        return found

    def results(self, words: Bytes) -> Levels:
        """(O, C, KH, KW), the sums of all pieces."""
        (kh, kw), outputs, tile = self.window.kernel, self.config.outputs, self.cut.tile
        total = np.zeros((self.groups * outputs, self.tiles * tile, kh, kw), np.int64)
        for piece, start in self._out.items():
            count = piece.groups[1] - piece.groups[0]
            area = words[start : start + count * self.planes * kh * kw * tile]
            found = area.reshape(count, self.planes, kh, kw, tile, -1)
            sums = self.raw(found.transpose(0, 2, 3, 4, 1, 5))  # group, kh, kw, channel, output
            part = sums.transpose(0, 4, 3, 1, 2).reshape(count * outputs, tile, kh, kw)
            rows = slice(piece.groups[0] * outputs, piece.groups[1] * outputs)
            columns = slice(piece.tile * tile, (piece.tile + 1) * tile)
            total[rows, columns] += part
        return total[: self.window.kernels, : self.window.channels]


def _parts(whole: int, step: int) -> Iterator[Pair]:
    """First and end of stretches of so many."""
    for first in range(0, whole, step):
        yield first, min(first + step, whole)


def _halves(most: int, grain: int = 1) -> Iterator[int]:
    """All, half of it, a quarter, .., each a multiple of ``grain`` but for the first."""
    size = most
    while True:
        yield size
        if size <= grain:
            return
        size = -(-(size // 2) // grain) * grain
