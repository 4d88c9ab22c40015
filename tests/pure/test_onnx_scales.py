# SPDX-License-Identifier: Apache-2.0
"""Scales of channels where one scale is needed: exact where a unit holds all of them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.onnx_models import File, run_file

from bitwright.base.errors import ModelError
from bitwright.interop.onnx.reader import Imported, load

GRID = np.mgrid[0:60, 0:12][0] * 0.137 % 3 - 1.5


def images(*shape: int) -> np.ndarray:
    return np.resize(GRID, (len(GRID), *shape)).astype(np.float32)


def reals(imported: Imported, given: np.ndarray) -> np.ndarray:
    found = imported.graph.run({imported.graph.inputs[0]: imported.levels(given)})
    output = imported.outputs[0]
    return output.reals(found[output.edge])


def summed(scales: Any, bits: int = 2) -> File:
    """q + q with scales of three channels, and a product behind it."""
    net = File(1, 3, 2, 2)
    plain = net.quant(4, 1.0)
    net.quant(bits, np.reshape(scales, (1, 3, 1, 1)), narrow=1)
    net.op("Add", plain)
    net.op("Flatten")
    net.op("MatMul", net.const(np.arange(60).reshape(12, 5) % 7 - 3))
    return net


@settings(deadline=None, max_examples=12)
@given(st.lists(st.integers(1, 40), min_size=3, max_size=3), st.integers(-4, 4))
def test_operands_with_scales_of_one_unit_are_exact(whole: list[int], power: int) -> None:
    net = summed(np.array(whole) * 2.0**power)
    imported = load(net.model())
    given = images(3, 2, 2)
    assert not imported.notes
    assert (reals(imported, given) == run_file(net.model(), given)[0]).all()


def test_operands_without_a_unit_are_rounded_and_it_is_said() -> None:
    net = summed([1.0, 1 / 3, 1e-3])
    imported = load(net.model())
    assert any("is carried in 16 bits" in note for note in imported.notes)
    given = images(3, 2, 2)
    assert reals(imported, given) == pytest.approx(run_file(net.model(), given)[0], abs=1e-3)


@pytest.mark.parametrize("ratio", [8191.75, 20000.4, 1 / 8191.75, 3.14159])
def test_the_ratio_of_two_scales_is_near_however_large(ratio: float) -> None:
    net = File(1, 4)
    start = net.quant(8, 2.0**-6)
    net.op("Mul", net.const(ratio))
    net.op("Add", start)
    net.op("MatMul", net.const(np.eye(4)))
    imported = load(net.model())
    added = next(node for node in imported.graph if node.op == "add")
    first, second = added.ints("multipliers")
    taken = Fraction(first, second)
    assert min(
        abs(float(taken / Fraction(ratio)) - 1), abs(float(1 / taken / Fraction(ratio)) - 1)
    ) < 2.0**-12  # fmt: skip


def test_scales_that_no_multiplier_brings_together_are_named() -> None:
    net = File(1, 4)
    start = net.quant(4, 1.0)
    net.op("Mul", net.const(1e20))
    net.op("Add", start)
    net.op("MatMul", net.const(np.eye(4)))
    with pytest.raises(ModelError, match=r"adds tensors whose scales are 1e\+20 apart"):
        load(net.model())


def test_an_offset_of_all_scores_is_in_their_reals() -> None:
    net = File(1, 4)
    net.quant(4, 0.25)
    net.op("MatMul", net.const(np.arange(16).reshape(4, 4) % 5 - 2))
    net.raw("Sub", net.const(1.5), net.net)
    net.op("Neg")
    net.op("Sigmoid")
    scores = net.net
    net.op("ArgMax", axis=1)
    imported = load(net.model(scores))
    given = images(4)
    assert reals(imported, given) == pytest.approx(run_file(net.model(scores), given)[0], abs=1e-6)


def test_scores_that_are_always_zero_may_have_a_negative_gain() -> None:
    net = File(1, 6)
    net.quant(2, 0.25, zero=1.0)  # -0.75 to 0
    net.op("Relu")
    net.op("MatMul", net.const(np.ones((6, 4))))
    net.op("Mul", net.const(-2.0))
    net.op("ArgMax", axis=1)
    imported = load(net.model())
    assert not imported.graph.run({imported.graph.inputs[0]: imported.levels(images(6))})[
        imported.outputs[0].edge
    ].any()
