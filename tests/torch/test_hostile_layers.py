# SPDX-License-Identifier: Apache-2.0
"""Layers of strangers' files with options that no layer has, in every kind of file."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.pace import within
from tests.torch.hostile_files import packed_file
from torch import nn

from bitwright.base.errors import BitwrightError, DataError, ModelError, RecipeError
from bitwright.interop import ops
from bitwright.interop.caffe.files import QUANTIZATION, parse_prototxt
from bitwright.interop.caffe.quantized import quantized
from bitwright.interop.caffe.read import network_of_net
from bitwright.interop.keras.config import nodes_of
from bitwright.interop.keras.files import KerasFile, KerasLayer
from bitwright.interop.keras.layers import build
from bitwright.interop.network import InputConvention, Layer, Network
from bitwright.interop.network_passes import never_negative
from bitwright.interop.network_to_torch import module_of, module_paths
from bitwright.interop.packed_model import load_packed_model
from bitwright.ir import Graph
from bitwright.quantize import Policy, apply, convert, plan
from bitwright.quantize.plan import make_plan

NAN, INF, HUGE = float("nan"), float("inf"), 10**30
WEIGHT = {"weight": np.ones((2, 1, 3, 3), np.float32)}
VECTOR = {name: np.ones(1, np.float32) for name in ("mean", "variance")}


def net(*layers: Layer, shape: tuple[int, ...] = (1, 8, 8)) -> Network:
    return Network("n", (Layer("x", ops.Input(shape)), *layers), layers[-1].name)


def relu(name: str, source: str) -> Layer:
    return Layer(name, ops.Activation("relu"), (source,))


@pytest.mark.parametrize(
    ("op", "arrays", "said"),
    [
        (ops.Clip(1.0, 0.0), {}, "clips to 1.0 .. 0.0"),
        (ops.Clip(NAN, 0.0), {}, "Clip with low = nan"),
        (ops.Clip(0.0, INF), {}, "Clip with high = inf"),
        (ops.Dropout(5.0), {}, "the share that is dropped is 5.0"),
        (ops.Dropout(NAN), {}, "Dropout with share = nan"),
        (ops.Activation("relu", NAN), {}, "Activation with slope = nan"),
        (ops.Activation("evil"), {}, "the activation 'evil', expected one of relu"),
        (ops.Pool("evil", (2, 2), (2, 2)), {}, "pools by 'evil', expected max or mean"),
        (ops.GlobalPool("evil"), {}, "pools by 'evil'"),
        (ops.Norm(-1.0), VECTOR, "eps is -1.0"),
        (ops.Norm(NAN), VECTOR, "Norm with eps = nan"),
        (ops.Conv((HUGE, HUGE)), WEIGHT, "Conv with stride = an integer of 100 bits"),
        (ops.Conv((9, 9), (1 << 30, 1 << 30)), WEIGHT, "pads an image to 1 x 2147483656 x"),
        (ops.Conv(), {"weight": np.ones((2, 1, 0, 0), np.float32)}, "hold nothing"),
        (ops.Conv(), {"weight": np.ones((0, 1, 3, 3), np.float32)}, "hold nothing"),
        (ops.Pool("max", (HUGE, HUGE), (1, 1)), {}, "Pool with kernel = an integer of 100 bits"),
        (ops.Pool("mean", (1 << 30,) * 2, (1 << 30,) * 2, (1 << 29,) * 2), {}, "pads an image to"),
        (ops.Pad((HUGE, 1 - HUGE, 0, 0)), {}, "Pad with amounts = an integer"),
    ],
)
def test_options_that_no_layer_has(op: Any, arrays: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=f"layer a: .*{said}"):
        net(Layer("a", op, ("x",), arrays))


def test_a_network_has_one_input_in_front() -> None:
    with pytest.raises(ModelError, match="has 2 inputs; expected one"):
        net(Layer("y", ops.Input((1, 8, 8))), Layer("a", ops.Add(), ("x", "y")))
    with pytest.raises(ModelError, match=r"do not fit an input of \(3,\)"):
        net(Layer("d", ops.Dense(), ("x",), {"weight": np.ones((0, 3), "f4")}), shape=(3,))


@pytest.mark.parametrize("convention", [{"scale": NAN}, {"mean": (INF,)}])
def test_the_input_is_scaled_by_numbers(convention: Mapping[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"the scale .* and the mean .* must be finite"):
        InputConvention(**convention)


@pytest.mark.parametrize("inside", ["stride", "weight", "inplace", "forward", "b"])
def test_names_inside_of_names(inside: str) -> None:
    """``c.stride`` was KeyError: the module ``c`` has a stride already."""
    conv, last = Layer("c", ops.Conv(), ("x",), WEIGHT), relu(f"c.{inside}", "r")
    network = net(conv, relu("r", "c"), relu(f"r.{inside}", "r"), last, relu("f.g", last.name))
    paths = module_paths(network)
    assert paths["c"] == "c" and paths["f.g"] == "f.g" and "." not in paths[last.name]
    model = module_of(network)
    assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 2, 6, 6)
    assert [*model.state_dict()] == ["c.weight"]


def test_a_number_makes_no_name_the_folder_of_another() -> None:
    """The second of two names that both become ``_`` is not the folder of a third."""
    network = net(relu("é", "x"), relu("è", "é"), relu("__2.inplace", "è"))
    paths = module_paths(network)
    assert [*paths.values()][1:] == ["_", "__3", "__2.inplace"]
    assert module_of(network)(torch.zeros(1, 1, 8, 8)).shape == (1, 1, 8, 8)


def test_quantizing_a_layer_leaves_those_called_after_it(tmp_path: Path) -> None:
    layers = [
        {"name": "x", "op": "Input", "options": {"shape": [1, 8, 8]}, "inputs": []},
        {"name": "a", "op": "Activation", "options": {"function": "relu"}, "inputs": ["x"]},
        {"name": "a.inplace", "op": "Flatten", "options": {}, "inputs": ["a"]},
    ]
    facts = {"version": 1, "name": "n", "output": "a.inplace", "input": {}}
    facts["layers"] = [{**layer, "arrays": [], "notes": {}} for layer in layers]
    quant = {"weight": "int4", "activation": "uint4", "input": "uint8"}
    about = {"quant": quant, "classes": 1, "input_shape": [8, 8, 1], "input": {}, "shapes": {}}
    path = tmp_path / "q.bwq"
    path.write_bytes(packed_file({"about": about | {"layers": facts}, "entries": []}))
    with pytest.raises(ModelError, match="belongs to another model or policy"):  # has no numbers
        load_packed_model(path)


def test_many_names_and_ways_take_time_as_they_are_many() -> None:
    with within(8):
        names = [chr(0x4E00 + k) for k in range(5000)]
        network = net(*(relu(*pair) for pair in zip(names, ["x", *names], strict=False)))
        assert len({*module_paths(network).values()}) == 5001
        assert [layer.name for layer in network.readers(names[0])] == [names[1]]
        chain = {"c0": Layer("c0", ops.Activation("relu"))}
        for k in range(1, 3000):  # two to the power of 3 000 ways
            chain[f"c{k}"] = Layer(f"c{k}", ops.Concat(), (f"c{k - 1}", f"c{k - 1}"))
        known: dict[str, bool] = {}
        for k in range(3000):  # each is looked at once, whoever asks
            assert never_negative(chain, f"c{k}", known)
        assert len(known) == 3000
        assert not never_negative({**chain, "c0": Layer("c0", ops.Flatten())}, "c2999", {})


POLICY = {"weight": "int4", "activation": "uint4", "input": "uint4"}


def _conv(source: str) -> tuple[Layer, Layer]:
    conv = Layer("c", ops.Conv(), (source,), {"weight": np.ones((1, 1, 1, 1), np.float32)})
    return conv, relu("r", "c")


def _chain(op: ops.Op, count: int, ways: int) -> list[Layer]:
    """Layers that each read the one before, so often."""
    names = ["r", *(f"a{k}" for k in range(count))]
    return [Layer(name, op, (front,) * ways) for front, name in pairwise(names)]


def _frozen(network: Network) -> Graph:
    shape = network.shapes[network.input.name]
    model, sample = module_of(network), torch.rand(2, *shape)
    policy = Policy.from_dict(POLICY)
    observed = apply(model, policy, "calibrate", sample)
    observed(sample)
    return apply(observed, policy, "freeze", sample_shape=shape).graph


@pytest.mark.timeout(120)
@pytest.mark.parametrize("policy", [{}, {"concat_scales": "shared"}])
def test_ways_through_a_network_are_followed_once(
    policy: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are 2^40 from the end of the sums to their beginning, and 2^18 of the joins."""
    monkeypatch.setitem(globals(), "POLICY", {**POLICY, **policy})
    sums = net(*_conv("x"), *_chain(ops.Add(), 40, 2), Layer("f", ops.Flatten(), ("a39",)))
    assert _frozen(sums).outputs
    joins = net(*_conv("x"), *_chain(ops.Concat(), 18, 2), shape=(1, 1, 1))
    assert _frozen(joins).types[_frozen(joins).outputs[0]].channels == 1 << 18


