# SPDX-License-Identifier: Apache-2.0
"""Activations, their derivatives and random numbers as ``native/network.h`` has them, in numpy.

Everything is written out in additions, products and divisions of doubles in the order of the C
program, so that both give the same bits on every machine; library functions differ in the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_COEFFICIENTS = [1.0 / math.factorial(k) for k in range(13)]
_LOG2E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10


def exp(x: Doubles) -> Doubles:
    """Of numbers up to 0: 2^k times a polynomial of degree 12 of what is left."""
    x = np.maximum(x, -700.0)
    k = np.rint(x * _LOG2E)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    p = np.full_like(r, _COEFFICIENTS[12])
    for c in reversed(_COEFFICIENTS[:12]):
        p = p * r + c
    return np.ldexp(p, k.astype(np.int64))


def tanh(x: Doubles) -> Doubles:
    """Hyperbolic tangent."""
    a = np.abs(x)
    e = exp(-2.0 * a)
    t = np.where(a < 2.0**-12, a - a * a * a * (1.0 / 3), (1.0 - e) / (1.0 + e))
    return np.where(x < 0, -t, t)


def sigmoid(x: Doubles) -> Doubles:
    """``1 / (1 + exp(-x))``."""
    e = exp(-np.abs(x))
    return np.where(x < 0, e / (1.0 + e), 1.0 / (1.0 + e))


def hard_sigmoid(x: Doubles) -> Doubles:
    """``clip((x + 1) / 2, 0, 1)``."""
    return np.clip((x + 1.0) * 0.5, 0.0, 1.0)


_FORWARD: dict[str, Callable[[Doubles], Doubles]] = {
    "sigmoid": sigmoid,
    "tanh": tanh,
    "hard_sigmoid": hard_sigmoid,
    "hard_tanh": lambda x: 2.0 * hard_sigmoid(x) - 1.0,
    "step": lambda x: np.where(x >= 0, 1.0, -1.0),
}


def activate(name: str, z: Floats) -> Floats:
    """An activation of spec 2.3, computed in double and rounded once."""
    return _FORWARD[name](z.astype(np.float64)).astype(np.float32)


def derivative(name: str, z: Floats) -> Floats:
    """Its derivative; of the hard ones the slope where they are not constant (ends included), a
    choice of ours: the document gives none."""
    x = z.astype(np.float64)
    inside = (x >= -1) & (x <= 1)
    if name == "sigmoid":
        s = sigmoid(x)
        found = s * (1.0 - s)
    elif name == "tanh":
        t = tanh(x)
        found = 1.0 - t * t
    else:
        found = inside * (0.5 if name == "hard_sigmoid" else 1.0)
    return found.astype(np.float32)


#: Streams of a layer; the number of a stream is ``layer * STREAMS`` and one of these.
DROP, UNITS, WEIGHTS, STREAMS = 0, 1, 2, 3
_ADD, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64."""
    x = x + np.uint64(_ADD)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
    return x ^ (x >> np.uint64(31))


def uniform(seed: int, step: int, stream: int, count: int) -> Floats:
    """``count`` numbers of 24 bits in [0, 1): a function of its arguments and the place alone."""
    one = np.array([seed], dtype=np.uint64)
    key = _mix(_mix(_mix(one) + np.uint64(step)) + np.uint64(stream))
    bits = _mix(key + np.arange(count, dtype=np.uint64)) >> np.uint64(40)
    return bits.astype(np.float32) * np.float32(2.0**-24)
