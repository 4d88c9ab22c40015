# SPDX-License-Identifier: Apache-2.0
"""Ristretto's layers and search on torch models, and its formats in Caffe's files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ristretto_files import quantization_of
from torch import nn

from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.explore.search.metrics import EmbeddingAgreement, Measured
from bitwright.formats import Rounding, parse_format
from bitwright.interop.caffe.quantization_param import Precision, QuantizationParam, RoundingScheme
from bitwright.interop.caffe.quantized import quantized_prototxt
from bitwright.papers.ristretto.behaviour import Behaviour
from bitwright.papers.ristretto.layers import (
    ConvolutionRistretto,
    FcRistretto,
    LayerRule,
    fixed_point,
    minifloat,
    power_of_two,
    with_rules,
)
from bitwright.papers.ristretto.run import ristretto_sensitivity, ristretto_size, search_ristretto
from bitwright.papers.ristretto.search import Parity
from bitwright.quantize.ptq.ranges import measure_ranges

EVEN, AWAY = Rounding.HALF_EVEN, Rounding.HALF_AWAY
VALUES = st.lists(st.floats(-600, 600, width=32), min_size=1, max_size=40)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    return model.eval()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@given(VALUES, st.integers(2, 6), st.integers(1, 5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_minifloats_are_those_of_the_formats(
    values: list[float], exponent: int, mantissa: int, denormals: bool
) -> None:
    x = torch.tensor(values)
    options = "finite" if denormals else "finite,flush"
    number_format = parse_format(f"e{exponent}m{mantissa}<{options}>")
    found = minifloat(x, exponent, mantissa, EVEN, denormals=denormals).double().numpy()
    wanted = number_format.quantized(x.double().numpy())
    # The public code has 2^-bias as a number of its own; the format's zero takes that code.
    smallest = 2.0 ** -((1 << (exponent - 1)) - 1)
    known = np.abs(found) != smallest if not denormals else np.ones_like(found, dtype=bool)
    near = np.abs(x.double().numpy()) < 2 * smallest
    assert np.array_equal(found[known & ~near], wanted[known & ~near])
    if denormals:
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize(
    ("exponent", "mantissa", "low", "high"),
    [(4, 3, 2.0**-7, 480.0), (5, 2, 2.0**-15, 114688.0)],
)
def test_ends_of_the_minifloats(exponent: int, mantissa: int, low: float, high: float) -> None:
    x = torch.tensor([low, 0.99 * low, high, 2 * high, -1e9, 0.0, math.inf])
    found = minifloat(x, exponent, mantissa, AWAY).tolist()
    assert found == [low, 0.0, high, high, -high, 0.0, high]


@given(VALUES, st.integers(1, 16), st.integers(-6, 20))
@settings(max_examples=60, deadline=None)
def test_fixed_point_is_that_of_the_formats(values: list[float], bits: int, fl: int) -> None:
    x = torch.tensor(values)
    wanted = parse_format(f"fixed<{bits},{bits - fl}>").quantized(x.double().numpy())
    assert np.array_equal(fixed_point(x, bits, fl, EVEN).double().numpy(), wanted)


def test_ties_go_away_from_zero_on_the_cpu_and_to_even_on_the_gpu() -> None:
    x = torch.tensor([0.5, 1.5, 2.5, -2.5])
    assert fixed_point(x, 8, 0, AWAY).tolist() == [1, 2, 3, -3]
    assert fixed_point(x, 8, 0, EVEN).tolist() == [0, 2, 2, -2]


def test_powers_of_two() -> None:
    w = torch.tensor([0.0, 1.0, 0.7, 0.71, -0.3, 1e-9, 8.0])
    window = (-3, 0)
    assert power_of_two(w, window, EVEN).tolist() == [0.125, 1, 0.5, 1, -0.25, 0.125, 1]
    with_zero = power_of_two(w, window, EVEN, zero=True).tolist()
    assert with_zero == [0, 1, 0.5, 1, -0.25, 0, 1]


def test_stochastic_rounding_is_unbiased_and_seeded() -> None:
    x = torch.full((20000,), 0.3)
    made = [
        fixed_point(x, 8, 0, Rounding.STOCHASTIC, torch.Generator().manual_seed(s)) for s in (0, 0)
    ]
    assert torch.equal(made[0], made[1])
    assert set(made[0].unique().tolist()) == {0.0, 1.0}
    assert float(made[0].mean()) == pytest.approx(0.3, abs=0.02)


def test_the_public_cpu_code_stops_at_the_first_zero() -> None:
    x = torch.tensor([[0.3, 0.0, 0.3], [0.31, 1e-9, 0.7]])
    found = minifloat(x, 4, 3, AWAY, stop_at_zero=True)
    sound = minifloat(x, 4, 3, AWAY)
    assert torch.equal(found[0, :2], sound[0, :2])  # up to the zero, which is a zero
    assert torch.equal(found.reshape(-1)[2:], x.reshape(-1)[2:])  # all behind it stays float
    assert not torch.equal(sound.reshape(-1)[2:], x.reshape(-1)[2:])


def test_layers_compute_on_grids_with_a_float_sum(images: torch.Tensor) -> None:
    conv = network()[0]
    param = QuantizationParam(
        bw_layer_in=8, fl_layer_in=6, bw_layer_out=8, fl_layer_out=5, bw_params=4, fl_params=4
    )
    behaviour = Behaviour.of(Parity.GPU)
    layer = ConvolutionRistretto(conv, LayerRule(param, behaviour)).eval()
    x = fixed_point(images, 8, 6, EVEN)
    weight, bias = (fixed_point(p.detach(), 4, 4, EVEN) for p in (conv.weight, conv.bias))
    y = nn.functional.conv2d(x, weight, bias, padding=1)
    assert torch.equal(layer(images), fixed_point(y, 8, 5, EVEN))


def test_in_training_weights_are_rounded_by_chance_and_features_stay_float() -> None:
    linear = nn.Linear(16, 4)
    param = QuantizationParam(bw_layer_in=2, bw_layer_out=2, bw_params=4, fl_params=3)
    layer = FcRistretto(linear, LayerRule(param, Behaviour.of(Parity.GPU)))
    layer.generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 16)
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    first.sum().backward()
    assert linear.weight.grad is not None  # straight through, to the float weights
    assert torch.allclose(linear.weight.grad, x.sum(0).expand(4, 16))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_stochastic_scheme_holds_in_evaluation_too() -> None:
    linear = nn.Linear(64, 8)
    param = QuantizationParam(rounding_scheme=RoundingScheme.STOCHASTIC, bw_params=4, fl_params=3)
    layer = FcRistretto(linear, LayerRule(param, inputs=False, outputs=False)).eval()
    x = torch.randn(2, 64)
    assert not torch.equal(layer(x), layer(x))


def test_a_large_bias_saturates_only_in_the_public_code(images: torch.Tensor) -> None:
    model = network()
    with torch.no_grad():
        model[0].bias.fill_(40.0)
    metric = EmbeddingAgreement.of(model, images)
    found = {
        parity: search_ristretto(model, metric, images, margin=5, parity=parity).outcome
        for parity in (Parity.GPU, Parity.MENDED)
    }
    public = [t for t in found[Parity.GPU].trials if t.group.value == "conv_params"]
    assert [t.passed for t in public] == [False]  # at 16 bits already, as at any other width
    assert found[Parity.GPU].chosen.conv_params == 32
    assert not found[Parity.GPU].within_margin
    assert (found[Parity.MENDED].chosen.conv_params or 32) <= 8


@pytest.mark.parametrize("mode", ["dynamic_fixed_point", "minifloat", "integer_power_of_2_weights"])
def test_search_leaves_the_model_alone_and_its_result_is_the_network(
    mode: str, images: torch.Tensor
) -> None:
    model = network()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    metric = EmbeddingAgreement.of(model, images)
    found = search_ristretto(model, metric, images, mode=mode, margin=10)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert isinstance(model[0], nn.Conv2d)
    quantized = found.model(model)
    assert metric(quantized) == found.outcome.accuracy
    kinds = [type(m).__name__ for m in quantized.children()]
    assert kinds[0] == "ConvolutionRistretto" and kinds[-1] == "FcRistretto"
    assert kinds[4] == "BatchNorm2d"  # stays float
    assert found.to_json()["quantization_param"].keys() == {"0", "3", "7"}
    assert "baseline" in found.to_markdown()


def test_formats_follow_from_the_ranges(images: torch.Tensor) -> None:
    model = network()
    ranges = measure_ranges(model, images)
    metric = Measured(lambda _: 1.0)
    found = search_ristretto(model, metric, images, margin=0, parity="gpu")
    assert found.outcome.chosen.conv_params == found.outcome.chosen.activations == 1
    for layer in ranges.layers:
        param = found.params[layer.path]
        assert param.fl_params == 1 - layer.il_parameters
        assert param.fl_layer_in == 1 - layer.il_input
    mini = search_ristretto(model, metric, images, margin=0, mode="minifloat")
    assert {(p.exp_bits, p.mant_bits) for p in mini.params.values()} == {(4, 3)}


def test_sizes_of_what_was_found(images: torch.Tensor) -> None:
    model = network()
    metric = Measured(lambda _: 1.0)
    found = search_ristretto(model, metric, images, mode="minifloat", parity="gpu")
    report = ristretto_size(model, found.rules, (3, 8, 8))
    weights = sum(m.weight.numel() + m.bias.numel() for m in (model[0], model[3], model[7]))
    assert report.parameter_bits == 8 * weights + 32 * 4 * 8
    assert report.layer_inputs == (192 + 96 + 32, 8 * (192 + 96 + 32))


def test_each_operand_of_each_layer_alone(images: torch.Tensor) -> None:
    model = network()
    metric = EmbeddingAgreement.of(model, images)
    rows = ristretto_sensitivity(model, metric, images, bits=4)
    assert [(row["layer"], row["operand"]) for row in rows] == [
        (layer, operand) for layer in ("0", "3", "7") for operand in ("in", "out", "params", "all")
    ]
    assert all(0 <= row["accuracy"] < 1 for row in rows)
    for start in range(0, len(rows), 4):
        *alone, together = (1 - row["accuracy"] for row in rows[start : start + 4])
        assert together > 0.5 * max(alone)


def test_models_and_margins_that_make_no_sense(images: torch.Tensor) -> None:
    metric = Measured(lambda _: 1.0)
    with pytest.raises(ModelError, match="no convolution"):
        search_ristretto(nn.Sequential(nn.ReLU()), metric, images)
    with pytest.raises(RecipeError, match="margin"):
        search_ristretto(network(), metric, images, margin=101)
    with pytest.raises(ModelError, match="no convolution or dense layer 'nine'"):
        with_rules(network(), {"nine": LayerRule(QuantizationParam())})


CONV = """layer {{ name: "conv1" type: "ConvolutionRistretto" bottom: "data" top: "conv1"
  convolution_param {{ num_output: 64 bias_term: true pad: 3 kernel_size: 7 stride: 2 }}
  quantization_param {{ {fields} }} }}
