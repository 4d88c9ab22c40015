# SPDX-License-Identifier: Apache-2.0
"""Dynamic fixed point in layers: what their products see, and what the trained net becomes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bitwright.base.errors import RecipeError
from bitwright.low_precision.arithmetic.apply import (
    LowPrecisionModel,
    apply_arithmetic,
    check_sums,
    layer_formats,
    remove_arithmetic,
)
from bitwright.low_precision.arithmetic.choose import make_engine
from bitwright.low_precision.arithmetic.emulated import EmulatedEngine
from bitwright.low_precision.arithmetic.geometry import Geometry
from bitwright.low_precision.arithmetic.layers import Context
from bitwright.low_precision.arithmetic.operand_quantizer import quantize
from bitwright.lower.compare import compare_edges
from bitwright.quantize import Policy, apply, explain
from bitwright.quantize.spec import PRODUCT_ROLES, Layer, Product, QuantSpec, Role
from bitwright.quantize.weight_quantizer import WeightQuantizer

EIGHT = {"format": "int8", "rounding": "stochastic"}


class Net(nn.Module):
    """Convolutions with stride and padding, batch norm, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 6, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.fc = nn.Linear(8 * 4 * 3, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.bn1(self.conv1(x)))
        x = self.relu2(self.bn2(self.conv2(x)))
        return self.fc(torch.flatten(x, 1))


def in_low_precision(model: nn.Module, policy: Policy) -> LowPrecisionModel:
    found = apply_arithmetic(model, Context(EmulatedEngine(), seed=3))
    found.use(layer_formats(policy, found.layers))
    return found


def muppet(**more: object) -> Policy:
    roles = ("input", "weight", "grad_output", "grad_weight")
    return Policy.for_training({**dict.fromkeys(roles, EIGHT), **more})


