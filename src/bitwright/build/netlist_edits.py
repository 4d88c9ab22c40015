# SPDX-License-Identifier: Apache-2.0
"""What is done to the netlist of Yosys before it is counted, placed and routed."""

from __future__ import annotations

from pathlib import Path

from bitwright.build.carries import pack_carries
from bitwright.build.dsp_operands import take_operands
from bitwright.build.dsp_registers import take_registers
from bitwright.build.netlist import edit_modules
from bitwright.build.registers import absorb_output_registers


def edit_netlist(netlist: Path, family: str) -> None:
    """Pack the carry chains and move registers into the blocks of a JSON netlist, in the file.

    Raises:
        ToolError: it cannot be read.
    """
    edit_modules(
        netlist,
        lambda module: bool(pack_carries(module)) + take_registers(module) + take_operands(module),
    )
    if family == "ecp5":
        absorb_output_registers(netlist)
