# SPDX-License-Identifier: Apache-2.0
"""Operators on constants: equal to ONNX Runtime, or to ONNX's reference, in value and type."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from onnx import TensorProto, defs, numpy_helper
from tests.onnx_operators import DRAWS, ROUNDED, Case, cast_small, evaluated, folded

from bitwright.base.errors import ModelError
from bitwright.interop.onnx.reader import HANDLERS, arithmetic, folding, signatures
from bitwright.interop.onnx.reader.model import OnnxNode
from bitwright.interop.onnx.reader.signatures import check_attributes

_DRAWS = 12
_ULPS = 4


def same(case: Case, found: np.ndarray, expected: np.ndarray) -> None:
    """Equal type, shape and numbers; of reals the same bits where ONNX fixes them."""
    assert found.dtype == expected.dtype and found.shape == expected.shape, case
    if found.dtype.kind == "V":  # ml_dtypes' own
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    if found.dtype.kind != "f":
        assert np.array_equal(np.asarray(found, object), np.asarray(expected, object)), case
    elif case.op in ROUNDED:
        with np.errstate(invalid="ignore"):
            apart = np.abs(found - expected) > _ULPS * np.spacing(np.abs(expected))
        assert not apart[np.isfinite(expected)].any(), case
        assert np.array_equal(np.isfinite(found), np.isfinite(expected)), case
    else:
        assert np.array_equal(found, expected, equal_nan=True), case
        assert np.array_equal(np.signbit(found), np.signbit(expected)), case


def test_small_reals_saturate_or_not() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        case = cast_small(rng, "Cast")
        found = folded(case)
        same(case, found, evaluated(case).view(found.dtype))  # ONNX Runtime gives their bits


I32, I64, F32 = np.int32, np.int64, np.float32


def _refused(op: str, *inputs: object, opset: int = 18, **attrs: object) -> Case:
    return Case(op, [np.asarray(a) for a in inputs], attrs, opset)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (_refused("Div", I32(1), I32(0)), "divides integers by zero"),
        (_refused("Mod", I32(1), I32(0)), "divides integers by zero"),
        (_refused("Div", I32(-(1 << 31)), I32(-1)), "which does not fit"),
        (_refused("Mod", F32(7), F32(3)), "remainder of reals"),
        (_refused("Add", I32(1), F32(1)), r"is tensor\(float\), another .* tensor\(int32\)"),
        (_refused("Sqrt", I32(4)), r"input 0 is tensor\(int32\), which Sqrt"),
        (_refused("Max", I64(4), I64(5), opset=8), r"tensor\(int64\), which Max of operator set 8"),
        (_refused("ReduceSum", np.full(3, 1 << 30, I32)), "int32 does not hold"),
        (_refused("ReduceMean", np.full(3, 1 << 30, I32)), "int32 does not hold"),
        (_refused("ReduceProd", np.full(3, 1 << 40, I64)), "int64 does not hold"),
        (_refused("Pow", I32(10), I32(10)), "int32 does not hold"),
        (_refused("Cast", F32(300), to=TensorProto.UINT8), "uint8 does not hold"),
        (_refused("Cast", F32("nan"), to=TensorProto.INT32), "int32 does not hold"),
        (_refused("Cast", F32(3), to=TensorProto.COMPLEX64), "unsupported type"),
        (_refused("Cast", F32(3), to=TensorProto.FLOAT, surprise=1), "attribute surprise, which"),
        (_refused("Dropout", F32(3), F32(0.5), np.True_), "training mode"),
        (_refused("Dropout", F32(3), ratio=0.5, is_test=0, opset=6), "attribute is_test is 0"),
        (_refused("Flatten", np.zeros((2, 3), I32), axis=3), "axis 3 is outside"),
        (_refused("Squeeze", np.zeros((1, 3), I32), I64([2])), "axis 2 is outside"),
        (_refused("Tile", np.zeros((2, 3), I32), I64([2])), "1 repeats for 2 axes"),
        (_refused("Concat", np.zeros((2, 3), I32)), "has no attribute axis"),
        (_refused("Add", I32(1)), "has 1 inputs; 2 to 2 are expected"),
        (_refused("Range", F32(0), F32("inf"), F32(1)), "without end"),
        (_refused("ConstantOfShape", I64([2]), value=numpy_helper.from_array(np.ones(2))),
         "2 elements, expected one"),
        (_refused("Where", np.True_, F32(1), F32(2), opset=5), "is no operator of operator set 5"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(case: Case, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        folded(case)


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        (_refused("Mod", F32(-7), F32(3), fmod=1), F32(-1)),
        (_refused("Div", I64((1 << 53) + 1), I64(1)), I64((1 << 53) + 1)),
        (_refused("Div", I64(-7), I64(2)), I64(-3)),
        (_refused("ReduceMean", np.array([-7, 2], I32)), np.array([-2], I32)),
        (_refused("ReduceSum", np.array([1, 2], I32), noop_with_empty_axes=1), np.array([1, 2])),
        (_refused("Slice", np.arange(3), I64([-9]), I64([-9]), I64([0]), I64([-1])), I64([0])),
        (_refused("Max", np.array([1, 5]), I64(3), np.array([[4]])), np.array([[4, 5]])),
        (_refused("Min", np.array([1, 5]), I64(3), np.array([[4]])), np.array([[1, 3]])),
    ],
)
def test_figures(case: Case, wanted: np.ndarray) -> None:
    found = folded(case)
    assert found.tolist() == wanted.tolist()
    same(case, found, evaluated(case))


def test_every_operator_is_compared() -> None:
    assert {*DRAWS} == {*folding._FOLD, *folding._MOVES}


@pytest.mark.parametrize("op", DRAWS)
def test_operators_on_random_constants(op: str) -> None:
    """What is refused has no meaning: the other evaluators refuse it, or disagree."""
    rng = np.random.default_rng(zlib.crc32(op.encode()))
    compared = 0
    for _ in range(_DRAWS):
        case = DRAWS[op](rng, op)
        try:
            found = folded(case)
        except ModelError as error:
            if error.hint == arithmetic.UNDEFINED:
                continue
            with pytest.raises(Exception, match=r"."):
                evaluated(case)
            continue
        same(case, found, evaluated(case))
        compared += 1
    assert compared >= _DRAWS // 2


@pytest.mark.parametrize("op", sorted({*HANDLERS} | {*DRAWS}))
def test_an_attribute_that_nobody_reads_is_refused(op: str) -> None:
    node = OnnxNode("n", op, "", ("a",), ("b",), {"surprise": 1})
    with pytest.raises(ModelError, match="has the attribute surprise"):
        check_attributes(node)
    check_attributes(OnnxNode("n", op, "", ("a",), ("b",), {"__tool": 1}))


@pytest.mark.parametrize("op", sorted({*HANDLERS} | {*DRAWS}))
def test_an_attribute_of_the_standard_is_read_or_known_to_change_nothing(op: str) -> None:
    """All that ONNX has, in any operator set, but for what is refused on purpose."""
    refused = {"height_scale", "width_scale", "axis", "shape", "is_test", "sparse_value"}
    refused |= {"paddings", "consumed_inputs"}  # of operator set 1
    names = {
        name
        for schema in defs.get_all_schemas_with_history()
        if schema.name == op and schema.domain == ""
        for name in schema.attributes
    }
    known = {*signatures._READ.get(op, "").split(), *signatures._HARMLESS.get(op, {})}
    left = {n for n in names - known if not n.startswith("value_str")}
    assert left <= refused, left - refused
