# SPDX-License-Identifier: Apache-2.0
"""Brevitas' state dicts and keyword names: the integers are Brevitas' own."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests import brevitas_peer as peer
from tests.pace import within
from torch import Tensor

from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.interop.brevitas import BrevitasModel, load_brevitas
from bitwright.quantize import IntegerModel, Policy, apply
from bitwright.quantize.spec import Layer, QuantSpec, Role

SHAPE = (3, peer.SIZE, peer.SIZE)
Arrays = dict[str, NDArray[np.generic]]


def golden(case: str) -> tuple[dict[str, Tensor], Tensor, Arrays]:
    """State dict, images and integers of a case, as Brevitas gave them."""
    with np.load(peer.GOLDEN) as file:
        arrays = {key.removeprefix(f"{case}/"): file[key] for key in file.files
                  if key.startswith(f"{case}/")}  # fmt: skip
    state = {k.removeprefix("state/"): torch.from_numpy(v) for k, v in arrays.items()
             if k.startswith("state/")}  # fmt: skip
    found = {k.removeprefix("found/"): v for k, v in arrays.items() if k.startswith("found/")}
    return state, torch.from_numpy(arrays["x"]), found


def loaded(case: str, state: dict[str, Tensor]) -> BrevitasModel:
    policy = Policy.from_dict(peer.policy(case))
    return load_brevitas(peer.plain(), state, policy, sample_shape=SHAPE)


def require_equal(model: BrevitasModel, x: Tensor, found: Arrays) -> None:
    """Weights and activations equal Brevitas' integers; scores, but for the last bias, which is
    rounded to the accumulator's grid here.
    """
    for path in (key.removesuffix(".weight") for key in found if key.endswith(".weight")):
        layer = model.model.get_submodule(path)
        levels, _ = layer.weight_quantizer.levels(layer.weight)
        assert np.array_equal(levels.numpy(), found[f"{path}.weight"]), path
    frozen = apply(model.model, model.model.policy, "freeze", sample_shape=SHAPE)
    assert isinstance(frozen, IntegerModel)
    edges = frozen.edges(x)
    names = {"inp": frozen.graph.inputs[0]}
    activations = [key for key in found if not key.endswith(".weight") and key != "scores"]
    assert {"inp", "relu1", "mid", "relu2", "relu3"} == set(activations)
    for path in activations:
        ours = np.moveaxis(edges[names.get(path, path)], -1, 1)
        assert np.array_equal(ours, found[path]), path
    apart = np.abs(frozen.scores(x).numpy() - found["scores"]).max()
    assert apart <= frozen.score_scale / 2 * (1 + 1e-9)


@pytest.mark.parametrize("case", peer.CASES)
def test_the_integers_are_those_of_brevitas(case: str) -> None:
    state, x, found = golden(case)
    model = loaded(case, state)
    assert model.open == ()
    assert bool(model.fixed) == (case == "powers")
    require_equal(model, x, found)
    with torch.no_grad():  # and evaluation of the model itself is the frozen one
        frozen = apply(model.model, model.model.policy, "freeze", sample_shape=SHAPE)
        assert torch.equal(model.model(x), frozen(x))


@pytest.mark.skipif(importlib.util.find_spec("brevitas") is None, reason="Brevitas not installed")
@pytest.mark.parametrize("case", peer.CASES)
def test_against_brevitas_itself(case: str) -> None:
    net = peer.theirs(case)
    state = {key: value.clone() for key, value in net.state_dict().items()}
    x = peer.images(100)
    require_equal(loaded(case, state), x, peer.integers(net, x))


def test_training_goes_on_from_it() -> None:
    state, x, _ = golden("learned")
    model = apply(loaded("learned", state).model, Policy.from_dict(peer.policy("learned")), "train")
    model.train()
    model(x).square().sum().backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert not missing


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc.weight": None}, "lacks 'fc.weight'"),
        ({"extra.weight": torch.zeros(1)}, "has 'extra.weight'"),
        ({"fc.weight": torch.zeros(10, 3)}, "has the shape"),
        ({"conv1.weight": torch.full((8, 3, 3, 3), torch.nan)}, "NaN"),
        ({"conv1.weight_quant.tensor_quant.scaling_impl.value": torch.ones(())}, "learned scale"),
        (
            {"conv1.input_quant.fused.tensor_quant.scaling_impl.value": torch.ones(())},
            "no counterp",
        ),
        ({"relu1.act_quant.tensor_quant.zero_point_impl.value": torch.ones(())}, "no counterpart"),
        ({"nowhere.act_quant.tensor_quant.scaling_impl.value": torch.ones(())}, "no layer there"),
        ({"conv1.act_quant.tensor_quant.scaling_impl.value": torch.ones(())}, "quantizes nothing"),
        ({"fc.bias": "text"}, "is no tensor"),
        ({"fc.bias": torch.zeros(0)}, "is no tensor of numbers"),
        ({"fc.bias": torch.ones(10).to_sparse()}, "is no tensor of numbers"),
        ({"fc.bias": torch.ones(10, dtype=torch.complex64)}, "is no tensor of numbers"),
        ({"fc.bias": torch.ones(10, device="meta")}, "is no tensor of numbers"),
        ({5: torch.ones(())}, "5 is no tensor"),
        ({"nowhere.weight_quant.tensor_quant.scaling_impl.value": torch.ones(())}, "no layer ther"),
        ({"fc.weight.weight_quant.tensor_quant.scaling_impl.value": torch.ones(())}, "no layer th"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Tensor | None], message: str) -> None:
    state, _, _ = golden("tensor")
    state |= change  # type: ignore[arg-type]
    wrong = {key: value for key, value in state.items() if value is not None}
    with pytest.raises(DataError, match=message):
        loaded("tensor", wrong)


@pytest.mark.parametrize("part", [".runtime_stats.a", ".act_quant.a"])
def test_a_long_name_takes_time_with_its_length(part: str) -> None:
    """A name with a line end was searched from each of its parts: a second for 100 kB, with the
    square.
    """
    state, _, _ = golden("tensor")
    state["a" + part * 25_000 + "\n"] = torch.ones(())
    with within(2):
        with contextlib.suppress(DataError):
            loaded("tensor", state)


def test_scales_of_the_parts_of_a_concatenation_must_agree() -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (torch.nn.Conv2d(3, 4, 1, bias=False) for _ in range(2))
            self.ra, self.rb = torch.nn.ReLU(), torch.nn.ReLU()
            self.c = torch.nn.Conv2d(8, 2, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(torch.cat([self.ra(self.a(x)), self.rb(self.b(x))], 1))

    model, policy = Two(), Policy.from_dict({"weight_bit_width": 4, "bit_width": 4})
    key = "act_quant.fused_activation_quant_proxy.tensor_quant.scaling_impl.value"
    same = {**model.state_dict(), f"ra.{key}": torch.ones(()), f"rb.{key}": torch.ones(())}
    found = load_brevitas(model, same, policy, sample_shape=(3, 4, 4))
    assert found.open == ("x_quantizer",)  # the network's input has none there
    with pytest.raises(ModelError, match="share one scale"):
        load_brevitas(model, {**same, f"rb.{key}": 2 * torch.ones(())}, policy,
                      sample_shape=(3, 4, 4))  # fmt: skip


def spec(data: dict[str, object], role: Role, layer: str = "conv") -> QuantSpec:
    found = Policy.from_dict(data).resolve(Layer(layer, "Conv2d"), role).spec
    assert found is not None
    return found


def test_names_mean_what_they_mean_in_brevitas() -> None:
    plain = {"weight_bit_width": 4, "bit_width": 4, "input_bit_width": 8}
    weight, activation = spec(plain, Role.WEIGHT), spec(plain, Role.ACTIVATION)
    assert (weight.format.name, weight.scale, weight.granularity) == ("int4n", "max", "per_tensor")
    assert (activation.format.name, activation.scale) == ("uint4", "learned")
    assert spec(plain, Role.INPUT).format.name == "int8"  # QuantIdentity is signed
    named = {"weight_quant": "Int8WeightPerChannelFloat", "weight_bit_width": 3,
             "act_quant": "Uint8ActPerTensorFixedPoint"}  # fmt: skip
    weight, activation = spec(named, Role.WEIGHT), spec(named, Role.ACTIVATION)
    assert (weight.format.name, weight.granularity.value) == ("int3n", "per_channel")
    assert activation.power_of_two and activation.format.name == "uint8"
    binary = {"weight_quant_type": "BINARY", "weight_scaling_impl_type": "CONST",
              "weight_scaling_init": 0.1, "bit_width": 2}  # fmt: skip
    weight = spec(binary, Role.WEIGHT)
    assert weight.format.name == "bipolar" and weight.value == 0.1


def test_a_constant_scale_follows_the_width() -> None:
    """ReLU6 in 4 bits has steps of 6/15; the 8 signed bits of one layer 6/128."""
    data = {"weight_bit_width": 4, "bit_width": 4, "scaling_impl_type": "CONST", "max_val": 6.0,
            "rules": [{"layers": "mid", "bit_width": 8, "signed": True}]}  # fmt: skip
    assert spec(data, Role.ACTIVATION).value == pytest.approx(0.4)
    assert spec(data, Role.ACTIVATION, "mid").value == pytest.approx(6 / 128)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"weight_bit_width": 4, "weight": "int4"}, "both by a format"),
        ({"weight_bit_width": 99}, "1 .. 32"),
        ({"weight_bit_width": True}, "1 .. 32"),
        ({"weight_quant": "Int8Foo"}, "no quantizer of Brevitas"),
        ({"act_quant": "Int8WeightPerTensorFloat"}, "no quantizer of Brevitas"),
        ({"scaling_impl_type": "HE", "bit_width": 4}, "unknown value"),
        ({"scaling_impl_type": 3, "bit_width": 4}, "unknown value"),
        ({"scaling_impl_type": "CONST", "bit_width": 4}, "needs a number"),
        ({"weight_bit_widht": 4}, "unknown key"),
        (
            {"weight_bit_width": 1, "weight_scaling_impl_type": "CONST", "weight_max_val": 1},
            "has one level",
        ),
        ({"signed": "yes", "bit_width": 4}, "true or false"),
        ({"quant_type": "INT", "max_val": 2}, "no bit width"),
        ({"bit_width": 4, "act_bit_width": 4}, "given twice"),
        ({"rules": [{"role": "weight", "input_bit_width": 4}]}, "leave role out"),
    ],
)
def test_words_that_make_no_sense(data: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Policy.from_dict(data)


def test_the_golden_file_is_of_these_cases() -> None:
    assert Path(peer.GOLDEN).is_file()
    with np.load(peer.GOLDEN) as file:
        assert {key.partition("/")[0] for key in file.files} == set(peer.CASES)
