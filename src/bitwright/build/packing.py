# SPDX-License-Identifier: Apache-2.0
"""What placing and routing adds to the cells of synthesis: from a netlist to the LUTs it fills.

On ECP5 a LUT site (nextpnr's TRELLIS_COMB) is filled by a LUT4; two by a carry cell (CCU2C); six by
a distributed RAM (four of data, two of its write port). Wide multiplexers (PFUMX, L6MUX21) lie
beside the LUTs that they choose from and take none. Beyond these cells, which ``stat`` counts,
nextpnr adds whole carry cells, two sites each: one where a carry comes into a chain from the
fabric, constants included, and one where a carry leaves it for the fabric. And one LUT for each of
the constants 0 and 1 that is used. Source: ``ecp5/pack.cc`` of nextpnr 0.11 (``split_carry_chain``,
``pack_dram``, ``pack_constants``); the sum equals its utilisation, see docs/results/packed_luts.md.
Chains of more than 342 carry cells, which nextpnr cuts, are not counted apart: a chain of ours has
as many cells as half an accumulator has bits.

For the other families there is no open packer: their LUTs are those of synthesis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bitwright.base.errors import ToolError
from bitwright.build.netlist import readable

PACKED_FAMILIES = frozenset({"ecp5"})
"""Families whose packing is known to the LUT."""

_CARRY, _NOTHING = "CCU2C", "x"  # nextpnr wants the port to be there


def lut_kind(family: str) -> str:
    """What the LUTs of a family count: "packed" or cells of "synthesis"."""
    return "packed" if family in PACKED_FAMILIES else "synthesis"


def top_of(modules: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The one module that is the top.

    Raises:
        ToolError: there is none, or several.
    """
    with readable(where):
        tops = [m for m in modules.values() if int(m.get("attributes", {}).get("top", "0"), 2)]
    if len(tops) != 1:
        raise ToolError(f"the netlist has {len(tops)} top modules, not one", where=str(where))
    top: dict[str, Any] = tops[0]
    return top


def added_luts(top: Mapping[str, Any], family: str) -> Counter[str]:
    """LUTs that packing adds, by the cell at which it does; "" for those of the constants.

    Args:
        top: a flattened module of a JSON netlist of Yosys.
        family: of its cells.
    """
    found: Counter[str] = Counter()
    if family not in PACKED_FAMILIES:
        return found
    readers = _readers(top)
    cells: Mapping[str, Any] = top["cells"]
    carries = {name: cell for name, cell in cells.items() if cell["type"] == _CARRY}
    outputs = {_bit(cell, "COUT") for cell in carries.values()}
    inputs = Counter(_bit(cell, "CIN") for cell in carries.values())
    for name, cell in carries.items():
        come, go = _bit(cell, "CIN"), _bit(cell, "COUT")
        if come is not None and (isinstance(come, str) or come not in outputs):
            found[name] += 2
        if isinstance(go, int) and (readers[go] != 1 or inputs[go] != 1):
            found[name] += 2
    found[""] += len({"0", "1"} & set(readers))
    return found


def _bit(cell: Mapping[str, Any], port: str) -> int | str | None:
    """What a port of one bit is connected to: a net, a constant "0" or "1", or nothing."""
    bits = cell.get("connections", {}).get(port, ())
    return bits[0] if bits and bits[0] not in (_NOTHING, "z") else None


def _readers(module: Mapping[str, Any]) -> Counter[int | str]:
    """How many inputs of cells and outputs of the module each net or constant drives."""
    found: Counter[int | str] = Counter()
    for cell in module.get("cells", {}).values():
        ways = cell.get("port_directions", {})
        for port, bits in cell.get("connections", {}).items():
            if ways.get(port) != "output":
                found.update(bits)
    for port in module.get("ports", {}).values():
        if port["direction"] != "input":
            found.update(port["bits"])
    return found
