# SPDX-License-Identifier: Apache-2.0
"""Element types of a file: arithmetic of integers that is not that of reals is refused, types of
16 bits and numbers that float32 loses are told; what `import --compare` draws reaches all levels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from tests.onnx_models import File, run_file

from bitwright.base.errors import MismatchError, ModelError
from bitwright.interop.onnx.reader import load
from bitwright.interop.onnx.reader.compare import compare, original_outputs
from bitwright.ir.levels import varied
from bitwright.pipeline.import_network import import_graph


def whole(build: Callable[[File], Any], to: int = TensorProto.INT32) -> File:
    """Levels of 4 bits as integers, what `build` adds, and a product of reals behind it."""
    net = File(1, 2, 4, 4, opset=18)
    net.quant(4, 1.0)
    net.op("Cast", to=to)
    build(net)
    net.op("Cast", to=TensorProto.FLOAT)
    net.op("Flatten")
    return net


def last(net: File, outputs: int = 3) -> bytes:
    rows = 32 if not any(node.op_type.startswith("Reduce") for node in net.nodes) else 2
    net.op("MatMul", net.const(np.arange(rows * outputs).reshape(rows, outputs) % 5 - 2))
    return net.model()


@pytest.mark.parametrize(
    ("build", "to", "message"),
    [
        (lambda n: n.op("Div", n.const(2, np.int32)), "INT32", "of which ONNX drops the fraction"),
        (lambda n: n.op("Div", n.const(-3, np.int64)), "INT64", "drops the fraction"),
        (lambda n: n.op("ReduceMean", n.const([2, 3], np.int64)), "INT32", "drops the fraction"),
        (lambda n: n.op("Mul", n.const(1 << 30, np.int32)), "INT32", "does not hold that"),
        (lambda n: n.op("Mul", n.const(1 << 61, np.int64)), "INT64", "does not hold that"),
        (lambda n: n.op("Add", n.const((1 << 31) - 3, np.int32)), "INT32", "does not hold that"),
        (lambda n: n.op("Sub", n.const(125, np.int8)), "INT8", r"computes -133 \.\. -118 in int8"),
        (lambda n: (n.op("Mul", n.const(16, np.int8)), n.op("Neg")), "INT8", "not hold"),
        (lambda n: n.op("Add", n.net) and n.op("Mul", n.const(9, np.int8)), "INT8", "not hold"),
        (lambda n: n.op("Pow", n.const(2, np.int8)) and n.op("Neg"), "INT8", None),
    ],
)  # fmt: skip
def test_integers_that_wrap_or_lose_a_fraction_are_refused(
    build: Callable[[File], Any], to: str, message: str | None
) -> None:
    body = last(whole(build, TensorProto.DataType.Value(to)))
    if message is None:
        load(body)
        return
    with pytest.raises(ModelError, match=message):
        load(body)


@pytest.mark.parametrize(
    "build",
    [
        lambda n: n.op("Mul", n.const(1 << 20, np.int32)),
        lambda n: n.op("Add", n.const(-7, np.int32)),
        lambda n: n.op("Div", n.const(1, np.int32)),
        lambda n: n.op("Neg"),
        lambda n: n.op("Abs"),
        lambda n: n.op("Relu"),
        lambda n: n.op("Clip"),
        lambda n: n.op("Transpose", perm=(0, 1, 3, 2)),
    ],
)
def test_integers_that_are_those_of_reals_are_read(build: Callable[[File], Any]) -> None:
    body = last(whole(build))
    imported = load(body)
    images = np.random.default_rng(0).integers(-8, 8, (30, 2, 4, 4)).astype(np.float32)
    found = imported.graph.run({imported.graph.inputs[0]: imported.levels(images)})
    output = imported.outputs[0]
    assert (output.reals(found[output.edge]) == run_file(body, images)[0]).all()


def test_integers_in_front_of_the_first_quantizer_are_refused() -> None:
    net = File(1, 4, element=TensorProto.INT32)
    net.op("Div", net.const(2, np.int32))
    net.op("Cast", to=TensorProto.FLOAT)
    net.quant(4, 1.0)
    net.op("MatMul", net.const(np.eye(4)))
    with pytest.raises(ModelError, match=r"computes with int32 in front.*first quantizer"):
        load(net.model())


def test_integers_of_a_wide_range_that_turn_are_refused() -> None:
    net = File(1, 4)
    net.quant(8, 1.0)
    net.op("MatMul", net.const(np.full((4, 4), 1000.0)))
    net.op("Cast", to=TensorProto.INT32)
    net.op("Abs")
    net.op("Cast", to=TensorProto.FLOAT)
    net.op("MatMul", net.const(np.eye(4)))
    with pytest.raises(ModelError, match=r"computes what neither rises nor falls over \d+ levels"):
        load(net.model())


def _halves(factor: float = 1.0) -> bytes:
    net = File(1, 4, opset=21, element=TensorProto.FLOAT16)
    operands = net.const(0.25, np.float16), net.const(0, np.int8)
    net.op("QuantizeLinear", *operands)
    net.op("DequantizeLinear", *operands)
    net.op("MatMul", net.const(factor * np.eye(4), np.float16))
    return net.model()


def test_types_of_16_bits_are_told() -> None:
    notes = load(_halves()).notes
    assert any("the file computes in float16; its roundings are left out" in n for n in notes)
    assert not any("infinity" in note for note in notes)
    assert any("float16 ends at 65504" in note for note in load(_halves(30000.0)).notes)


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        ((1e-25, 1e-25, 1e25, 1e25), "gives 0 .. 0 in float32"),
        ((1e-25, 1e-25), "gives 0 .. 0 in float32"),
        ((3e38, 1e-38), "gives -inf .. inf in float32"),
    ],
)
def test_numbers_that_float32_loses_are_told(factors: tuple[float, ...], said: str) -> None:
    net = File(1, 4)
    net.quant(4, 1.0)
    for factor in factors:
        net.op("Mul", net.const(factor))
    net.op("MatMul", net.const(np.eye(4)))
    assert any(said in note for note in load(net.model()).notes)
    plain = File(1, 4)
    plain.quant(4, 1.0)
    plain.op("Mul", plain.const(1 / 255))
    plain.op("Sub", plain.const(0.485))
    plain.op("MatMul", plain.const(np.eye(4)))
    assert not any("float32" in note for note in load(plain.model()).notes)


FRONTS: dict[str, Callable[[File], Any]] = {
    "plain": lambda n: None,
    "pixels": lambda n: n.op("Mul", n.const(1 / 255)),
    "mean and deviation": lambda n: (
        n.op("Sub", n.const(np.reshape([120.0, 90, 60], (1, 3, 1, 1))))
        and n.op("Div", n.const(58.0))
    ),
    "far off": lambda n: n.op("Add", n.const(1000.0)),
    "relu": lambda n: n.op("Relu"),
}


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_drawn_frames_have_all_levels_whatever_stands_in_front(front: str, bits: int) -> None:
    net = File(1, 3, 4, 4)
    FRONTS[front](net)
    net.quant(bits, 1 / (2**bits - 1), signed=0)
    net.op("Flatten")
    net.op("MatMul", net.const(np.ones((48, 2))))
    imported = load(net.model())
    low, high = imported.reals_of_levels()
    shape = imported.graph.types[imported.graph.inputs[0]].shape
    frames = low + (high - low) * varied((1000, *shape), np.random.default_rng(0))
    levels = imported.levels(imported.arranged(frames.astype(np.float32)))
    for channel in range(3):
        assert len(np.unique(levels[..., channel])) == 2**bits


def test_a_sign_is_drawn_on_both_sides() -> None:
    net = File(1, 6)
    net.op("Sub", net.const(120.0))
    net.op("BipolarQuant", net.const(1.0), domain="qonnx.custom_op.general")
    net.op("MatMul", net.const(np.eye(6)))
    low, high = load(net.model()).reals_of_levels()
    assert (low < 119).all() and (high > 121).all()


def test_a_file_that_float32_loses_is_found_behind_a_scale(tmp_path: Path) -> None:
    """Pixels of 0 to 255 times 1/255: frames of 0 to 1 would all have been level 0."""
    pytest.importorskip("qonnx")
    net = File(1, 64)
    net.op("Mul", net.const(1 / 255))
    net.quant(4, 1 / 15, signed=0)
    net.op("MatMul", net.const(np.random.default_rng(0).integers(-3, 4, (64, 4))))
    for factor in (1e-25, 1e-25, 1e25, 1e25):
        net.op("Mul", net.const(factor))
    (tmp_path / "x.onnx").write_bytes(net.model())
    with pytest.raises(MismatchError, match="labels differ"):
        import_graph(tmp_path / "x.onnx", tmp_path / "out", compare=50)


def test_scores_that_are_equal_exactly_tie_in_float32() -> None:
    """Sums of multiples of 1/15: float32 rounds one of two equal scores up."""
    pytest.importorskip("qonnx")
    net = File(1, 64)
    net.quant(4, 1 / 15, signed=0)
    weights = np.random.default_rng(0).integers(-3, 4, (64, 1))
    orders = [np.random.default_rng(k).permutation(64) for k in range(4)]
    net.op("MatMul", net.const(np.concatenate([weights[o] for o in orders], axis=1)))
    imported = load(net.model())
    flat = np.repeat(np.random.default_rng(1).random((60, 1)), 64, axis=1).astype(np.float32)
    flat += np.float32(1e-7)
    found = compare(imported, flat, original_outputs(net.model(), flat))
    assert (found.labels, found.scores) == (0, 0)
    found.require()
    net.op("ArgMax", axis=1)
    imported = load(net.model())
    expected = original_outputs(net.model(), flat)
    found = compare(imported, flat, expected)
    assert found.labels == 0 and found.ties > 0  # the file's labels are those of float32 sums
    other = np.random.default_rng(2).random((60, 64)).astype(np.float32)
    expected = original_outputs(net.model(), other)
    assert compare(imported, other, [(expected[0] + 1) % 4]).labels > 50
    assert compare(imported, other, [expected[0] + 4]).labels == 60


@pytest.mark.parametrize(
    "behind",
    [
        lambda n: n.op("Add", n.const(1, np.int64)),
        lambda n: n.op("Min", n.const(1, np.int64)),
        lambda n: n.raw("Sub", n.const(2, np.int64), n.net),
        lambda n: n.op("Cast", to=TensorProto.FLOAT) and n.op("Mul", n.const(2.0)),
    ],
)
def test_what_is_computed_with_a_label_is_refused(behind: Callable[[File], Any]) -> None:
    net = File(1, 6, opset=18)
    net.quant(4, 1.0)
    net.op("MatMul", net.const(np.arange(18).reshape(6, 3) % 5 - 2))
    net.op("ArgMax", axis=1)
    load(net.model())
    net.op("Cast", to=TensorProto.INT32)
    load(net.model())
    net.nodes.pop()
    net.net = net.nodes[-1].output[0]
    behind(net)
    with pytest.raises(ModelError, match="computes with the label"):
        load(net.model())
