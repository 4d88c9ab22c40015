# SPDX-License-Identifier: Apache-2.0
"""Every number format through policy, quantizer, freezing and the integer graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bitwright.base.errors import ModelError, RecipeError
from bitwright.formats import CodebookFormat, MinifloatFormat, PowerOfTwoFormat, parse_format
from bitwright.formats.clustering import kmeans
from bitwright.ir.executor import Executor
from bitwright.lower import certify, check, optimise
from bitwright.lower.compare import compare_edges
from bitwright.quantize import Policy, apply, inspect_model
from bitwright.quantize.spec import Granularity, Role, ScaleRule

WEIGHTS: dict[str, Any] = {
    "e4m3": "e4m3",
    "e4m3 of the study": {"format": "e4m3<finite,flush>", "scale": "const"},
    "e5m2": {"format": "e5m2", "scale": "mse"},
    "e2m1": {"format": "e2m1", "granularity": "per_tensor"},
    "po2_4": "po2_4",
    "po2_6": {"format": "po2_6<zero,linear>", "granularity": "per_channel"},
    "cb16": "cb16",
    "cb8:e4m3": {"format": "cb8:e4m3", "granularity": "per_channel"},
    "cb16 of all": {"format": "cb16", "scope": "network"},
    "mxfp4": "mx<e2m1,4>",
    "mxfp8": "mx<e4m3,4>",
    "mxint8": "mx<fixed<8,2>,4>",
    "dfp8": "dfp8",
    "fixed": "fixed<8,0>",
}
ACTIVATIONS: dict[str, Any] = {
    "uint4": "uint4",
    "dfp8": "dfp8",
    "e4m3": "e4m3",
    "e4m3 of the study": {"format": "e4m3", "scale": "const"},
    "e3m4<flush>": "e3m4<flush>",
    "e2m1": {"format": "e2m1", "scale": "max"},
}


class Net(nn.Module):
    """Batch norm, depthwise, a sum, a concatenation, an average; negative values, too."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.two = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.three = nn.Conv2d(8, 8, 1)
        self.act = nn.ReLU()
        self.last = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.norm(self.one(x)))
        b = self.act(self.two(a))
        c = self.three(b) + a
        d = torch.cat([c, b], 1)
        return self.last(d.mean((2, 3)))


def networks(weight: Any, activation: Any, bias: Any = None, entering: Any = "uint8") -> tuple:
    """The float model, the policy, the images."""
    torch.manual_seed(3)
    model = Net()
    model.norm.running_mean.normal_(std=0.2)
    model.norm.running_var.uniform_(0.5, 2)
    rules = [{"position": "last", "role": "weight", "granularity": "per_tensor"}]
    given = {"weight": weight, "activation": activation, "input": entering, "rules": rules}
    policy = Policy.from_dict(given if bias is None else given | {"bias": bias})
    return model.eval(), policy, torch.rand(6, 3, 7, 5)


def require_equal(frozen: nn.Module, images: Tensor) -> None:
    """Graph, optimised graph, and both executors give the frozen model's integers."""
    graph = frozen.graph
    compare_edges(graph, frozen.edges(images), accumulators=True).require()
    better = optimise(graph, check=4)
    check(certify(better), better)
    levels = frozen.edges(images)
    for backend in ("native", "numpy"):
        found = Executor(better, threads=1, backend=backend).run({"x": levels["x"]})
        assert np.array_equal(found["scores"], levels["scores"]), backend


@pytest.mark.parametrize("weight", WEIGHTS)
def test_every_weight_format_is_exact_in_integers(weight: str) -> None:
    model, policy, images = networks(WEIGHTS[weight], "uint8")
    converted = apply(model, policy, "train", images).eval()
    frozen = apply(converted, policy, "freeze")
    with torch.no_grad():
        wanted, found = converted(images), frozen(images)
    # The multiplier of a requantization has 17 bits; beyond that they are the same network.
    assert (wanted - found).abs().max() <= 0.02 * wanted.abs().max()
    require_equal(frozen, images)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_format_is_exact_in_integers(activation: str) -> None:
    for weight, entering in (("int8", "uint8"), ("e4m3", "e4m3")):
        model, policy, images = networks(weight, ACTIVATIONS[activation], entering=entering)
        frozen = apply(apply(model, policy, "train", images).eval(), policy, "freeze")
        require_equal(frozen, images)


