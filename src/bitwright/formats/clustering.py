# SPDX-License-Identifier: Apache-2.0
"""Clustering numbers: exact k-means in one dimension, for codebooks.

`clustering_path` finds the global minimum of the squared error. 1.5 million distinct float32 values
into 512 clusters take some seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import FormatError
from bitwright.formats.base import IntArray
from bitwright.formats.clustering_path import best_cut
from bitwright.formats.rounding import FloatArray

_LLOYD_STEPS = 100


@dataclass(frozen=True, eq=False)
class Clusters:
    """Values cut into clusters, each around its mean.

    Attributes:
        centroids: (used,) float64, ascending and distinct; every one has members.
        indices: the shape of the values, int64: which centroid stands for each value.
        inertia: the weighted sum of squared distances to the centroids.
        distinct: how many different values (of positive weight) there were.
    """

    centroids: FloatArray
    indices: IntArray
    inertia: float
    distinct: int

    @property
    def used(self) -> int:
        """How many clusters there are."""
        return len(self.centroids)

    def values(self) -> FloatArray:
        """The centroid of every value, in the shape of the values."""
        return np.asarray(self.centroids[self.indices])


def kmeans(
    values: npt.ArrayLike,
    k: int,
    *,
    weights: npt.ArrayLike | None = None,
    allow_fewer: bool = False,
) -> Clusters:
    """Cut numbers into k clusters with the smallest squared error.

    Args:
        values: finite reals, any shape.
        k: number of clusters, at least 1.
        weights: importance of each value, at least 0, the shape of ``values``; None: all alike.
        allow_fewer: with fewer distinct values than ``k``, make one cluster of each instead of
            refusing.

    Raises:
        FormatError: no values, NaN or an infinity, more clusters than (distinct) values, or
            weights of another shape or below 0.
    """
    array, mass, unit = _checked(values, weights)
    _check_count(k, array.size, allow_fewer)
    points, inverse = np.unique(array, return_inverse=True)
    inverse = inverse.reshape(-1)
    point_mass = np.bincount(inverse, mass.reshape(-1), len(points)).astype(np.float64)
    present = point_mass > 0
    distinct = int(present.sum())
    if k > distinct and not allow_fewer:
        raise FormatError(
            f"{k} clusters for {distinct} distinct values",
            hint=f"at most {distinct} are of use; allow_fewer=True makes one of each value",
        )
    # A power of two, so that nothing is rounded and squares neither overflow nor vanish.
    exponent = int(np.frexp(np.abs(points).max())[1])
    scaled = np.ldexp(points, -exponent)
    points, mass = scaled[present], point_mass[present]
    found = points if k >= distinct else _settled(points, mass, best_cut(points, mass, k))
    kept = np.unique(nearest_centroids(points, found))  # those that have members of some weight
    centroids = found[kept]
    nearest = nearest_centroids(scaled, centroids)
    error = scaled - centroids[nearest]
    with np.errstate(over="ignore", under="ignore"):
        inertia = unit * float(np.ldexp(np.sum(point_mass * error * error), 2 * exponent))
    indices = nearest[inverse].reshape(array.shape)
    return Clusters(np.ldexp(centroids, exponent), indices, inertia, distinct)


def nearest_centroids(values: npt.ArrayLike, centroids: FloatArray) -> IntArray:
    """Index of the nearest of ascending ``centroids``; of two equally near, the lower."""
    array = np.asarray(values, dtype=np.float64)
    low = np.clip(np.searchsorted(centroids, array, side="right") - 1, 0, len(centroids) - 1)
    high = np.minimum(low + 1, len(centroids) - 1)
    up = centroids[high] - array < np.abs(array - centroids[low])
    return np.asarray(np.where(up, high, low), dtype=np.int64)


def _checked(
    values: npt.ArrayLike, weights: npt.ArrayLike | None
) -> tuple[FloatArray, FloatArray, float]:
    """Values, their weights in units of the largest, and that."""
    given = np.asarray(values)
    if given.dtype.kind not in "fiub":
        raise FormatError(f"clusters are of real numbers, not of {given.dtype}")
    array = given.astype(np.float64)
    if array.size == 0:
        raise FormatError("there are no values to cluster")
    if not np.isfinite(array).all():
        at = np.unravel_index(int(np.flatnonzero(~np.isfinite(array.reshape(-1)))[0]), array.shape)
        place = ", ".join(map(str, at))
        raise FormatError(f"cannot cluster NaN or infinity (value [{place}] is {array[at]})")
    if weights is None:
        return array, np.ones(array.shape), 1.0
    mass = np.asarray(weights, dtype=np.float64)
    if mass.shape != array.shape:
        raise FormatError(f"{mass.shape} weights for {array.shape} values")
    if not np.isfinite(mass.sum()) or (mass < 0).any() or not mass.any():
        raise FormatError("weights must be finite, at least 0 and not all 0")
    return array, mass / mass.max(), float(mass.max())


def _check_count(k: int, size: int, allow_fewer: bool) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise FormatError(f"{k!r} is no number of clusters", hint="a whole number from 1 on")
    if k > size and not allow_fewer:
        raise FormatError(
            f"{k} clusters for {size} values", hint="fewer clusters, or allow_fewer=True"
        )


def _settled(points: FloatArray, mass: FloatArray, ends: IntArray) -> FloatArray:
    """Lloyd's steps from the best cut: they mend what rounding did in sums of many values."""
    centroids = _means(points, mass, ends)
    for _ in range(_LLOYD_STEPS):
        members = nearest_centroids(points, centroids)
        moved = np.concatenate([[0], np.searchsorted(members, np.arange(1, len(centroids) + 1))])
        if np.array_equal(moved, ends) or (np.diff(moved) == 0).any():
            break
        ends, centroids = moved, _means(points, mass, moved)
    return centroids


def _means(points: FloatArray, mass: FloatArray, ends: IntArray) -> FloatArray:
    """Weighted mean of each run, within the run."""
    first = points[ends[:-1]]
    offset = points - np.repeat(first, np.diff(ends))
    mean = first + np.add.reduceat(offset * mass, ends[:-1]) / np.add.reduceat(mass, ends[:-1])
    return np.asarray(np.clip(mean, first, points[ends[1:] - 1]))
