# SPDX-License-Identifier: Apache-2.0
"""A whole network after synthesis: the ECP5 netlist gives the integers of the graph."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import missing_for
from tests.conftest import require as need
from tests.hw_networks import Net, digits_like, random_folding
from tests.netlists import write_gates
from tests.yosys.cell_models import cell_models

from bitwright.base.figures import Resources
from bitwright.build.netlist import read_modules
from bitwright.build.packing import top_of
from bitwright.build.target import Target, load_target
from bitwright.build.yosys import SynthesisOptions, owner_of, synthesise
from bitwright.hw import (
    Folding,
    MapOptions,
    NodeFolding,
    analyse,
    blocks_of,
    graph_resources,
    map_graph,
)
from bitwright.hw.options import FillGoal
from bitwright.hw.search import search_folding
from bitwright.hw.template import template
from bitwright.ir import Graph, random_feeds
from bitwright.rtl.emit import emit
from bitwright.sim import Simulator, StallPattern, no_stalls, random_stalls

FRAMES = 5


def _netlist(rtl: Path, folder: Path, target: Target, *, dsp: bool = False) -> dict[str, Any]:
    """Make `folder` a design folder of the mapped netlist, with the ports of the design.

    Args:
        dsp: with DSP blocks: models of those of 7-series are empty.

    Returns:
        the cells.
    """
    options = SynthesisOptions(dsp=dsp)
    made = synthesise(rtl, target, folder / "synthesis", options=options, timeout=1800)
    cells: dict[str, Any] = top_of(read_modules(made.netlist), made.netlist)["cells"]
    table = json.loads((rtl / "design.json").read_text())
    write_gates(made.netlist, table["top"], folder)
    types = {cell["type"] for cell in cells.values() if not cell["type"].startswith("$")}
    (folder / "cells.v").write_text(cell_models(target.family, sorted(types)))
    table |= {"files": ["gates.v", "cells.v"], "memories": []}
    (folder / "design.json").write_text(json.dumps(table))
    return cells


def _equal(folder: Path, graph: Graph, hardware: Graph, stalls: Sequence[StallPattern]) -> None:
    """The netlist in a folder gives the integers of the graph, in as many cycles as predicted."""
    feeds = random_feeds(graph, FRAMES, np.random.default_rng(6))
    expected = graph.run(feeds)
    assert len(np.unique(expected[graph.outputs[0]], axis=0)) == FRAMES  # all frames differ
    gates = Simulator.build(folder)
    beats = gates.pack({f"s_axis_{i}": feeds[edge] for i, edge in enumerate(graph.inputs)})
    for stall in stalls:
        result = gates.run(beats, FRAMES, stall)
        for number, edge in enumerate(graph.outputs):
            got = result.levels[f"m_axis_{number}"].reshape(expected[edge].shape)
            np.testing.assert_array_equal(got, expected[edge])
        if stall.name == "none":
            assert result.interval == analyse(hardware).interval


@pytest.mark.parametrize("style", ["distributed", pytest.param("block", marks=pytest.mark.long)])
def test_mapped_network_gives_the_integers_of_the_graph(tmp_path: Path, style: str) -> None:
    need(missing_for("verilator"))
    net = Net((5, 4, 1), "uint3", "int3n", seed=20)
    net.conv(2, 3, padding=1).threshold().pool().conv(3, 2).threshold()
    graph = net.flatten().dense(3, bias=True, name="scores").finish()
    drawn = random_folding(graph, np.random.default_rng(1)).nodes
    placed = {name: replace(fold, ram_style=style) for name, fold in drawn.items()}
    placed["scores"] = replace(placed["scores"], depth=40)
    placed["scores_fifo"] = NodeFolding(ram_style=style)
    hardware = map_graph(graph, Folding(placed))
    emit(hardware, tmp_path / "rtl")
    cells = _netlist(tmp_path / "rtl", tmp_path, load_target("ecp5-25k"))
    rams = {name: cell["parameters"] for name, cell in cells.items() if cell["type"] == "DP16KD"}
    assert bool(rams) is (style == "block")
    plain = {owner_of(name) for name, have in rams.items() if "OUTREG" not in have.values()}
    assert plain <= {"i_pool"}  # its running maxima are compared at once
    if rams:
        assert {"i_conv", "i_conv_window", "i_scores_fifo"} <= set(map(owner_of, rams))
    _equal(tmp_path, graph, hardware, (no_stalls(), random_stalls(0.5, 3)))


def _rams_as_predicted(folder: Path, graph: Graph, hardware: Graph) -> dict[str, dict[str, str]]:
    """Parameters of the block RAMs of a design whose RTL takes the cycles of the model."""
    emit(hardware, folder / "rtl")
    feeds = random_feeds(graph, FRAMES, np.random.default_rng(6))
    rtl = Simulator.build(folder / "rtl")
    result = rtl.run(rtl.pack({"s_axis_0": feeds[graph.inputs[0]]}), FRAMES, no_stalls())
    flow = analyse(hardware)
    assert (result.latency, result.interval) == (flow.latency, flow.interval)
    cells = _netlist(folder / "rtl", folder, load_target("ecp5-45k"))
    return {name: cell["parameters"] for name, cell in cells.items() if cell["type"] == "DP16KD"}


@pytest.mark.long
@pytest.mark.parametrize("style", ["distributed", "block"])
def test_deep_memories_have_a_register_before_the_choice(tmp_path: Path, style: str) -> None:
    """2 100 words of weights in rows of LUTs or of block RAMs, and a vector of 300 words that is
    kept: RTL and netlist give the integers of the graph in the cycles of the model, and every block
    RAM has its register.
    """
    need(missing_for("verilator"))
    graph = Net((1, 1, 900), "uint2", "int3n", seed=7).flatten().dense(7, name="deep").finish()
    fold = NodeFolding(pe=1, simd=3, ram_style=style, res_type="lut")
    hardware = map_graph(graph, Folding({"deep": fold}))
    deep = blocks_of(hardware)["deep"]
    assert deep.integer("rom_rows") == (9 if style == "distributed" else 2)
    assert deep.integer("wait") == 1
    rams = _rams_as_predicted(tmp_path, graph, hardware)
    assert len(rams) == graph_resources(hardware, "ecp5").bram
    assert sum("i_weights" in name for name in rams) == (0 if style == "distributed" else 2)
    assert sum("i_buffer" in name for name in rams) == 1
    assert not [name for name, have in rams.items() if "OUTREG" not in have.values()]
    _equal(tmp_path, graph, hardware, (no_stalls(), random_stalls(0.5, 3)))


@pytest.mark.long
@pytest.mark.parametrize("style", ["distributed", "block"])
def test_deep_buffers_have_a_register_before_the_choice(tmp_path: Path, style: str) -> None:
    """The buffer of a window in rows: of LUT RAM from 129 words on, of block RAM where its ninth
    bits are needed and one is not deep enough. RTL and netlist give the integers of the graph in
    the cycles of the model, and every block RAM has its register: no choice in front of it.
    """
    need(missing_for("verilator"))
    channels, lines = (75, 2048) if style == "block" else (9, 64)
    net = Net((4, 40, channels), "uint3", "int2n", seed=9).conv(2, 3).threshold()
    graph = net.finish(label=False)
    fold = NodeFolding(pe=1, simd=3, ram_style=style, res_type="lut")
    window = NodeFolding(simd=3, ram_style=style)
    hardware = map_graph(graph, Folding({"conv": fold, "conv_window": window}))
    block = blocks_of(hardware)["conv_window"]
    assert block.instance().parameters["RamLines"] == lines
    rams = _rams_as_predicted(tmp_path, graph, hardware)
    buffers = [name for name in rams if name.startswith("i_conv_window.")]
    assert len(buffers) == block.memory_cost("ecp5").bram == (2 if style == "block" else 0)
    assert not [name for name, have in rams.items() if "OUTREG" not in have.values()]
    _equal(tmp_path, graph, hardware, (no_stalls(), random_stalls(0.5, 3)))


@pytest.mark.long
def test_registers_in_dsp_blocks_of_ultrascale_keep_the_integers(tmp_path: Path) -> None:
    """In DSP48E2 with the registers in front of it and behind it (`build/dsp_operands`,
    `build/dsp_registers`).
    """
    need(missing_for("verilator"))
    net = Net((3, 3, 2), "int8", "int8", seed=3)
    graph = net.conv(4, 2).threshold().flatten().dense(4, bias=True, name="scores").finish()
    placed = {
        node.name: NodeFolding(pe=2, res_type="dsp")
        for node in template(graph)
        if node.op == "matvec"
    }
    hardware = map_graph(graph, Folding(placed), MapOptions("xcup"))
    emit(hardware, tmp_path / "rtl")
    cells = _netlist(tmp_path / "rtl", tmp_path, load_target("xczu9eg"), dsp=True)
    blocks = [cell["parameters"] for cell in cells.values() if cell["type"] == "DSP48E2"]
    assert len(blocks) == graph_resources(hardware, "xcup").dsp > 0
    for register in ("AREG", "BREG", "PREG"):
        assert all(int(have[register], 2) == 1 for have in blocks)
    _equal(tmp_path, graph, hardware, (no_stalls(), random_stalls(0.5, 3)))


@pytest.mark.long
@pytest.mark.parametrize(
    "kinds", [("uint4", "int4n"), ("int8", "int8"), ("uint2", "int2n")], ids="-".join
)
def test_registers_in_multipliers_of_ecp5_keep_the_integers(
    tmp_path: Path, kinds: tuple[str, str]
) -> None:
    """Operands' registers in MULT18X18D (`build/dsp_operands`); two, one and three products a
    multiplication, one row in LUTs beside one in DSP blocks, and the products of `requant`.
    """
    need(missing_for("verilator"))
    net = Net((3, 3, 2), *kinds, seed=3)
    graph = net.conv(4, 2).requant().flatten().dense(4, bias=True, name="scores").finish()
    placed = {
        node.name: NodeFolding(pe=2, res_type="dsp", dsp_pe=rows)
        for node, rows in zip(
            (n for n in template(graph) if n.op in ("matvec", "requant")), (1, None, 2), strict=True
        )
    }
    hardware = map_graph(graph, Folding(placed), MapOptions("ecp5"))
    emit(hardware, tmp_path / "rtl")
    cells = _netlist(tmp_path / "rtl", tmp_path, load_target("ecp5-45k"), dsp=True)
    blocks = [cell["parameters"] for cell in cells.values() if cell["type"] == "MULT18X18D"]
    assert len(blocks) == graph_resources(hardware, "ecp5").dsp > 0
    assert all(have.get(f"REG_INPUT{side}_CLK") == "CLK0" for have in blocks for side in "AB")
    _equal(tmp_path, graph, hardware, (no_stalls(), random_stalls(0.5, 3)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["ecp5-45k", "ice40-hx8k"])
def test_digits_after_synthesis_gives_the_integers_of_its_graph(tmp_path: Path, name: str) -> None:
    """The demo's network, folded as its recipe asks, for each family with a flow to a bitstream."""
    need(missing_for("verilator"))
    graph, target = digits_like(), load_target(name)
    budget = Resources(lut=3400, ff=target.capacity.ff, bram=20, dsp=0)
    folding = search_folding(graph, FillGoal(budget), family=target.family)
    hardware = map_graph(graph, folding, MapOptions(target.family))
    emit(hardware, tmp_path / "rtl")
    cells = _netlist(tmp_path / "rtl", tmp_path, target)
    if target.family == "ecp5":  # the edits of the netlist are in it
        assert any(cell["parameters"].get("REGMODE_A") == "OUTREG" for cell in cells.values())
        assert any("_carry" in cell for cell in cells)
    _equal(tmp_path, graph, hardware, (no_stalls(), random_stalls(0.5, 3)))
