# SPDX-License-Identifier: Apache-2.0
"""Legal files whose meaning is easily missed: read as ONNX means them, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.onnx_models import File

from bitwright.base.errors import BitwrightError, ModelError, ToolError
from bitwright.interop.onnx.reader import Imported, load
from bitwright.interop.onnx.reader.compare import compare, original_outputs


def pair(net: File, scale: float = 0.25, zero: int | None = 0, **attrs: int) -> str:
    """QuantizeLinear and DequantizeLinear of the newest tensor."""
    more = [net.const(scale)] + ([] if zero is None else [net.const(zero, np.int8)])
    net.op("QuantizeLinear", *more, **attrs)
    return net.op("DequantizeLinear", *more)


def scores(imported: Imported, images: np.ndarray) -> np.ndarray:
    found = imported.graph.run({"x": imported.levels(images)})
    return imported.outputs[0].reals(found[imported.outputs[0].edge])


def _softmax_inside(net: File) -> None:
    pair(net)
    net.op("Softmax")
    pair(net, 0.125)
    net.op("MatMul", net.const(np.ones((4, 2))))


def _on_codes(net: File) -> None:
    operands = net.const(0.25), net.const(0, np.int8)
    pair(net)
    net.op("MatMul", net.const(np.ones((4, 4))))
    net.op("QuantizeLinear", *operands)
    net.op("Max", net.const(2, np.int8))
    net.op("DequantizeLinear", *operands)


def _dilated_average(net: File) -> None:
    pair(net)
    net.op("AveragePool", kernel_shape=(2, 2), dilations=(2, 2))


def _pad_last(net: File) -> None:
    pair(net)
    net.op("Conv", net.const(np.ones((4, 4, 1, 1))))
    net.op("Pad", net.const((0, 0, 1, 1, 0, 0, 1, 1), np.int64))


def _largest_of_one(net: File) -> None:
    pair(net)
    net.op("Conv", net.const(np.ones((4, 4, 5, 5))))
    net.op("ArgMax", axis=3)


@pytest.mark.parametrize(
    ("build", "image", "message"),
    [
        (_softmax_inside, False, "works on a softmax"),
        (_on_codes, False, "stands between a QuantizeLinear and its DequantizeLinear"),
        (_dilated_average, True, "is dilated"),
        (_pad_last, True, "is a Pad"),
        (_largest_of_one, True, "along another axis"),
    ],
)
def test_refused(build: Callable[[File], None], image: bool, message: str) -> None:
    net = File(*((1, 4, 5, 5) if image else (1, 4)), opset=21)
    build(net)
    with pytest.raises(ModelError, match=message):
        load(net.model())


def test_output_dtype_gives_the_type_of_codes() -> None:
    net = File(1, 4, opset=21)
    pair(net, 0.25, None, output_dtype=TensorProto.INT8)
    net.op("MatMul", net.const(np.eye(4)))
    images = np.array([[-1.0, -0.25, 0.5, 2.0]], np.float32)
    assert np.array_equal(scores(load(net.model()), images), images)


def test_flatten_counts_axes_from_the_end() -> None:
    net = File(1, 4)
    pair(net)
    net.op("Flatten", axis=-1)
    net.op("MatMul", net.const(np.eye(4)))
    assert load(net.model()).graph.types["scores"].shape == (4,)


def test_negative_indices_count_from_the_end() -> None:
    net = File(1, 3)
    net.quant(3, 1.0)
    net.op("Cast", to=TensorProto.INT64)
    table, index = net.const(np.arange(8.0) ** 2), net.net
    net.net = table
    net.op("Gather", index)
    net.op("MatMul", net.const(np.eye(3)))
    images = np.array([[-4.0, -1.0, 3.0]], np.float32)
    assert np.array_equal(scores(load(net.model()), images), [[16.0, 49.0, 9.0]])


@pytest.mark.parametrize(
    ("to", "gain", "refused"),
    [
        (TensorProto.INT8, 4.0, r"Cast_2.*casts -512 \.\. 508 to int8"),
        (TensorProto.UINT8, 1.0, r"Cast_2.*casts -128 \.\. 127 to uint8"),
        (TensorProto.INT8, -1.0, r"Cast_2.*casts -127 \.\. 128 to int8"),
        (TensorProto.INT8, 1.0, None),
        (TensorProto.INT16, 4.0, None),
    ],
)
def test_a_cast_holds_what_it_is_given(to: int, gain: float, refused: str | None) -> None:
    """ONNX Runtime keeps the lowest bits, or the ends: others may do else."""
    net = File(1, 3)
    net.quant(8, 1.0)
    net.op("Mul", net.const(gain))
    net.op("Cast", to=to)
    net.op("Cast", to=TensorProto.FLOAT)
    net.op("MatMul", net.const(np.eye(3)))
    if refused:
        with pytest.raises(ModelError, match=refused):
            load(net.model())
        return
    images = np.array([[-128.0, -1.0, 127.0]], np.float32)
    assert np.array_equal(scores(load(net.model()), images), images * gain)


def test_a_rounded_number_stays_whole_behind_a_relu() -> None:
    """Some 8 000 000 levels in front of it: none is looked at, and a Relu has an open end."""
    net = File(1, 3)
    net.quant(16, 1.0)
    net.op("MatMul", net.const(np.full((3, 3), 100)))
    net.op("Mul", net.const(2.0**-11))
    net.op("Round")
    net.op("Relu")
    net.op("Cast", to=TensorProto.INT32)
    net.op("Cast", to=TensorProto.FLOAT)
    net.op("MatMul", net.const(np.eye(3)))
    images = np.array([[-300.0, 10.0, 40.0], [300.0, 20.0, 31.0]], np.float32)
    wanted = np.array([[0.0] * 3, [17.0] * 3])
    assert np.array_equal(scores(load(net.model()), images), wanted)


@pytest.mark.parametrize("relu_first", [True, False])
def test_of_scores_that_a_clip_makes_equal_the_first_wins(relu_first: bool) -> None:
    net = File(1, 3)
    pair(net)
    net.op("MatMul", net.const(np.eye(3)))
    net.op("Relu" if relu_first else "Clip", *([] if relu_first else [net.const(0)]))
    net.op("ArgMax", axis=1)
    imported = load(net.model())
    found = imported.graph.run({"x": imported.levels(np.array([[-3.0, -1.0, -2.0]], np.float32))})
    assert found[imported.outputs[0].edge].ravel().tolist() == [0]


def test_scales_of_a_sum_far_apart() -> None:
    net = File(1, 3, 2, 2)
    start = pair(net)
    conv = net.op("Conv", net.const(np.eye(3).reshape(3, 3, 1, 1)))
    coarse = pair(net, 1.0)
    net.net = conv
    pair(net, 2.0**-14)
    net.op("Add", coarse)
    imported = load(net.model())
    assert start and next(n for n in imported.graph if n.op == "add").ints("multipliers") in (
        (1, 1 << 14),
        (1 << 14, 1),
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda net: net.op("Flatten", axis=0), "joins the 3 samples"),
        (lambda net: net.op("Transpose", perm=(1, 0)), "joins the 3 samples"),
        (lambda net: net.op("ArgMax", axis=0), "joins the 3 samples"),
        (lambda net: net.op("ArgMax"), "joins the 3 samples"),
        (lambda net: net.op("Reshape", net.const((1, -1), np.int64)), "joins the 3 samples"),
        (
            lambda net: net.op("Gemm", net.const(np.eye(4)), net.const(np.ones((3, 1)))),
            "others to each image of a batch",
        ),
    ],
)
def test_the_samples_of_a_batch_stay_apart(build: Callable[[File], None], message: str) -> None:
    net = File(3, 4)
    pair(net)
    build(net)
    pair(net)
    with pytest.raises(ModelError, match=message):
        load(net.model())


@pytest.mark.parametrize("from_shape", [False, True])
def test_the_batch_of_the_file_is_that_number_for_others(from_shape: bool) -> None:
    """A Reshape takes one sample; who else reads its target, or the input's shape, reads a 4."""
    net = File(4, 8)
    pair(net, 1.0)
    target = net.const((4, -1), np.int64)
    net.op("Reshape", target)
    scores = net.op("MatMul", net.const(np.eye(8)[:, :5]))
    sizes = net.raw("Shape", "inp") if from_shape else target
    net.raw("Gather", sizes, net.const(0, np.int64))
    number = net.op("Cast", to=TensorProto.FLOAT)
    net.raw("Add", scores, number)
    images = np.arange(16, dtype=np.float32).reshape(2, 8)
    imported = load(net.model())
    found = imported.graph.run({imported.graph.inputs[0]: imported.levels(images)})
    output = imported.outputs[0]
    assert (output.reals(found[output.edge]) == images[:, :5] + 4).all()