@pytest.mark.parametrize("weight", ["dfp8", "po2_4", "po2_5<zero>", "mx<fixed<8,2>,4>"])
def test_dynamic_fixed_point_is_the_simulation_itself(weight: str) -> None:
    """Power-of-two scales everywhere, biases in a format: integers with shifts alone give what the
    float64 simulation gives, on every score.
    """
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3), nn.ReLU(), nn.Conv2d(12, 12, 1), nn.Flatten(), nn.Linear(48, 9),
    ).eval()  # fmt: skip
    policy = Policy.uniform(weight, {"format": "dfp8", "scale": "max"}, "dfp8", "dfp16")
    images = torch.rand(40, 3, 8, 8) * 2 - 1
    converted = apply(model, policy, "train", images).eval()
    frozen = apply(converted, policy, "freeze")
    graph = optimise(frozen.graph, check=4)
    shifts = [node for node in graph if node.op == "requant"]
    assert len(shifts) == 3
    for node in shifts:  # a multiplier 2^k is a shift to the left, where the bias is finer
        assert np.isin(node.params["multiplier"], 1 << np.arange(17)).all(), node.name
    simulated = converted.double()
    with torch.no_grad():
        wanted = simulated(images.double()).numpy()
    levels = frozen.edges(images)
    found = graph.run({"x": levels["x"]})["scores"] * frozen.score_scale
    assert np.array_equal(found, wanted)
    assert len(np.unique(wanted)) > 50


def test_a_bias_has_a_range_of_its_own() -> None:
    """Folded biases far beyond the weights survive: the weights' format would have clipped them."""
    layer = nn.Linear(4, 3)
    with torch.no_grad():
        layer.weight.uniform_(-0.01, 0.01)
        layer.bias.copy_(torch.tensor([-37.5, 0.25, 12.0]))
    policy = Policy.uniform("dfp8", "dfp8", "dfp8", "dfp8")
    model = apply(nn.Sequential(layer), policy, "train", torch.rand(2, 4)).eval()
    with torch.no_grad():
        out = model(torch.zeros(1, 4))
    assert torch.allclose(out, torch.tensor([[-37.5, 0.25, 12.0]]), atol=0.5)


def quantizer_of(weight: Any, values: Tensor) -> tuple[Any, Tensor]:
    layer = nn.Conv2d(values.shape[1], values.shape[0], values.shape[2:], bias=False)
    layer.weight.data = values.clone()
    policy = Policy.uniform(weight, "uint8")
    size = [2, values.shape[1], *(s + 1 for s in values.shape[2:])]
    model = apply(nn.Sequential(layer, nn.ReLU()), policy, "train", torch.rand(size)).eval()
    converted = model.get_submodule("0")
    return converted.weight_quantizer, converted.weight


def test_a_codebook_is_the_optimal_one_and_travels_with_the_state() -> None:
    torch.manual_seed(0)
    values = torch.randn(6, 4, 3, 3)
    quantizer, weight = quantizer_of({"format": "cb8", "granularity": "per_tensor"}, values)
    levels, unit = quantizer.levels(weight)
    exact = kmeans(values.double().numpy(), 8).centroids
    assert np.allclose(np.unique((levels * unit).numpy()), exact, atol=2e-4)
    fitted = quantizer.format
    assert isinstance(fitted, CodebookFormat) and not fitted.needs_table
    assert fitted.contains(levels.numpy()).all()
    state = {key: value.clone() for key, value in quantizer.state_dict().items()}
    other, other_weight = quantizer_of("cb8", torch.randn(6, 4, 3, 3))
    other.levels(other_weight)
    assert other.format != fitted
    other.load_state_dict(state)
    assert other.format == fitted


def test_layers_share_a_table_where_the_policy_says_so() -> None:
    model, policy, images = networks({"format": "cb16", "scope": "network"}, "uint8")
    converted = apply(model, policy, "train", images).eval()
    names = ("one", "two", "three", "last")
    formats = {converted.get_submodule(name).weight_quantizer.format for name in names}
    assert len(formats) == 1
    units = {
        float(q.levels(layer.weight)[1])
        for layer in map(converted.get_submodule, names)
        for q in [layer.weight_quantizer]
    }
    assert len(units) == 1


def test_fixed_levels_hold_until_the_weight_is_loaded_anew() -> None:
    values = torch.randn(5, 4, 3, 3)
    quantizer, weight = quantizer_of("e4m3", values)
    levels, unit = quantizer.levels(weight)
    wanted = torch.where(levels.abs() < levels.abs().median(), torch.zeros_like(levels), levels)
    quantizer.fix_levels(wanted, unit)
    assert torch.equal(quantizer.levels(weight)[0], wanted)
    quantizer.train()
    assert torch.equal(quantizer(weight), quantizer.frozen_weight(weight))
    quantizer.release()
    assert torch.equal(quantizer.levels(weight)[0], levels)
    revision = quantizer.revision
    quantizer.fix_levels(levels, unit)
    assert quantizer.revision > revision  # evaluation must not give back what it kept
    quantizer.release()
    with pytest.raises(ModelError, match="is no level of e4m3"):
        quantizer.fix_levels(torch.full_like(levels, 17.0), unit)
    with pytest.raises(ModelError, match="whole numbers"):
        quantizer.fix_levels(levels + 0.5, unit)
    with pytest.raises(ModelError, match="positive and finite"):
        quantizer.fix_levels(levels, torch.zeros(1))
    with pytest.raises(ModelError, match="2 units"):
        quantizer.fix_levels(levels, torch.ones(2))


