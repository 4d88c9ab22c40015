# SPDX-License-Identifier: Apache-2.0
"""What is done to the netlist of Yosys before it is counted, placed and routed."""

from __future__ import annotations

import json
from pathlib import Path

from bitwright.base.files import atomic_write
from bitwright.build.carries import pack_carries
from bitwright.build.dsp_registers import take_registers

EDITS = "carry chains packed, registers in DSP blocks"
"""In words, and part of the key under which a netlist is kept."""


def edit_netlist(netlist: Path) -> None:
    """Pack the carry chains and fill the DSP blocks of a JSON netlist, in the file."""
    table = json.loads(netlist.read_text())
    modules = [module for module in table["modules"].values() if module.get("cells")]
    changed = [bool(pack_carries(module)) + take_registers(module) for module in modules]
    if any(changed):
        atomic_write(netlist, json.dumps(table))