def _to_size(net: File) -> None:
    start = net.net
    shape = net.op("Shape")
    net.raw("Slice", shape, net.const([0], np.int64), net.const([2], np.int64))
    sizes = net.raw("Concat", net.net, net.const([8, 8], np.int64), axis=0)
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
    net.raw("Resize", start, "", "", sizes, nearest_mode="floor", **how)


def _plus_zeros(net: File) -> None:
    start = net.net
    net.op("Shape")
    net.op("ConstantOfShape")
    net.raw("Add", start, net.net)


@pytest.mark.parametrize("build", [_to_size, _plus_zeros])
@pytest.mark.parametrize("batch", [1, 4])
def test_shapes_of_a_batch_are_those_of_a_sample(build: Callable[[File], None], batch: int) -> None:
    net = File(batch, 2, 4, 4)
    pair(net, 1.0)
    build(net)
    net.op("Conv", net.const(np.arange(6).reshape(3, 2, 1, 1)))
    images = np.arange(64, dtype=np.float32).reshape(2, 2, 4, 4) % 16
    imported = load(net.model())
    found = imported.graph.run({imported.graph.inputs[0]: imported.levels(images)})
    output = imported.outputs[0]
    grown = images.repeat(2, 2).repeat(2, 3) if build is _to_size else images
    expected = np.einsum("oi,nihw->nohw", np.arange(6).reshape(3, 2), grown)
    assert (output.reals(found[output.edge]) == expected).all()


