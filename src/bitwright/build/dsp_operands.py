# SPDX-License-Identifier: Apache-2.0
"""Registers in front of multipliers, moved into the DSP blocks of ECP5 and UltraScale+.

Yosys maps products onto MULT18X18D and DSP48E2 without any of their registers. Our modules have a
register at each operand of a multiplication (`mul_packed`, `mul_shared`, `mul_terms`); where every
bit of an operand is constant or comes from such a flip-flop, all with one clock and enable and none
ever set or reset, the block's input register takes their place. Flip-flops that nobody else reads
go. A constant 1 is 0 until the first enabled clock, as registers of data are: nothing that counts
comes of an operand that was never taken.

Of ECP5's block the input registers are used and not the one behind the product: the open
description of its bitstream has the enables of the former (REG_INPUTA_CE, REG_INPUTB_CE) and none
of the latter (REG_OUTPUT_CE), which nextpnr does not write either. By nextpnr's tables (speed grade
6) a product is there 3.9 ns after the clock. nextpnr has no times for a block with one of the two
operands registered: there both are, or none; and it cannot turn over an enable at this block, so a
LUT does. UG579 names the registers of DSP48E2 (AREG, BREG).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bitwright.build.netlist import free_nets

Cell = dict[str, Any]
Net = int | str
_CONSTANT = ("0", "1", "x")


@dataclass(frozen=True)
class Register:
    """A flip-flop that is never set or reset and begins at 0: its nets.

    Attributes:
        upright: whether it takes its data while the enable is 1, and not while it is 0.
    """

    name: str
    data: Net
    clock: Net
    enable: Net
    upright: bool = True


class _Enables:
    """Enables the right way up: those that are not get a LUT that turns them over, one each."""

    def __init__(self, module: Cell) -> None:
        self._cells = module["cells"]
        self._free = free_nets(module)
        self._turned: dict[Net, Net] = {}

    def of(self, register: Register) -> Net:
        """The net that is 1 while a register takes its data."""
        if register.upright:
            return register.enable
        if register.enable not in self._turned:
            self._turned[register.enable] = own = next(self._free)
            self._cells[f"{register.name}_enable"] = {
                "hide_name": 0,
                "type": "LUT4",
                "parameters": {"INIT": "01" * 8},
                "attributes": {},
                "port_directions": {**dict.fromkeys("ABCD", "input"), "Z": "output"},
                "connections": {
                    "A": [register.enable],
                    **{port: ["0"] for port in "BCD"},
                    "Z": [own],
                },
            }
        return self._turned[register.enable]


def take_operands(module: Cell) -> int:
    """Move registers into the DSP blocks of a flattened module of a JSON netlist, in place.

    Returns:
        flip-flops that are gone.
    """
    cells: dict[str, Cell] = module["cells"]
    blocks = [cell for cell in cells.values() if cell["type"] in _TAKE]
    if not blocks:
        return 0
    registers, enables = _registers(cells), _Enables(module)
    taken: set[str] = set()
    for cell in blocks:
        taken |= _TAKE[cell["type"]](cell, registers, enables)
    read = _read(module)
    gone = [name for name in taken if cells[name]["connections"]["Q"][0] not in read]
    for name in gone:
        del cells[name]
    return len(gone)


def _registers(cells: Mapping[str, Cell]) -> dict[Net, Register]:
    """Net -> the register that it is the output of."""
    found: dict[Net, Register] = {}
    for name, cell in cells.items():
        read = _READ.get(cell["type"])
        register = None if read is None else read(name, cell)
        if register is not None:
            found[cell["connections"]["Q"][0]] = register
    return found


def _read(module: Cell) -> Counter[Net]:
    """How many inputs of cells and outputs of the module read each net."""
    found: Counter[Net] = Counter()
    for cell in module["cells"].values():
        for port, bits in cell["connections"].items():
            if cell["port_directions"].get(port) != "output":
                found.update(bits)
    for port in module.get("ports", {}).values():
        if port["direction"] != "input":
            found.update(port["bits"])
    return found


def _ecp5_register(name: str, cell: Cell) -> Register | None:
    have, nets = cell["parameters"], cell["connections"]
    plain = have.get("REGSET", "RESET") == "RESET" and have.get("CLKMUX", "CLK") == "CLK"
    idle = not nets.get("LSR") or nets["LSR"][0] in ("0", "x", "z")
    if not (plain and idle and have.get("LSRMUX", "LSR") == "LSR"):
        return None
    if have.get("CEMUX", "1") not in ("CE", "INV") or not isinstance(nets["CE"][0], int):
        return None  # one that takes its data every cycle is none of ours
    upright = have["CEMUX"] == "CE"
    return Register(name, nets["DI"][0], nets["CLK"][0], nets["CE"][0], upright)


def _xcup_register(name: str, cell: Cell) -> Register | None:
    have, nets = cell["parameters"], cell["connections"]
    turned = ("IS_C_INVERTED", "IS_D_INVERTED", "IS_R_INVERTED", "INIT")
    if nets["R"] != ["0"] or any(_number(have.get(key, "0")) for key in turned):
        return None
    return Register(name, nets["D"][0], nets["C"][0], nets["CE"][0])


def _number(value: Any) -> int:
    text = str(value)
    return int(text, 2) if set(text) <= {"0", "1"} else 0


def _of_bits(bits: list[Net], registers: Mapping[Net, Register]) -> dict[Net, Register] | None:
    """Net -> register of an operand's bits; None where a bit is something else."""
    found: dict[Net, Register] = {}
    for bit in bits:
        if bit in registers:
            found[bit] = registers[bit]
        elif bit not in _CONSTANT:
            return None
    return found