"""
DENSE = """layer {{ name: "fc128" type: "FcRistretto" bottom: "global_pool" top: "fc128"
  inner_product_param {{ num_output: 128 }} quantization_param {{ {fields} }} }}
"""
LISTINGS = [
    (CONV, "precision: MINIFLOAT mant_bits: 3 exp_bits: 4",
     QuantizationParam(Precision.MINIFLOAT, mant_bits=3, exp_bits=4)),
    (DENSE, "precision: MINIFLOAT mant_bits: 3 exp_bits: 4",
     QuantizationParam(Precision.MINIFLOAT, mant_bits=3, exp_bits=4)),
    (CONV, "bw_layer_in: 8 bw_layer_out: 8 bw_params: 8 fl_layer_in: 0 fl_layer_out: 9 "
           "fl_params: 18",
     QuantizationParam(bw_layer_in=8, bw_layer_out=8, bw_params=8, fl_layer_in=0, fl_layer_out=9,
                       fl_params=18)),
    (DENSE, "bw_layer_in: 8 bw_layer_out: 8 bw_params: 4 fl_layer_in: 9 fl_layer_out: 10 "
            "fl_params: 3",
     QuantizationParam(bw_layer_in=8, bw_layer_out=8, bw_params=4, fl_layer_in=9, fl_layer_out=10,
                       fl_params=3)),
    (CONV, "precision: INTEGER_POWER_OF_2_WEIGHTS bw_layer_in: 8 bw_layer_out: 8 fl_layer_in: 0 "
           "fl_layer_out: 9 exp_min: -20 exp_max: -13",
     QuantizationParam(Precision.INTEGER_POWER_OF_2_WEIGHTS, bw_layer_in=8, bw_layer_out=8,
                       fl_layer_in=0, fl_layer_out=9, exp_min=-20, exp_max=-13)),
    (DENSE, "precision: INTEGER_POWER_OF_2_WEIGHTS bw_layer_in: 8 bw_layer_out: 8 fl_layer_in: 9 "
            "fl_layer_out: 10 exp_min: -9 exp_max: -2",
     QuantizationParam(Precision.INTEGER_POWER_OF_2_WEIGHTS, bw_layer_in=8, bw_layer_out=8,
                       fl_layer_in=9, fl_layer_out=10, exp_min=-9, exp_max=-2)),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "fields", "wanted"), LISTINGS)
def test_the_six_published_listings_load(
    layer: str, fields: str, wanted: QuantizationParam
) -> None:
    text = layer.format(fields=fields)
    (found,) = quantization_of(text).values()
    assert found == wanted
    again = layer.format(fields=" ".join(f"{k}: {v}" for k, v in found.to_dict().items()))
    assert quantization_of(again) == quantization_of(text)


FLOAT = """name: "net"
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  data_param { source: "train_lmdb" batch_size: 32 backend: LMDB } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "relu" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "fc" type: "InnerProduct" bottom: "conv1" top: "fc"
  inner_product_param { num_output: 2 } }
