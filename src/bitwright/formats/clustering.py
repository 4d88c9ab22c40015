# SPDX-License-Identifier: Apache-2.0
"""Clustering numbers: k-means in one dimension, exact or scikit-learn's, for codebooks.

``exact`` finds the global minimum of the squared error (`clustering_path`); ``sklearn`` is the
local minimum that scikit-learn's `KMeans` finds from its k-means++ start. Both are deterministic.
1.5 million distinct float32 values into 512 clusters take the exact method some seconds.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import FormatError
from bitwright.formats.base import IntArray
from bitwright.formats.clustering_path import best_cut
from bitwright.formats.rounding import FloatArray

_LLOYD_STEPS = 100


class ClusterMethod(StrEnum):
    """How centroids are found."""

    EXACT = "exact"
    SKLEARN = "sklearn"


@dataclass(frozen=True, eq=False)
class Clusters:
    """Values cut into clusters, each around its mean.

    Attributes:
        centroids: (used,) float64, ascending and distinct; every one has members.
        indices: the shape of the values, int64: which centroid stands for each value.
        inertia: the weighted sum of squared distances to the centroids.
        asked: the number of clusters that was asked for.
        distinct: how many different values (of positive weight) there were.
    """

    centroids: FloatArray
    indices: IntArray
    inertia: float
    asked: int
    distinct: int

    @property
    def used(self) -> int:
        """How many clusters there are."""
        return len(self.centroids)

    @property
    def useless(self) -> int:
        """How many of the clusters asked for found no values: that many are too many."""
        return self.asked - self.used

    @property
    def lossless(self) -> bool:
        """Whether every value is its own centroid, so that more clusters are of no use."""
        return self.used >= self.distinct

    @property
    def note(self) -> str:
        """What should be said about the number of clusters; empty if nothing."""
        if self.useless > 0:
            return f"{self.asked} clusters are too many: {self.used} found values"
        if self.lossless:
            return f"{self.asked} clusters hold the {self.distinct} distinct values exactly"
        return ""

    def values(self) -> FloatArray:
        """The centroid of every value, in the shape of the values."""
        return np.asarray(self.centroids[self.indices])


def kmeans(
    values: npt.ArrayLike,
    k: int,
    method: ClusterMethod | str = ClusterMethod.EXACT,
    *,
    seed: int = 0,
    weights: npt.ArrayLike | None = None,
    allow_fewer: bool = False,
    bins: int | None = None,
    restarts: int = 1,
) -> Clusters:
    """Cut numbers into k clusters with a small (``exact``: the smallest) squared error.

    Args:
        values: finite reals, any shape.
        k: number of clusters, at least 1.
        method: ``exact`` or ``sklearn``.
        seed: of scikit-learn's starts; the exact method draws nothing.
        weights: importance of each value, at least 0, the shape of ``values``; None: all alike.
        allow_fewer: with fewer distinct values than ``k``, make one cluster of each instead of
            refusing.
        bins: merge the values into so many equally wide intervals first, each standing for the
            mean of its values: faster, no longer exact.
        restarts: scikit-learn's ``n_init``.

    Raises:
        FormatError: no values, NaN or an infinity, more clusters than (distinct) values, weights
            of another shape or below 0, or an unknown method.
    """
    array, mass, unit = _checked(values, weights)
    chosen = _method(method)
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
    found = _centroids(scaled[present], point_mass[present], k, chosen, bins, (seed, restarts))
    centroids, nearest = _members(found, scaled, present)
    error = scaled - centroids[nearest]
    with np.errstate(over="ignore", under="ignore"):
        inertia = unit * float(np.ldexp(np.sum(point_mass * error * error), 2 * exponent))
    indices = nearest[inverse].reshape(array.shape)
    return Clusters(np.ldexp(centroids, exponent), indices, inertia, k, distinct)


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


def _method(method: ClusterMethod | str) -> ClusterMethod:
    try:
        return ClusterMethod(method)
    except ValueError:
        names = ", ".join(ClusterMethod)
        raise FormatError(f"unknown clustering {method!r}", hint=f"one of {names}") from None


def _check_count(k: int, size: int, allow_fewer: bool) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise FormatError(f"{k!r} is no number of clusters", hint="a whole number from 1 on")
    if k > size and not allow_fewer:
        raise FormatError(
            f"{k} clusters for {size} values", hint="fewer clusters, or allow_fewer=True"
        )


def _centroids(
    points: FloatArray,
    mass: FloatArray,
    k: int,
    method: ClusterMethod,
    bins: int | None,
    random: tuple[int, int],
) -> FloatArray:
    """Centroids, some maybe without members, of distinct ascending points."""
    if k >= len(points):
        return points
    if bins is not None:
        if bins < k:
            raise FormatError(f"{bins} bins for {k} clusters", hint="more bins than clusters")
        edges = np.linspace(points[0], points[-1], bins + 1)
        ends = np.unique(np.concatenate([[0], np.searchsorted(points, edges[1:-1]), [len(points)]]))
        mass, points = np.add.reduceat(mass, ends[:-1]), _means(points, mass, ends)
        k = min(k, len(points))
    if method is ClusterMethod.SKLEARN:
        return _by_sklearn(points, mass, k, *random)
    return _settled(points, mass, best_cut(points, mass, k))


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


def _by_sklearn(
    points: FloatArray, mass: FloatArray, k: int, seed: int, restarts: int
) -> FloatArray:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    # One thread: several add up their parts in the order in which they happen to finish.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # `Clusters.useless` says it
        model = KMeans(k, n_init=restarts, random_state=seed).fit(
            points.reshape(-1, 1), sample_weight=mass
        )
    return np.unique(model.cluster_centers_.astype(np.float64))


def _members(
    centroids: FloatArray, points: FloatArray, present: npt.NDArray[np.bool_]
) -> tuple[FloatArray, IntArray]:
    """Centroids that have members of positive weight, and the nearest of them to each point."""
    taken = np.unique(nearest_centroids(points[present], centroids))
    kept = centroids[taken]
    return kept, nearest_centroids(points, kept)
