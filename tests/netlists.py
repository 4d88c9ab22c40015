# SPDX-License-Identifier: Apache-2.0
"""Netlists of Yosys as Verilog that a simulator takes."""

from __future__ import annotations

import re
from pathlib import Path

from bitwright.base.tools.finder import require, run_tool


def write_gates(netlist: Path, top: str, folder: Path) -> Path:
    """The module ``top`` of a JSON netlist as ``folder/gates.v``.

    Idle outputs of carry cells are connected to nothing; Yosys writes a constant, which is no place
    for an output.
    """
    script = [
        f"read_json {netlist}",
        f"select -module {top}",
        "write_verilog -noattr -selected gates.v",
    ]
    (folder / "gates.ys").write_text("\n".join(script) + "\n")
    log = folder / "gates.log"
    run_tool(require("yosys"), ["-s", "gates.ys"], cwd=folder, log=log, timeout=120)
    gates = folder / "gates.v"
    gates.write_text(re.sub(r"\.(COUT|S0|S1)\(1'hx\)", r".\1()", gates.read_text()))
    return gates
