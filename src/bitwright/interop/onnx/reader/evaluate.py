# SPDX-License-Identifier: Apache-2.0
"""Values behind quantizers, evaluated on levels: what it costs counts as work of the import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bitwright.interop.onnx.reader.budget import Work
from bitwright.interop.onnx.reader.levels import (
    LevelFunction,
    Quantizer,
    ThresholdTable,
    find_thresholds,
)
from bitwright.interop.onnx.reader.model import OnnxNode
from bitwright.interop.onnx.reader.values import Array, Value
from bitwright.ir import IntArray

#: Rows of thresholds that are looked for at a time.
_ROWS = 128
#: Evaluations that finding a threshold takes, where it is not found at once.
_PROBES = 3
#: Work on a level that is looked up.
_FOUND = 10


@dataclass
class Evaluator:
    """Evaluates, and counts.

    Attributes:
        work: what is left to be done.
        ties, steps: of so many steps of activations, how many lie elsewhere in float32.
    """

    work: Work
    ties: int = 0
    steps: int = 0

    def reals(
        self,
        value: Value,
        levels: Array,
        node: OnnxNode,
        dtype: type[np.floating[Any]] = np.float64,
    ) -> Array:
        """`Value.reals`, as work.

        Raises:
            ModelError: too much is computed; names the node.
        """
        size = levels.size // max(levels.shape[-1], 1) * max(levels.shape[-1], value.rows)
        self.work.spend(node, size * value.work)
        return value.reals(levels, dtype)

    def quantized(
        self,
        value: Value,
        quantizer: Quantizer,
        levels: Array,
        node: OnnxNode,
        dtype: type[np.floating[Any]] = np.float64,
    ) -> IntArray:
        """Levels of a value behind a quantizer, as work. See `reals`."""
        found = self.reals(value, levels, node, dtype)
        self.work.spend(node, found.size * quantizer.work)
        return quantizer.levels(found, dtype)

    def curve(
        self,
        value: Value,
        quantizer: Quantizer,
        ends: tuple[int, int],
        node: OnnxNode,
        count: int,
        dtype: type[np.floating[Any]] = np.float64,
    ) -> LevelFunction:
        """A value behind a quantizer as a function of levels ``(n, rows)``.

        Args:
            ends: interval of the levels.
            count: how many it is asked for, per row: a table is made first if that is less.
        """
        lo, hi = ends
        rows = max(value.rows, quantizer.rows)
        if hi - lo + 1 > count:
            return lambda levels: self.quantized(value, quantizer, levels, node, dtype)
        every = np.broadcast_to(np.arange(lo, hi + 1)[:, None], (hi - lo + 1, rows))
        table = self.quantized(value, quantizer, every, node, dtype)

        def look_up(levels: IntArray) -> IntArray:
            self.work.spend(node, _FOUND * levels.size)
            return np.take_along_axis(table, np.clip(levels, lo, hi) - lo, axis=0)

        return look_up

    def thresholds(
        self, value: Value, quantizer: Quantizer, ends: tuple[int, int], node: OnnxNode
    ) -> ThresholdTable:
        """The steps of a quantizer of a value that rises or falls on all levels of an interval.

        Some rows are looked for at a time: so the arrays stay in the cache.

        Raises:
            ModelError: too much is computed; names the node.
        """
        rows = max(value.rows, quantizer.rows)
        count = (quantizer.hi - quantizer.lo) // quantizer.step
        wanted = quantizer.lo + quantizer.step * np.arange(1, count + 1)
        parts = []
        for start in range(0, rows, _ROWS):
            part = slice(start, start + _ROWS)
            some = value.spread(lambda c, part=part: c[part])  # type: ignore[misc]
            steps = quantizer.part(part)
            function = self.curve(some, steps, ends, node, _PROBES * count)
            with np.errstate(all="ignore"):
                near = some.inverse(steps.borders(wanted))
            direction = np.broadcast_to(some.direction(), (min(_ROWS, rows - start),))
            found = find_thresholds(function, direction, ends, wanted, near)
            self._count_ties(some, steps, ends, found, node)
            parts.append(found)
        flips = np.concatenate([found.flip for found in parts])
        return ThresholdTable(np.concatenate([found.thresholds for found in parts]), flips)

    def _count_ties(
        self,
        value: Value,
        quantizer: Quantizer,
        ends: tuple[int, int],
        found: ThresholdTable,
        node: OnnxNode,
    ) -> None:
        """Steps on whose two sides float32, operator by operator, gives other levels."""
        lo, hi = ends
        signs = np.where(found.flip, -1, 1)[:, None]
        apart = np.zeros(found.thresholds.shape, np.bool_)
        sides = 2 * found.thresholds.shape[1]
        exact = self.curve(value, quantizer, ends, node, sides)
        rounded = self.curve(value, quantizer, ends, node, sides, np.float32)
        for side in (found.thresholds, found.thresholds - 1):
            levels = np.clip(side * signs, lo, hi).T
            apart |= (exact(levels) != rounded(levels)).T
        self.ties += int(apart.sum())
        self.steps += apart.size
