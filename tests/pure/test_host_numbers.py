# SPDX-License-Identifier: Apache-2.0
"""Numbers of the world become levels on the host as they do in training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bitwright.base.errors import DataError, GraphError
from bitwright.data.preparation import fit_preparation
from bitwright.data.preprocessing import DataLevels, HostInput, NumberRule, read_input
from bitwright.formats import parse_format
from bitwright.host.numbers import levels_of_numbers


def host_input(shape: tuple[int, ...], rule: NumberRule | None, **others: Any) -> HostInput:
    scale = 1.0 if rule is None else rule.scale
    fields = {"format": "int8" if rule is None else rule.format, "scale": scale, **others}
    data = DataLevels(type="float32", scale=scale)
    return HostInput(
        inputs="rows", shape=shape, rounding="half_even", data=data, preparation=rule, **fields
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12), st.sampled_from([(5,), (7, 2), (3, 4, 2)]), st.integers(0, 99))
def test_the_prepared_levels_are_those_of_the_data_set(
    bits: int, shape: tuple[int, ...], seed: int
) -> None:
    """Where the network takes the data set's own levels, a round trip through the file included."""
    rng = np.random.default_rng(seed)
    values = rng.normal(rng.uniform(-9, 9), 10 ** rng.uniform(-3, 3), (40, *shape))
    fitted = fit_preparation(values[:30], bits)
    rule = NumberRule.model_validate_json(json.dumps(fitted.to_json()))
    found = levels_of_numbers(values, host_input(shape, rule))
    assert np.array_equal(found, fitted.levels(values))


def test_reals_without_preparation_are_encoded_as_the_network_does() -> None:
    values = np.random.default_rng(1).normal(0, 40, (30, 6)).astype(np.float32)
    given_input = host_input((6,), None, scale=0.37)
    expected = parse_format("int8").encode(values, 0.37)
    assert np.array_equal(levels_of_numbers(values, given_input), expected)
    assert np.array_equal(levels_of_numbers(values.reshape(30, 6), given_input), expected)


def test_numbers_that_cannot_be_are_refused() -> None:
    rows = host_input((6,), None)
    with pytest.raises(DataError, match=r"expected numbers \(N, 6\), found \(3, 5\)"):
        levels_of_numbers(np.zeros((3, 5)), rows)
    with pytest.raises(DataError, match="1 numbers are NaN or infinite, in 1 of 2 rows"):
        levels_of_numbers(np.array([[0.0] * 6, [np.nan] + [0.0] * 5]), rows)


@pytest.mark.parametrize(
    "changes",
    [{"step": [0.0]}, {"step": [float("inf")]}, {"step": [1, 2]}, {"format": "int99"},
     {"offset": [1, 2], "step": [1, 2]}],
)  # fmt: skip
def test_a_strangers_rule_is_checked(changes: dict[str, Any], tmp_path: Path) -> None:
    rule = fit_preparation(np.arange(12.0).reshape(2, 2, 3), 8)
    whole = host_input((2, 3), NumberRule.model_validate(rule.to_json()))
    table = json.loads(whole.model_dump_json())
    table["preparation"] |= changes
    path = tmp_path / "input.json"
    path.write_text(json.dumps(table))
    with pytest.raises((GraphError, ValidationError)):
        read_input(path)
