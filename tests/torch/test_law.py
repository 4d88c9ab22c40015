# SPDX-License-Identifier: Apache-2.0
"""The law: a converted model in evaluation *is* its integer graph, by ``==``, on every edge.

Drawn networks x formats x scale rules. And, lest the graph itself be wrong: each of its layers is
what training computes in float64 from the same inputs, but for a rounding at a border of levels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from tests.strategies import WITHOUT_INTEGERS, TorchNetwork, torch_graphs, torch_networks
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError
from bitwright.formats import MinifloatFormat
from bitwright.quantize import Policy, QuantizedModel, apply, integerize
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.integers.torch_executor import round_shift
from bitwright.quantize.layers import QuantConv2d, QuantLinear

NETWORKS = st.one_of(torch_networks(), torch_graphs())


def quantized_or_reject(network: TorchNetwork) -> QuantizedModel:
    """The converted model in evaluation mode."""
    try:
        model = apply(network.model, network.policy, "train", network.images)
        apply(model, network.policy, "freeze")  # raises with the reason
    except ModelError as error:
        if any(reason in error.message for reason in WITHOUT_INTEGERS):
            reject()
        raise
    return model.eval()


def check_law(network: TorchNetwork) -> None:
    model, images = quantized_or_reject(network), network.images
    with torch.no_grad():
        scores = model(images)
    integers = model.integers(network.shape)
    assert integers is not None and not model.why_simulated
    graph, edges = integers.graph, integers.edges(images)
    defined = graph.run({"x": edges["x"]}, edges=True)
    assert set(edges) == set(defined)
    for edge, levels in defined.items():
        assert np.array_equal(edges[edge], levels), edge
    real = defined["scores"] * np.asarray(graph.types["scores"].scale)
    real = np.moveaxis(real, -1, 1).astype(np.float32)
    assert np.array_equal(scores.numpy(), real)
    assert torch.equal(model(images).detach(), scores), "with gradients"
    assert_layers_are_those_of_training(model, images)


class _Layerwise(fx.Interpreter):
    """Each layer on the exact values of those before it, in float64, compared with its own."""

    def __init__(self, model: QuantizedModel, images: Tensor) -> None:
        integers = model.integers(tuple(images.shape[1:]))
        assert integers is not None
        self.exact = integers.node_values(images)
        wide = copy.deepcopy(model).double().eval()
        for module, original in zip(wide.modules(), model.modules(), strict=True):
            if isinstance(module, ActivationQuantizer):
                module.reuse_input = False
            elif isinstance(module, QuantConv2d | QuantLinear):
                # A scale found in float64 would round a weight at a border to the other side.
                module.weight_quantizer.fix_levels(
                    *original.weight_quantizer.levels(original.weight)
                )
        self.gains = {name: float(v.gain.max()) for name, v in integers.values.items()}
        super().__init__(wide)

    def run_node(self, n: fx.Node) -> Any:
        found = super().run_node(n)
        exact = self.exact.get(n.name)
        if exact is None or n.op != "call_module":
            return found
        module = self.fetch_attr(str(n.target))
        if isinstance(module, ActivationQuantizer):
            apart = (found - exact).abs() / module.unit
            # A scale in float64 is not quite the one in float32.
            assert bool((apart <= self.step(module, exact) + 1e-3).all()), n.name
        else:
            near = 1e-6 * float(exact.abs().max()) + 1e-12
            if getattr(module, "input_quantizer", None) is not None:
                near += 1.01 * self.gains[n.name]  # a bias at a border of the accumulator's units
            assert float((found - exact).abs().max()) <= near, n.name
        return exact

    @staticmethod
    def step(module: ActivationQuantizer, exact: Tensor) -> Tensor:
        """Distance to the next level, in levels of the quantizer."""
        levels = (exact / module.unit).abs()
        if isinstance(module.spec.format, MinifloatFormat):
            return (levels * 2.0**-module.spec.format.mantissa).clamp(min=1) * 2
        return torch.full_like(levels, module.spec.format.level_step)


@torch.no_grad()
def assert_layers_are_those_of_training(model: QuantizedModel, images: Tensor) -> None:
    _Layerwise(model, images).run(images.double())


@given(NETWORKS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_evaluation_is_the_integer_network(network: TorchNetwork) -> None:
    check_law(network)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@given(NETWORKS)
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
def test_evaluation_is_the_integer_network_a_thousand_times(network: TorchNetwork) -> None:
    check_law(network)


def small() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(54, 3))


@pytest.mark.parametrize("bits", [4, 8])
def test_evaluation_follows_the_weights(bits: int) -> None:
    x = torch.rand(8, 2, 6, 6)
    model = apply(small(), Policy.uniform(f"int{bits}", f"uint{bits}", "uint8"), "train", x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = None
    for _ in range(3):
        model.eval()
        with torch.no_grad():
            scores, again = model(x), model(x)
        assert torch.equal(scores, again)
        assert torch.equal(scores, apply(model, model.policy, "freeze")(x))
        assert before is None or not torch.equal(scores, before)
        before = scores
        model.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(8) % 3).backward()
        optimizer.step()


def test_hooks_see_the_exact_values() -> None:
    x = torch.rand(4, 2, 6, 6)
    model = apply(small(), Policy.uniform("int8", "uint8", "uint8"), "train", x).eval()
    with torch.no_grad():
        scores = model(x)
    seen: dict[str, Tensor] = {}
    for path in ("0", "2", "5"):
        model.get_submodule(path).register_forward_hook(
            lambda m, i, o, path=path: seen.__setitem__(path, o)
        )
    with torch.no_grad():
        assert torch.equal(model(x), scores)
    edges, types = model.integers((2, 6, 6)).edges(x), model.integers((2, 6, 6)).graph.types
    for path, edge in (("2", "_2"), ("5", "scores")):
        real = np.moveaxis(edges[edge] * types[edge].scale[0], -1, 1).astype(np.float32)
        assert np.array_equal(seen[path].numpy(), real)
    assert seen["0"].shape == (4, 6, 6, 6)


def test_autocast_changes_no_integer() -> None:
    x = torch.rand(8, 2, 6, 6)
    model = apply(small(), Policy.uniform("int8", "uint8", "uint8"), "train", x).eval()
    with torch.no_grad():
        scores = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(model(x), scores)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(x).detach().float(), scores)


def test_gradients_are_those_of_the_simulation() -> None:
    """At few bits both compute the same values, so the same gradients."""
    x = torch.rand(8, 2, 6, 6)
    model = apply(small(), Policy.uniform("int4", "uint4", "uint8"), "train", x).eval()
    exact = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    simulated = torch.autograd.grad(model.simulate(x).square().sum(), list(model.parameters()))
    for found, wanted in zip(exact, simulated, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-5)


def test_what_is_kept_float_is_simulated_and_says_so() -> None:
    x = torch.rand(4, 2, 6, 6)
    model = apply(small(), Policy.uniform("int4", None, "uint8"), "train", x).eval()
    with torch.no_grad():
        assert torch.equal(model(x), model.simulate(x))
    assert "kept float" in model.why_simulated
    with pytest.raises(ModelError, match="kept float"):
        apply(model, model.policy, "freeze")


@pytest.mark.parametrize("first", [nn.ReLU(), nn.AvgPool2d(1), nn.Conv2d(2, 2, 1), nn.Hardtanh()])
def test_an_input_that_is_kept_float_is_named(first: nn.Module) -> None:
    x = torch.rand(4, 2, 6, 6)
    policy = Policy.from_dict({"weight": "int4", "activation": "uint4", "input": "float"})
    network = nn.Sequential(first, nn.Flatten(), nn.Linear(72, 3))
    model = apply(network, policy, "train", x).eval()
    with torch.no_grad():
        assert torch.equal(model(x), model.simulate(x))
    assert "input: it is kept float; give input a format" in model.why_simulated
    with pytest.raises(ModelError, match="input: it is kept float"):
        apply(model, policy, "freeze")


def test_training_differs_from_evaluation_by_a_rounding_at_a_border() -> None:
    """The difference that has a name: how many activations, and by how much."""
    x = torch.rand(64, 2, 6, 6)
    model = apply(small(), Policy.uniform("int8", "uint8", "uint8"), "train", x).eval()
    recorded: list[Tensor] = []
    quantizer = model.get_submodule("2")
    handle = quantizer.register_forward_hook(lambda m, i, o: recorded.append(o / m.unit))
    with torch.no_grad():
        model.simulate(x)
    handle.remove()
    exact = model.integers((2, 6, 6)).node_values(x)["_2"] / quantizer.unit
    apart = (recorded[0].double() - exact).abs()
    assert apart.max() < 1 + 1e-3 and (apart > 1e-3).double().mean() < 0.005


def scores_anew(model: QuantizedModel, x: Tensor) -> Tensor:
    """Of integers that are made now."""
    return integerize(model, model.policy, tuple(x.shape[1:]))(x)


def uint8_model(net: nn.Module | None = None) -> tuple[QuantizedModel, Tensor]:
    x = torch.rand(8, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    policy = Policy.uniform("int8", "uint8", "uint8")
    return apply(small() if net is None else net, policy, "train", x).eval(), x


def _through_data(model: QuantizedModel) -> None:
    model.get_parameter("0.weight").data.mul_(-1)


def _there_and_back(model: QuantizedModel) -> None:
    model.half().float()


def _another_layer(model: QuantizedModel) -> None:
    setattr(model, "3", nn.AvgPool2d(2))


def _setting(model: QuantizedModel) -> None:
    model.get_submodule("1").eps = 1.0


def _assigned(model: QuantizedModel) -> None:
    state = {name: t.clone() for name, t in model.state_dict().items()}
    state["0.weight"] *= -1
    model.load_state_dict(state, assign=True)


@pytest.mark.parametrize(
    "change", [_through_data, _there_and_back, _another_layer, _setting, _assigned]
)
@torch.no_grad()
def test_evaluation_follows_every_change(change: Callable[[QuantizedModel], None]) -> None:
    model, x = uint8_model()
    before = model(x)
    change(model)
    found = model(x)
    assert torch.equal(found, scores_anew(model, x)) and not torch.equal(found, before)


def test_simulated_weights_follow_changes_through_data() -> None:
    x = torch.rand(4, 2, 6, 6)
    model = apply(small(), Policy.uniform("int8", None, None), "train", x).eval()
    with torch.no_grad():
        before = model(x)
        _through_data(model)
        after = model(x)
    assert model.why_simulated and not torch.equal(after, before)
    assert torch.allclose(after, model.simulate(x).detach(), atol=1e-6)


def test_inference_mode_changes_no_integer() -> None:
    with torch.inference_mode():
        model, x = uint8_model()
        before = model(x)
        model.get_parameter("0.weight").mul_(-1)
        found = model(x)
        assert torch.equal(found, scores_anew(model, x)) and not torch.equal(found, before)


class SharedPool(nn.Module):
    """One pool that is called twice, as in many a LeNet."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.pool, self.dense = nn.MaxPool2d(2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.first(x)))
        x = self.pool(torch.relu(self.second(x)))
        return self.dense(x.flatten(1))


