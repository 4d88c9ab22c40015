# SPDX-License-Identifier: Apache-2.0
"""A whole network after synthesis: the ECP5 netlist gives the integers of the graph."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import missing_for
from tests.conftest import require as need
from tests.hw_networks import Net, random_folding
from tests.netlists import write_gates

from bitwright.build.target import load_target
from bitwright.build.yosys import SynthesisOptions, synthesise
from bitwright.hw import Folding, analyse, map_graph
from bitwright.ir import random_feeds
from bitwright.rtl.emit import emit
from bitwright.sim import Simulator, no_stalls, random_stalls

FRAMES = 5


def _cell_models() -> str:
    """Yosys' own models of the ECP5 cells, in one text."""
    spec = importlib.util.find_spec("pyosys")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the cell models of the package pyosys are not there")
    folder = Path(next(iter(spec.submodule_search_locations)), "share", "lattice")

    # Synthesis uses the TRELLIS cells only; delays mean nothing here.
    names = ("common_sim.vh", "ccu2c_sim.vh", "cells_sim_ecp5.v")
    text = "".join((folder / name).read_text() for name in names)
    text = re.sub(r"^`include .*", "", text, flags=re.MULTILINE)
    text = text.replace("mem[i] <= INITVAL", "mem[i] = INITVAL")
    return re.sub(r"\bspecify\b.*?\bendspecify\b", "", text, flags=re.DOTALL)


def _netlist(rtl: Path, folder: Path) -> Path:
    """Design folder of the mapped netlist, with the ports of the design."""
    # Without DSP blocks and, by the folding, block RAMs: their models are empty.
    options = SynthesisOptions(dsp=False, extra=("-nobram",))
    made = synthesise(rtl, load_target("ecp5-25k"), folder / "synthesis", options=options)
    assert "DP16KD" not in made.cells
    table = json.loads((rtl / "design.json").read_text())
    write_gates(made.netlist, table["top"], folder)
    (folder / "cells.v").write_text(_cell_models())
    table |= {"files": ["gates.v", "cells.v"], "memories": []}
    (folder / "design.json").write_text(json.dumps(table))
    return folder


def test_mapped_network_gives_the_integers_of_the_graph(tmp_path: Path) -> None:
    need(missing_for("verilator"))
    net = Net((5, 4, 1), "uint3", "int3n", seed=20)
    net.conv(2, 3, padding=1).threshold().pool().conv(3, 2).threshold()
    graph = net.flatten().dense(3, bias=True, name="scores").finish()
    drawn = random_folding(graph, np.random.default_rng(1)).nodes
    in_luts = {name: replace(fold, ram_style="distributed") for name, fold in drawn.items()}
    hardware = map_graph(graph, Folding(in_luts))
    emit(hardware, tmp_path / "rtl")
    feeds = random_feeds(graph, FRAMES, np.random.default_rng(6))
    expected = graph.run(feeds)
    assert len(np.unique(expected[graph.outputs[0]], axis=0)) == FRAMES  # all frames differ
    gates = Simulator.build(_netlist(tmp_path / "rtl", tmp_path))
    beats = gates.pack({f"s_axis_{i}": feeds[edge] for i, edge in enumerate(graph.inputs)})
    for stalls in (no_stalls(), random_stalls(0.5, 3)):
        result = gates.run(beats, FRAMES, stalls)
        for number, edge in enumerate(graph.outputs):
            got = result.levels[f"m_axis_{number}"].reshape(expected[edge].shape)
            np.testing.assert_array_equal(got, expected[edge])
        if stalls.name == "none":
            assert result.interval == analyse(hardware).interval
