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

from bitwright.build.netlist import read_modules
from bitwright.build.packing import top_of
from bitwright.build.target import load_target
from bitwright.build.yosys import SynthesisOptions, owner_of, synthesise
from bitwright.hw import Folding, NodeFolding, analyse, map_graph
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
    text = re.sub(r"\bmodule DP16KD\(.*?\bendmodule\b", "", text, flags=re.DOTALL)  # it is empty
    return re.sub(r"\bspecify\b.*?\bendspecify\b", "", text, flags=re.DOTALL) + _block_ram()


def _block_ram() -> str:
    """The block RAM: its ports around our model."""
    sides, parameters, ports, inside = "AB", [], [], []
    parameters = [f"parameter [319:0] INITVAL_{k:02X} = 0" for k in range(64)]
    for name in ("DATA_WIDTH", "REGMODE", "WRITEMODE", "CSDECODE"):
        parameters += [f"parameter {name}_{side} = 0" for side in sides]
    parameters += [f"parameter {name}{s}MUX = 0" for name in ("CLK", "OCE") for s in sides]
    parameters += [f"parameter {n} = 0" for n in ("GSR", "RESETMODE", "ASYNC_RESET_RELEASE")]
    for side, low in zip(sides, "ab", strict=True):
        single = ("CLK", "CE", "OCE", "WE")
        ports += [f"input {name}{side}" for name in (*single, "RST", "CS0", "CS1", "CS2")]
        inside += [f".{name.lower()}{low}({name}{side})" for name in single]
        for bus, width, way in (("AD", 14, "input"), ("DI", 18, "input"), ("DO", 18, "output")):
            bits = [f"{bus}{side}{bit}" for bit in range(width)]
            ports += [f"{way} {bit}" for bit in bits]
            inside.append(f".{bus.lower()}{low}({{{', '.join(reversed(bits))}}})")
    ports = [re.sub(r"CS(\d)(\w)", r"CS\2\1", port) for port in ports]
    init = ", ".join(f"INITVAL_{k:02X}" for k in reversed(range(64)))
    names = [f"{n}_{s}" for n in ("DATA_WIDTH", "REGMODE") for s in sides] + ["OCEAMUX", "OCEBMUX"]
    given = ", ".join([f".INIT({{{init}}})", *(f".{name}({name})" for name in names)])
    head = f"module DP16KD #({', '.join(parameters)}) ({', '.join(ports)});\n"
    body = f"  BLOCK_RAM #({given}) i_ram ({', '.join(inside)});\nendmodule\n"
    return head + body + (Path(__file__).parent / "block_ram.v").read_text()


def _netlist(rtl: Path, folder: Path, style: str) -> Path:
    """Design folder of the mapped netlist, with the ports of the design."""
    # Without DSP blocks: their models are empty.
    options = SynthesisOptions(dsp=False)
    made = synthesise(rtl, load_target("ecp5-25k"), folder / "synthesis", options=options)
    cells = top_of(read_modules(made.netlist), made.netlist)["cells"].items()
    rams = {name: cell["parameters"] for name, cell in cells if cell["type"] == "DP16KD"}
    assert bool(rams) is (style == "block")
    plain = {owner_of(name) for name, have in rams.items() if "OUTREG" not in have.values()}
    assert plain <= {"i_pool"}  # its running maxima are compared at once
    if rams:
        assert {"i_conv", "i_conv_window", "i_scores_fifo"} <= set(map(owner_of, rams))
    table = json.loads((rtl / "design.json").read_text())
    write_gates(made.netlist, table["top"], folder)
    (folder / "cells.v").write_text(_cell_models())
    table |= {"files": ["gates.v", "cells.v"], "memories": []}
    (folder / "design.json").write_text(json.dumps(table))
    return folder


@pytest.mark.parametrize("style", ["distributed", "block"])
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
    feeds = random_feeds(graph, FRAMES, np.random.default_rng(6))
    expected = graph.run(feeds)
    assert len(np.unique(expected[graph.outputs[0]], axis=0)) == FRAMES  # all frames differ
    gates = Simulator.build(_netlist(tmp_path / "rtl", tmp_path, style))
    beats = gates.pack({f"s_axis_{i}": feeds[edge] for i, edge in enumerate(graph.inputs)})
    for stalls in (no_stalls(), random_stalls(0.5, 3)):
        result = gates.run(beats, FRAMES, stalls)
        for number, edge in enumerate(graph.outputs):
            got = result.levels[f"m_axis_{number}"].reshape(expected[edge].shape)
            np.testing.assert_array_equal(got, expected[edge])
        if stalls.name == "none":
            assert result.interval == analyse(hardware).interval