@pytest.mark.parametrize("rounding", ["half_even", "stochastic"])
def test_a_net_trained_in_dynamic_fixed_point_lowers_to_integers(rounding: str) -> None:
    """Its weights keep the rule they were trained with; activations get the static counterpart."""
    torch.manual_seed(0)
    model, images = Net(), torch.rand(64, 2, 8, 6)
    labels = torch.randint(0, 5, (64,))
    low = in_low_precision(model, muppet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(8):
        low.context.step = step
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    low.use({})
    plain = Net()
    plain.load_state_dict(model.state_dict())
    weight = {"format": "int8", "scale": "dynamic", "rounding": rounding}
    static = {"scale": "max", "power_of_two": True}
    policy = Policy.from_dict(
        {
            "weight": weight,
            "activation": {"format": "uint8", **static},
            "input": {"format": "uint8", **static},
        }
    )
    frozen = apply(plain.eval(), policy, "freeze", images)
    (conv,) = [node for node in frozen.graph if node.name == "conv2"]
    trained = quantize(plain.conv2.weight, dynamic_weight("half_even"), 0)
    assert trained.levels is not None
    weight = torch.from_numpy(np.array(conv.params["weight"])).permute(0, 3, 1, 2)
    assert torch.equal(weight.to(torch.int8), trained.levels)
    graph = frozen.graph
    compare_edges(graph, frozen.edges(images), accumulators=True).require()


def dynamic_weight(rounding: str) -> QuantSpec | None:
    policy = Policy.for_training({"weight": {"format": "int8", "rounding": rounding}})
    return policy.resolve(layer_of("conv2"), Role.WEIGHT, Product.FORWARD).spec


def layer_of(path: str) -> Layer:
    return Layer(path, "Conv2d")


def test_one_scale_a_channel_follows_the_same_rule() -> None:
    weight = torch.randn(4, 3, 3, 3) * torch.tensor([1.0, 8.0, 0.1, 0.0])[:, None, None, None]
    rule = {"format": "int8", "scale": "dynamic", "granularity": "per_channel"}
    spec = Policy.from_dict({"weight": rule}).resolve(layer_of("conv"), Role.WEIGHT).spec
    assert spec is not None
    levels, unit = WeightQuantizer(spec, 4).levels(weight)
    for channel in range(4):
        one = quantize(weight[channel], dynamic_weight("half_even"), 0)
        assert one.levels is not None
        assert float(unit[channel]) == 2.0**-one.exponent
        assert torch.equal(levels[channel].to(torch.int8), one.levels)


def test_blocks_lie_along_the_sum_of_every_product() -> None:
    """A layer of one pixel: its products are those of matrices, whose blocks are rows."""
    policy = Policy.for_training(dict.fromkeys(("input", "weight", "grad_output"), "mxint8"))
    model = nn.Sequential(nn.Linear(64, 96, bias=False))
    in_low_precision(model, policy)
    x = (torch.randn(32, 64) * torch.logspace(-3, 3, 64)).requires_grad_()
    out = model(x)
    g = torch.randn_like(out)
    out.backward(g)
    weight = model[0].weight.detach()
    spec = policy.resolve(layer_of("0"), Role.INPUT, Product.FORWARD).spec

    def blocks(t: Tensor, axis: int) -> Tensor:
        return quantize(t.detach(), spec, 0, axis=axis).reals()

    assert torch.equal(out.detach(), blocks(x, 1) @ blocks(weight, 1).T)
    assert torch.equal(x.grad, blocks(g, 1) @ blocks(weight, 0))
    assert torch.equal(model[0].weight.grad, blocks(g, 0).T @ blocks(x, 0))


def test_explain_shows_what_products_take_and_give() -> None:
    rules = [
        {"type": "Linear", "product": "grad_weight", "role": "input", "format": "int16"},
        {"position": "last", "role": "weight", "keep_float": True},
    ]
    rows = {(row.layer, row.operand): row for row in explain(Net(), muppet(rules=rules))}
    assert rows["conv1", "input"].format == "int8"
    assert rows["conv1", "input"].scale == "dynamic"
    assert rows["conv2", "activation"].format == "float"
    assert rows["conv2", "grad_weight"].format == "int8"
    assert rows["fc", "input of forward"].format == "int8"
    assert rows["fc", "input of grad_weight"].format == "int16"
    assert "product grad_weight" in rows["fc", "input of grad_weight"].reason
    assert rows["fc", "weight"].format == "float"
    assert len(rows) == 3 * 6 + 1
    assert {role for roles in PRODUCT_ROLES.values() for role in roles} == {
        Role(name.split()[0]) for _, name in rows
    }


def test_sums_that_an_accumulator_cannot_hold_are_refused() -> None:
    low = in_low_precision(Net(), muppet())
    formats = layer_formats(muppet(), low.layers)
    pixels = {"conv1": 48 * 128, "conv2": 12 * 128, "fc": 128}
    check_sums(low.layers, formats, pixels, "int32")
    with pytest.raises(RecipeError, match="of conv1: the grad_weight product adds 6144"):
        check_sums(low.layers, formats, pixels, "int24")
    unsigned = layer_formats(muppet(input={"format": "uint8"}), low.layers)
    with pytest.raises(RecipeError, match="products of 9 and 8 bits"):
        check_sums(low.layers, unsigned, pixels, "int27")
    check_sums(low.layers, formats, pixels, "int28")


def test_a_shared_layer_comes_back_as_one() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(4, 4)
            self.same, self.box = self.one, nn.Sequential(self.one)

        def forward(self, x: Tensor) -> Tensor:
            return self.box(self.same(self.one(x)))

    model = Shared()
    x = torch.rand(3, 4)
    before = model(x)
    in_low_precision(model, muppet())
    assert not torch.equal(model(x), before)
    remove_arithmetic(model)
    assert type(model.one) is nn.Linear
    assert model.one is model.same is model.box[0]
    assert torch.equal(model(x), before)


def test_shapes_that_plain_layers_take() -> None:
    conv, linear = nn.Conv2d(3, 4, 3), nn.Linear(5, 6)
    model = nn.Sequential(conv, linear)
    in_low_precision(model, muppet())
    for x in (torch.rand(3, 7, 7), torch.rand(0, 3, 7, 7)):
        assert model[0](x).shape == conv(x).shape
    for x in (torch.rand(5), torch.rand(2, 3, 5), torch.rand(0, 5)):
        assert model[1](x).shape == linear(x).shape


def test_measuring_without_gradients_leaves_training_alone() -> None:
    model = Net()
    in_low_precision(model, muppet())
    with torch.inference_mode():  # more images than a step has: the engine's memory grows there
        model.eval()(torch.rand(20, 2, 8, 6))
    model.train()(torch.rand(4, 2, 8, 6)).sum().backward()
    assert all(bool(layer.weight.grad.any()) for layer in (model.conv1, model.conv2, model.fc))


def test_a_second_derivative_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    in_low_precision(model, muppet())
    x = torch.rand(5, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_networks_in_one_process_share_choices_but_no_memory() -> None:
    x, w = (quantize(torch.rand(2, 3, 4, 4), muppet_input(), seed) for seed in (1, 2))
    first, second = make_engine("auto"), make_engine("auto")
    for engine in (first, second):
        engine.forward(x, w, Geometry())
    ((case, mine),) = first.choices.items()
    other = second.choices[case]
    assert mine.engine.name == other.engine.name
    assert mine.engine is not other.engine


def muppet_input() -> QuantSpec | None:
    return muppet().resolve(Layer("conv", "Conv2d", False, False), Role.INPUT, "forward").spec