def test_a_module_called_twice_has_the_values_and_gradients_of_each_call() -> None:
    x = torch.rand(8, 2, 6, 6)
    policy = Policy.uniform("int4", "uint4", "uint8")
    model = apply(SharedPool(), policy, "train", x).eval()
    parameters = list(model.parameters())
    exact = torch.autograd.grad(model(x).square().sum(), parameters)
    simulated = torch.autograd.grad(model.simulate(x).square().sum(), parameters)
    for found, wanted in zip(exact, simulated, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-5)
    shapes: list[torch.Size] = []
    model.get_submodule("pool").register_forward_hook(lambda m, i, o: shapes.append(o.shape))
    with torch.no_grad():
        model(x)
    assert shapes == [(8, 4, 3, 3), (8, 4, 1, 1)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8])
def test_dtypes_of_inputs_and_models(dtype: torch.dtype) -> None:
    """Scores have the dtype of the parameters, with gradients and without."""
    model, x = uint8_model()
    x = (3 * x).to(dtype)
    for made in (model, model.to(dtype) if dtype.is_floating_point else model):
        with torch.no_grad():
            scores = made(x)
        assert not made.why_simulated and scores.dtype is made.get_parameter("0.weight").dtype
        assert torch.equal(made(x).detach(), scores)
        integers = made.integers((2, 6, 6))
        assert integers is not None and torch.equal(integers.scores(x).to(scores.dtype), scores)