@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 4), (1, 1)])
def test_a_gemm_adds_one_number_a_feature(shape: tuple[int, ...]) -> None:
    net = File(3, 4)
    pair(net)
    added = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    net.op("Gemm", net.const(np.eye(4)), net.const(added))
    images = np.array([[-1.0, -0.25, 0.5, 2.0]], np.float32)
    assert np.array_equal(scores(load(net.model()), images), images + added.reshape(1, -1))


def _conv_file() -> onnx.ModelProto:
    net = File(1, 2, 4, 4)
    pair(net)
    net.op("Conv", net.const(np.ones((2, 2, 1, 1)), name="w"))
    return onnx.load_from_string(net.model())


def test_what_a_file_says_twice_is_refused() -> None:
    """Readers differ in which of the two counts."""
    load(_conv_file().SerializeToString())
    conv = _conv_file()
    strides = [helper.make_attribute("strides", [n, n]) for n in (1, 2)]
    conv.graph.node[-1].attribute.extend(strides)
    numbers = _conv_file()
    weight = next(w for w in numbers.graph.initializer if w.name == "w")
    weight.float_data.extend([-1.0] * 4)
    operators = _conv_file()
    operators.opset_import.append(helper.make_opsetid("", 6))
    constant = _conv_file()
    two = helper.make_node("Constant", [], ["k"], value_float=1.0, value_int=5)
    constant.graph.node.insert(0, two)
    last = constant.graph.node[-1].output[0]
    constant.graph.node.append(helper.make_node("Mul", [last, "k"], ["end"]))
    constant.graph.output[0].name = "end"
    for model, message in (
        (conv, "two attributes strides"), (numbers, "numbers twice"),
        (operators, "versions of the standard"), (constant, "more than one value"),
    ):  # fmt: skip
        with pytest.raises(BitwrightError, match=message):
            load(model.SerializeToString())


@pytest.mark.parametrize("domain", ["evil_module", "qonnx_evil", "finn.evil"])
def test_a_node_that_nothing_reads_is_never_run(
    domain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QONNX runs every node of a file, and imports the module that the domain of one names."""
    pytest.importorskip("qonnx")
    pytest.importorskip("onnxruntime")
    (tmp_path / f"{domain.partition('.')[0]}.py").write_text("open('HARMED', 'w').write('x')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    net = File(1, 4)
    data = net.quant(4, 0.5, signed=0)
    net.net = net.const(np.ones((4, 2)))
    weight = net.quant(4, 1.0)
    read = net.raw("MatMul", data, weight)
    net.raw("Anything", read, domain=domain)
    net.net = read
    path = tmp_path / "net.onnx"
    path.write_bytes(net.model())
    imported = load(path)
    images = np.random.default_rng(0).uniform(0, 4, (3, 4)).astype(np.float32)
    assert compare(imported, images, original_outputs(path, images)).labels == 0
    assert not (tmp_path / "HARMED").exists()


@pytest.mark.parametrize("batch", [1, 3])
def test_a_file_that_resizes_to_its_own_batch_is_run_so_many_at_a_time(batch: int) -> None:
    """ONNX Runtime made one image of twenty, of which the shape was a traceback."""
    net = File(batch, 2, 4, 4)
    net.quant(4, 0.5, signed=0)
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
    sizes = net.const((batch, 2, 8, 8), np.int64)
    net.op("Resize", "", "", sizes, nearest_mode="floor", **how)
    images = np.random.default_rng(0).uniform(0, 8, (20, 2, 4, 4)).astype(np.float32)
    imported = load(net.model())
    expected = original_outputs(net.model(), images)
    assert expected[0].shape == (20, 2, 8, 8)
    found = compare(imported, images, expected)
    assert (found.images, found.labels, found.scores) == (20, 0, 0)
    with pytest.raises(ToolError, match=r"the shape \(1, 2, 8, 8\) for 20 images"):
        compare(imported, images, [expected[0][:1]])
