# SPDX-License-Identifier: Apache-2.0
"""From a quantized torch model of any format to hardware blocks: same integers, codes as narrow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from bitwright.hw import blocks_of, map_graph
from bitwright.hw.blocks import MatVec, Requant
from bitwright.ir import Graph, random_feeds
from bitwright.lower import optimise
from bitwright.quantize import Policy, apply


def _graph(weight: str, activation: str, given: str) -> Graph:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(27, 5),
    )  # fmt: skip
    policy = Policy.uniform(weight=weight, activation=activation, input=given)
    frozen = apply(net.eval(), policy, "freeze", torch.rand(16, 2, 10, 10))
    return optimise(frozen.graph)


@pytest.mark.parametrize(
    ("weight", "activation", "most_bits"),
    [("po2_4", "uint4", 4), ("cb16:e4m3", "uint8", 4), ("e4m3", "uint4", 8), ("mxfp4", "e4m3", 6),
     ("e4m3", "e4m3", 8), ("int4", "e2m1", 4)],
)  # fmt: skip
def test_every_format_maps_to_the_same_integers(
    weight: str, activation: str, most_bits: int
) -> None:
    graph = _graph(weight, activation, "uint8")
    hardware = map_graph(graph)
    feeds = random_feeds(graph, 3, np.random.default_rng(0))
    expected, got = graph.run(feeds), hardware.run(feeds)
    assert all((got[edge] == expected[edge]).all() for edge in graph.outputs)
    units = [block for block in blocks_of(hardware).values() if isinstance(block, MatVec)]
    assert len(units) == 3 and all(unit.weight_bits <= most_bits for unit in units)


def test_dynamic_fixed_point_needs_no_multiplier_between_layers() -> None:
    hardware = map_graph(_graph("dfp8", "dfp8", "dfp8"))
    moves = [block for block in blocks_of(hardware).values() if isinstance(block, Requant)]
    assert len(moves) == 2 and all(move.power >= 0 for move in moves)
