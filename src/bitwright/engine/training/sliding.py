# SPDX-License-Identifier: Apache-2.0
"""A convolution of a batch on the engine: image after image, or strip after strip of one.

The weights of as many output groups as fit are loaded once for all images; images and results take
turns in two places each.
"""

from __future__ import annotations

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.engine.compiler.nests import View, Where, execs
from bitwright.engine.compiler.steps import Access, Action, Space, Step
from bitwright.engine.compiler.values import SIGNED, Layer, Part, Value
from bitwright.engine.config import EngineConfig
from bitwright.engine.isa import Buffer, Load, Store, WeightOrder
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


class Sliding(Program):
    """The program of a convolution.

    Args:
        shift: None gives raw sums; else they leave as ``round(sum * 2^-shift)`` in 8 bits.

    Raises:
        ModelError: the weights of one output group, or two rows of the image, do not fit.
    """

    def __init__(self, window: Window, config: EngineConfig, shift: int | None = None) -> None:
        self.window = window
        self.inputs = -(-window.channels // config.lanes)
        self.groups = -(-window.kernels // config.outputs)
        super().__init__(config, self.groups * config.outputs, shift)
        height, width = window.size
        self.rows = self.inputs * window.kernel[0] * window.kernel[1]
        check_taps(window, config)
        if self.rows > config.weight_rows:
            raise ModelError(
                f"an output group needs {self.rows} rows of weights of {config.weight_rows}",
                where=f"engine {config.name}",
                hint="use an engine with more weight rows",
            )
        self.source = Value(
            "input", height, width, self.inputs, np.arange(window.channels),
            (SIGNED,) * self.inputs,
        )  # fmt: skip
        planes = self.groups * self.planes
        self.out = Value("output", *window.out, planes, np.arange(window.kernels), (SIGNED,))
        self._x = self.area(window.images * self.inputs * height * width)
        self._w = self.area(self.groups * self.rows * config.outputs)
        self._y = self.area(window.images * planes * window.out[0] * window.out[1])
        self._emit()

    def _layer(self, first: int, count: int) -> Layer:
        """Output groups ``first .. first + count - 1`` as the compiler's layer."""
        shape = (count, self.rows, self.config.outputs, self.config.lanes)
        part = Part(
            first, count, 0, 0, self.inputs, np.broadcast_to(np.int8(0), shape),
            WeightOrder.SEQUENTIAL, (self.inputs, 1, 1),
        )  # fmt: skip
        window = self.window
        return Layer(
            "product", (), (self.source,), self.out, (part,), self.post, window.kernel,
            window.stride, window.dilation, window.padding,
        )  # fmt: skip

    def _strip(self, layer: Layer, count: int) -> int:
        """Rows of the result for which image and result fit twice."""
        words = self.config.feature_words // 2
        for rows in range(self.window.out[0], 0, -1):
            spans = [
                layer.input_rows(start, min(start + rows, self.window.out[0]))
                for start in range(0, self.window.out[0], rows)
            ]
            held = max(end - first for first, end in spans) * self.source.width * self.inputs
            made = rows * self.out.width * count * self.planes
            if held + made <= words:
                return rows
        raise ModelError(
            f"a row of the result of {self.out.width} pixels and its inputs do not fit "
            f"{words} words",
            where=f"engine {self.config.name}",
            hint="use an engine with more feature words",
        )

    def _emit(self) -> None:
        config, rows = self.config, self.rows
        whole = self.groups * rows <= config.weight_rows
        most = self.groups if whole else max(1, config.weight_rows // 2 // rows)
        most = min(most, MOST)
        loads, row = [self.load_parameters()], 0
        for first in range(0, self.groups, most):
            count = min(most, self.groups - first)
            if row + count * rows > config.weight_rows:
                row = 0
            memory = self._w + first * rows * config.outputs
            loads.append(self.load_weights(memory, row, count * rows))
            layer = self._layer(first, count)
            step = self._strip(layer, count)
            for turn, (image, start) in enumerate(
                (n, y) for n in range(self.window.images) for y in range(0, self.out.height, step)
            ):
                end = min(start + step, self.out.height)
                self._strip_steps(layer, image, (start, end), turn % 2, row, loads)
                loads = []
            row += count * rows

    def _strip_steps(
        self, layer: Layer, image: int, rows: Pair, half: int, weights: int, loads: list[Action]
    ) -> None:  # fmt: skip
        """Load what a strip reads, execute it, store what it gives."""
        base = half * (self.config.feature_words // 2)
        part, width = layer.parts[0], self.source.width
        first, end = layer.input_rows(*rows)
        held = (end - first) * width
        made = (rows[1] - rows[0]) * self.out.width
        planes = part.groups * self.planes
        place = base + self.inputs * held
        views = {
            self.source: View(base - first * width, held),
            self.out: View(
                place - rows[0] * self.out.width - part.group * self.planes * made, made
            ),
        }
        size, area = self.source.height * width, self.out.height * self.out.width
        x = self._x + image * self.inputs * size + first * width
        y = self._y + (image * self.out.planes + part.group * self.planes) * area
        y += rows[0] * self.out.width
        load = Load(
            buffer=Buffer.FEATURES, memory=x, x=held, y=self.inputs, memory_y=size, address=base,
            buffer_y=held,
        )  # fmt: skip
        store = Store(memory=y, x=made, y=planes, memory_y=area, address=place, buffer_y=made)
        reads = (
            Access(Space.MEMORY, x, x + (self.inputs - 1) * size + held, False),
            Access(Space.FEATURES, base, place, True),
        )
        writes = (
            Access(Space.FEATURES, place, place + planes * made, False),
            Access(Space.MEMORY, y, y + (planes - 1) * area + made, True),
        )
        where = Where(views, weights, part.group * (self.config.outputs // 8))
        self.steps.append(
            Step(
                [*loads, Action(load, reads, "input")],
                list(execs(layer, part, rows, where, self.config)),
                [Action(store, writes, "output")],
            )
        )

    def operands(self, left: Levels, right: Levels) -> list[tuple[int, Levels]]:
        """Images (N, C, H, W) and kernels (O, C, KH, KW), int8."""
        lanes, outputs = self.config.lanes, self.config.outputs
        x = padded(left, 1, lanes)
        x = x.reshape(len(x), self.inputs, lanes, *x.shape[2:]).transpose(0, 1, 3, 4, 2)
        w = padded(padded(right, 1, lanes), 0, outputs)
        w = w.reshape(self.groups, outputs, self.inputs, lanes, *w.shape[2:])
        return [(self._x, x), (self._w, w.transpose(0, 2, 4, 5, 1, 3))]

    def results(self, words: Bytes) -> Levels:
        """(N, O, H', W')."""
        window = self.window
        count = window.images * self.out.words
        found = words[self._y : self._y + count].reshape(
            window.images, self.groups, self.planes, *window.out, self.config.lanes
        )
        sums = self.raw(found.transpose(0, 1, 3, 4, 2, 5))  # (N, groups, H', W', outputs)
        whole = sums.transpose(0, 1, 4, 2, 3).reshape(window.images, -1, *window.out)
        return whole[:, : window.kernels]