"""


def test_a_prototxt_gets_its_formats_and_keeps_all_else(tmp_path: Path) -> None:
    source = tmp_path / "net.prototxt"
    source.write_text(FLOAT)
    params = {"conv1": QuantizationParam(bw_params=4), "fc": QuantizationParam(bw_layer_in=8)}
    text = quantized_prototxt(source, params)
    assert quantization_of(text) == params
    assert '"ConvolutionRistretto"' in text and '"FcRistretto"' in text
    assert 'source: "train_lmdb"' in text and "phase: TRAIN" in text
    again = tmp_path / "again.prototxt"  # a quantized file may be quantized anew
    again.write_text(text)
    other = {"conv1": QuantizationParam(Precision.MINIFLOAT, mant_bits=3, exp_bits=4)}
    assert quantization_of(quantized_prototxt(again, other)) == params | other
    with pytest.raises(DataError, match="no Convolution or InnerProduct layer 'conv9'"):
        quantized_prototxt(source, {"conv9": QuantizationParam()})


@pytest.mark.parametrize("cut", [30, 150, 400])
def test_a_prototxt_that_is_cut_short(tmp_path: Path, cut: int) -> None:
    source = tmp_path / "net.prototxt"
    source.write_text(FLOAT[:cut])
    with pytest.raises(DataError):
        quantized_prototxt(source, {"conv1": QuantizationParam()})
