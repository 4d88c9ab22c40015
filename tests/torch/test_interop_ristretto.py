# SPDX-License-Identifier: Apache-2.0
"""A prototxt of Ristretto loads as the quantized network that it describes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ristretto_files import quantization_of
from torch import Tensor

from bitwright.base.errors import BitwrightError, ModelError
from bitwright.cli import entry as cli
from bitwright.data import DatasetSpec
from bitwright.interop.caffe.files import parse_prototxt
from bitwright.interop.caffe.quantized import quantized
from bitwright.interop.caffe.read import network_of_net
from bitwright.interop.caffe.write import save_caffe
from bitwright.interop.model_files import formats_from_spec, load_model
from bitwright.interop.network import Network
from bitwright.interop.network_to_torch import module_of
from bitwright.ir import INTEGER, load_graph
from bitwright.models import ModelSpec
from bitwright.papers.ristretto.behaviour import Behaviour
from bitwright.papers.ristretto.layers import LayerRule, with_rules
from bitwright.papers.ristretto.search import Parity
from bitwright.pipeline.recipe import Recipe
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.quantize import Policy, apply

SHAPE = (3, 10, 10)
TEXT = """
layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 1 dim: 3 dim: 10 dim: 10 } } }
layer { name: "conv1" type: "ConvolutionRistretto" bottom: "data" top: "conv1"
        convolution_param { num_output: 6 pad: 1 kernel_size: 3 bias_term: BIAS }
        quantization_param { %s } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
        pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "relu1" type: "ReLU" bottom: "pool1" top: "pool1" }
layer { name: "conv2" type: "ConvolutionRistretto" bottom: "pool1" top: "conv2"
        convolution_param { num_output: 4 kernel_size: 3 bias_term: BIAS }
        quantization_param { %s } }
layer { name: "conv3" type: "ConvolutionRistretto" bottom: "conv2" top: "conv3"
        convolution_param { num_output: 4 kernel_size: 1 bias_term: BIAS }
        quantization_param { %s } }
layer { name: "relu3" type: "ReLU" bottom: "conv3" top: "conv3" }
layer { name: "fc" type: "FcRistretto" bottom: "conv3" top: "fc"
        inner_product_param { num_output: 5 bias_term: BIAS }
        quantization_param { %s } }
"""


def fixed(bits: tuple[int, int, int], fractions: tuple[int, int, int]) -> str:
    names = ("layer_in", "layer_out", "params")
    words = [f"bw_{n}: {b} fl_{n}: {f}" for n, b, f in zip(names, bits, fractions, strict=True)]
    return " ".join(words)


def read(params: tuple[str, ...], bias: bool = True) -> tuple[Network, str]:
    text = TEXT.replace("BIAS", str(bias).lower()) % params
    rng = np.random.default_rng(0)
    shapes = {"conv1": (6, 3, 3, 3), "conv2": (4, 6, 3, 3), "conv3": (4, 4, 1, 1), "fc": (5, 36)}
    numbers = {
        name: [rng.normal(scale=0.4, size=s).astype(np.float32) for s in ((shape), shape[:1])]
        for name, shape in shapes.items()
    }
    kept = {name: arrays if bias else arrays[:1] for name, arrays in numbers.items()}
    return network_of_net(parse_prototxt(text), kept, {}), text


def simulated(network: Network, text: str, x: Tensor) -> Tensor:
    """What Ristretto's own layers compute: the arithmetic of the public GPU code."""
    behaviour = Behaviour.of(Parity.GPU)
    rules = {name: LayerRule(p, behaviour) for name, p in quantization_of(text).items()}
    with torch.no_grad():
        return with_rules(module_of(network), rules).eval()(x)


def images() -> Tensor:
    return torch.rand(16, *SHAPE, generator=torch.Generator().manual_seed(0)) * 3 - 1.5


def evaluated(network: Network, x: Tensor) -> Tensor:
    placed, quant = quantized(network)
    model = apply(module_of(placed), Policy.from_dict(quant), "train", sample_shape=SHAPE).eval()
    with torch.no_grad():
        return model(x)


WIDTHS = st.tuples(*[st.integers(3, 9)] * 3)
FRACTIONS = st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(2, 8))


@given(st.lists(st.tuples(WIDTHS, FRACTIONS), min_size=4, max_size=4))
@settings(max_examples=15, deadline=None)
def test_fixed_point_computes_what_ristrettos_layers_compute(
    formats: list[tuple[tuple[int, int, int], tuple[int, int, int]]],
) -> None:
    network, text = read(tuple(fixed(*each) for each in formats))
    assert torch.equal(evaluated(network, images()), simulated(network, text, images()))


def test_minifloats_compute_what_ristrettos_layers_compute() -> None:
    network, text = read(("precision: MINIFLOAT exp_bits: 5 mant_bits: 2",) * 4)
    assert torch.equal(evaluated(network, images()), simulated(network, text, images()))


def test_powers_of_two_compute_what_ristrettos_layers_compute() -> None:
    param = (
        "precision: INTEGER_POWER_OF_2_WEIGHTS bw_layer_in: 8 bw_layer_out: 8 fl_layer_in: 5 "
        "fl_layer_out: 4 exp_min: -8 exp_max: -1"
    )
    network, text = read((param,) * 4, bias=False)
    assert torch.equal(evaluated(network, images()), simulated(network, text, images()))


