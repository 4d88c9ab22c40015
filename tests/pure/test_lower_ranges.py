# SPDX-License-Identifier: Apache-2.0
"""Range analysis and the overflow certificate: exact, attained, and able to fail."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.strategies import GraphLimits, integer_graphs

from bitwright.base.errors import DataError, MismatchError
from bitwright.formats import parse_format
from bitwright.ir import (
    INTEGER,
    Graph,
    GraphBuilder,
    TensorType,
    dot_interval,
    random_feeds,
    rebuild,
)
from bitwright.lower import analyse, certify, check
from bitwright.lower.certificate import from_json, witness_inputs
from bitwright.lower.ranges import _axis_masks, dot_range


def one_dense(weight: list[list[int]], lo: int, hi: int, bias: list[int] | None = None) -> Graph:
    b = GraphBuilder("one", INTEGER)
    x = b.input("x", TensorType((len(weight[0]),), parse_format("int8"), (1.0,), lo, hi))
    params = {"weight": np.array(weight)}
    if bias is not None:
        params["bias"] = np.array(bias)
    y = b.add("dense", (x,), name="d", attrs={"weight_format": "int8"}, params=params)
    return b.finish(y)


ANY = st.one_of(integer_graphs(), integer_graphs(GraphLimits.everything()))


@given(ANY, st.integers(0, 2**32 - 1))
@settings(max_examples=120, deadline=None)
def test_no_value_leaves_its_channel_interval(graph: Graph, seed: int) -> None:
    ranges = analyse(graph)
    values = graph.run(random_feeds(graph, 8, np.random.default_rng(seed)), edges=True)
    for edge, levels in values.items():
        axes = tuple(range(levels.ndim - 1))
        assert (levels.min(axis=axes) >= ranges[edge].lo).all(), edge
        assert (levels.max(axis=axes) <= ranges[edge].hi).all(), edge


@given(ANY)
@settings(max_examples=120, deadline=None)
def test_every_certificate_of_a_random_network_checks(graph: Graph) -> None:
    certificate = certify(graph)
    check(certificate, graph)
    check(from_json(certificate.to_json()), graph)
    assert from_json(certificate.to_json()) == certificate


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=4), st.data())
@settings(max_examples=80, deadline=None)
def test_bounds_equal_brute_force(weight: list[int], data: st.DataObject) -> None:
    lo = data.draw(st.integers(-3, 3))
    hi = data.draw(st.integers(lo, lo + 3))
    bias = data.draw(st.integers(-5, 5))
    inputs = list(product((lo, hi), repeat=len(weight)))
    sums = [bias + sum(w * x for w, x in zip(weight, xs, strict=True)) for xs in inputs]
    graph = one_dense([weight], lo, hi, [bias])
    found = dot_range(graph, graph.node("d"), analyse(graph)["x"])
    assert found.final.hull == (min(sums), max(sums))
    reached = {0, bias}
    for xs in inputs:
        terms = [w * x for w, x in zip(weight, xs, strict=True)]
        for order in permutations(terms):
            running = np.cumsum(order)
            reached |= set(running.tolist()) | set((running + bias).tolist())
    assert found.partial.hull == (min(reached), max(reached))


def test_partial_sums_can_leave_the_final_interval() -> None:
    assert dot_interval(np.array([[1, -1]]), 3, 7).partial.hull == (-7, 7)
    graph = one_dense([[1, -1]], 3, 7)
    assert graph.types["d"].lo == -4 and graph.types["d"].hi == 4
    assert certify(graph).claim("d").width == 4


def test_padding_of_a_small_image_is_seen() -> None:
    """A 3x3 kernel on a 1x1 image only ever sees its centre tap."""
    b = GraphBuilder("pad", INTEGER)
    x = b.input("x", TensorType((1, 1, 1), parse_format("uint4"), (1.0,), 0, 15))
    b.add(
        "conv",
        (x,),
        name="c",
        attrs={"padding": (1, 1, 1, 1), "weight_format": "int4"},
        params={"weight": np.full((1, 3, 3, 1), 7)},
    )
    graph = b.finish("c")
    assert graph.types["c"].hi >= 105
    claim = certify(graph).claim("c")
    assert (claim.lo, claim.hi) == (0, 105)
    check(certify(graph), graph)


def test_worst_case_may_lie_at_the_border() -> None:
    """Inputs in [1, 3] and weights below zero in the first column: the largest sum skips it."""
    b = GraphBuilder("border", INTEGER)
    x = b.input("x", TensorType((1, 4, 1), parse_format("int8"), (1.0,), 1, 3))
    b.add(
        "conv",
        (x,),
        name="c",
        attrs={"padding": (0, 1, 0, 1), "weight_format": "int8"},
        params={"weight": np.array([-5, 1, 1]).reshape(1, 1, 3, 1)},
    )
    graph = b.finish("c")
    claim = certify(graph).claim("c")
    assert (claim.lo, claim.hi) == (-15 + 1, 6)
    assert claim.high.position == (0, 0)
    check(certify(graph), graph)


def test_bipolar_popcount_widths() -> None:
    b = GraphBuilder("xnor", INTEGER)
    x = b.input("x", TensorType((64,), parse_format("bipolar"), (1.0,), -1, 1))
    weight = np.random.default_rng(0).integers(0, 2, (3, 64)) * 2 - 1
    b.add("dense", (x,), name="d", attrs={"weight_format": "bipolar"}, params={"weight": weight})
    graph = b.finish("d")
    claim = certify(graph).claim("d")
    assert (claim.lo, claim.hi, claim.width, claim.naive_width) == (-64, 64, 8, 8)
    (x,) = witness_inputs(graph, graph.node("d"), claim.high, analyse(graph))
    assert set(np.unique(x)) <= {-1, 1}


def test_bits_saved_and_table() -> None:
    graph = one_dense([[1, 0, 0, 0, 0, 0, 0, -1]], -8, 7)
    certificate = certify(graph)
    claim = certificate.claim("d")
    assert (claim.lo, claim.hi, claim.width) == (-15, 15, 5)
    assert claim.naive_width == 8 + 8 + 3 and claim.saved == 14
    first, second = certificate.table().splitlines()
    assert first.split()[0] == "accumulator" and second.split()[-1] == "14"


def test_check_refuses_false_claims() -> None:
    graph = one_dense([[3, -2, 1]], -8, 7, [4])
    good = certify(graph)
    claim = good.claims[0]
    lies = {
        "hi": replace(claim, hi=claim.hi - 1),
        "lo": replace(claim, lo=claim.lo - 1),
        "width": replace(claim, width=claim.width - 1),
        "partial_hi": replace(claim, partial_hi=claim.partial_hi + 1),
        "witness": replace(claim, high=replace(claim.high, at_hi="00")),
        "channel": replace(claim, high=replace(claim.high, channel=9)),
    }
    check(good, graph)
    for name, lie in lies.items():
        with pytest.raises(MismatchError, match=r"d"):
            check(replace(good, claims=(lie,)), graph)
            pytest.fail(f"{name} was believed")
    with pytest.raises(MismatchError, match="speaks of"):
        check(replace(good, claims=()), graph)


def test_check_refuses_another_graph() -> None:
    graph, other = one_dense([[3, -2, 1]], -8, 7), one_dense([[3, -2, 2]], -8, 7)
    with pytest.raises(MismatchError, match="certificate is of graph"):
        check(certify(graph), other)
    with pytest.raises(MismatchError, match="the graph gives"):
        check(replace(certify(graph), digest=other.digest), other)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": 99}', '{"schema": 1, "claims": 3}'])
def test_a_broken_certificate_file_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        from_json(text)


def test_constant_channels_narrow_what_follows() -> None:
    """The type knows one interval a tensor; the analysis knows that channel 1 is always 0."""
    b = GraphBuilder("narrow", INTEGER)
    x = b.input("x", TensorType((2,), parse_format("int4"), (1.0,), -8, 7))
    y = b.add(
        "threshold",
        (x,),
        attrs={"format": "uint1"},
        params={"thresholds": np.array([[0], [100]])},
    )
    b.add("dense", (y,), name="d", attrs={"weight_format": "int8"}, params={"weight": [[1, 100]]})
    graph = b.finish("d")
    assert graph.types["d"].hi == 101
    assert certify(graph).claim("d").hi == 1
    assert rebuild(graph, graph.nodes) == graph


def test_sums_and_averages_have_their_own_claims() -> None:
    b = GraphBuilder("joins", INTEGER)
    x = b.input("x", TensorType((3, 3, 2), parse_format("int4"), (1.0,), -8, 7))
    y = b.add("add", (x, x), name="twice", attrs={"multipliers": (3, -1), "scale": (1.0,)})
    z = b.add(
        "sum_pool",
        (y,),
        name="mean",
        attrs={"kernel": (2, 2), "stride": (1, 1), "padding": (1, 0, 0, 1)},
    )
    graph = b.finish(z)
    certificate = certify(graph)
    check(certificate, graph)
    assert [(c.op, c.lo, c.hi) for c in certificate.claims] == [
        ("add", -16, 14),  # one tensor, so 3 x - x is 2 x
        ("sum_pool", -64, 56),
    ]
    assert certificate.claim("mean").terms == 4
    wrong = replace(certificate.claims[0], hi=13)
    with pytest.raises(MismatchError, match="claims hi"):
        check(replace(certificate, claims=(wrong, certificate.claims[1])), graph)


def test_a_window_that_always_meets_padding_has_a_smaller_sum() -> None:
    b = GraphBuilder("corner", INTEGER)
    x = b.input("x", TensorType((1, 1, 1), parse_format("uint4"), (1.0,), 2, 15))
    b.add(
        "sum_pool",
        (x,),
        name="s",
        attrs={"kernel": (2, 2), "stride": (1, 1), "padding": (1, 1, 0, 0)},
    )
    assert analyse(b.finish("s"))["s"].hull == (2, 15)


@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 7),
    st.integers(0, 7),
)
def test_window_masks_are_those_of_every_position(
    size: int, kernel: int, stride: int, dilation: int, before: int, after: int
) -> None:
    room = size + before + after - (dilation * (kernel - 1) + 1)
    assume(room >= 0)
    count = room // stride + 1
    expected: dict[tuple[bool, ...], int] = {}
    for index in range(count):
        at = index * stride - before + np.arange(kernel) * dilation
        expected.setdefault(tuple(bool(v) for v in (at >= 0) & (at < size)), index)
    found = _axis_masks(size, count, kernel, stride, before, dilation)
    assert list(found.items()) == list(expected.items())


def test_a_difference_of_a_tensor_with_itself_has_partial_sums() -> None:
    b = GraphBuilder("net", INTEGER)
    x = b.input("x", TensorType((2, 2, 3), parse_format("uint2"), (0.5,), 0, 3))
    attrs = {"multipliers": (1, -1), "scale": (0.5,)}
    graph = b.finish(b.add("add", (x, x), name="zero", attrs=attrs))
    claim = certify(graph).claim("zero")
    assert (claim.lo, claim.hi) == (0, 0)
    assert (claim.partial_lo, claim.partial_hi, claim.width) == (-3, 3, 3)
    check(certify(graph), graph)
