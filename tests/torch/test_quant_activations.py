# SPDX-License-Identifier: Apache-2.0
"""Activations of every kind: thresholds and tables equal the function they stand for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitwright.base.errors import ModelError
from bitwright.lower import optimise
from bitwright.lower.compare import compare_edges
from bitwright.quantize import Policy, apply, explain
from bitwright.quantize.elementwise import MODULES
from bitwright.quantize.plan import make_plan

SHAPE = (2, 5, 5)


def net(activation: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    norm.weight.data.copy_(torch.tensor([1.0, -1.5, 0.0, 0.7]))
    norm.bias.data.normal_()
    layers = (nn.Conv2d(2, 4, 3), norm, activation, nn.Conv2d(4, 3, 1))
    return nn.Sequential(*layers).eval()


def frozen_of(model: nn.Module, policy: Policy) -> tuple[nn.Module, torch.Tensor]:
    x = torch.rand(6, *SHAPE)
    frozen = apply(model, policy, "freeze", x)
    graph = frozen.graph
    compare_edges(graph, frozen.edges(x), accumulators=True).require()
    compare_edges(optimise(graph, check=2), frozen.edges(x)).require()
    return frozen, x


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("bits", [4, 8])
def test_each_activation_is_its_function_rounded(kind: type[nn.Module], bits: int) -> None:
    model, policy = net(kind()), Policy.uniform("int8", f"uint{bits}", "uint8")
    x = torch.rand(6, *SHAPE)
    quantized = apply(model, policy, "train", x)
    frozen = apply(quantized, policy, "freeze")
    graph = frozen.graph
    compare_edges(graph, frozen.edges(x), accumulators=True).require()
    few = bits == 4 and MODULES[kind].monotone
    (made,) = [node for node in graph if node.source.endswith("2_quantizer")]
    assert made.op == ("threshold" if few else "lookup")
    # The levels are those that training computes, but for rounding at a border between levels.
    quantizer = next(m for n, m in quantized.named_modules() if n.endswith("2_quantizer"))
    seen: list[torch.Tensor] = []
    quantizer.register_forward_hook(lambda m, i, o: seen.append(o / m.unit))
    with torch.no_grad():
        quantized.eval().simulate(x)
    levels = frozen.edges(x)[made.output].transpose(0, 3, 1, 2)
    wrong = np.abs(levels - seen[-1].round().numpy())
    assert wrong.max() <= 1 and (wrong > 0).mean() < 0.01


def test_prelu_may_have_a_slope_a_channel_but_none_below_zero() -> None:
    prelu = nn.PReLU(4)
    prelu.weight.data.copy_(torch.tensor([0.0, 0.2, 0.5, 1.5]))
    frozen_of(net(prelu), Policy.uniform())
    prelu.weight.data[1] = -0.1
    with pytest.raises(ModelError, match="slope is negative"):
        apply(net(prelu), Policy.uniform(), "freeze", torch.rand(6, *SHAPE))


@pytest.mark.parametrize("activation", [nn.LeakyReLU(-0.3), nn.ELU(-0.5)], ids=["leaky", "elu"])
def test_an_activation_that_falls_becomes_a_table(activation: nn.Module) -> None:
    frozen, _ = frozen_of(net(activation), Policy.uniform())
    assert any(node.op == "lookup" for node in frozen.graph)


def test_a_table_over_floats_that_reach_too_far_is_refused_before_training() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Sigmoid(), nn.Conv2d(4, 3, 1)).eval()
    make_plan(model, Policy.uniform(activation="e3m2"))
    with pytest.raises(ModelError, match=r"table over e5m2 numbers, which span .* 65536 entries"):
        make_plan(model, Policy.uniform(activation="e5m2"))
    wide = {"layers": "1", "role": "activation", "format": "int8"}
    rest = {"activation": "e5m2", "rules": [wide]}
    make_plan(model, Policy.from_dict(rest))


def test_the_input_of_a_table_follows_a_rule() -> None:
    model = net(nn.SiLU())
    rows = {(r.layer, r.operand): r for r in explain(model, Policy.uniform())}
    assert rows[("2.input", "activation")].format == "int8"
    rule = {"layers": "2.input", "role": "activation", "format": "int6"}
    policy = Policy.from_dict({"rules": [rule]})
    frozen, _ = frozen_of(model, policy)
    (table,) = [node.params["table"] for node in frozen.graph if node.op == "lookup"]
    assert table.shape == (1, 64)


def test_functions_and_methods_are_activations_too() -> None:
    class Functions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv2d(2, 2, 1) for _ in range(6)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.leaky_relu(self.convs[0](x), negative_slope=0.2)
            x = self.convs[1](x).sigmoid()
            x = torch.clamp(self.convs[2](x), -0.5, 0.5)
            x = F.gelu(self.convs[3](x), approximate="tanh")
            x = self.convs[4](x).clamp(min=0.0)
            return self.convs[5](torch.tanh(x))

    frozen, x = frozen_of(Functions().eval(), Policy.uniform())
    assert np.isfinite(frozen(x).numpy()).all()
