# SPDX-License-Identifier: Apache-2.0
"""One network on several devices: part by part, and wired together, the integers of the graph."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.hw_networks import Net, digits_like

from bitwright.base.figures import Resources
from bitwright.hw import Folding, NodeFolding, map_graph
from bitwright.hw.cuts import units_of
from bitwright.hw.devices import partition
from bitwright.hw.partition import Partition, cut_graph
from bitwright.ir import Graph, random_feeds
from bitwright.rtl.emit_parts import emit_partition
from bitwright.sim import PartsSimulator, Simulator, burst_stalls, no_stalls, random_stalls
from bitwright.sim.toolchain import lint

FRAMES = 8


def check(graph: Graph, parts: Partition, folder: Path) -> None:
    """By the reference functions, and with all parts wired together, against the graph."""
    feeds = random_feeds(graph, FRAMES, np.random.default_rng(3))
    expected = graph.run(feeds)
    reference = parts.run(feeds)
    for edge, value in expected.items():
        assert (reference[edge] == value).all()
    emit_partition(parts, folder, family="ecp5", clock_hz=50e6)
    _check_chain(graph, parts, folder / "chain")


def check_parts(graph: Graph, parts: Partition, folder: Path) -> None:
    """Each part simulated alone on what the one before it gave."""
    feeds = random_feeds(graph, FRAMES, np.random.default_rng(3))
    expected = graph.run(feeds)
    simulator = PartsSimulator.build(folder)
    for stalls in (no_stalls(), random_stalls(0.4, 2)):
        result = simulator.run(feeds, FRAMES, stalls)
        for edge, value in expected.items():
            assert (result.levels[edge] == value.reshape(FRAMES, -1)).all()
        if stalls.name == "none":
            assert result.interval == parts.interval


def _check_chain(graph: Graph, parts: Partition, folder: Path) -> None:
    feeds = random_feeds(graph, FRAMES, np.random.default_rng(4))
    expected = graph.run(feeds)
    simulator = Simulator.build(folder)
    inputs = simulator.pack({f"s_axis_{i}": feeds[e] for i, e in enumerate(graph.inputs)})
    for stalls in (no_stalls(), random_stalls(0.5, 5), burst_stalls(seed=6)):
        result = simulator.run(inputs, FRAMES, stalls)
        for number, edge in enumerate(graph.outputs):
            got = result.levels[f"m_axis_{number}"].reshape(expected[edge].shape)
            assert (got == expected[edge]).all(), f"{edge} differs (stalls: {stalls.name})"
        if stalls.name == "none":
            assert np.diff(result.frame_ends())[-1] == parts.interval
    table = json.loads((folder / "design.json").read_text())
    assert lint([folder / name for name in table["files"]], table["top"]) == ""


@pytest.mark.long
def test_digits_network_on_two_devices(tmp_path: Path) -> None:
    graph = digits_like()
    device = Resources(2600, 4000, 0, 8)
    parts = partition(graph, device, family="ecp5", devices=2)
    assert len(parts.parts) == 2
    check(graph, parts, tmp_path)
    check_parts(graph, parts, tmp_path)
    table = json.loads((tmp_path / "partition.json").read_text())
    for part in table["parts"]:
        assert all(part["resources"][k] <= getattr(device, k) for k in ("lut", "ff", "bram"))
    links = table["links"]
    assert [link["target"] - link["source"] for link in links] == [1] * len(links)
    for link in links:
        rate = link["bytes_per_frame"] * 8 * 50e6 / table["interval"]
        assert link["mbits_per_s"] == pytest.approx(rate / 1e6)


def bypassed() -> tuple[Graph, Folding]:
    """A residual block of three convolutions."""
    net = Net((6, 5, 2), "uint2", "int2n", seed=8, name="bypassed")
    net.conv(4, 3, 1).threshold()
    first = net.edge
    net.conv(4, 3, 1).threshold().conv(4, 3, 1).threshold()
    net.conv(4, 3, 1).threshold().add(first).threshold().flatten()
    graph = net.dense(5, name="scores").finish()
    return graph, Folding({f"conv_{n}": NodeFolding(pe=2, simd=4) for n in (2, 3, 4)})


def test_bypasses_over_one_and_over_several_cuts(tmp_path: Path) -> None:
    graph, folding = bypassed()
    hardware = map_graph(graph, folding)
    names = [unit.name for unit in units_of(hardware)]
    cuts = [names.index(n) for n in ("conv_3_window", "conv_4_window")]
    parts = cut_graph(hardware, cuts, "ecp5")
    over_several = [link for link in parts.links if link.target - link.source > 1]
    assert len(parts.links) > len(cuts) and over_several
    check(graph, parts, tmp_path)
