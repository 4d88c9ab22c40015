# SPDX-License-Identifier: Apache-2.0
"""Every library module becomes a netlist for ECP5, iCE40 and 7-series: no latch."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.verilator.lib_cases import CASES, Case, threshold
from tests.yosys.lib_wrapper import write_synthesis

from bitwright.base.tools.finder import require, run_tool
from bitwright.rtl import module_files
from bitwright.sim import StreamSpec

COMMANDS = {
    "ecp5": "synth_ecp5 -top wrap",
    "ice40": "synth_ice40 -dsp -top wrap",
    "xc7": "synth_xilinx -family xc7 -flatten -noiopad -top wrap",
}
NAMES = """
    skid fifo3 fork widen2 narrow2 axis_in axis_out pad3x4 window_stride matvec_plain matvec_dsp
    matvec_xnor matvec_wide threshold_bipolar threshold_flip requant_away requant_up pool_fold
    top1of12_3 depthwise_3x3 depthwise_dsp add_scaled concat_bipolar sum_fold upsample_rows
    lookup_channels lookup_bits top3of10_1 matvec_flush matvec_power matvec_table
    matvec_float_dsp depthwise_float requant_float_flush requant_power pool_code
""".split()
NARROWED = """
    matvec_wide matvec_flush matvec_power matvec_table matvec_float_dsp
    requant_away requant_float_flush requant_power depthwise_float depthwise_dsp
""".split()
WIDTHS = {"MulFile": "MulWidth", "OffsetFile": "OffsetWidth", "BiasFile": "BiasWidth"}


def _narrowed(case: Case) -> Case:
    """The same arithmetic with one lane: the others are copies of it."""
    old = case.parameters
    pe, simd = int(old["PE"]), int(old.get("SIMD", 1))
    sizes = {"PE": pe, "MH": pe, "Channels": pe, "SIMD": simd, "MW": simd}
    parameters = {k: int(v) // sizes[k] if k in sizes else v for k, v in old.items()}
    if "DspRows" in old:
        parameters["DspRows"] = min(1, int(old["DspRows"]))
    weight = "IndexWidth" if "IndexWidth" in old else "WeightWidth"
    memories = dict(case.memories)
    for key, width in (WIDTHS | {"WeightFile": weight}).items():
        if (name := str(old.get(key))) in memories:
            memories[name] = _first_lane(memories[name], int(old[width]))
    return replace(
        case,
        parameters=parameters,
        inputs={name: _one_lane(port) for name, port in case.inputs.items()},
        outputs={name: _one_lane(port) for name, port in case.outputs.items()},
        memories=memories,
    )


def _first_lane(text: str, bits: int) -> str:
    return "".join(f"{int(word, 16) & ((1 << bits) - 1):x}\n" for word in text.split())


def _one_lane(port: StreamSpec) -> StreamSpec:
    return replace(port, lanes=1, width=port.lane_bits)


POINTS = {
    case.name: _narrowed(case) if case.name in NARROWED else case
    for case in CASES
    if case.name in NAMES
}
STYLE_1 = """
    matvec_plain threshold_bipolar window_stride depthwise_3x3 upsample_rows lookup_channels
