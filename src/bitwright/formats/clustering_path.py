# SPDX-License-Identifier: Apache-2.0
"""The exact cut of sorted values into k runs with the smallest squared error.

The squared error of a run obeys the quadrangle inequality (Wu 1991), from which two facts follow:

* With a price on every run, the cheapest cut into any number of runs is found in O(n log n): the
  best start of the last run never moves back (Hirschberg and Larmore 1987).
* The error is convex in the number of runs (Aggarwal, Schieber and Tokuyama 1994), so some price
  makes the best cut into k runs the cheapest of all. It is found by bisection, about ten cuts
  instead of k rounds of dynamic programming. Grønlund et al. (2017, "Fast exact k-means, k-medians
  and Bregman divergence clustering in 1D") describe this for k-means. Where several numbers of
  runs cost the same, a cut with too few and one with too many are spliced.

A cut runs in C (`native/kmeans.c`); without a compiler in Python, with the same bits, slower by a
factor of about fifty. Exact means: in real arithmetic; sums have 64 bits and more, differences of
them 53.
"""

from __future__ import annotations

import ctypes
import math

import numpy as np
import numpy.typing as npt

from bitwright.base.native import DOUBLE, INT64, POINTER, Program
from bitwright.formats.base import IntArray
from bitwright.formats.rounding import FloatArray

KMEANS = Program(
    name="kmeans",
    package="bitwright.formats",
    sources=("kmeans.c",),
    functions={"bw_kmeans_path": (INT64, POINTER, INT64, DOUBLE, *[POINTER] * 4)},
    flags=("-ffp-contract=off",),  # the same bits as in Python
)
_NARROW = 1e-14
_NEWTON_STEPS = 24


def best_cut(values: FloatArray, mass: FloatArray, k: int) -> IntArray:
    """The ends of the k runs of smallest weighted squared error.

    Args:
        values: (n,) ascending and distinct, of magnitude about 1.
        mass: (n,) positive weights.
        k: 1 to n.

    Returns:
        (k + 1,) ascending, from 0 to n: run r is ``values[ends[r]:ends[r + 1]]``.
    """
    n = len(values)
    if k == n:
        return np.arange(n + 1)
    few, many = np.array([0, n]), np.arange(n + 1)
    if k == 1:
        return few
    sums = _prefix_sums(values, mass)
    gap = np.diff(values)
    merge = gap * gap * (mass[1:] / (mass[1:] + mass[:-1]) * mass[:-1])
    low, high = float(merge.min()) / 2, max(_whole_cost(sums), float(merge.min()))
    guess = 2 * high / k**3  # of uniform values: the error falls with 1 / k^2
    step = 0
    while high > low * (1 + _NARROW) or low == 0:
        inside = low < guess < high
        price = guess if inside and step < _NEWTON_STEPS else _between(low, high)
        if not low < price < high:
            break
        ends = cheapest_cut(sums, price)
        links = len(ends) - 1
        if links == k:
            return ends
        if links > k:
            low, many = price, ends
        else:
            high, few = price, ends
        guess = price * (links / k) ** 3
        step += 1
    return _splice(few, many, k)


def _between(low: float, high: float) -> float:
    """The geometric mean; from 0, which has none, a long way down."""
    return math.sqrt(low) * math.sqrt(high) if low > 0 else high * 2.0**-64


def _prefix_sums(values: FloatArray, mass: FloatArray) -> FloatArray:
    """(n + 1, 6): sums of mass, mass * x and mass * x^2, each a double and the rest of it."""
    wide = values.astype(np.longdouble)
    weight = mass.astype(np.longdouble)
    wide -= np.sum(wide * weight) / np.sum(weight)
    out = np.zeros((len(values) + 1, 6))
    for column in range(3):
        total = np.cumsum(weight * wide**column)
        out[1:, 2 * column] = total
        out[1:, 2 * column + 1] = total - out[1:, 2 * column]
    return out


def _whole_cost(sums: FloatArray) -> float:
    total = sums[-1]
    return max(float(total[4] - total[2] * total[2] / total[0]), 0.0)


def cheapest_cut(sums: FloatArray, price: float) -> IntArray:
    """Ends of the runs whose errors and prices add up to the least."""
    n = len(sums) - 1
    library = KMEANS.cdll
    came_from = _cut_in_python(sums, price) if library is None else _cut_in_c(library, sums, price)
    ends = [n]
    while ends[-1] > 0:
        ends.append(int(came_from[ends[-1]]))
    return np.array(ends[::-1])


def _cut_in_c(library: ctypes.CDLL, sums: FloatArray, price: float) -> npt.NDArray[np.int32]:
    n = len(sums) - 1
    best = np.empty(n + 1)
    work = np.empty((3, n + 1), dtype=np.int32)
    library.bw_kmeans_path(
        sums.ctypes.data, n, price, best.ctypes.data, *(row.ctypes.data for row in work)
    )
    return np.asarray(work[0])


def _cut_in_python(sums: FloatArray, price: float) -> npt.NDArray[np.int32]:
    """What `bw_kmeans_path` does, in its order of operations."""
    n = len(sums) - 1
    rows = [tuple(row) for row in sums.tolist()]
    best, came_from = [0.0] * (n + 1), [0] * (n + 1)
    queue, start = [0], [1]
    head = 0

    def via(i: int, j: int) -> float:
        a, b = rows[i], rows[j]
        w = (b[0] - a[0]) + (b[1] - a[1])
        s = (b[2] - a[2]) + (b[3] - a[3])
        q = (b[4] - a[4]) + (b[5] - a[5])
        cost = q - s * s / w if w > 0 else 0.0
        return best[i] + (cost if cost > 0 else 0.0)

    def crossing(earlier: int, later: int, low: int) -> int:
        high = n + 1
        while high - low > 1:
            middle = low + (high - low) // 2
            if via(later, middle) <= via(earlier, middle):
                high = middle
            else:
                low = middle
        return high

    for j in range(1, n + 1):
        while head + 1 < len(queue) and start[head + 1] <= j:
            head += 1
        best[j] = via(queue[head], j) + price
        came_from[j] = queue[head]
        if j == n:
            break
        while len(queue) - 1 > head and start[-1] > j:
            if via(j, start[-1]) > via(queue[-1], start[-1]):
                break
            queue.pop()
            start.pop()
        at = crossing(queue[-1], j, max(start[-1], j))
        if at <= n:
            queue.append(j)
            start.append(at)
    return np.array(came_from, dtype=np.int32)


def _splice(few: IntArray, many: IntArray, k: int) -> IntArray:
    """k runs from two cuts that are cheapest for one price: the head of one, the tail of the other.

    Where run t of ``few`` holds a run ``t + k - len(few)`` of ``many`` or touches it, the exchange
    of their tails cannot cost more (Aggarwal et al. 1994, lemma 7).
    """
    shift = k - (len(few) - 1)
    ahead = few[:-1] <= many[shift : shift + len(few) - 1]
    at = int(np.flatnonzero(ahead)[-1])
    return np.concatenate([many[: at + shift + 1], few[at + 1 :]])
