# SPDX-License-Identifier: Apache-2.0
"""Accumulators of training: their bounds are sharp, and what they refuse says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import RecipeError
from bitwright.low_precision.arithmetic.accumulators import (
    check_accumulator,
    largest_sum,
    parse_accumulator,
    widest_operands,
)
from bitwright.quantize.spec import Product


@given(bits=st.tuples(st.integers(2, 17), st.integers(2, 17)), width=st.integers(2, 64))
def test_the_bound_is_sharp(bits: tuple[int, int], width: int) -> None:
    """As many products as fit pass, one more is refused."""
    most = (2 ** (width - 1) - 1) // (2 ** (bits[0] - 1) * 2 ** (bits[1] - 1))
    if most:
        check_accumulator("conv", Product.FORWARD, most, *bits, f"int{width}")
    with pytest.raises(RecipeError):
        check_accumulator("conv", Product.FORWARD, most + 1, *bits, f"int{width}")


def test_the_message_says_what_would_fit() -> None:
    # 4608 products of two 12-bit numbers reach 4608 * 2^22, beyond 2^31 - 1.
    with pytest.raises(RecipeError) as caught:
        check_accumulator("features.8", "forward", 4608, 12, 12, "int32")
    text = str(caught.value)
    assert "accumulator of features.8: the forward product adds 4608 products of 12 and 12" in text
    assert f"up to {4608 << 22}" in text
    assert "2147483647" in text
    assert "operands of up to 10 bits fit" in text  # 4608 * 2^18 is below, 4608 * 2^20 is not
    assert "int36 holds it" in text
    check_accumulator("features.8", "forward", 4608, 10, 10, "int32")
    check_accumulator("features.8", "forward", 4608, 12, 12, "int36")
    with pytest.raises(RecipeError):
        check_accumulator("features.8", "forward", 4608, 11, 11, "int32")


def test_exact_holds_everything_and_float32_24_bits() -> None:
    check_accumulator("fc", "grad_weight", 1 << 40, 16, 16, "exact")
    check_accumulator("fc", "grad_weight", 1 << 10, 8, 8, "float32")
    with pytest.raises(RecipeError, match="accumulator float32 holds 16777216"):
        check_accumulator("fc", "grad_weight", (1 << 10) + 1, 8, 8, "float32")


def test_floats_are_added_in_float32_whatever_is_asked_for() -> None:
    check_accumulator("fc", "grad_input", 1 << 30, 0, 8, "int8")


def test_nothing_that_int64_cannot_hold_is_offered() -> None:
    with pytest.raises(RecipeError) as caught:
        check_accumulator("fc", "forward", 1 << 40, 16, 16, "int32")
    assert "holds it" not in str(caught.value)
    assert "exact is as wide as it takes" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "int", "int1", "int65", "int08", "float16", "uint32", 32, None]
)
def test_other_words_are_refused(text: object) -> None:
    with pytest.raises(RecipeError, match="is no accumulator"):
        parse_accumulator(text)  # type: ignore[arg-type]


@given(length=st.integers(1, 1 << 30), width=st.integers(2, 64))
def test_the_widest_operands_fit_and_no_wider_ones(length: int, width: int) -> None:
    capacity = parse_accumulator(f" INT{width} ").capacity
    assert capacity == 2 ** (width - 1) - 1
    bits = widest_operands(length, capacity)
    assert bits == 0 or largest_sum(length, bits, bits) <= capacity
    assert largest_sum(length, bits + 1, bits + 1) > capacity