""".split()
LATCHES = {"TRELLIS_LATCH", "LDCE", "LDPE", "$_DLATCH_P_", "$_DLATCH_N_", "SB_LATCH", "$dlatch"}
MULTIPLIERS = {"ecp5": "MULT18X18D", "ice40": "SB_MAC16", "xc7": "DSP48E1"}
OWNER = re.compile(r"(\$flatten\\)?i_(?P<point>\w+)\.")
BLOCK_RAMS = {"ecp5": {"DP16KD"}, "ice40": {"SB_RAM40_4K"}, "xc7": {"RAMB18E1", "RAMB36E1"}}


def _synthesise(folder: Path, family: str) -> dict[str, Counter[str]]:
    """All points in one flat netlist, which takes half as long as one of each; cells by type.

    The cells of a point begin with the name of its instance, but for those that the technology
    mapper makes up, which stand under ``""``: they are LUTs and carry chains.
    """
    files = write_synthesis(list(POINTS.values()), folder)
    script = [f"read_verilog -sv -defer {file}" for file in files]
    script += [COMMANDS[family], "check -assert", "write_json netlist.json"]
    (folder / "all.ys").write_text("\n".join(script) + "\n")
    run_tool(require("yosys"), ["-s", "all.ys"], cwd=folder, log=folder / "log", timeout=500)
    netlist = json.loads((folder / "netlist.json").read_text())["modules"]["wrap"]["cells"]
    cells: dict[str, Counter[str]] = {name: Counter() for name in ("", *POINTS)}
    for name, cell in netlist.items():
        found = OWNER.match(name)
        cells[found["point"] if found else ""][cell["type"]] += 1
    return cells


@pytest.mark.parametrize("lanes", [1, 4])
def test_thresholds_elaborate_as_many_bits_as_they_store(lanes: int, tmp_path: Path) -> None:
    """2^Bits - 1 words a channel; not those of every lane once a lane."""
    case = threshold("lanes", 8, lanes, 3, style=2)
    files = write_synthesis([case], tmp_path)
    script = [f"read_verilog -sv -defer {file}" for file in files]
    script += ["hierarchy -top wrap", "proc", "flatten", "tee -q -o stat.json stat -json"]
    (tmp_path / "all.ys").write_text("\n".join(script) + "\n")
    run_tool(require("yosys"), ["-s", "all.ys"], cwd=tmp_path, log=tmp_path / "log", timeout=100)
    table = json.loads((tmp_path / "stat.json").read_text())
    assert table["design"]["num_memory_bits"] == 8 * 7 * int(case.parameters["ThrWidth"])


@pytest.mark.parametrize(
    "family",
    ["ecp5", *(pytest.param(name, marks=pytest.mark.long) for name in COMMANDS if name != "ecp5")],
)
def test_library_synthesises(family: str, tmp_path: Path) -> None:
    cells = _synthesise(tmp_path, family)
    multiplier, block_rams = MULTIPLIERS[family], BLOCK_RAMS[family]
    unnamed = cells.pop("")
    assert not (LATCHES | block_rams | {multiplier}) & set(unnamed)
    for name, found in cells.items():
        assert found.total() > 0, name
        assert not LATCHES & set(found), name
        case = POINTS[name]
        assert (found[multiplier] > 0) == bool(
            case.parameters.get("UseDsp", 0) or case.parameters.get("DspRows", 0)
        ), name
        if case.parameters.get("RomStyle") == 2 or case.parameters.get("RamStyle") == 2:
            assert not block_rams & set(found), name
    for name in STYLE_1:
        assert block_rams & set(cells[name]), name
    # Two lanes of two products each: one multiplier a product.
    assert cells["matvec_dsp"][multiplier] == 4


TWO_ALIKE = """
module wrap (input logic clk, input logic [3:0] data, output logic [3:0] first, second);
  engine_own #(.Width(4)) i_first (.clk_i(clk), .data_i(data), .data_o(first));
  engine_own #(.Width(4)) i_second (.clk_i(clk), .data_i(data), .data_o(second));
endmodule
"""


@pytest.mark.parametrize("family", COMMANDS)
def test_registers_of_their_own_stay_two(family: str, tmp_path: Path) -> None:
    """Of an engine's memories: one for all of them is a wire across the whole device."""
    (tmp_path / "wrap.sv").write_text(TWO_ALIKE)
    (tmp_path / "engine_own.sv").write_bytes(module_files()["engine_own"].read_bytes())
    reads = "".join(f"read_verilog -sv -defer {name}.sv\n" for name in ("engine_own", "wrap"))
    script = f"{reads}hierarchy -top wrap\n{COMMANDS[family]}\ntee -q -o stat.json stat -json\n"
    (tmp_path / "synth.ys").write_text(script)
    run_tool(require("yosys"), ["-s", "synth.ys"], cwd=tmp_path, log=tmp_path / "log", timeout=120)
    cells = json.loads((tmp_path / "stat.json").read_text())["design"]["num_cells_by_type"]
    registers = {name: n for name, n in cells.items() if "FF" in name or name.startswith("FD")}
    assert sum(registers.values()) == 8, cells