FOUR = (
    fixed((8, 8, 8), (6, 4, 7)),
    fixed((6, 8, 6), (3, 5, 6)),
    fixed((8, 7, 6), (5, 4, 6)),
    fixed((7, 7, 5), (4, 2, 5)),
)


def test_quantizers_stand_where_the_file_has_them() -> None:
    placed, quant = quantized(read(FOUR)[0])
    names = [layer.name for layer in placed.layers]
    assert names == [
        "data", "conv1", "pool1", "relu1", "conv2/in", "conv2", "conv2/out", "conv3", "relu3",
        "fc/0", "fc", "fc/out",
    ]  # fmt: skip
    formats = {(r["layers"], r["role"]): (r["format"], r["value"]) for r in quant["rules"]}
    assert quant["input"]["format"] == "int8" and quant["input"]["value"] == 2.0**-6
    assert formats["conv2_in", "activation"] == ("int6", 2.0**-3)
    assert formats["fc", "weight"] == formats["fc", "bias"] == ("int5", 2.0**-5)
    assert formats["fc_out", "activation"] == ("int7", 2.0**-2)


def test_import_gives_integers_and_export_the_prototxt_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network, text = read(FOUR)
    save_caffe(network, tmp_path / "net.prototxt")
    out = tmp_path / "net"
    assert cli.run(["import", str(tmp_path / "net.prototxt"), "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["integers"] == "all" and report["quant"]["input"]["format"] == "int8"
    graph = load_graph(out / "graph.bwg", {"integer": INTEGER})
    levels = torch.round((images() * 64).clamp(-128, 127)).to(torch.int64)
    scores = graph.run({graph.inputs[0]: levels.permute(0, 2, 3, 1).numpy()})[graph.outputs[0]]
    wanted = simulated(network, text, images())
    assert np.array_equal(scores * graph.types[graph.outputs[0]].scale[0], wanted.numpy())
    again = tmp_path / "again.prototxt"
    assert cli.run(["export", str(out), "--format", "caffe", "--out", str(again)]) == 0
    assert quantization_of(again.read_text()) == quantization_of(text)
    assert load_model(out / "model.safetensors").quant == load_model(again).quant
    spec = ModelSpec(name=str(again))
    assert formats_from_spec(spec, None, (10, 10, 3)) == report["quant"]
    assert formats_from_spec(ModelSpec(name="digits_cnn"), 10, (8, 8, 1)) == {}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ("rounding_scheme: STOCHASTIC", "stochastically"),
        (fixed((32, 8, 8), (6, 4, 7)), "32 bits"),
        (fixed((8, 8, 8), (-1, 4, 7)), "finer than the steps"),
        ("precision: INTEGER_POWER_OF_2_WEIGHTS exp_min: -3 bw_layer_in: 8 bw_layer_out: 8", "3"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(changed: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as refused:
        quantized(read((FOUR[0], changed, *FOUR[2:]))[0])
    assert refused.value.where == "layer conv2" and refused.value.hint


def test_one_tensor_in_two_formats_is_refused() -> None:
    network, _ = read(FOUR)
    param = fixed((8, 8, 8), (5, 4, 7))
    other = (
        TEXT.replace("BIAS", "true") % FOUR
        + f"""
layer {{ name: "side" type: "ConvolutionRistretto" bottom: "data" top: "side"
        convolution_param {{ num_output: 5 kernel_size: 10 }} quantization_param {{ {param} }} }}
layer {{ name: "flat" type: "Flatten" bottom: "side" top: "flat" }}
layer {{ name: "sum" type: "Eltwise" bottom: "fc" bottom: "flat" top: "sum" }}
"""
    )
    numbers = {layer.name: list(layer.arrays.values()) for layer in network.layers if layer.arrays}
    rng = np.random.default_rng(1)
    numbers["side"] = [rng.random((5, 3, 10, 10), np.float32), rng.random(5, np.float32)]
    with pytest.raises(BitwrightError, match="different formats"):
        quantized(network_of_net(parse_prototxt(other), numbers, {}))


def test_a_recipe_has_the_formats_of_its_models_file(tmp_path: Path) -> None:
    param = fixed((5, 8, 4), (4, 3, 3))
    text = f"""
layer {{ name: "data" type: "Input" top: "data"
        input_param {{ shape {{ dim: 1 dim: 1 dim: 8 dim: 8 }} }} }}
layer {{ name: "fc" type: "FcRistretto" bottom: "data" top: "fc"
        inner_product_param {{ num_output: 10 }} quantization_param {{ {param} }} }}
"""
    rng = np.random.default_rng(0)
    numbers = {"fc": [rng.random((10, 64), np.float32), rng.random(10, np.float32)]}
    path = tmp_path / "net.prototxt"
    save_caffe(network_of_net(parse_prototxt(text), numbers, {}), path)
    recipe = Recipe(
        name="digits", data=DatasetSpec(name="digits"), model=ModelSpec(name=str(path)),
        quant={"input": "uint4"},
    )  # fmt: skip
    work = Workspace(recipe)
    formats = {(r["layers"], r["role"]): r["format"] for r in work.quant["rules"]}
    weight = {("fc", "weight"): "int4", ("fc", "bias"): "int4"}
    assert formats == {("fc_out", "activation"): "int8", **weight}
    assert work.quant["input"] == "uint4" and work.fresh_model().sample_shape == (1, 8, 8)
    assert work.policy == Policy.from_dict(work.quant)
