# SPDX-License-Identifier: Apache-2.0
"""`bitwright export --format packed` and `bitwright import net.bwq`: a round trip of integers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.torch.test_interop_ristretto import FOUR, read

from bitwright.base.errors import DataError
from bitwright.cli import entry as cli
from bitwright.interop.caffe.write import save_caffe
from bitwright.interop.model_files import LoadedModel, load_model
from bitwright.interop.network import InputConvention
from bitwright.interop.packed import save_packed
from bitwright.interop.packed_model import converted, load_packed_model, save_packed_model
from bitwright.ir import INTEGER, load_graph
from bitwright.models import ModelSpec, build_model
from bitwright.pipeline.import_network import integer_graph
from bitwright.quantize import Policy, apply
from bitwright.quantize.ptq import post_training_quantize

SHAPE = (8, 8, 1)
QUANT = {"weight": "int3", "activation": "uint4", "input": "uint4"}
SPEC = ModelSpec(name="digits_cnn", options={"widths": [4, 6]})


def calibrated() -> LoadedModel:
    model = build_model(SPEC, 10, SHAPE, seed=3).eval()
    images = torch.rand(32, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    observed = apply(model, Policy.from_dict(QUANT), "calibrate", images).eval()
    with torch.no_grad():
        observed(images)
    model = apply(observed, Policy.from_dict(QUANT), "train")
    return LoadedModel(model, SHAPE, InputConvention(), None, SPEC, QUANT, 10)


def test_a_file_says_which_model_it_is_and_gives_the_same_integers(tmp_path: Path) -> None:
    packed, path = calibrated(), tmp_path / "net.bwq"
    report = save_packed_model(path, packed)
    again = load_packed_model(path)
    assert (again.spec, again.quant, again.classes) == (SPEC, QUANT, 10)
    graph = integer_graph(again)
    assert graph == integer_graph(packed) and report.total == path.stat().st_size
    out = tmp_path / "net"
    assert cli.run(["import", str(path), "--out", str(out)]) == 0
    assert load_graph(out / "graph.bwg", {"integer": INTEGER}) == graph
    assert json.loads((out / "import.json").read_text())["digest"] == graph.digest


def test_methods_that_change_the_network_are_done_again(tmp_path: Path) -> None:
    """Folded batch norms leave biases that the model of the zoo has not."""
    quant = {**QUANT, "methods": ["fold", "equalize", "calibrate", "bias"]}
    model = build_model(SPEC, 10, SHAPE, seed=3).eval()
    images = torch.rand(32, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    policy = Policy.from_dict(quant)
    made, _ = post_training_quantize(model, policy, images, policy.methods)
    packed = LoadedModel(made.eval(), SHAPE, InputConvention(), None, SPEC, quant, 10)
    save_packed_model(tmp_path / "net.bwq", packed)
    assert integer_graph(load_packed_model(tmp_path / "net.bwq")) == integer_graph(packed)


def test_a_quantized_file_of_another_framework_is_packed_too(tmp_path: Path) -> None:
    save_caffe(read(FOUR)[0], tmp_path / "net.prototxt")
    path = tmp_path / "net.bwq"
    argv = ["export", str(tmp_path / "net.prototxt"), "--format", "packed", "--out", str(path)]
    assert cli.run(argv) == 0
    assert cli.run(["import", str(tmp_path / "net.prototxt"), "--out", str(tmp_path / "a")]) == 0
    assert cli.run(["import", str(path), "--out", str(tmp_path / "b")]) == 0
    one, two = (load_graph(tmp_path / f / "graph.bwg", {"integer": INTEGER}) for f in "ab")
    feeds = {one.inputs[0]: np.random.default_rng(0).integers(-128, 128, (4, 10, 10, 3))}
    assert all(np.array_equal(one.run(feeds)[e], two.run(feeds)[e]) for e in one.outputs)


def test_layers_that_take_other_images_than_the_file_says_are_refused(tmp_path: Path) -> None:
    """Convolutions alone would have taken either, and the graph the size that the layers do not."""
    save_caffe(read(FOUR)[0], tmp_path / "net.prototxt")
    packed = converted(load_model(tmp_path / "net.prototxt"))
    assert packed.input_shape == (10, 10, 3)
    path = tmp_path / "net.bwq"
    save_packed_model(path, replace(packed, input_shape=(20, 20, 3)))
    with pytest.raises(DataError, match=r"\(10, 10, 3\), 'input_shape' says \(20, 20, 3\)"):
        load_packed_model(path)


def test_what_is_no_packed_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.bwq"
    save_packed(path, calibrated().model)
    with pytest.raises(DataError, match="does not say of which model") as refused:
        load_packed_model(path)
    assert "load_packed" in str(refused.value.hint)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="not whole"):
        load_packed_model(path)
    argv = ["export", str(tmp_path), "--format", "packed", "--out", str(tmp_path / "net.bwq")]
    assert cli.run(argv) == 8 and not (tmp_path / "net.bwq").exists()