def test_a_state_dict_of_float_weights_forgets_levels_and_tables() -> None:
    model, policy, images = networks("cb16", "uint8")
    converted = apply(model, policy, "train", images).eval()
    layer = converted.get_submodule("one")
    levels, unit = layer.weight_quantizer.levels(layer.weight)
    layer.weight_quantizer.fix_levels(torch.zeros_like(levels) + levels.max(), unit)
    fixed = {key: value.clone() for key, value in converted.state_dict().items()}
    converted.load_state_dict(model.state_dict(), strict=False)
    assert not layer.weight_quantizer.fixed
    assert layer.weight_quantizer.table is None
    converted.load_state_dict(fixed)
    assert layer.weight_quantizer.fixed
    assert torch.equal(layer.weight_quantizer.levels(layer.weight)[0], levels * 0 + levels.max())
    layer.weight_quantizer.release()
    former = {key.replace("fixed_", "pinned_"): value for key, value in fixed.items()}
    converted.load_state_dict(former)  # a checkpoint of before
    assert layer.weight_quantizer.fixed


def test_the_window_of_powers_ends_at_the_largest_weight() -> None:
    values = torch.tensor([1.45, 0.3, -0.02, 0.001]).reshape(1, 4, 1, 1)
    quantizer, weight = quantizer_of("po2_4", values)
    levels, unit = quantizer.levels(weight)
    # 8 powers; the largest is 2^round(log2 1.45) = 2, the smallest 2^-6.
    assert float(unit) == 2.0**-6
    assert (levels * unit).flatten().tolist() == [2.0, 0.25, -(2.0**-6), 2.0**-6]


def test_stochastic_weights_are_unbiased_and_seeded() -> None:
    values = torch.full((1, 1, 64, 64), 0.3) + torch.linspace(0, 0.7, 64)
    values[0, 0, 0, 0] = 1.75
    weight_rule = {"format": "e2m1", "rounding": "stochastic", "granularity": "per_tensor"}
    quantizer, weight = quantizer_of(weight_rule, values)
    quantizer.train()
    torch.manual_seed(1)
    one = quantizer(weight)
    torch.manual_seed(1)
    assert torch.equal(quantizer(weight), one)
    assert not torch.equal(quantizer(weight), one)
    mean = torch.stack([quantizer(weight).detach() for _ in range(50)]).mean()
    assert abs(float(mean - weight.detach().mean())) < 0.003


def test_learned_scales_of_floats_follow_their_formula() -> None:
    values = torch.randn(2, 3, 3, 3, dtype=torch.float64)
    quantizer, _ = quantizer_of({"format": "e3m2", "scale": "learned"}, values.float())
    quantizer.double().train()
    weight = values.clone().requires_grad_()
    quantizer(weight).sum().backward()
    chosen = parse_format("e3m2")
    unit = float(quantizer.scale.detach().abs()) * chosen.lsb
    with torch.no_grad():
        levels, ratio = (quantizer(weight) / unit).round(), weight / unit
        inside = ratio.abs() <= chosen.max_level
        slope = float((levels - torch.where(inside, ratio, 0)).sum())
    assert torch.equal(weight.grad, inside.double())
    # LSQ's factor for the coarsest step, 64 levels: 7 of them reach the largest level.
    factor = 1 / (chosen.lsb * 64**2 * (54 * 7) ** 0.5)
    assert float(quantizer.scale.grad) == pytest.approx(slope * factor)


