# SPDX-License-Identifier: Apache-2.0
"""What is done to the netlist of Yosys before it is counted, placed and routed."""

from __future__ import annotations

from pathlib import Path

from bitwright.build.carries import pack_carries
from bitwright.build.dsp_align import align_operands
from bitwright.build.dsp_operands import take_operands
from bitwright.build.dsp_registers import take_registers
from bitwright.build.netlist import edit_modules
from bitwright.build.readers import copy_for_readers
from bitwright.build.registers import absorb_output_registers
from bitwright.build.spread import copy_registers

#: Of DSP blocks, in this order: what is moved up may be a register's data.
_EDITS = (take_registers, take_operands, align_operands)


def edit_netlist(netlist: Path, family: str) -> None:
    """Pack the carry chains, move registers into the blocks and operands of multipliers up, copy
    registers that steer many block RAMs or are read far away, in the file of a JSON netlist.

    Raises:
        ToolError: it cannot be read.
    """
    edit_modules(
        netlist,
        lambda module: bool(pack_carries(module)) + sum(edit(module) for edit in _EDITS),
    )
    if family == "ecp5":
        absorb_output_registers(netlist)
        edit_modules(netlist, lambda module: copy_registers(module) + copy_for_readers(module))
