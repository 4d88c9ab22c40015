# SPDX-License-Identifier: Apache-2.0
"""Closed forms of size and compression: the published figures, exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import FormatError
from bitwright.explore.sizes import SizeReport, Stored, network_rate
from bitwright.papers.faces.clustered_sizes import clustered_bits, clustered_rate
from bitwright.quantize.range_formulas import (
    activation_il,
    exponent_bits,
    exponent_window,
    fraction_length,
    parameter_il,
)

# Folded parameters of two face-embedding DenseNets, and what their dense layer has of them.
SMALL, LARGE, DENSE = 376_832, 1_460_096, 32_896
# Values of all layer inputs and of all layer outputs.
SMALL_FEATURES, LARGE_FEATURES = (1_017_856, 832_128), (2_157_056, 1_568_128)


def rate_of(groups: list[tuple[int, int]]) -> float:
    """Parameter rate of groups of (parameters, bits a parameter)."""
    entries = tuple(Stored("w", "weight", "", count, bits) for count, bits in groups)
    return SizeReport(entries, sum(count for count, _ in groups), (0, 0), (0, 0)).parameter_rate


def memory_ratio(parameters: int, stored: int, features: int) -> float:
    """Of parameters stored in so many bits in all, and features of 8 bits."""
    entries = (Stored("w", "weight", "", 0, 0, table=stored), Stored("x", "input", "", features, 8))
    return SizeReport(entries, parameters, (0, 0), (0, 0)).memory_ratio


@pytest.mark.parametrize(
    ("parameters", "sets", "clusters", "bits", "printed"),
    [
        (LARGE, 1, 512, 32, 3.55),
        (LARGE, 3, 512, 32, 3.54),
        (LARGE, 64, 16, 32, 7.95),
        (SMALL, 1, 512, 32, 3.54),
        (SMALL, 3, 512, 32, 3.50),
        (SMALL, 19, 16, 32, 7.94),
        (LARGE, 64, 16, 8, 7.99),
        (SMALL, 19, 16, 8, 7.99),
    ],
)
def test_rates_of_clustering_are_the_published_ones(
    parameters: int, sets: int, clusters: int, bits: int, printed: float
) -> None:
    assert abs(clustered_rate(parameters, clusters, sets, bits) - printed) < 0.01


@pytest.mark.parametrize(
    ("parameters", "sets", "bits", "size"),
    [
        (SMALL, 19, 32, 189_632),
        (LARGE, 64, 32, 734_144),
        (SMALL, 19, 8, 188_720),
        (LARGE, 64, 8, 731_072),
    ],
)
def test_bytes_of_clustered_networks(parameters: int, sets: int, bits: int, size: int) -> None:
    assert clustered_bits(parameters, 16, sets, bits) == 8 * size


def test_sizes_of_whole_networks() -> None:
    assert (SMALL * 32 // 8, LARGE * 32 // 8) == (1_507_328, 5_840_384)
    assert (SMALL, LARGE) == (376_832, 1_460_096)  # bytes at 8 bits


def test_network_rates_of_the_four_cases() -> None:
    # Convolutions and the dense layer of the larger network as it was, batch norms left out.
    products = 1_479_104 - 28_544
    fixed = rate_of([(products - DENSE, 8), (DENSE, 4)])
    assert round(network_rate(fixed, 4, 4), 2) == 4.02
    for parameters in (SMALL, LARGE):
        folded = rate_of([(parameters - DENSE, 32), (DENSE, 4)])
        assert round(network_rate(folded, 4, 4)) == 3
        hybrid = clustered_rate(parameters, 16, 19 if parameters == SMALL else 64, 8)
        assert round(network_rate(hybrid, 4, 4), 2) == 5.33
    assert network_rate(rate_of([(SMALL, 8)]), 4, 4) == 4


@pytest.mark.parametrize(
    ("parameters", "features", "sets", "both", "outputs"),
    [(SMALL, SMALL_FEATURES, 19, 4.37, 4.74), (LARGE, LARGE_FEATURES, 64, 4.66, 5.27)],
)
def test_true_ratio_of_the_hybrid_beside_its_network_rate(
    parameters: int, features: tuple[int, int], sets: int, both: float, outputs: float
) -> None:
    stored = clustered_bits(parameters, 16, sets, 8)
    assert abs(memory_ratio(parameters, stored, sum(features)) - both) < 0.01
    assert abs(memory_ratio(parameters, stored, features[1]) - outputs) < 0.01


@pytest.mark.parametrize(
    ("parameters", "features", "both", "outputs"),
    [(SMALL, SMALL_FEATURES, 2.75, 2.17), (LARGE, LARGE_FEATURES, 2.20, 1.66)],
)
def test_true_ratio_of_folded_dynamic_fixed_point(
    parameters: int, features: tuple[int, int], both: float, outputs: float
) -> None:
    stored = 32 * (parameters - DENSE) + 4 * DENSE
    assert abs(memory_ratio(parameters, stored, sum(features)) - both) < 0.01
    assert abs(memory_ratio(parameters, stored, features[1]) - outputs) < 0.01


def test_a_report_adds_up() -> None:
    report = SizeReport(
        (
            Stored("x", "input", "uint8", 64, 8, scales=32),
            Stored("a", "weight", "cb4", 100, 2, table=64, scales=32),
            Stored("a", "bias", "int32", 10, 32),
            Stored("b", "weight", "mx<e2m1,32>", 64, 4, exponents=16),
        ),
        174,
        (164, 1312),
        (20, 640),
    )
    assert report.parameter_bits == 200 + 64 + 32 + 320 + 256 + 16
    assert report.feature_bits == 64 * 8 + 32
    assert report.total_bits == report.parameter_bits + report.feature_bits
    assert report.parameter_rate == 32 * 174 / 888
    assert report.network_rate == (report.parameter_rate + 4 + 1) / 3
    assert report.memory_ratio == 32 * (174 + 64) / report.total_bits
    assert (report.part("weight"), report.part("table"), report.part("exponents")) == (456, 64, 16)


@given(st.integers(2, 4096), st.integers(1, 64), st.integers(1, 32), st.integers(0, 1 << 20))
def test_tables_and_indices_are_both_counted(k: int, sets: int, bits: int, more: int) -> None:
    parameters = k * sets + more
    stored = clustered_bits(parameters, k, sets, bits)
    index = (stored - sets * k * bits) / parameters
    assert 2 ** (index - 1) < k <= 2**index


@pytest.mark.parametrize(
    ("parameters", "clusters", "sets", "bits"),
    [(15, 16, 1, 32), (0, 1, 1, 32), (100, 0, 1, 8), (100, 4, 0, 8), (100, 60, 2, 8)],
)
def test_impossible_clusterings_are_refused(
    parameters: int, clusters: int, sets: int, bits: int
) -> None:
    with pytest.raises(FormatError):
        clustered_bits(parameters, clusters, sets, bits)


def test_lengths_of_the_published_listings() -> None:
    # A first layer with weights of at most 2^-11, a dense layer with weights of at most 1.
    assert parameter_il(2.0**-11) == -10 and fraction_length(8, -10) == 18
    assert parameter_il(0.7) == 1 and fraction_length(4, 1) == 3
    assert activation_il(200.0) == 8 and fraction_length(8, 8) == 0
    assert activation_il(0.3) == -1 and fraction_length(8, -1) == 9
    assert activation_il(200.0, spare_bit=True) == 9
    # Inputs or outputs above 512 ask for a fifth exponent bit, up to 2^17.
    assert exponent_bits([512.0, 3.0]) == 4
    assert exponent_bits([512.1]) == exponent_bits([2.0**17]) == 5
    assert exponent_bits([]) == exponent_bits([0.0]) == 4
    assert exponent_window(2.0**-11, 3) == (-18, -11)


@given(st.floats(2.0**-40, 2.0**40))
def test_lengths_hold_what_they_are_for(largest: float) -> None:
    """No weight is beyond the range, and one bit fewer would clip; activations lose an octave."""
    il = parameter_il(largest)
    assert 2.0 ** (il - 2) < largest <= 2.0 ** (il - 1)
    assert activation_il(largest) == il - 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_ranges_that_are_none_are_refused(value: float) -> None:
    for formula in (parameter_il, activation_il):
        with pytest.raises(FormatError, match="largest magnitude"):
            formula(value)
    with pytest.raises(FormatError):
        exponent_bits([value])
