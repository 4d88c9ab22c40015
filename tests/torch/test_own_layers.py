# SPDX-License-Identifier: Apache-2.0
"""Layers of the user's own: what `register_layer` was told becomes integers, by ``==``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError
from bitwright.hw import map_graph
from bitwright.lower import optimise
from bitwright.quantize import (
    Elementwise,
    Policy,
    apply,
    elementwise,
    explain,
    op_match,
    register_layer,
    trace,
)
from bitwright.quantize.integers.affine import AffineValue, Context
from bitwright.quantize.integers.integerize import LAYERS


class Difference(nn.Module):
    """Twice the first minus the second: two operands, a rule of its own."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return 2 * a - b


def difference(
    context: Context, node: fx.Node, module: nn.Module, a: AffineValue, b: AffineValue
) -> AffineValue:
    attributes = {"multipliers": (2, -1)}
    edge = context.add("add", str(node.target), (a, b), attributes)
    return AffineValue(edge, a.gain, np.zeros(1), str(node.target), a.shape)


class Cube(nn.Module):
    """Never falls; written with calls that have no few-bit form."""

    def forward(self, x: Tensor) -> Tensor:
        return x**3 + x


class Wave(nn.Module):
    """Falls in places, so it is a table."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(2 * x)


class Network(nn.Module):
    def __init__(self, activation: nn.Module, shuffle: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Conv2d(2, 8, 3, padding=1) for _ in range(2))
        self.clip = nn.ReLU6()
        self.shuffle = nn.ChannelShuffle(2) if shuffle else nn.Identity()
        self.both, self.activation = Difference(), activation
        self.head = nn.Linear(8 * 36, 5)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.clip(self.first(x)), self.shuffle(self.clip(self.second(x)))
        return self.head(self.activation(self.both(a, b)).flatten(1))


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """The three layers, and everything as it was afterwards."""
    tables: tuple[dict[Any, Any], ...] = (LAYERS, op_match.MODULES, elementwise.MODULES)
    kept = [dict(table) for table in tables]
    whole = set(trace.WHOLE)
    register_layer(Difference, integers=difference)
    register_layer(Cube, function=Elementwise(monotone=True))
    register_layer(Wave, function=Elementwise(monotone=False, low=-1.0))
    yield
    for table, before in zip(tables, kept, strict=True):
        table.clear()
        table.update(before)
    trace.WHOLE.clear()
    trace.WHOLE.update(whole)


def policy(bits: int) -> Policy:
    constant = {"format": f"int{bits}", "scale": "const", "value": 2.0 ** (3 - bits)}
    return Policy.from_dict({"input": "uint8", "weight": f"int{bits}", "activation": constant})


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("activation", [Cube, Wave])
@pytest.mark.parametrize("bits", [4, 8])
def test_evaluation_is_the_integer_network(
    bits: int, activation: type[nn.Module], shuffle: bool
) -> None:
    x = torch.rand(16, 2, 6, 6)
    model = apply(Network(activation(), shuffle), policy(bits), "train", x).eval()
    with torch.no_grad():
        scores, simulated = model(x), model.simulate(x)
    integers = model.integers((2, 6, 6))
    assert integers is not None and not model.why_simulated
    graph = optimise(integers.graph, check=4)
    levels = graph.run({"x": integers.edges(x)["x"]})["scores"]
    assert np.array_equal((levels * integers.score_scale).astype(np.float32), scores.numpy())
    assert float((simulated - scores).abs().max()) < 0.02 * float(scores.abs().max())
    assert "both" in {node.name for node in integers.graph}


def test_its_gradient_is_that_of_its_forward() -> None:
    x = torch.rand(4, 2, 6, 6)
    model = apply(Network(Cube()), policy(4), "train", x).train()
    model(x).square().sum().backward()
    assert float(model.get_parameter("first.weight").grad.abs().max()) > 0


def test_it_has_hardware_as_its_operations_have() -> None:
    x = torch.rand(4, 2, 6, 6)
    model = apply(Network(Cube()), policy(4), "train", x).eval()
    assert any(node.op == "add" for node in map_graph(model.integers((2, 6, 6)).graph))


def test_a_layer_that_nobody_registered_is_refused() -> None:
    class Unknown(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cumsum(x, 1)

    with pytest.raises(ModelError, match="cumsum has no few-bit form"):
        apply(nn.Sequential(nn.Conv2d(2, 2, 1), Unknown()), policy(4), "train")


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(ModelError, match="either integers or function"):
        register_layer(Cube)
    with pytest.raises(ModelError, match="either integers or function"):
        register_layer(Cube, integers=difference, function=Elementwise(True))
    with pytest.raises(ModelError, match="knows this layer"):
        register_layer(nn.ReLU, function=Elementwise(True))


def test_explain_names_it() -> None:
    rows = explain(Network(Cube()), policy(4), torch.rand(1, 2, 6, 6))
    assert any(row.layer == "both" and "registered" in row.reason for row in rows)