@pytest.mark.timeout(120)
def test_layers_behind_each_other_are_no_functions_inside_functions() -> None:
    dense = Layer("d", ops.Dense(), ("f",), {"weight": np.ones((2, 64), np.float32)})
    long = _chain(ops.Dropout(0.5), 1200, 1)
    flat = Layer("f", ops.Flatten(), (long[-1].name,))
    assert _frozen(net(*_conv("x"), *long, flat, dense)).outputs


def test_activations_have_a_largest_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 000 of them, a file of 200 kB, took 3 GB for their histograms."""
    monkeypatch.setattr(convert, "_MOST_QUANTIZERS", 20)
    for count, fits in ((18, True), (20, False)):
        long = _chain(ops.Activation("relu"), count, 1)
        network = net(*_conv("x"), *long, Layer("f", ops.Flatten(), (long[-1].name,)))
        if fits:
            assert _frozen(network).outputs
            continue
        with pytest.raises(ModelError, match="22 activations to quantize; at most 20"):
            _frozen(network)


def test_rules_times_layers_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 1 MB had 12 000 rules for each of 4000 layers: six minutes, and 1.6 GB."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
    many = {"rules": [{"role": "weight", "rounding": "floor"}] * 200}
    make_plan(model, Policy.from_dict(many))
    monkeypatch.setattr(plan, "_MOST_COMPARED", 4000)
    with pytest.raises(RecipeError, match="204 rules with patterns for 22 layers"):
        make_plan(model, Policy.from_dict(many))
    named = [{"layers": str(n), "role": "weight", "format": "int8"} for n in range(20)]
    make_plan(model, Policy.from_dict({"rules": named * 10}))


def test_letters_of_rules_times_letters_of_layers_have_a_bound() -> None:
    """Patterns of 2000 letters for names of 10 000: 80 ms each, a quarter of an hour for 1 MB."""
    layers = [(f"{'a' * 2000}{n}", nn.Linear(4, 4)) for n in range(4)]
    rule = {"layers": f"*{'a' * 2000}z", "role": "weight", "format": "int8"}
    with pytest.raises(RecipeError, match="that of the letters of both"):
        make_plan(nn.Sequential(OrderedDict(layers)), Policy.from_dict({"rules": [rule] * 70}))


def test_an_order_is_restored_by_a_matrix_that_fits() -> None:
    joins = _chain(ops.Concat(), 8, 2)  # 256 channels of 64 pixels
    with pytest.raises(ModelError, match="16384 elements have another order than torch's"):
        _frozen(net(*_conv("x"), *joins, Layer("f", ops.Flatten(), ("a7",))))


CAFFE = """name: "n" layer { name: "data" type: "Input" top: "data" %s
    input_param { shape { dim: 1 dim: 1 dim: 8 dim: 8 } } }
    layer { name: "a" type: "%s" bottom: "data" top: "a" %s }"""


@pytest.mark.parametrize(
    ("kind", "front", "options", "said"),
    [
        ("Dropout", "", "dropout_param { dropout_ratio: nan }", "share = nan"),
        ("ReLU", "", "relu_param { negative_slope: inf }", "slope = inf"),
        ("ReLU", "transform_param { scale: nan }", "", "must be finite"),
        ("ReLU", "transform_param { mean_value: inf }", "", "must be finite"),
        ("Pooling", "", "pooling_param { kernel_size: 4294967295 stride: 4294967295 }", "kernel ="),
    ],
)
def test_numbers_of_caffe(kind: str, front: str, options: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        network_of_net(parse_prototxt(CAFFE % (front, kind, options)), {}, {})


@pytest.mark.parametrize(
    "formats",
    [
        {"fl_params": 2**31 - 1}, {"fl_layer_in": -2000}, {"fl_layer_out": HUGE},
        {"precision": "INTEGER_POWER_OF_2_WEIGHTS", "exp_min": -(10**9), "exp_max": 10**9}, 5,
    ],
)  # fmt: skip
def test_formats_of_ristretto(formats: Any) -> None:
    words = {"precision": "DYNAMIC_FIXED_POINT", "bw_params": 8} | formats if formats != 5 else 5
    network = net(Layer("a", ops.Conv(), ("x",), WEIGHT, {QUANTIZATION: words}))
    with pytest.raises(
        DataError, match=r"layer a: .*expected -126 to 126|expected fields, found 5"
    ):
        quantized(network)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("Conv2D", {"strides": [0, 0], "padding": "same"}, "ZeroDivisionError"),
        ("Conv2D", {"dilation_rate": HUGE}, "dilation = an integer"),
        ("MaxPooling2D", {"pool_size": 2, "strides": [0, 0], "padding": "same"}, "ZeroDivision"),
        ("AveragePooling2D", {"pool_size": [HUGE, HUGE], "strides": 1}, "kernel = an integer"),
        ("ZeroPadding2D", {"padding": HUGE}, "amounts = an integer"),
        ("BatchNormalization", {"epsilon": -1}, "eps is -1"),
        ("Dropout", {"rate": 5}, "the share that is dropped is 5"),
        ("InputLayer", {"batch_input_shape": [None, 1e400, 8, 1]}, "expected whole numbers"),
        ("InputLayer", {"batch_input_shape": [None, 8, 8, 1]}, "has 2 inputs"),
    ],
)
def test_numbers_of_keras(kind: str, options: Mapping[str, Any], said: str) -> None:
    image = {"name": "x", "batch_input_shape": [None, 8, 8, 1]}
    config = {"kernel_size": [3, 3], "strides": [1, 1], "filters": 2, "use_bias": False}
    layers = [
        {"class_name": "InputLayer", "config": image},
        {"class_name": kind, "config": {**config, "name": "a", "activation": "linear", **options}},
    ]
    whole = {"class_name": "Sequential", "config": {"layers": json.loads(json.dumps(layers))}}
    norm = {name: np.ones(1, "f4") for name in ("gamma", "beta", "moving_mean", "moving_variance")}
    arrays = norm if kind == "BatchNormalization" else {"kernel": np.ones((3, 3, 1, 2), "f4")}
    file = KerasFile(Path("k.h5"), (KerasLayer("a", arrays),), whole)
    with pytest.raises(BitwrightError, match=said):
        build(nodes_of(whole)[0], file, None)
