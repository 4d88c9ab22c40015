# SPDX-License-Identifier: Apache-2.0
"""Registers behind the multipliers of UltraScale+, moved into them.

Yosys maps a product onto a DSP48E2 without any of its registers (its pass `xilinx_dsp` knows the
cells of 7-series and older only), though Vivado takes the register behind a product into the block.
Here the netlist of Yosys gets the same: where every bit of P that is read goes to one flip-flop,
all of them with the same clock and enable and without a reset, they become the block's register
(PREG = 1; UG579, "P register").
"""

from __future__ import annotations

from collections import Counter
from typing import Any

_DSP, _FLOP = "DSP48E2", "FDRE"
Cell = dict[str, Any]


def take_registers(module: Cell) -> int:
    """Move registers into the DSP blocks of a flattened module of a JSON netlist, in place.

    Returns:
        flip-flops that are gone.
    """
    cells: dict[str, Cell] = module["cells"]
    dsps = [cell for cell in cells.values() if cell["type"] == _DSP and _unused(cell)]
    if not dsps:
        return 0
    readers: Counter[Any] = Counter()
    flops: dict[Any, str] = {}
    for name, cell in cells.items():
        for port, bits in cell["connections"].items():
            if cell["port_directions"].get(port) != "output":
                readers.update(bits)
        if cell["type"] == _FLOP:
            flops[cell["connections"]["D"][0]] = name
    for port in module.get("ports", {}).values():
        if port["direction"] != "input":
            readers.update(port["bits"])
    return sum(_take(cell, cells, readers, flops) for cell in dsps)


def _unused(dsp: Cell) -> bool:
    """Whether a block has no output register yet."""
    return int(str(dsp["parameters"].get("PREG", "0")), 2) == 0


def _take(dsp: Cell, cells: dict[str, Cell], readers: Counter[Any], flops: dict[Any, str]) -> int:
    product = dsp["connections"]["P"]
    read = [bit for bit in product if isinstance(bit, int) and readers[bit]]
    if not read or any(readers[bit] != 1 or bit not in flops for bit in read):
        return 0
    own = {bit: cells[flops[bit]] for bit in read}
    shared = {tuple(str(cell["connections"][p][0]) for p in ("C", "CE")) for cell in own.values()}
    plain = all(
        cell["connections"]["R"] == ["0"]
        and int(str(cell["parameters"].get("IS_C_INVERTED", "0")), 2) == 0
        and int(str(cell["parameters"].get("IS_D_INVERTED", "0")), 2) == 0
        for cell in own.values()
    )
    if len(shared) != 1 or not plain:
        return 0
    first = own[read[0]]["connections"]
    dsp["connections"]["P"] = [
        own[bit]["connections"]["Q"][0] if bit in own else bit for bit in product
    ]
    dsp["connections"] |= {"CLK": first["C"], "CEP": first["CE"], "RSTP": ["0"]}
    dsp["port_directions"] |= dict.fromkeys(("CLK", "CEP", "RSTP"), "input")
    dsp["parameters"]["PREG"] = f"{1:032b}"
    for bit in read:
        del cells[flops.pop(bit)]
    return len(read)