@pytest.mark.parametrize(
    ("given", "where", "message"),
    [
        ({"weight": {"format": "po2_4", "power_of_two": False}}, "weight", "power of two"),
        ({"weight": {"format": "po2_4", "scale": "learned"}}, "weight.scale", "exponent window"),
        ({"weight": {"format": "po2_4", "scale": "const", "value": 0.3}}, "weight", "no power"),
        ({"weight": {"format": "mxfp4", "granularity": "per_channel"}}, "weight", "scale a block"),
        ({"weight": {"format": "int4", "granularity": "per_block"}}, "weight", "no block format"),
        ({"weight": {"format": "cb16", "scale": "learned"}}, "weight.scale", "table of cb16"),
        ({"weight": {"format": "int4", "scope": "network"}}, "weight.scope", "table of a codebook"),
        ({"weight": {"format": "e8m7", "scale": "max"}}, "weight.scale", "range of float32"),
        ({"weight": {"format": "int8", "scale": "entropy"}}, "weight.scale", "distribution"),
        ({"activation": "cb16"}, "activation", "fitted to weights"),
        ({"bias": "mxfp8"}, "bias", "no input channels"),
        ({"bias": {"format": "int8", "scale": "mse"}}, "bias.scale", "a bias cannot have scale"),
        ({"weight": {"format": "dfp8", "power_of_two": False}}, "weight", "dfp8 means power"),
        ({"weight": "dfp40"}, "weight", "'dfp40' has 40 bits"),
        ({"weight": "e0m0"}, "weight", "no float has 0 exponent"),
        ({"weight": "po2_9"}, "weight", "no power-of-two format has 9 bits"),
    ],
)
def test_contradictions_are_named(given: dict[str, Any], where: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        Policy.from_dict(given)
    assert str(caught.value).startswith(f"quant.{where}")


def test_what_integers_cannot_compute_is_refused_with_the_reason() -> None:
    for weight, activation, message in (
        ("e8m7", "uint8", "e8m7 weights are simulated only"),
        ("cb16:e8m23", "uint8", "centroids such as int16n"),
        ("int8", "mxfp8", "their exponents depend on the data"),
        ("int8", "po2_4<zero>", "po2_4<zero> activations are simulated only"),
        ("int8", "e8m7", "levels do not fit 62 bits"),
    ):
        model, policy, images = networks(weight, activation)
        converted = apply(model, policy, "train", images).eval()
        with torch.no_grad():
            assert bool(torch.isfinite(converted(images)).all())
        with pytest.raises(ModelError, match=message):
            apply(converted, policy, "freeze")
        assert any(message in line for line in inspect_model(model, policy, images))
    rounded = {"format": "e4m3", "rounding": "half_away"}
    with pytest.raises(RecipeError, match="no multiply-shift form"):
        apply(*networks("int8", rounded)[:2], "train")


def test_wide_accumulators_are_refused_with_their_bound() -> None:
    layer = nn.Linear(64, 4, bias=False)
    torch.manual_seed(0)
    with torch.no_grad():
        layer.weight.uniform_(-1, 1)[0, 0] = 2.0**-14
    model = nn.Sequential(layer)
    rules = {"weight": {"format": "e5m10", "granularity": "per_tensor"}, "input": "e5m2"}
    with pytest.raises(ModelError, match="exceeds 53 bits") as caught:
        apply(model, Policy.from_dict(rules), "freeze", torch.rand(3, 64) + 1e-3)
    assert "fewer exponent bits" in str(caught.value)


def test_bad_weights_are_found_before_any_work() -> None:
    model, policy, images = networks("cb16", "uint8")
    model.three.weight.data[0, 0, 0, 0] = float("inf")
    with pytest.raises(ModelError, match=r"three.*NaN or infinity"):
        apply(model, policy, "train", images)
    model, _, images = networks("int4", "uint8")
    with pytest.raises(ModelError, match="cb256 has more entries than the layer has weights, 64"):
        apply(model, Policy.uniform("cb256", "uint8"), "train", images)


def test_entropy_clips_outliers_and_keeps_everything_else() -> None:
    torch.manual_seed(0)
    body = torch.randn(1, 1, 100, 100).abs()
    body[0, 0, 0, :3] = 60.0
    rule = {"format": "uint8", "scale": "entropy"}
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU())
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.zero_()
    policy = Policy.from_dict({"weight": "int8", "activation": rule, "input": "uint8"})
    converted = apply(model, policy, "calibrate", body)
    for _ in range(3):
        converted(body)
    kept = 255 * float(converted.get_submodule("1").unit)
    assert 3.0 < kept < 20.0


def test_specifications_of_new_formats() -> None:
    policy = Policy.uniform("po2_4<zero>", "e4m3", "uint8", "dfp16")
    from bitwright.quantize.spec import Layer

    layer = Layer("a", "Conv2d")
    weight = policy.resolve(layer, Role.WEIGHT).spec
    assert weight is not None and weight.format == PowerOfTwoFormat(4, zero=True)
    assert weight.power_of_two and weight.scale is ScaleRule.MAX
    assert weight.granularity is Granularity.PER_TENSOR
    bias = policy.resolve(layer, Role.BIAS).spec
    assert bias is not None and bias.format.name == "int16" and bias.power_of_two
    block = Policy.uniform("mxfp4").resolve(layer, Role.WEIGHT).spec
    assert block is not None and block.granularity is Granularity.PER_BLOCK
    assert Policy.uniform("int4").resolve(layer, Role.BIAS).spec is None
    activation = policy.resolve(layer, Role.ACTIVATION).spec
    assert activation is not None and isinstance(activation.format, MinifloatFormat)
