# SPDX-License-Identifier: Apache-2.0
"""Operands of ECP5's multipliers, moved up so that no sign has to be repeated.

Yosys fills a MULT18X18D from the lowest bit on and brings the sign of a short operand to all bits
above: 19 of the 36 inputs of a product of 9 and 8 bits, each a wire to be routed. The operand times
2^s, with zeros below, needs none of them, and the product is the same, s bits further up. Bits that
are pushed out at the top were copies of the product's sign, which is there now.
"""

from __future__ import annotations

from typing import Any

Cell = dict[str, Any]
Net = int | str
_BLOCK, _WIDTH = "MULT18X18D", 18
_PRODUCT = 2 * _WIDTH


def align_operands(module: Cell) -> int:
    """Move the signed operands of a flattened module's multipliers up, in place.

    Returns:
        inputs of multipliers that need no wire any more.
    """
    signs: dict[Net, Net] = {}
    spared = 0
    for cell in module["cells"].values():
        if cell["type"] == _BLOCK:
            spared += _align(cell, signs)
    if signs:
        _rename(module, signs)
    return spared


def _align(cell: Cell, signs: dict[Net, Net]) -> int:
    """Move the operands of one block up; into `signs` go product bits that are its sign."""
    shifts = {side: _spare(cell, side) for side in "AB"}
    shift = sum(shifts.values())
    if not shift:
        return 0
    nets, ways = cell["connections"], cell["port_directions"]
    for side, up in shifts.items():
        bits = [nets[f"{side}{bit}"] for bit in range(_WIDTH - up)]
        for bit, net in enumerate([["0"]] * up + bits):
            nets[f"{side}{bit}"] = net
    product = [nets.pop(f"P{bit}", None) for bit in range(_PRODUCT)]
    top = product[_PRODUCT - 1 - shift]
    for bit in range(_PRODUCT):
        ways.pop(f"P{bit}", None)
        source = product[bit - shift] if bit >= shift else None
        if source is not None:
            nets[f"P{bit}"], ways[f"P{bit}"] = source, "output"
    for net in product[_PRODUCT - shift :]:
        if net is None:
            continue
        if top is None:  # only copies of the sign are read: one of them is the sign
            top = nets[f"P{_PRODUCT - 1}"] = net
            ways[f"P{_PRODUCT - 1}"] = "output"
        else:
            signs[net[0]] = top[0]
    return shift


def _spare(cell: Cell, side: str) -> int:
    """Bits at the top of a signed operand that repeat its sign; 0 where it is not moved.

    An operand that leaves through the shift chain, or comes from it, stays.
    """
    nets, have = cell["connections"], cell["parameters"]
    chained = any(nets.get(f"RO{side}{bit}") for bit in range(_WIDTH))
    if nets.get(f"SIGNED{side}") != ["1"] or nets.get(f"SOURCE{side}", ["0"]) != ["0"] or chained:
        return 0
    if any(have.get(f"REG_{stage}_CLK", "NONE") != "NONE" for stage in ("PIPELINE", "OUTPUT")):
        return 0  # nothing of ours has them, and what they do to the sign is not tested
    bits = [nets.get(f"{side}{bit}", ["0"])[0] for bit in range(_WIDTH)]
    spare = 0
    while spare < _WIDTH - 1 and bits[_WIDTH - 2 - spare] == bits[-1]:
        spare += 1
    return spare if isinstance(bits[-1], int) else 0


def _rename(module: Cell, names: dict[Net, Net]) -> None:
    for table in (*(cell["connections"] for cell in module["cells"].values()),):
        for port, bits in table.items():
            table[port] = [names.get(bit, bit) for bit in bits]
    for kind in ("ports", "netnames"):
        for entry in module.get(kind, {}).values():
            entry["bits"] = [names.get(bit, bit) for bit in entry["bits"]]
