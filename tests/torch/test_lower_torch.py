# SPDX-License-Identifier: Apache-2.0
"""Converted model -> integer graph: every integer on every edge is the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from tests.strategies import WITHOUT_INTEGERS, TorchNetwork, torch_graphs, torch_networks
from torch import nn

from bitwright.base.errors import MismatchError, ModelError
from bitwright.interop.onnx.export_qonnx import export_qonnx
from bitwright.lower import certify, check, optimise
from bitwright.lower.compare import compare_edges
from bitwright.lower.compare_torch import compare_torch_graph, frozen_levels
from bitwright.lower.from_torch import lower
from bitwright.quantize import Policy, apply
from bitwright.quantize.integers.requantize import shift_parameters


class Net(nn.Module):
    """Everything at once: both pool orders, negative gains, padding, an uneven image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 3, (3, 2), stride=(2, 1))
        self.bn2 = nn.BatchNorm2d(3)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.fc(torch.flatten(x, 1))


def frozen_net(seed: int = 0, **formats: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    net = Net().eval()
    for norm in (net.bn1, net.bn2):
        norm.weight.data.normal_()
        norm.bias.data.normal_(std=0.3)
        norm.running_mean.normal_(std=0.2)
    images = torch.rand(20, 2, 10, 6)
    policy = Policy.uniform(**{"weight": "int4", "activation": "uint4", "input": "uint8"} | formats)
    return apply(net, policy, "freeze", images), images


def frozen_or_reject(network: TorchNetwork) -> nn.Module:
    """Frozen, unless the drawn network has no integers for a known reason."""
    try:
        return apply(network.model, network.policy, "freeze", network.images)
    except ModelError as error:
        if any(reason in error.message for reason in WITHOUT_INTEGERS):
            reject()
        raise


def assert_equal_everywhere(network: TorchNetwork) -> None:
    frozen = frozen_or_reject(network)
    graph = frozen.graph
    raw = compare_edges(graph, frozen.edges(network.images), accumulators=True)
    raw.require()
    assert set(raw.edges) == set(graph.types)
    optimised = optimise(graph, check=4)
    compare_edges(optimised, frozen.edges(network.images)).require()
    check(certify(optimised), optimised)


@given(torch_networks())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_networks_are_equal_on_every_edge(network: TorchNetwork) -> None:
    assert_equal_everywhere(network)


@given(torch_graphs())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_graphs_are_equal_on_every_edge(network: TorchNetwork) -> None:
    assert_equal_everywhere(network)


@pytest.mark.slow
@given(torch_graphs())
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_random_graphs_are_equal_on_every_edge(network: TorchNetwork) -> None:
    assert_equal_everywhere(network)


@pytest.mark.parametrize("activation", ["uint4", "uint8", "int3", "bipolar"])
def test_names_sources_and_outputs(activation: str) -> None:
    frozen, images = frozen_net(activation=activation if activation != "bipolar" else "uint1")
    graph = replace(frozen.graph, name="digits")
    assert graph.name == "digits" and graph.inputs == ("x",)
    assert graph.outputs == ("scores", "label")
    assert graph.types["x"].shape == (10, 6, 2)
    sources = {node.source for node in graph if node.op in ("conv", "dense")}
    assert sources == {"conv1", "conv2", "fc"}
    assert all(node.source for node in graph if node.op != "top_k")
    comparison = compare_edges(graph, frozen.edges(images), accumulators=True)
    comparison.require()
    assert comparison.images == 20 and comparison.values > 20 * 5


def test_scores_scale_is_that_of_the_model() -> None:
    frozen, images = frozen_net()
    graph = frozen.graph
    levels = graph.run({"x": frozen.edges(images)["x"]})["scores"]
    real = levels * graph.types["scores"].scale[0]
    assert np.allclose(real, frozen(images).numpy(), rtol=1e-6, atol=0)


def test_the_first_difference_is_named() -> None:
    frozen, images = frozen_net()
    graph = frozen.graph
    victim = graph.node("conv2")
    weight = victim.params["weight"].copy()
    weight[1] = np.where(weight[1] > 0, weight[1] - 1, weight[1] + 1)
    nodes = tuple(
        replace(n, params={**n.params, "weight": weight}) if n is victim else n for n in graph
    )
    from bitwright.ir import rebuild

    wrong = compare_edges(rebuild(graph, nodes), frozen.edges(images), accumulators=True)
    assert not wrong.equal and wrong.first is not None
    assert (wrong.first.edge, wrong.first.source) == ("conv2", "conv2")
    assert wrong.first.position[-1] == 1 and wrong.first.expected != wrong.first.found
    assert wrong.edges["conv1"] == 0 and wrong.differing >= wrong.edges["conv2"] > 0
    with pytest.raises(MismatchError, match="conv2"):
        wrong.require()


def test_qonnx_runs_a_lowered_network(tmp_path: Path) -> None:
    frozen, images = frozen_net()
    graph = optimise(frozen.graph)
    feeds = {"x": frozen.edges(images)["x"]}
    assert export_qonnx(graph, tmp_path / "net.onnx", feeds=feeds).frames == 24


def test_another_input_shape_is_refused() -> None:
    frozen, _ = frozen_net()
    with pytest.raises(ModelError, match=r"made for inputs of shape \(2, 10, 6\)") as error:
        lower(frozen, (3, 10, 6))
    assert error.value.hint
    with pytest.raises(ModelError, match=r"samples of shape \(2, 10, 6\)"):
        frozen(torch.rand(1, 3, 10, 6))
    model = nn.Sequential(nn.Flatten(), nn.Linear(60, 2))
    with pytest.raises(ModelError, match=r"none of \(C, H, W\)"):
        apply(model, Policy.uniform(), "freeze", torch.rand(4, 1, 5, 6, 2))


def test_scores_may_be_an_image() -> None:
    images = torch.rand(4, 1, 3, 3)
    net = nn.Sequential(nn.Conv2d(1, 2, 2)).eval()
    frozen = apply(net, Policy.uniform(), "freeze", images)
    graph = frozen.graph
    assert graph.outputs == ("scores",) and graph.types["scores"].shape == (2, 2, 2)
    compare_edges(graph, frozen.edges(images), accumulators=True).require()
    per_channel = {"layers": "0", "role": "weight", "granularity": "per_channel"}
    policy = Policy.from_dict({"weight": "int4", "rules": [per_channel]})
    frozen = apply(net, policy, "freeze", images)
    graph = frozen.graph
    assert len(graph.types["scores"].scale) == 2
    compare_edges(graph, frozen.edges(images), accumulators=True).require()
    real = graph.run({"x": frozen.edges(images)["x"]})["scores"]
    real = real * np.asarray(graph.types["scores"].scale)
    assert np.allclose(real.transpose(0, 3, 1, 2), frozen(images).numpy(), rtol=1e-6, atol=0)


def test_a_convolution_may_give_the_scores() -> None:
    images = torch.rand(4, 1, 3, 3)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten()).eval()
    frozen = apply(net, Policy.uniform(), "freeze", images)
    graph = frozen.graph
    compare_edges(graph, frozen.edges(images), accumulators=True).require()
    scale = graph.types["scores"].scale[0]
    assert scale == pytest.approx(frozen.score_scale, rel=1e-12)


