# SPDX-License-Identifier: Apache-2.0
"""The sample-wise trainer in numpy: what `trainer.Trainer` equals bit for bit.

The algorithm is that of spec 2.8, slow and plain: one sample at a time, sums in the order that the
C program adds them in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bitwright.papers.bnn_soc.numbers import (
    DROP,
    STREAMS,
    UNITS,
    WEIGHTS,
    Floats,
    activate,
    derivative,
    hard_sigmoid,
    uniform,
)
from bitwright.papers.bnn_soc.settings import Settings, initial_weights

_LANES = 16


@dataclass
class _Units:
    """What the units of a layer gave for one sample."""

    sum: Floats
    output: Floats
    value: Floats
    there: NDArray[np.bool_]


def lane_sums(weight: Floats, x: Floats) -> Floats:
    """``weight @ x`` of floats: 16 lanes, then their halves (``dot`` of ``forward.c``)."""
    short = -len(x) % _LANES
    terms = np.pad(weight * x, ((0, 0), (0, short))).reshape(len(weight), -1, _LANES)
    lanes = np.zeros((len(weight), _LANES), dtype=np.float32)
    for step in range(terms.shape[1]):
        lanes = lanes + terms[:, step]
    half = _LANES // 2
    while half:
        lanes = lanes[:, :half] + lanes[:, half : 2 * half]
        half //= 2
    return lanes[:, 0]


class ReferenceTrainer:
    """See `trainer.Trainer`, whose interface this has."""

    def __init__(self, settings: Settings, weights: list[Floats] | None = None) -> None:
        self.settings = settings
        self.weights = [w.copy() for w in weights or initial_weights(settings)]
        self.biases = [
            np.zeros(n, np.float32) if settings.bias else None for n in settings.sizes[1:]
        ]
        self.step = 0
        self.signs = [self._binarized(layer) for layer in range(settings.layers)]

    def _binarized(self, layer: int) -> Floats:
        w, s = self.weights[layer], self.settings
        if s.weight_binarization == "deterministic":
            on = w >= 0
        else:
            u = uniform(s.seed, self.step, layer * STREAMS + WEIGHTS, w.size).reshape(w.shape)
            on = u < hard_sigmoid(w.astype(np.float64))
        return np.where(on, 1, -1).astype(np.float32)

    def _handed_on(self, output: Floats, total: Floats, layer: int) -> _Units:
        s = self.settings
        rate = 0.0 if layer == s.layers else s.drop_hidden if layer else s.drop_input
        there = np.ones(output.size, dtype=bool)
        if rate > 0:
            drawn = uniform(s.seed, self.step, layer * STREAMS + DROP, output.size)
            there = ~(drawn < np.float32(rate))
        value = np.where(there, output * self._kept(layer), np.float32(0)).astype(np.float32)
        return _Units(total, output, value, there)

    def _kept(self, layer: int) -> np.float32:
        s = self.settings
        rate = 0.0 if layer == s.layers else s.drop_hidden if layer else s.drop_input
        return np.float32(1.0 if s.binary else 1.0 / (1.0 - rate))

    def _forward(self, units: _Units, layer: int) -> _Units:
        s = self.settings
        if s.binary:
            z = (self.signs[layer] @ units.value).astype(np.float32)  # exact: integers
        else:
            z = lane_sums(self.weights[layer], units.value)
        z = z / np.float32(s.sum_scale_of(layer))
        bias = self.biases[layer]
        if bias is not None:
            z = z + bias
        output = activate(s.act_forward, z)
        if s.binary and s.activation_binarization == "stochastic" and layer + 1 < s.layers:
            drawn = uniform(s.seed, self.step, (layer + 1) * STREAMS + UNITS, z.size)
            output = np.where(drawn < hard_sigmoid(output.astype(np.float64)), 1, -1)
        elif s.binary:
            output = np.where(output >= 0, 1, -1)
        return self._handed_on(output.astype(np.float32), z, layer + 1)

    def _errors(self, units: _Units, label: int, rate: float) -> Floats:
        """``-f'(output) * cost(output, target)`` of the output units."""
        s = self.settings
        target = np.full(units.output.size, -1.0)
        target[label] = 1.0
        given = units.output.astype(np.float64)
        if s.exaggeration_rate == "layer":
            rate = rate * s.rate_scale_of(s.layers - 1)
        exaggerated = target + s.exaggeration * target * rate
        error = given - np.where(given == target, exaggerated, target)
        return -(self._slope(units) * error.astype(np.float32))

    def _slope(self, units: _Units) -> Floats:
        s = self.settings
        return derivative(s.act_backward, units.sum if s.deriv_at != "output" else units.output)

    def _pulled(self, delta: Floats, layer: int) -> Floats:
        """Errors of the units in front of a layer, added row by row."""
        s = self.settings
        masters = not s.binary or s.backprop_weights == "float"
        through = self.weights[layer] if masters else self.signs[layer]
        found = np.zeros(s.sizes[layer], dtype=np.float32)
        for row in np.flatnonzero(delta):
            found = found + through[row] * delta[row]
        return found / np.float32(s.error_scale_of(layer))

    def _push(self, delta: Floats, value: Floats, layer: int, rate: float) -> None:
        s, rows = self.settings, np.flatnonzero(delta)
        g = np.float32(rate * s.rate_scale_of(layer)) * delta[rows]
        moved = self.weights[layer][rows] + g[:, None] * value
        self.weights[layer][rows] = np.clip(moved, -1, 1) if s.clip else moved
        bias = self.biases[layer]
        if bias is not None:
            bias[rows] = bias[rows] + g

    def train(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        order: NDArray[np.int64],
        rates: NDArray[np.float64],
    ) -> None:
        """One update for each of ``order``: see `trainer.Trainer.train`."""
        s = self.settings
        for index, rate in zip(order, rates, strict=True):
            pixels = s.input_values()[images[index].reshape(-1)]
            units = [self._handed_on(pixels, pixels, 0)]
            for layer in range(s.layers):
                units.append(self._forward(units[-1], layer))
            delta = self._errors(units[-1], int(labels[index]), float(rate))
            for layer in reversed(range(s.layers)):
                pulled = self._pulled(delta, layer) if layer else delta
                self._push(delta, units[layer].value, layer, float(rate))
                if layer:
                    slope = self._slope(units[layer]) * self._kept(layer)
                    delta = np.where(units[layer].there, slope * pulled, np.float32(0))
            self.step += 1
            self.signs = [self._binarized(layer) for layer in range(s.layers)]