def _shared(registers: Mapping[Net, Register]) -> Register | None:
    """One of them, if all have its clock and enable; None where they differ, or there is none."""
    controls = {(r.clock, r.enable, r.upright) for r in registers.values()}
    return next(iter(registers.values())) if len(controls) == 1 else None


def _take_ecp5(cell: Cell, registers: Mapping[Net, Register], enables: _Enables) -> set[str]:
    have, nets = cell["parameters"], cell["connections"]
    sides = {side: [f"{side}{bit}" for bit in range(18)] for side in "AB"}
    if any(have.get(f"REG_INPUT{side}_CLK", "NONE") != "NONE" for side in sides):
        return set()
    operands = {
        side: _of_bits([nets[port][0] for port in ports], registers)
        for side, ports in sides.items()
    }
    a, b = operands["A"], operands["B"]
    if not a or not b or (first := _shared(a | b)) is None:
        return set()
    for side, ports in sides.items():
        for port in ports:
            register = (operands[side] or {}).get(nets[port][0])
            if register is not None:
                nets[port] = [register.data]
        have |= {f"REG_INPUT{side}_CLK": "CLK0", f"REG_INPUT{side}_CE": "CE0"}
        have[f"REG_INPUT{side}_RST"] = "RST0"
    nets |= {"CLK0": [first.clock], "CE0": [enables.of(first)], "RST0": ["0"]}
    cell["port_directions"] |= dict.fromkeys(("CLK0", "CE0", "RST0"), "input")
    return {register.name for register in (a | b).values()}


def _take_xcup(cell: Cell, registers: Mapping[Net, Register], _: _Enables) -> set[str]:
    have, nets = cell["parameters"], cell["connections"]
    taken: set[str] = set()
    for side, enable in (("A", "CEA2"), ("B", "CEB2")):
        operand = _of_bits(nets[side], registers)
        if not operand or _number(have.get(f"{side}REG", "0")):
            continue
        first = _shared(operand)
        if first is None or (_clocked(cell) and nets["CLK"] != [first.clock]):
            continue
        nets[side] = [operand[bit].data if bit in operand else bit for bit in nets[side]]
        nets |= {"CLK": [first.clock], enable: [first.enable], f"RST{side}": ["0"]}
        cell["port_directions"] |= dict.fromkeys(("CLK", enable, f"RST{side}"), "input")
        have |= {f"{side}REG": f"{1:032b}", f"{side}CASCREG": f"{1:032b}"}
        taken |= {register.name for register in operand.values()}
    return taken


def _clocked(cell: Cell) -> bool:
    """Whether a DSP48E2 has a register already."""
    return any(_number(cell["parameters"].get(key, "0")) for key in ("AREG", "BREG", "PREG"))


_READ: Mapping[str, Callable[[str, Cell], Register | None]] = {
    "TRELLIS_FF": _ecp5_register,
    "FDRE": _xcup_register,
}
_TAKE: Mapping[str, Callable[[Cell, Mapping[Net, Register], _Enables], set[str]]] = {
    "MULT18X18D": _take_ecp5,
    "DSP48E2": _take_xcup,
}