def test_threads_with_gradients_do_not_meet() -> None:
    model, x = uint8_model()
    inputs = [x * share for share in (0.25, 0.5, 0.75, 1.0)]
    with torch.no_grad():
        wanted = [model(value) for value in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: model(inputs[i % 4]).detach(), range(32)))
    assert all(torch.equal(scores, wanted[i % 4]) for i, scores in enumerate(found))


@torch.no_grad()
def test_shallow_copies_and_replicas_are_the_integers() -> None:
    model, x = uint8_model()
    for other in (copy.copy(model), model._replicate_for_data_parallel()):
        assert isinstance(other, QuantizedModel)
        assert torch.equal(other(x), model(x)) and not other.why_simulated


@torch.no_grad()
def test_a_layer_in_training_mode_is_obeyed_and_said() -> None:
    layers = (nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(96, 3))
    model, x = uint8_model(nn.Sequential(*layers))
    assert torch.equal(model(x), model(x)) and not model.why_simulated
    model.get_submodule("2").train()
    assert not torch.equal(model(x), model(x)) and "training mode: 2" in model.why_simulated
    model.eval()
    assert torch.equal(model(x), model(x)) and not model.why_simulated


@torch.no_grad()
def test_integers_of_several_sizes_are_kept() -> None:
    layers = (nn.Conv2d(2, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model, _ = uint8_model(nn.Sequential(*layers, nn.Linear(6, 3)))
    kept = [model.integers((2, size, size)) for size in (6, 8, 6, 8)]
    assert kept[0] is kept[2] and kept[1] is kept[3] and kept[0] is not kept[1]


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "matmul"), reason="torch before 2.9")
def test_precision_settings_are_left_as_they_were() -> None:
    model, x = uint8_model()
    place = torch.backends.cuda.matmul
    before = place.fp32_precision
    try:
        place.fp32_precision = "tf32"
        model.integers((2, 6, 6)).edges(x)
        assert place.fp32_precision == "tf32"
    finally:
        place.fp32_precision = before


