# SPDX-License-Identifier: Apache-2.0
"""What is done to the netlist of Yosys before it is counted, placed and routed."""

from __future__ import annotations

import json
from pathlib import Path

from bitwright.base.files import atomic_write
from bitwright.build.carries import pack_carries
from bitwright.build.dsp_registers import take_registers
from bitwright.build.registers import absorb_output_registers


def edit_netlist(netlist: Path, family: str) -> None:
    """Pack the carry chains and move registers into the blocks of a JSON netlist, in the file."""
    table = json.loads(netlist.read_text())
    modules = [module for module in table["modules"].values() if module.get("cells")]
    changed = [bool(pack_carries(module)) + take_registers(module) for module in modules]
    if any(changed):
        atomic_write(netlist, json.dumps(table))
    if family == "ecp5":
        absorb_output_registers(netlist)
