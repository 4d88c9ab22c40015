# SPDX-License-Identifier: Apache-2.0
"""Accumulators that round and saturate, in RTL: drawn networks, and SkyNet's fixed point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.hw_networks import random_folding, rounded_network
from tests.skynet_networks import folded

from bitwright.formats import parse_format
from bitwright.hw import map_graph
from bitwright.hw.dataflow import analyse
from bitwright.ir import INTEGER, GraphBuilder, TensorType
from bitwright.papers.skynet.fixed_graph import fixed_graph, levels_of
from bitwright.papers.skynet.fixed_point import FixedTypes, evaluate_fixed
from bitwright.rtl.emit import emit
from bitwright.sim import Simulator, no_stalls, random_stalls

FRAMES = 4


@pytest.mark.parametrize("seed", range(3))
def test_drawn_networks(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(200 + seed)
    graph = rounded_network(rng, layers=3)
    hardware = map_graph(graph, random_folding(graph, rng, most=64))
    emit(hardware, tmp_path / "rtl")
    simulator = Simulator.build(tmp_path / "rtl")
    (edge,), (out,) = graph.inputs, graph.outputs
    kind = graph.types[edge]
    levels = rng.integers(kind.lo, kind.hi + 1, (FRAMES, *kind.shape))
    wanted = graph.run({edge: levels})[out]
    inputs = simulator.pack({"s_axis_0": levels})
    for stalls in (no_stalls(), random_stalls(0.5, seed=2)):
        result = simulator.run(inputs, FRAMES, stalls)
        assert (result.levels["m_axis_0"].reshape(wanted.shape) == wanted).all()
        if stalls.name == no_stalls().name:
            assert np.diff(result.frame_ends())[-1] == analyse(hardware).interval


def test_more_is_dropped_than_a_sum_has(tmp_path: Path) -> None:
    """Every step adds 0, whatever its sign: sums of two products of 4 bits lose 14."""
    rng = np.random.default_rng(4)
    builder = GraphBuilder("dropped", INTEGER)
    edge = builder.input("x", TensorType((2, 2, 4), parse_format("int4"), (1.0,), -8, 7))
    attrs = {"weight_format": "int4", "tile": 2, "drop": 14, "bits": 8}
    params = {"weight": rng.integers(-8, 8, (2, 1, 1, 4)), "bias": np.array([5, -5])}
    graph = builder.finish(builder.add("conv_rounded", (edge,), attrs=attrs, params=params))
    emit(map_graph(graph), tmp_path / "rtl")
    simulator = Simulator.build(tmp_path / "rtl")
    levels = rng.integers(-8, 8, (FRAMES, 2, 2, 4))
    wanted = graph.run({edge: levels})[graph.outputs[0]]
    result = simulator.run(simulator.pack({"s_axis_0": levels}), FRAMES)
    assert (result.levels["m_axis_0"].reshape(wanted.shape) == wanted).all()
    assert (wanted == [5, -5]).all()


@pytest.mark.long
def test_skynet_in_fixed_point_is_its_emulation(tmp_path: Path) -> None:
    """A narrow network to its last convolution: bypass, reorder and head are in it."""
    types = FixedTypes(tile=1)
    graph = fixed_graph(folded(6), (16, 16, 3), types)
    emit(map_graph(graph), tmp_path / "rtl")
    simulator = Simulator.build(tmp_path / "rtl")
    images = np.random.default_rng(7).uniform(-4, 4, (2, 3, 16, 16))
    result = simulator.run(simulator.pack({"s_axis_0": levels_of(images, types.maps)}), 2)
    wanted = levels_of(evaluate_fixed(folded(6), images, types), types.sums)
    assert (result.levels["m_axis_0"].reshape(wanted.shape) == wanted).all()
