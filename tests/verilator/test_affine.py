# SPDX-License-Identifier: Apache-2.0
"""A network whose weights, activations and input have zero points, from training to simulated RTL:
thresholds, a multiply-shift activation, zero padding and a maximum over levels of both signs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.hw_networks import random_folding
from torch import nn

from bitwright.hw import map_graph
from bitwright.lower.passes import optimise
from bitwright.quantize import Policy, apply
from bitwright.rtl.emit import emit
from bitwright.sim import Simulator, no_stalls, random_stalls

FRAMES = 6


@pytest.mark.long
def test_zero_points_in_hardware(tmp_path: Path) -> None:
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Hardtanh(-1.0, 0.5),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Hardtanh(),
        nn.Flatten(),
        nn.Linear(36, 3),
    )
    affine = {"scale": "minmax"}
    policy = Policy.from_dict(
        {
            "input": {"format": "uint4", **affine},
            "weight": {"format": "int4", **affine},
            "activation": {"format": "uint4", **affine},
            "rules": [{"layers": "4", "role": "activation", "format": "uint8"}],
        }
    )
    images = torch.randn(32, 2, 6, 6) + 0.3
    model = apply(net, policy, "train", images).train()
    model(images)
    frozen = apply(model.eval(), policy, "freeze", images)
    graph = optimise(frozen.graph, check=4)
    zeros = [kind.lo for kind in graph.types.values() if kind.format is not None]
    assert sum(lo < 0 for lo in zeros) >= 3, "input and both activations go below zero"
    assert {"threshold", "requant"} <= {node.op for node in graph}
    levels = frozen.edges(images[:FRAMES])[graph.inputs[0]]
    wanted = frozen.levels(images[:FRAMES]).numpy().astype(np.int64)
    emit(map_graph(graph, random_folding(graph, np.random.default_rng(1))), tmp_path / "rtl")
    simulator = Simulator.build(tmp_path / "rtl")
    inputs = simulator.pack({"s_axis_0": levels})
    for stalls in (no_stalls(), random_stalls(0.5, seed=2)):
        result = simulator.run(inputs, FRAMES, stalls)
        assert (result.levels["m_axis_0"].reshape(wanted.shape) == wanted).all()