def test_layers_named_like_the_ends() -> None:
    class Clash(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores, self.label, self.act = nn.Linear(4, 3), nn.Linear(3, 2), nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.label(self.act(self.scores(x)))

    images = torch.rand(6, 4)
    frozen = apply(Clash().eval(), Policy.uniform(), "freeze", images)
    graph = frozen.graph
    compare_edges(graph, frozen.edges(images), accumulators=True).require()
    assert {n.source for n in graph if n.op == "dense"} == {"scores", "label"}


def test_edges_carry_the_real_scales() -> None:
    """level * scale of every edge is the trained network's real value, up to float rounding."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    images = torch.rand(16, 1, 6, 6)
    policy = Policy.uniform(input="uint8", weight="int8", activation="uint6")
    quantized = apply(model, policy, "calibrate", images)
    quantized(images)
    frozen = apply(quantized.eval(), policy, "freeze")
    graph = frozen.graph
    x = np.rint(images.numpy().transpose(0, 2, 3, 1) / graph.types["x"].scale[0]).astype(np.int64)
    edges = graph.run({"x": np.clip(x, 0, 255)}, edges=True)
    with torch.no_grad():
        real = model[0](images)
    name = next(n.output for n in graph if n.op == "conv")
    got = edges[name] * np.asarray(graph.types[name].scale)
    assert np.abs(got.transpose(0, 3, 1, 2) - real.numpy()).max() < 0.03 * real.abs().max().item()


def test_channels_that_one_shift_would_silence_are_refused() -> None:
    """Concatenation of e5m2 (levels to 2^32) and uint8: the first's gains would become 0, and 62
    bits do not hold what it needs.
    """
    far, nothing = np.array([0.3, 1.7e7]), np.array([1e-12, 1.7e7])
    with pytest.raises(ModelError, match="of channel 0 is"):
        shift_parameters(far, np.array([0.1, 0.1]), 1 << 32, "norm", fewer=True)
    multiplier, _, _ = shift_parameters(nothing, np.array([0.1, 0.1]), 1 << 32, "norm", fewer=True)
    assert multiplier[0] == 0  # and nothing is lost


def test_the_names_of_the_former_readme_still_work() -> None:
    import bitwright

    assert bitwright.quant is bitwright.quantize
    frozen, images = frozen_net()
    graph = optimise(lower(frozen, (2, 10, 6), name="former"), check=2)
    assert graph.name == "former"
    assert np.array_equal(frozen_levels(frozen, images)["x"], frozen.edges(images)["x"])
    compare_torch_graph(frozen, graph, images).require()


@pytest.mark.parametrize("reach", [1 << 20, 1 << 31])
def test_channels_of_gains_far_apart_get_a_wider_multiplier(reach: int) -> None:
    """A concat of e5m2 (unit 1.3e-10) and uint8 (0.0036) in front of batch norm and int8: with 17
    bits the first channel's multiplier was 0, and six levels were off.
    """
    gain = np.array([17 / reach, 0.354])
    multiplier, _, shift = shift_parameters(gain, np.zeros(2), reach, "m2_quantizer")
    assert multiplier[0] > 0
    assert (np.abs(multiplier * 2.0**-shift - gain) * reach <= 0.5).all()
    assert reach * int(multiplier.max()) < 1 << 62
