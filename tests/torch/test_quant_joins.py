# SPDX-License-Identifier: Apache-2.0
"""Networks that fork and join: calibrate, train, freeze, lower; equal on every edge."""

from __future__ import annotations

import pytest
import torch
from tests import join_networks as nets
from torch import nn

from bitwright.lower import certify, check, optimise
from bitwright.lower.compare_torch import compare_torch_graph
from bitwright.lower.from_torch import lower
from bitwright.quant import Policy, apply

FORMATS = [("int4", "uint4", "uint8"), ("int2", "uint2", "int8"), ("int8", "uint8", "uint8")]
CASES = {
    "resnet": (nets.ResNet, (3, 16, 16)),
    "preactivation": (nets.PreActivation, (3, 6, 5)),
    "densenet": (lambda: nets.DenseNet(pre=False), (3, 8, 8)),
    "densenet-preactivation": (lambda: nets.DenseNet(pre=True), (3, 8, 8)),
    "mobilenet": (nets.MobileNet, (3, 12, 10)),
    "skynet": (nets.SkyNet, (3, 8, 16)),
    "shufflenet": (nets.ShuffleUnit, (3, 4, 4)),
    "pyramid": (nets.FeaturePyramid, (2, 8, 8)),
}


def made(case: str, seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    make, shape = CASES[case]
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.3, 2.0)
            module.weight.data.normal_(mean=0.5)
            module.bias.data.normal_(std=0.3)
    return model.eval(), torch.rand(6, *shape)


def assert_equal_everywhere(frozen: nn.Module, x: torch.Tensor) -> None:
    graph = lower(frozen, tuple(x.shape[1:]))
    raw = compare_torch_graph(frozen, graph, x, accumulators=True)
    raw.require()
    restored = {node.output for node in graph if node.name.endswith("_order")} - {"scores"}
    assert set(raw.edges) == set(graph.types) - restored - {"label"}
    optimised = optimise(graph, check=2)
    compare_torch_graph(frozen, optimised, x).require()
    check(certify(optimised), optimised)


@pytest.mark.parametrize("formats", FORMATS, ids=lambda f: f[0])
@pytest.mark.parametrize("case", CASES)
def test_calibrated_networks_are_equal_on_every_edge(case: str, formats) -> None:
    model, x = made(case)
    policy = Policy.uniform(*formats)
    calibrated = apply(model, policy, "calibrate", x)
    calibrated(x)
    frozen = apply(calibrated, policy, "freeze")
    assert_equal_everywhere(frozen, x)


def close(model: nn.Module, frozen: nn.Module, x: torch.Tensor) -> float:
    """Mean distance of the frozen scores from the trained model's, in their spread."""
    with torch.no_grad():
        expected, got = model.eval()(x), frozen(x)
    return float((expected - got).abs().mean() / expected.std())


@pytest.mark.parametrize("case", CASES)
def test_training_then_freezing_keeps_the_function(case: str) -> None:
    model, x = made(case)
    policy = Policy.uniform("int4", "uint4", "uint8")
    trained = apply(model.train(), policy, "train", x)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    target = torch.randn_like(trained(x))
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(trained(x), target)
        loss.backward()
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert all(p.grad is not None for p in trained.parameters())
    frozen = apply(trained, policy, "freeze")
    assert close(trained, frozen, x) < 0.02
    assert_equal_everywhere(frozen, x)
    twin = apply(model, policy, "train", sample_shape=tuple(x.shape[1:]))
    twin.load_state_dict(trained.state_dict())
    again = apply(twin, policy, "freeze")
    assert torch.equal(again(x), frozen(x))