def test_a_copy_computes_the_same() -> None:
    x = torch.rand(4, 2, 6, 6)
    model = apply(small(), Policy.uniform(), "train", x).eval()
    with torch.no_grad():
        scores = model(x)
        copied = copy.deepcopy(model)
        assert torch.equal(copied(x), scores)
        copied.get_parameter("0.weight").mul_(-1)
        assert not torch.equal(copied(x), scores) and torch.equal(model(x), scores)


@pytest.mark.parametrize("rounding", ["half_even", "half_up", "floor"])
def test_shift_is_the_rational_rule(rounding: str) -> None:
    from bitwright.formats import Rounding
    from bitwright.formats.rounding import round_to_int

    value, rule = torch.arange(-100, 100), Rounding(rounding)
    for shift in (0, 1, 3):
        expected = round_to_int(value.numpy() / 2**shift, rule)
        assert np.array_equal(round_shift(value, shift, rule).numpy(), expected)


def test_multipliers_keep_sixteen_bits() -> None:
    x = torch.rand(16, 2, 6, 6)
    frozen = apply(small(), Policy.uniform("int8", "uint8", "uint8"), "freeze", x)
    nodes = [node for node in frozen.graph if node.op == "requant"]
    assert nodes
    for node in nodes:
        assert 1 << 16 <= int(np.abs(node.params["multiplier"]).max()) <= 1 << 17


def test_power_of_two_scales_reach_the_integers() -> None:
    x = torch.rand(16, 2, 6, 6)
    policy = Policy.from_dict(
        {
            "input": {"format": "uint8", "power_of_two": True},
            "weight": {"format": "int4", "power_of_two": True, "scale": "mse"},
            "activation": {"format": "uint4", "power_of_two": True},
        }
    )
    frozen = apply(small(), policy, "freeze", x)
    assert float(np.log2(frozen.score_scale)).is_integer()


def test_layers_keep_the_users_paths_and_their_exact_intervals() -> None:
    torch.manual_seed(4)
    model = nn.Sequential()
    model.add_module("stem", nn.Conv2d(1, 2, 3, padding=1))
    model.add_module("act", nn.ReLU())
    model.add_module("flat", nn.Flatten())
    model.add_module("head", nn.Linear(32, 3))
    x = torch.rand(64, 1, 4, 4)
    frozen = apply(model, Policy.uniform("int4", "uint4", "uint4"), "freeze", x)
    nodes = {node.name: node for node in frozen.graph}
    assert {"stem", "act", "flat", "head"} <= {node.source for node in frozen.graph}
    assert "bias" not in nodes["stem"].params and "bias" in nodes["head"].params
    kind, levels = frozen.graph.types["stem"], frozen.edges(x)["stem"]
    assert kind.lo <= levels.min() and levels.max() <= kind.hi
    weight = nodes["stem"].params["weight"]
    assert kind.hi == 15 * np.where(weight > 0, weight, 0).sum((1, 2, 3)).max()


def test_strange_strides_of_one_channel_are_convolved_right() -> None:
    """torch 2.13 gives wrong results where the strides of one channel look like channels-last."""
    from bitwright.formats import parse_format
    from bitwright.ir import INTEGER, GraphBuilder, TensorType
    from bitwright.quantize.integers.torch_executor import TorchExecutor, in_graph_layout

    rng = np.random.default_rng(0)
    for height, width, kernel in ((3, 1, (2, 2)), (3, 3, (1, 2)), (4, 3, (2, 2)), (1, 4, (1, 2))):
        builder = GraphBuilder("one", INTEGER)
        kind = TensorType((height, width, 1), parse_format("uint8"), (1.0,), 0, 255)
        weight = rng.integers(-7, 8, (2, *kernel, 1))
        attrs = {"weight_format": "int4", "stride": (1, 2), "padding": (1, 1, 1, 1)}
        builder.input("x", kind)
        edge = builder.add("conv", ("x",), name="conv", attrs=attrs, params={"weight": weight})
        graph = builder.finish(edge)
        levels = rng.integers(0, 256, (8, height, width, 1))
        x = torch.from_numpy(levels).float().permute(0, 3, 1, 2)
        found = in_graph_layout(TorchExecutor(graph).run(x))
        assert np.array_equal(found["conv"], graph.run({"x": levels})["conv"])
