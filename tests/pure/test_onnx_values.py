# SPDX-License-Identifier: Apache-2.0
"""Attributes that are read or refused, thresholds that are guessed, and what is compared."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.onnx_models import File

from bitwright.base.errors import MismatchError, ModelError
from bitwright.cli import entry as cli
from bitwright.interop.onnx.reader import budget, load
from bitwright.interop.onnx.reader.compare import compare, original_outputs
from bitwright.interop.onnx.reader.levels import find_thresholds


def weights(*shape: int, limit: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(-limit, limit + 1, shape)


def test_swish_has_a_slope() -> None:
    net = File(1, 3, opset=24)
    net.quant(5, 0.25)
    net.op("Swish", alpha=3.0)
    net.quant(6, 0.125)
    imported = load(net.model())
    levels = np.arange(-16, 16).repeat(3).reshape(32, 3)
    reals = levels * 0.25
    wanted = np.clip(np.rint(reals / (1 + np.exp(-3 * reals)) / 0.125), -32, 31)
    (edge,) = {o.edge for o in imported.outputs if not o.is_label}
    assert np.array_equal(imported.graph.run({"x": levels})[edge], wanted)


@pytest.mark.parametrize(
    ("op", "attrs", "message"),
    [
        ("Relu", {"alpha": 0.1}, "has the attribute alpha"),
        ("Upsample", {"height_scale": 2.0}, "has the attribute height_scale"),
        ("BatchNormalization", {"spatial": 0}, "attribute spatial is 0"),
        ("Resize", {"antialias": 1}, "attribute antialias is 1"),
    ],
)
def test_attributes_that_are_not_read_are_refused(
    op: str, attrs: dict[str, object], message: str
) -> None:
    net = File(1, 2, 4, 4)
    net.quant(4, 0.25)
    net.op(op, **attrs)
    with pytest.raises(ModelError, match=message):
        load(net.model())


def test_a_dropout_that_drops_is_refused() -> None:
    net = File(1, 3)
    net.quant(4, 0.25)
    net.op("Dropout", net.const(0.5), net.const(True, np.bool_))
    net.op("MatMul", net.const(weights(3, 2)))
    with pytest.raises(ModelError, match="training mode"):
        load(net.model())


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_thresholds_are_the_same_whatever_is_guessed(data: st.DataObject) -> None:
    rows, lo = data.draw(st.integers(1, 4)), data.draw(st.integers(-3000, 0))
    hi = lo + data.draw(st.integers(0, 5000))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    gain, offset = rng.choice([-1, 1], rows) * rng.uniform(0.001, 3, rows), rng.normal(0, 99, rows)

    def function(levels: np.ndarray) -> np.ndarray:
        return np.rint(np.clip(gain * levels + offset, -8, 7)).astype(np.int64)

    wanted = np.arange(-7, 8)
    plain = find_thresholds(function, np.sign(gain), (lo, hi), wanted)
    exact = (wanted[:, None] - 0.5 - offset) / gain
    wild = np.where(rng.random(exact.shape) < 0.5, exact, rng.choice([np.inf, -np.inf, np.nan, 7]))
    for guess in (exact, exact + 3, exact - 40, wild):
        found = find_thresholds(function, np.sign(gain), (lo, hi), wanted, guess)
        assert np.array_equal(found.thresholds, plain.thresholds)


def test_weights_of_one_scale_a_row_are_not_counted_as_widened() -> None:
    """A scale of (rows,) along axis 0 of (rows, columns, 1, 1) does not broadcast as it lies."""
    net = File(1, 512, 1, 1)
    net.quant(4, 0.25)
    data, held = net.net, net.const(weights(512, 512, 1, 1), np.int8)
    operands = [net.const(np.full(512, 0.5)), net.const(np.zeros(512), np.int8)]
    net.net = data
    net.op("Conv", net.raw("DequantizeLinear", held, *operands, axis=0))
    net.raw("Conv", data, net.nodes[-2].output[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "_SPARE", 16 << 20)
        assert load(net.model()).graph


def test_scores_that_tie_without_a_label_may_come_in_any_order() -> None:
    """float32 alone decides which of equal scores is the largest; others count."""
    rng = np.random.default_rng(0)
    net = File(1, 2, 4, 3)
    net.quant(3, 0.3)
    data = net.net
    net.net = net.const(rng.normal(size=(3, 2, 1, 1)))
    weight = net.quant(2, 0.37, narrow=1)
    net.net = data
    net.op("Conv", weight)
    net.op("Transpose", perm=(0, 3, 1, 2))
    net.op("Flatten")
    imported = load(net.model())
    images = rng.uniform(-1.2, 0.9, (50, 2, 4, 3)).astype(np.float32)
    expected = original_outputs(net.model(), images)
    result = compare(imported, images, expected)
    assert result.ties == (result.expected != result.found).sum() > 0 == result.labels
    result.require()
    expected[0][3] = np.roll(expected[0][3], 1)
    with pytest.raises(MismatchError, match="image 3"):
        compare(imported, images, expected).require()
    for nothing in (np.nan, np.inf):
        expected = original_outputs(net.model(), images)
        expected[0][7, 0] = nothing
        found = compare(imported, images, expected)
        assert found.scores == 1 and found.largest == np.inf
        with pytest.raises(MismatchError, match="image 7"):
            found.require()


def _scaled(*factors: float, twice: bool = False, softmax: bool = True) -> bytes:
    """Four classes, of which the first is never the largest, times some numbers."""
    rng, net = np.random.default_rng(0), File(1, 16)
    net.quant(8, 1.0, signed=0)
    start = net.net
    weight = rng.integers(3, 8, (16, 4))
    weight[:, 0] = 1
    net.op("MatMul", net.const(weight))
    plain = net.net
    if twice:
        net.net = start
        net.op("MatMul", net.const(weight))
    for factor in factors:
        net.op("Mul", net.const(factor))
    if softmax:
        net.op("Softmax", axis=1)
    return net.model(*([plain, net.net] if twice else []))


UNDERFLOW = (1e-25, 1e-25, 1e25, 1e25)


def test_scores_that_float32_loses_are_no_ties() -> None:
    """The file gives the same for all images, the graph what is meant."""
    body, images = _scaled(*UNDERFLOW), np.random.default_rng(1).uniform(0, 255, (20, 16))
    result = compare(load(body), images, original_outputs(body, images))
    assert result.labels == 20 and result.ties == 0
    with pytest.raises(MismatchError, match="20 of 20 labels differ"):
        result.require()


def test_ties_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.onnx").write_bytes(_scaled(*UNDERFLOW, 1e-12))
    argv = ["import", str(tmp_path / "x.onnx"), "--out", str(tmp_path / "o"), "--compare", "20"]
    assert cli.run(argv) == 0
    said = capsys.readouterr().out
    told = re.search(r"labels differ on (\d+), where scores are equal within 1e-5", said)
    assert told is not None and int(told[1]) == 19, said  # on the one that is all low they agree
    assert "all labels equal" not in said


def test_maps_are_compared_pixel_for_pixel() -> None:
    """A class that is far off makes all the others equal; which is told."""
    rng, net = np.random.default_rng(0), File(1, 1, 2, 2)
    net.quant(8, 1.0, signed=0)
    weight = rng.integers(-7, 8, (5, 1, 1, 1))
    weight[:2, 0, 0, 0] = 3, 4
    net.op("Conv", net.const(weight), net.const([0.0, 0, 0, 0, -(2.0**44)]))
    body = net.model()
    images = rng.uniform(1, 255, (6, 1, 2, 2)).astype(np.float32)
    expected = original_outputs(body, images)
    assert compare(load(body), images, expected).ties == 0
    expected[0] = expected[0][:, [1, 0, 2, 3, 4]]
    result = compare(load(body), images, expected)
    assert (result.labels, result.ties, result.scores) == (0, 6, 0)
    expected[0][:, :, 1, 1] *= 2
    assert compare(load(body), images, expected).labels == 6


def test_an_output_called_label_is_no_label() -> None:
    model = onnx.ModelProto.FromString(_scaled(1.0, softmax=False))
    model.graph.node[-1].output[0] = model.graph.output[0].name = "label"
    body, images = model.SerializeToString(), np.full((3, 16), 7.0)
    imported = load(body)
    assert [output.name for output in imported.outputs] == ["label", "label"]
    assert compare(imported, images, original_outputs(body, images)).scores == 0


def test_all_outputs_are_compared() -> None:
    body = _scaled(*UNDERFLOW, twice=True, softmax=False)
    images = np.random.default_rng(1).uniform(0, 255, (20, 16))
    result = compare(load(body), images, original_outputs(body, images))
    assert result.labels == 20 and result.scores > 0
    second = onnx.ModelProto.FromString(body).graph.output[1].name
    first = f"image 0, QONNX gives 0, the graph [1-3] in output '{second}'"
    assert result.output == second and (result.expected != result.found).all()
    with pytest.raises(MismatchError, match=first):
        result.require()


def test_an_output_that_stands_twice_is_compared_twice() -> None:
    model = onnx.ModelProto.FromString(_scaled(1.0, twice=True, softmax=False))
    model.graph.output.insert(1, model.graph.output[0])
    images = np.random.default_rng(1).uniform(0, 255, (20, 16))
    expected = original_outputs(model.SerializeToString(), images)
    assert len(expected) == 3 and np.array_equal(*expected[:2])
    assert compare(load(model.SerializeToString()), images, expected).labels == 0
