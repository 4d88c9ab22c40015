# SPDX-License-Identifier: Apache-2.0
"""Yosys reads the library as Verilator does: the netlist it elaborates gives the same integers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import missing_for
from tests.conftest import require as need
from tests.verilator.lib_cases import CASES, Case, levels_of
from tests.yosys.lib_wrapper import write_synthesis

from bitwright.base.tools.finder import require, run_tool
from bitwright.sim import RunLimits, Simulator, compare, random_stalls, write_module_bench

NAMES = """
    fifo5 narrow5 pad2x3 window_dilated window_skip matvec_wide matvec_binary_weight
    matvec_binary_act matvec_xnor threshold_unsigned threshold_flip requant_even requant_ceil
    window_3x3 matvec_plain threshold_bipolar pool_fold top1of12_3
    window_depthwise window_groups parallel_3x3 parallel_groups
    depthwise_wide depthwise_xnor depthwise_parallel add_scaled add_bipolar
    concat_mixed concat_bipolar sum_fold sum_bits upsample_2x2 lookup_channels top3of10_1
    matvec_flush matvec_power matvec_table depthwise_float requant_float_up requant_float_flush
    pool_code fifo11 fifo9 window_rows window_rows_luts upsample_lines
""".split()
POINTS = {case.name: case for case in CASES if case.name in NAMES}
FRAMES = 8


@pytest.fixture(scope="module")
def netlists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with one flat Verilog netlist a point, word-level, written by Yosys."""
    need(missing_for("verilator"))
    folder = tmp_path_factory.mktemp("netlists")
    files = write_synthesis(list(POINTS.values()), folder)
    script = []
    for name in POINTS:
        script += ["design -reset", *(f"read_verilog -sv -defer {file}" for file in files)]
        script += [f"prep -flatten -top wrap_{name}", "check -assert"]
        script += [f"write_verilog -noattr {name}.v"]
    (folder / "all.ys").write_text("\n".join(script) + "\n")
    run_tool(require("yosys"), ["-s", "all.ys"], cwd=folder, log=folder / "log", timeout=300)
    return folder


@pytest.mark.parametrize("case", POINTS.values(), ids=POINTS)
def test_netlist_gives_the_same_integers(case: Case, netlists: Path, tmp_path: Path) -> None:
    write_module_bench(tmp_path, case.module, {}, case.inputs, case.outputs)
    table = json.loads((tmp_path / "design.json").read_text())
    table |= {"top": f"wrap_{case.name}", "files": [f"{case.name}.v"], "parameters": {}}
    (tmp_path / "design.json").write_text(json.dumps(table))
    (tmp_path / f"{case.name}.v").write_text((netlists / f"{case.name}.v").read_text())
    simulator = Simulator.build(tmp_path)
    rng = np.random.default_rng(11)
    inputs = {name: levels_of(port, FRAMES, rng) for name, port in case.inputs.items()}
    limits = RunLimits(idle=5_000, drain=0 if case.surplus else 64)
    for stalls in (None, random_stalls(0.5, 2)):
        result = simulator.run(simulator.pack(inputs), FRAMES, stalls, limits=limits)
        assert compare(case.reference(inputs), result.levels) is None
