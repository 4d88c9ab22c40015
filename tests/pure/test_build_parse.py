# SPDX-License-Identifier: Apache-2.0
"""Parsers of the flows, on words that the tools really wrote (Yosys 0.70, nextpnr-ecp5 0.11.1)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bitwright.base.errors import ToolError
from bitwright.base.figures import Resources
from bitwright.build.resources import cell_cost, count_resources
from bitwright.build.timing import (
    CriticalPath,
    Hop,
    PathPart,
    Use,
    first_errors,
    instance_of,
    parse_log_utilisation,
    parse_report,
)
from bitwright.build.yosys import TOP_GLUE, instance_resources, owner_of, parse_statistics

STATISTICS = """
{
   "creator": "Yosys 0.70 (git sha1 28ba3cb92)",
   "invocation": "stat -json ",
   "modules": { "\\\\top": { "num_cells": 979 } },
   "design": {
      "num_cells": 979,
      "num_cells_by_type": {
         "$scopeinfo": 2, "CCU2C": 23, "L6MUX21": 56, "LUT4": 559, "MULT18X18D": 16,
         "PFUMX": 174, "TRELLIS_FF": 149, "TRELLIS_DPR16X4": 2, "DP16KD": 3
      }
   }
}
"""
LOG = """\
Info: Logic utilisation before packing:
Info:     Total LUT4s:       605/43848     1%
Info: Device utilisation:
Info: \t          TRELLIS_IO:      50/    245    20%
Info: \t              DP16KD:     120/    108   111%
Info: \t          TRELLIS_FF:     149/  43848     0%
ERROR: Unable to place cell 'mem.0.0', no BELs remaining to implement cell type 'DP16KD'
0 warnings, 1 error
"""
REPORT = {
    "critical_paths": [
        {
            "from": "posedge $glbnet$clk",
            "to": "posedge $glbnet$clk",
            "path": [
                {
                    "delay": 0.525,
                    "from": {"cell": "a_q", "loc": [1, 2], "port": "Q"},
                    "to": {"cell": "a_q", "loc": [1, 2], "port": "Q"},
                    "type": "clk-to-q",
                },
                {
                    "delay": 1.3,
                    "from": {"cell": "a_q", "loc": [1, 2], "port": "Q"},
                    "net": "a",
                    "sources": ["dot.sv:5.24-5.27", "dot.sv:6.1-6.2"],
                    "to": {"cell": "sum", "loc": [3, 2], "port": "A"},
                    "type": "routing",
                },
                {
                    "delay": 0.24,
                    "from": {"cell": "sum", "loc": [3, 2], "port": "A"},
                    "to": {"cell": "sum", "loc": [3, 2], "port": "F"},
                    "type": "logic",
                },
                {
                    "delay": 0.0,
                    "from": {"cell": "b_q", "loc": [3, 2], "port": "DI"},
                    "to": {"cell": "b_q", "loc": [3, 2], "port": "DI"},
                    "type": "setup",
                },
            ],
        },
        {"from": "<async>", "to": "posedge $glbnet$clk", "path": []},
    ],
    "fmax": {
        "$glbnet$clk": {"achieved": 134.5, "constraint": 100.0},
        "slow": {"achieved": 90.0, "constraint": 25.0},
    },
    "utilization": {"TRELLIS_COMB": {"available": 43848, "used": 623}},
}


def test_statistics_give_cells_and_resources() -> None:
    cells = parse_statistics("words before\n" + STATISTICS + "\nwords after", where="x")
    assert cells["LUT4"] == 559
    expected = Resources(lut=559 + 2 * 23 + 6 * 2, ff=149, dsp=16, bram=3)
    assert count_resources("ecp5", cells) == expected


@pytest.mark.parametrize("text", ["", "Yosys 0.70", "{}", '{"design": {}}', STATISTICS[:300]])
def test_statistics_that_did_not_come_are_an_error(text: str) -> None:
    with pytest.raises(ToolError, match="statistics cannot be read"):
        parse_statistics(text, where="stat.json")


def test_an_empty_netlist_is_an_error() -> None:
    text = '{"design": {"num_cells_by_type": {}}}'
    with pytest.raises(ToolError, match="everything was optimised away"):
        parse_statistics(text, where="stat.json")


@pytest.mark.parametrize(
    ("family", "cells", "expected"),
    [
        ("xc7", {"LUT6": 3, "RAM32M": 2, "FDRE": 5, "CARRY4": 9}, Resources(lut=11, ff=5)),
        ("xc7", {"RAMB36E1": 2, "RAMB18E1": 1, "DSP48E1": 4}, Resources(bram=5, dsp=4)),
        ("xcup", {"SRL16E": 2, "RAM64M8": 1, "URAM288": 1}, Resources(lut=10, bram=16)),
        ("cyclonev", {"MISTRAL_ALUT5": 3, "MISTRAL_MUL9X9": 6}, Resources(lut=3, dsp=2)),
        ("cyclonev", {"MISTRAL_MUL27X27": 1, "MISTRAL_M10K": 2}, Resources(dsp=1, bram=2)),
    ],
)
def test_cells_of_each_family(family: str, cells: dict[str, int], expected: Resources) -> None:
    assert count_resources(family, cells) == expected


@pytest.mark.parametrize("cell", ["$add", "$_DFF_P_", "LUT7", "SB_LUT4", "$mem_v2"])
def test_an_unknown_cell_is_never_free(cell: str) -> None:
    with pytest.raises(ToolError, match="is no ecp5 cell"):
        cell_cost("ecp5", cell)


def test_report_gives_clocks_paths_and_use() -> None:
    report = parse_report(json.dumps(REPORT), where="x")
    assert report.fmax_mhz == {"$glbnet$clk": 134.5, "slow": 90.0}
    assert report.slowest == "slow"
    assert report.path_of("slow") is None
    path = report.path_of("$glbnet$clk")
    assert path is not None
    assert (path.start, path.end, path.levels) == ("a_q", "b_q", 1)
    assert (path.delay_ns, path.logic_ns, path.routing_ns) == (2.065, 0.765, 1.3)
    assert path.hops[1].source == "dot.sv:5.24-5.27"
    assert report.utilisation == {"TRELLIS_COMB": Use(623, 43848)}


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps(REPORT)[:-40]])
def test_a_broken_report_is_an_error(text: str) -> None:
    with pytest.raises(ToolError, match="timing report cannot be read"):
        parse_report(text, where="report.json")


def test_log_of_a_failed_run() -> None:
    usage = parse_log_utilisation(LOG)
    assert usage == {
        "TRELLIS_IO": Use(50, 245),
        "DP16KD": Use(120, 108),
        "TRELLIS_FF": Use(149, 43848),
    }
    assert first_errors(LOG).startswith("ERROR: Unable to place cell 'mem.0.0'")


@pytest.mark.parametrize(
    ("cell", "within", "owner"),
    [
        ("i_conv1.i_tree.sum_q_TRELLIS_FF_Q_3", "", "i_conv1"),
        ("cnt_q_TRELLIS_FF_Q", "", TOP_GLUE),
        ("$flatten\\i_conv1.$add$x.sv:3$4", "", "i_conv1"),
        ("$abc$123$auto.sv", "", TOP_GLUE),
        ("i_serial.i_design.i_conv1.x_LUT4_Z", "i_serial.i_design", "i_conv1"),
        ("i_serial.i_rx.x_LUT4_Z", "i_serial.i_design", TOP_GLUE),
        ("i_serial.i_rx.x_LUT4_Z", "i_serial", "i_rx"),
    ],
)
def test_cells_are_attributed_by_name(cell: str, within: str, owner: str) -> None:
    assert owner_of(cell, within) == owner


def test_instances_add_up_to_the_whole(tmp_path: Path) -> None:
    cells = {"i_a.x": "LUT4", "i_a.y": "CCU2C", "i_b.z": "TRELLIS_FF", "t": "LUT4"}
    top = {"attributes": {"top": "00000001"}, "cells": {n: {"type": t} for n, t in cells.items()}}
    library = {"attributes": {"blackbox": "00000001"}, "cells": {}}
    netlist = tmp_path / "netlist.json"
    netlist.write_text(json.dumps({"modules": {"dots": top, "LUT4": library}}))
    parts = instance_resources(netlist, "ecp5")
    assert parts == {
        TOP_GLUE: Resources(lut=1),
        "i_a": Resources(lut=3),
        "i_b": Resources(ff=1),
    }


def _carry(cin: str | int, cout: int) -> dict[str, object]:
    ways = {"CIN": "input", "COUT": "output", "A0": "input"}
    return {"type": "CCU2C", "port_directions": ways, "connections": {"CIN": [cin], "COUT": [cout]}}


def test_packed_luts_count_the_ends_of_carry_chains(tmp_path: Path) -> None:
    """Cells alone were counted: place and route then filled 22 to 33 % more."""
    lut = {
        "type": "LUT4",
        "port_directions": {"A": "input", "Z": "output"},
        "connections": {"A": [14], "Z": [13]},
    }
    cells = {
        "i_a.one": _carry("0", 10),
        "i_a.two": _carry(10, 11),
        "i_b.one": _carry(13, 14),
        "i_b.lut": lut,
    }
    table = {"modules": {"m": {"attributes": {"top": "1"}, "ports": {}, "cells": cells}}}
    netlist = tmp_path / "netlist.json"
    netlist.write_text(json.dumps(table))
    before = instance_resources(netlist, "ecp5")
    assert before["i_a"] == Resources(lut=2 * 2 + 2 + 2)  # two cells, in from a constant, out
    assert before["i_b"] == Resources(lut=2 + 2 + 2 + 1)
    assert before[TOP_GLUE] == Resources(lut=1)  # the constant


@pytest.mark.parametrize("text", ["", "{}", '{"modules": {}}'])
def test_a_broken_netlist_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "n.json").write_text(text)
    with pytest.raises(ToolError, match="netlist"):
        instance_resources(tmp_path / "n.json", "ecp5")


def test_a_path_is_told_by_blocks() -> None:
    def hop(kind: str, cell: str, delay: float) -> Hop:
        return Hop(kind, delay, cell, "A")

    inside = "i_serial.i_design."
    path = CriticalPath(
        "posedge clk",
        "posedge clk",
        4.0,
        2.0,
        2.0,
        (
            hop("clk-to-q", f"{inside}i_conv_fifo.i_ram.mem.0.0", 1.0),
            hop("routing", f"{inside}i_conv.x_LUT4_Z", 0.5),
            hop("logic", f"{inside}i_conv.x_LUT4_Z", 0.25),
            hop("routing", f"{inside}i_conv.y_LUT4_Z", 0.5),
            hop("logic", f"{inside}i_conv.y_LUT4_Z", 0.25),
            hop("routing", "i_serial.i_tx.z", 1.0),
            hop("setup", "i_serial.i_tx.z", 0.5),
        ),
    )
    assert path.by_instance() == (
        PathPart("i_conv_fifo", 0, 1.0, 0.0),
        PathPart("i_conv", 2, 0.5, 1.0),
        PathPart("serial shell", 0, 0.5, 1.0),
    )
    assert instance_of("i_conv.x_LUT4_Z") == "i_conv"  # out of context
    assert instance_of("clk_LUT4_Z") == instance_of("$abc$1.y") == "top"
