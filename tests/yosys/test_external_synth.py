# SPDX-License-Identifier: Apache-2.0
"""Weight readers and arbiter after synthesis: their cost is what the model says."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hw_networks import Net

from bitwright.base.figures import Resources
from bitwright.build.target import load_target
from bitwright.build.yosys import synthesise
from bitwright.hw import Folding, NodeFolding, graph_resources, map_graph
from bitwright.ir import Graph
from bitwright.rtl.emit import emit

UNITS = {"conv": (3, 2), "fc": (4, 3)}


def network() -> Graph:
    net = Net((6, 5, 2), "uint2", "int3n", seed=4, name="outside")
    net.conv(6, 3, 1).threshold().flatten().dense(24, bias=True, name="fc").threshold()
    return net.dense(5, name="scores").finish()


def measured(mode: str, folder: Path) -> tuple[Resources, Resources]:
    """(predicted, synthesised) with the weights of two units inside or outside."""
    nodes = {n: NodeFolding(pe=p, simd=s, mem_mode=mode) for n, (p, s) in UNITS.items()}
    hardware = map_graph(network(), Folding(nodes))
    emit(hardware, folder / mode)
    made = synthesise(folder / mode, load_target("ecp5-45k"), folder / f"{mode}.out")
    return graph_resources(hardware, "ecp5"), made.resources


@pytest.mark.long
def test_readers_cost_what_the_model_says(tmp_path: Path) -> None:
    said_in, found_in = measured("internal_embedded", tmp_path)
    said_out, found_out = measured("external", tmp_path)
    assert found_out.bram == said_out.bram
    for kind in ("lut", "ff"):
        said = getattr(said_out, kind) - getattr(said_in, kind)
        found = getattr(found_out, kind) - getattr(found_in, kind)
        assert found > 0 and abs(said - found) <= 0.2 * found, (kind, said, found)
