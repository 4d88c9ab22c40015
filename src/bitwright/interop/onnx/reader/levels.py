# SPDX-License-Identifier: Apache-2.0
"""Quantizers as functions real -> level, and integer nodes that equal them on every level.

The meaning of a file is its evaluation in float64, operator by operator, with the constants of the
file (float32). Thresholds are found by bisection over that very function, so the node equals it on
every level of its input; no formula is rearranged on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import FormatError
from bitwright.formats import Rounding
from bitwright.formats.rounding import round_to_int
from bitwright.interop.onnx.reader.values import Array, Floats, Step
from bitwright.ir import IntArray, bits_for_interval

#: Most steps of a threshold node: 8 bits.
MAX_STEPS = 255
#: Largest interval on which a function is tabulated.
MAX_TABLE = 1 << 16
_BIPOLAR_STEP = 2
_MOST = 2.0**62
_WORK, _COMPARED = 16, 3
_GALLOPS = 5


@dataclass(frozen=True, eq=False)
class Quantizer:
    """A rising function real -> level; ``real = unit * level`` afterwards.

    Attributes:
        kind: quant (QONNX: clip, then round), codes (ONNX: round, then saturate), sign, count
            (MultiThreshold) or trunc.
        lo, hi, step: the levels: lo, lo + step, ..., hi.
        unit: (1,) or (channels,).
        constants: of the function, (1,) or (channels,); for ``count`` the thresholds
            (1 or channels, T), ascending.
    """

    kind: str
    lo: int
    hi: int
    step: int
    unit: Floats
    constants: tuple[Floats, ...] = ()
    rounding: Rounding = Rounding.HALF_EVEN

    def levels(self, x: Array, dtype: type[np.floating[Any]] = np.float64) -> IntArray:
        """Levels of reals ``(..., channels)``, computed in the given precision."""
        constants = tuple(c.astype(dtype) for c in self.constants)
        with np.errstate(all="ignore"):
            found = getattr(self, f"_{self.kind}")(np.asarray(x, dtype), *constants)
        return whole_numbers(np.asarray(found, dtype=np.float64))

    def _quant(self, x: Array, scale: Array, zero: Array, lo: Array, hi: Array) -> Array:
        return np.asarray(self._round(np.clip(x / scale + zero, lo, hi)) - zero)

    def _codes(self, x: Array, scale: Array, zero: Array, lo: Array, hi: Array, to: Array) -> Array:
        return np.asarray(np.clip(np.rint(x / scale) + zero, lo, hi) - to)

    def _sign(self, x: Array) -> Array:
        return np.where(x >= 0, 1, -1)

    def _trunc(self, x: Array, scale: Array, zero: Array, by: Array, lo: Array, hi: Array) -> Array:
        shifted = np.rint(x / scale + zero) / by
        return self._round(np.clip(shifted, lo, hi)) - zero

    def _count(self, x: Array, thresholds: Array) -> Array:
        count = np.zeros((), np.int64)
        for column in range(thresholds.shape[1]):
            count = count + (x >= thresholds[:, column])
        return self.lo + self.step * count

    def _round(self, x: Array) -> Array:
        rounded = round_to_int(np.asarray(x, np.float64), self.rounding)
        return np.asarray(rounded, x.dtype)

    def borders(self, wanted: IntArray) -> Floats:
        """About the reals at which levels are reached, (T, 1 or rows)."""
        if self.kind == "count":
            return self.constants[0].T[(wanted - self.lo) // self.step - 1]
        below = {Rounding.FLOOR: 0.0, Rounding.CEIL: 1.0}.get(self.rounding, 0.5)
        return (wanted[:, None] - below * self.step) * self.unit

    @property
    def work(self) -> int:
        """On a level, in units of `Work`."""
        return _WORK + (_COMPARED * self.constants[0].shape[1] if self.kind == "count" else 0)

    def part(self, rows: slice) -> Quantizer:
        """The quantizer of some channels."""
        unit, *constants = (c if len(c) == 1 else c[rows] for c in (self.unit, *self.constants))
        return replace(self, unit=unit, constants=tuple(constants))

    @property
    def rows(self) -> int:
        """1 if all channels are quantized alike, else the number of channels."""
        sizes = [len(c) if self.kind == "count" else c.size for c in self.constants]
        return max(self.unit.size, *sizes, 1)

    @property
    def format(self) -> str:
        """The smallest number format that holds the levels."""
        return format_for(self.lo, self.hi, self.step)

    def key(self) -> tuple[Any, ...]:
        """What makes two quantizers equal."""
        constants = tuple(c.tobytes() for c in self.constants)
        unit = self.unit.tobytes()
        return self.kind, self.lo, self.hi, self.step, unit, constants, self.rounding


@dataclass(frozen=True)
class _Rule:
    """What a quantizer does besides its constants, the unit first (`values.QuantizerRule`)."""

    kind: str
    lo: int
    hi: int
    step: int
    rounding: Rounding

    def reals(
        self, x: Array, constants: tuple[Floats, ...], dtype: type[np.floating[Any]]
    ) -> Array:
        unit, *rest = constants
        whole = Quantizer(self.kind, self.lo, self.hi, self.step, unit, tuple(rest), self.rounding)
        return np.asarray(whole.levels(x, dtype).astype(dtype) * unit.astype(dtype))


def as_step(quantizer: Quantizer) -> Step | None:
    """A quantizer as a function real -> real; None for those whose constants are no numbers."""
    if quantizer.kind == "count":
        return None
    rule = _Rule(quantizer.kind, quantizer.lo, quantizer.hi, quantizer.step, quantizer.rounding)
    return Step("quantized", (quantizer.unit, *quantizer.constants), (), rule)


def whole_numbers(values: Array) -> IntArray:
    """Whole numbers of a file, or computed from it, as integers.

    Raises:
        FormatError: they do not fit into 63 bits, or are not finite.
    """
    array = np.asarray(values)
    if np.issubdtype(array.dtype, np.floating):
        inside = np.abs(array) < _MOST  # false for what is no number
        if not inside.all():
            worst = array[~inside].ravel()[0]
            raise FormatError(f"has the level {worst:.6g}; 63 bits hold all that are known")
    return array.astype(np.int64)


def format_for(lo: int, hi: int, step: int = 1) -> str:
    """Name of the smallest number format that holds the levels.

    Raises:
        FormatError: they need more than 16 bits.
    """
    if (lo, hi, step) == (-1, 1, _BIPOLAR_STEP):
        return "bipolar"
    bits = bits_for_interval(lo, hi)
    if bits > 16:
        raise FormatError(
            f"levels {lo} .. {hi} need {bits} bits; formats have at most 16",
            hint="use fewer bits in the quantizer",
        )
    if lo >= 0:
        return f"uint{bits}"
    return f"int{bits}n" if bits > 1 and lo > -(1 << (bits - 1)) else f"int{bits}"


def format_of_weights(levels: IntArray) -> str:
    """Name of the smallest format that holds these weights."""
    lo, hi = int(levels.min(initial=0)), int(levels.max(initial=0))
    if levels.size and (np.abs(levels) == 1).all():
        return "bipolar"
    return format_for(lo, hi)


#: A function level -> level; the argument is (rows, channels).
LevelFunction = Callable[[IntArray], IntArray]


@dataclass(frozen=True, eq=False)
class ThresholdTable:
    """``lo + step * count(y >= t)`` with ``y = -x`` where flipped."""

    thresholds: IntArray
    flip: NDArray[np.bool_]


def find_thresholds(
    function: LevelFunction,
    direction: Floats,
    ends: tuple[int, int],
    wanted: IntArray,
    guess: Floats | None = None,
) -> ThresholdTable:
    """Thresholds of a monotone function by bisection.

    Args:
        function: on integers (T, rows), column by column.
        direction: (rows,) of 1, 0 or -1: rising, constant, falling.
        ends: interval of the input.
        wanted: (T,) the level at or above which step k is passed, ascending.
        guess: where to look first, (T, rows) or one that broadcasts; only time depends on it.
    """
    flip = direction < 0
    sign = np.where(flip, -1, 1)
    start, end = np.where(flip, -ends[1], ends[0]), np.where(flip, -ends[0], ends[1])
    below = np.broadcast_to(start - 1, (len(wanted), len(flip))).copy()
    above = np.broadcast_to(end + 1, (len(wanted), len(flip))).copy()
    middle = (below + above) >> 1
    if guess is not None:
        near = np.clip(np.where(np.isnan(guess), middle, guess * sign), start, end)
        middle = np.ceil(near).astype(np.int64)
    turn = 0
    while (inside := above - below > 1).any():
        reached = function(np.clip(middle, start, end) * sign) >= wanted[:, None]
        above = np.where(inside & reached, middle, above)
        below = np.where(inside & ~reached, middle, below)
        beside = np.where(reached, middle - (1 << turn), middle + (1 << turn))
        middle = (below + above) >> 1
        if (
            guess is not None and turn < _GALLOPS
        ):  # the guess is near: away from it in growing steps
            middle = np.where((beside > below) & (beside < above), beside, middle)
        turn += 1
    return ThresholdTable(above.T.copy(), flip)
