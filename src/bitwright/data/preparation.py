# SPDX-License-Identifier: Apache-2.0
"""How numbers of the world become the integers that a network takes: fitted on training data alone,
the same afterwards for every other part, and for whoever feeds the finished hardware.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError

_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Preparation:
    """``level = clip(round_half_even((x - offset) / step), low, high)``, in float64.

    Attributes:
        offset, step: (1,), or (F,) for a table: one for each column.
        bits: of the levels.
        signed: whether they have a sign.
        scale: real value of one level for the network: its inputs are ``level * scale``.
    """

    offset: NDArray[np.float64]
    step: NDArray[np.float64]
    bits: int
    signed: bool
    scale: float

    @property
    def format(self) -> str:
        """Name of the format of the levels."""
        return f"{'int' if self.signed else 'uint'}{self.bits}"

    @property
    def high(self) -> int:
        """The largest level."""
        return int(2 ** (self.bits - self.signed) - 1)

    @property
    def low(self) -> int:
        """The smallest level: as far from zero as the largest, or zero."""
        return -self.high if self.signed else 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of arrays of levels: the smallest that holds them."""
        return np.dtype(f"{'int' if self.signed else 'uint'}{8 if self.bits <= 8 else 16}")

    def levels(self, values: NDArray[Any]) -> NDArray[Any]:
        """The levels of numbers (N, ..., C), channels last; beyond the ends they are clipped."""
        ratio = (np.asarray(values, dtype=np.float64) - self.offset) / self.step
        return np.clip(np.rint(ratio), self.low, self.high).astype(self.dtype)

    def beyond(self, values: NDArray[Any]) -> int:
        """How many numbers are clipped."""
        ratio = np.rint((np.asarray(values, dtype=np.float64) - self.offset) / self.step)
        return int(((ratio < self.low) | (ratio > self.high)).sum())

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "rule": "level = clip(round_half_even((x - offset) / step), low, high)",
            "offset": self.offset.tolist(),
            "step": self.step.tolist(),
            "low": self.low,
            "high": self.high,
            "format": self.format,
            "scale": self.scale,
        }

    def __str__(self) -> str:
        if len(self.step) > 1:
            return f"each of {len(self.step)} columns from its own range to {self.format}"
        ends = (float(self.offset[0] + self.step[0] * end) for end in (self.low, self.high))
        return f"{' .. '.join(f'{end:g}' for end in ends)} to {self.format}"


def fit_preparation(training: NDArray[Any], bits: int) -> Preparation:
    """The levels of numbers, by the range of the training part alone.

    Columns of a table (N, F) measure different things: each has its own range, of which the middle
    becomes 0 and the ends the largest levels; a column of one value becomes 0. Signals and images
    have one range for all: zero stays zero, and the largest magnitude becomes the largest level.
    Without numbers below zero the levels have no sign.
    """
    values = np.asarray(training, dtype=np.float64)
    if values.ndim == 2:
        low, high = values.min(axis=0), values.max(axis=0)
        offset, reach, signed = low / 2 + high / 2, high / 2 - low / 2, True
    else:
        signed = bool(values.min() < 0)
        offset, reach = np.zeros(1), np.abs(values).max(keepdims=True).reshape(-1)
    top = 2 ** (bits - signed) - 1
    step = np.where(reach > 0, reach, 1.0) / top
    if not (np.isfinite(step).all() and (step > 0).all()):
        raise DataError("numbers so large or so small have no levels", where="data")
    return Preparation(offset, step, bits, signed, 1 / top)


def check_finite(values: NDArray[Any], what: str, where: str) -> None:
    """Refuse NaN and infinity.

    Raises:
        DataError: says how many there are, and in which inputs.
    """
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    wrong = ~np.isfinite(values)
    rows = np.flatnonzero(wrong.reshape(len(values), -1).any(axis=1))
    shown = ", ".join(map(str, rows[:_SHOWN].tolist())) + (", .." if len(rows) > _SHOWN else "")
    raise DataError(
        f"{int(wrong.sum())} numbers are NaN or infinite, in {len(rows)} of {len(values)} {what} "
        f"({shown}, counted from 0)",
        where=where,
        hint="leave these out, or put numbers in their place, before they are returned",
    )
