# SPDX-License-Identifier: Apache-2.0
"""One-dimensional k-means: the exact method against brute force, scikit-learn and its own laws."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from bitwright.base.errors import FormatError
from bitwright.base.native import Loaded
from bitwright.formats import clustering_path
from bitwright.formats.clustering import kmeans, nearest_centroids

#: Rounding of sums, relative to the error of a single cluster.
ROUNDING = 1e-12

whole = st.integers(-40, 40).map(float)
reals = st.floats(-1e6, 1e6, width=32)
few_values = st.lists(st.one_of(whole, reals), min_size=1, max_size=9)
weight_lists = st.lists(st.floats(0.01, 100), min_size=9, max_size=9)


def error_of(values: np.ndarray, weights: np.ndarray) -> float:
    mean = np.average(values, weights=weights)
    return float(np.sum(weights * (values - mean) ** 2))


def brute_force(values: np.ndarray, weights: np.ndarray, k: int) -> float:
    """The smallest error over every cut of the sorted values into k runs."""
    order = np.argsort(values, kind="stable")
    x, w = values[order], weights[order]
    best = np.inf
    for cut in itertools.combinations(range(1, len(x)), k - 1):
        ends = [0, *cut, len(x)]
        runs = itertools.pairwise(ends)
        best = min(best, sum(error_of(x[a:b], w[a:b]) for a, b in runs))
    return best


@given(few_values, weight_lists, st.booleans())
@settings(max_examples=150, deadline=None)
def test_exact_is_the_minimum_over_all_cuts(given_values, given_weights, weighted) -> None:
    values = np.array(given_values)
    weights = np.array(given_weights)[: len(values)] if weighted else np.ones(len(values))
    slack = ROUNDING * error_of(values, weights)
    previous = np.inf
    for k in range(1, len(np.unique(values)) + 1):
        found = kmeans(values, k, weights=weights if weighted else None)
        assert found.used == k
        assert found.inertia <= brute_force(values, weights, k) + slack
        assert found.inertia <= previous + slack  # the objective falls with k
        previous = found.inertia
        error = values - found.values()
        assert found.inertia == pytest.approx(np.sum(weights * error**2), rel=1e-9, abs=slack)
    assert previous == 0.0


@given(
    st.lists(reals, min_size=30, max_size=120, unique=True), st.integers(2, 12), st.integers(0, 3)
)
@settings(max_examples=25, deadline=None)
def test_exact_is_never_worse_than_scikit_learn(given_values, k, seed) -> None:
    values = np.array(given_values)
    exact = kmeans(values, k)
    local = KMeans(k, n_init=1, random_state=seed).fit(values.reshape(-1, 1))
    assert exact.inertia <= local.inertia_ * (1 + 1e-9)


@pytest.mark.parametrize("k", [2, 5, 17, 64, 255, 299])
@pytest.mark.parametrize("kind", ["normal", "even", "heavy"])
def test_python_and_c_cut_alike(monkeypatch, k, kind) -> None:
    if clustering_path.KMEANS.cdll is None:
        pytest.skip("no C compiler on PATH")
    rng = np.random.default_rng(k)
    values = {
        "normal": rng.normal(size=300),
        "even": np.arange(300.0),  # every gap ties: cuts must be spliced
        "heavy": rng.standard_t(1, size=300),
    }[kind]
    in_c = kmeans(values, k)
    monkeypatch.setitem(vars(clustering_path.KMEANS), "loaded", Loaded(None))
    in_python = kmeans(values, k)
    assert np.array_equal(in_c.centroids, in_python.centroids)
    assert np.array_equal(in_c.indices, in_python.indices)


def test_even_numbers_are_cut_evenly() -> None:
    """n / k numbers a cluster when k divides n: the error is k * m * (m^2 - 1) / 12."""
    for n, k in ((1000, 40), (4096, 256), (600, 3)):
        m = n // k
        assert kmeans(np.arange(n), k).inertia == pytest.approx(k * m * (m * m - 1) / 12)


def test_equal_values_count_as_often_as_they_occur() -> None:
    values = np.array([0.0] * 10 + [4.0, 5.0, 6.0])
    plain = kmeans(values, 2)
    assert plain.centroids.tolist() == [0.0, 5.0] and plain.inertia == 2.0
    merged = kmeans([0.0, 4.0, 5.0, 6.0], 2, weights=[10, 1, 1, 1])
    assert merged.centroids.tolist() == plain.centroids.tolist()
    assert merged.inertia == 2.0 and merged.distinct == 4


def test_a_weight_of_zero_draws_no_centroid_but_gets_an_index() -> None:
    found = kmeans([0.0, 1.0, 9.0], 2, weights=[1.0, 1.0, 0.0])
    assert found.centroids.tolist() == [0.0, 1.0] and found.indices.tolist() == [0, 1, 1]
    assert found.distinct == 2 and found.inertia == 0.0


def test_shape_order_and_dtype_are_kept() -> None:
    values = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    found = kmeans(values, 7)
    assert found.indices.shape == values.shape and found.indices.dtype == np.int64
    assert (np.diff(found.centroids) > 0).all()
    assert np.array_equal(found.indices, nearest_centroids(values, found.centroids))
    assert set(np.unique(found.indices)) == set(range(7))


@pytest.mark.parametrize("exponent", [-1060, -500, 500, 1000])
def test_huge_and_tiny_values(exponent) -> None:
    values = np.array([1.0, 1.5, 4.0, 4.25, 9.0])
    found = kmeans(np.ldexp(values, exponent), 3)
    expected = np.ldexp(np.array([1.25, 4.125, 9.0]), exponent)
    assert np.array_equal(found.centroids, expected)


def test_neighbouring_floats_are_kept_apart() -> None:
    values = np.float64(1.0) + np.arange(6) * np.spacing(1.0)
    found = kmeans(values, 5)
    assert found.used == 5 and (np.diff(found.centroids) > 0).all()


def test_too_many_clusters_are_refused() -> None:
    with pytest.raises(FormatError, match="4 clusters for 3 values"):
        kmeans([1.0, 2.0, 3.0], 4)
    with pytest.raises(FormatError, match="3 clusters for 2 distinct values"):
        kmeans([1.0, 2.0, 2.0], 3)
    fewer = kmeans([1.0, 2.0, 2.0], 16, allow_fewer=True)
    assert fewer.centroids.tolist() == [1.0, 2.0]
    assert (fewer.used, fewer.distinct) == (2, 2)


@pytest.mark.parametrize(
    ("values", "k", "options", "message"),
    [
        ([], 1, {}, "no values"),
        ([1.0, np.nan], 1, {}, r"value \[1\] is nan"),
        ([[1.0, -np.inf]], 1, {}, r"value \[0, 1\] is -inf"),
        ([1.0], 0, {}, "no number of clusters"),
        ([1.0], 1.5, {}, "no number of clusters"),
        ([1.0], True, {}, "no number of clusters"),
        ([1j], 1, {}, "real numbers"),
        (["a"], 1, {}, "real numbers"),
        ([1.0, 2.0], 1, {"weights": [1.0]}, "weights for"),
        ([1.0, 2.0], 1, {"weights": [1.0, -1.0]}, "at least 0"),
        ([1.0, 2.0], 1, {"weights": [0.0, 0.0]}, "not all 0"),
        ([1.0, 2.0], 1, {"weights": [1.0, np.inf]}, "finite"),
    ],
)
def test_bad_input(values, k, options, message) -> None:
    with pytest.raises(FormatError, match=message):
        kmeans(values, k, **options)
