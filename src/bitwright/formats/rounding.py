# SPDX-License-Identifier: Apache-2.0
"""Rounding and overflow rules: one definition for numpy, torch, the graph and the test vectors.

=============  =====================================================  ======  ======  ======  ======
mode           meaning                                                  2.5    -2.5     2.7    -2.7
=============  =====================================================  ======  ======  ======  ======
half_even      nearest; ties to the even neighbour (the default)          2      -2       3      -3
half_away      nearest; ties away from zero                               3      -3       3      -3
half_zero      nearest; ties towards zero                                 2      -2       3      -3
half_up        nearest; ties towards +infinity                            3      -2       3      -3
half_down      nearest; ties towards -infinity                            2      -3       3      -3
floor          towards -infinity                                          2      -3       2      -3
ceil           towards +infinity                                          3      -2       3      -2
up             away from zero                                             3      -3       3      -3
down           towards zero                                               2      -2       2      -2
stochastic     floor(x) or floor(x) + 1, up with probability x - floor(x)
=============  =====================================================  ======  ======  ======  ======

QONNX uses two of these words for something else: its ``HALF_UP`` is ``half_away`` and its
``HALF_DOWN`` is ``half_zero``. `Rounding.from_qonnx` translates.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import FormatError

FloatArray = npt.NDArray[np.float64]

_HALF = 0.5


class Rounding(StrEnum):
    """How a real number becomes an integer; see the table of this module."""

    HALF_EVEN = "half_even"
    HALF_AWAY = "half_away"
    HALF_ZERO = "half_zero"
    HALF_UP = "half_up"
    HALF_DOWN = "half_down"
    FLOOR = "floor"
    CEIL = "ceil"
    UP = "up"
    DOWN = "down"
    STOCHASTIC = "stochastic"

    @classmethod
    def from_qonnx(cls, name: str) -> Rounding:
        """The mode that a QONNX ``rounding_mode`` attribute means."""
        mode = _FROM_QONNX.get(name.strip().upper())
        if mode is None:
            raise FormatError(
                f"unknown QONNX rounding mode {name!r}", hint=f"one of {', '.join(_FROM_QONNX)}"
            )
        return mode


class Overflow(StrEnum):
    """Beyond the ends: saturate, saturate to a symmetric range, or wrap modulo 2^bits."""

    SAT = "sat"
    SAT_SYM = "sat_sym"
    WRAP = "wrap"


_FROM_QONNX = {
    "ROUND": Rounding.HALF_EVEN,
    "HALF_EVEN": Rounding.HALF_EVEN,
    "FLOOR": Rounding.FLOOR,
    "CEIL": Rounding.CEIL,
    "UP": Rounding.UP,
    "DOWN": Rounding.DOWN,
    "HALF_UP": Rounding.HALF_AWAY,
    "HALF_DOWN": Rounding.HALF_ZERO,
    "STOCHASTIC": Rounding.STOCHASTIC,
}


class Rules(NamedTuple):
    """How reals become codes; ``rng`` draws for stochastic rounding."""

    rounding: Rounding = Rounding.HALF_EVEN
    overflow: Overflow = Overflow.SAT
    rng: np.random.Generator | None = None


def parse_rounding(text: str | Rounding) -> Rounding:
    """`Rounding` from its own name in either case, or ``ROUND``, QONNX's word for half to even.

    ``half_up`` always means towards +infinity here; for attributes of QONNX files use
    `Rounding.from_qonnx`.
    """
    word = str(text).strip().lower()
    if word == "round":
        return Rounding.HALF_EVEN
    try:
        return Rounding(word)
    except ValueError:
        names = ", ".join(mode.value for mode in Rounding)
        raise FormatError(f"unknown rounding {text!r}", hint=f"one of {names}") from None


def parse_overflow(text: str | Overflow) -> Overflow:
    """`Overflow` from its name in either case (``SAT``, ``sat_sym``, ...)."""
    try:
        return Overflow(str(text).strip().lower())
    except ValueError:
        names = ", ".join(mode.value for mode in Overflow)
        raise FormatError(f"unknown overflow {text!r}", hint=f"one of {names}") from None


def round_to_int(
    x: npt.ArrayLike,
    mode: Rounding = Rounding.HALF_EVEN,
    rng: np.random.Generator | None = None,
) -> FloatArray:
    """Round to integers, kept as float64 so that no value is lost; exact for every double.

    Args:
        x: real numbers, any shape.
        mode: see the module's table.
        rng: draws one uniform number an element; needed by (and only by) ``stochastic``.

    Raises:
        FormatError: ``stochastic`` without ``rng``.
    """
    values = np.asarray(x, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # inf - inf is no fraction, and infinities stay as they are
        if mode is not Rounding.STOCHASTIC:
            return np.asarray(rounded(np, values, mode), dtype=np.float64)
        low = np.floor(values)
        return np.asarray(low + (drawn(values.shape, rng) < values - low), dtype=np.float64)


def drawn(shape: tuple[int, ...], rng: np.random.Generator | None) -> FloatArray:
    """Uniform numbers for stochastic rounding; `FormatError` without a generator."""
    if rng is None:
        raise FormatError("stochastic rounding needs a random generator", hint="pass rng=")
    return rng.random(shape)


def rounded(xp: Any, x: Any, mode: Rounding) -> Any:
    """Reals rounded to integers by any rule but ``stochastic``.

    Args:
        xp: numpy or torch, whose functions are used.
        x: an array or tensor of its own.
    """
    return _RULES[mode](xp, x)


def _half_away(xp: Any, x: Any) -> Any:
    whole = xp.trunc(x)
    return whole + xp.sign(x) * (xp.abs(x - whole) >= _HALF)


def _half_zero(xp: Any, x: Any) -> Any:
    whole = xp.trunc(x)
    return whole + xp.sign(x) * (xp.abs(x - whole) > _HALF)


def _half_up(xp: Any, x: Any) -> Any:
    # Not floor(x + 0.5): that addition rounds, and sends 0.49999999999999994 to 1.
    low = xp.floor(x)
    return low + (x - low >= _HALF)


def _half_down(xp: Any, x: Any) -> Any:
    high = xp.ceil(x)
    return high + (high - x >= _HALF) * -1  # torch subtracts no bool


_RULES: dict[Rounding, Callable[[Any, Any], Any]] = {
    Rounding.HALF_EVEN: lambda xp, x: xp.round(x),
    Rounding.HALF_AWAY: _half_away,
    Rounding.HALF_ZERO: _half_zero,
    Rounding.HALF_UP: _half_up,
    Rounding.HALF_DOWN: _half_down,
    Rounding.FLOOR: lambda xp, x: xp.floor(x),
    Rounding.CEIL: lambda xp, x: xp.ceil(x),
    Rounding.UP: lambda xp, x: xp.copysign(xp.ceil(xp.abs(x)), x),
    Rounding.DOWN: lambda xp, x: xp.trunc(x),
}
