# SPDX-License-Identifier: Apache-2.0
"""Registers that stand behind block RAMs become the RAMs' own output registers.

Yosys maps a block RAM of ECP5 (DP16KD) without its output register: then it takes 5.8 ns from
clock to output at speed grade 6 by nextpnr's tables. Our modules have a plain register behind every
block RAM (`mac_array`, `requant`, `stream_window`, `stream_fifo`); where all bits of a read port go
into such registers and nowhere else, the port gets ``REGMODE=OUTREG`` and the registers go. The
output register has an enable of its own (``OCE``), which does not depend on that of the read
(``CE``): so in Lattice's simulation models of this kind of RAM (DP8KC, DP16KC).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwright.build.netlist import edit_modules

_RAM, _REGISTER = "DP16KD", "TRELLIS_FF"
_WHOLE = 36  # width of a port that reads both halves, by the controls of B


@dataclass(frozen=True)
class _ReadPort:
    """A read port: the sides whose outputs it gives, and the one whose controls it has."""

    sides: str
    control: str

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(f"DO{side}{bit}" for side in self.sides for bit in range(18))


@dataclass(frozen=True)
class _Control:
    """What makes a register take its data: clock and enable (a net or "1"), each upright or not."""

    clock: int | str
    rising: bool
    enable: int | str
    upright: bool


def absorb_output_registers(netlist: Path) -> int:
    """Move registers into the block RAMs that they stand behind, in the file.

    Args:
        netlist: JSON netlist of Yosys for ECP5.

    Returns:
        the number of flip-flops that went.

    Raises:
        ToolError: it cannot be read.
    """
    return edit_modules(netlist, _absorb)


def _absorb(module: dict[str, Any]) -> int:
    cells: dict[str, Any] = module.get("cells", {})
    rams = [cell for cell in cells.values() if cell["type"] == _RAM]
    if not rams:
        return 0
    readers, uses = _registers_by_input(cells), _uses(module)
    gone = 0
    for ram in rams:
        for port in _read_ports(ram):
            behind = _registers_behind(ram, port, readers, uses, cells)
            if behind:
                _take_in(ram, port, behind, cells)
            gone += len(behind)
    return gone


def _read_ports(ram: Mapping[str, Any]) -> tuple[_ReadPort, ...]:
    if int(ram["parameters"]["DATA_WIDTH_B"], 2) == _WHOLE:
        return (_ReadPort("AB", "B"),)
    return _ReadPort("A", "A"), _ReadPort("B", "B")


def _take_in(
    ram: dict[str, Any], port: _ReadPort, behind: Mapping[str, str], cells: dict[str, Any]
) -> None:
    """Give a port its output register in place of these flip-flops."""
    control = _control(cells[next(iter(behind.values()))])
    for side in port.sides:
        ram["parameters"][f"REGMODE_{side}"] = "OUTREG"
        ram["parameters"][f"OCE{side}MUX"] = f"OCE{side}" if control.upright else "INV"
        ram["connections"][f"OCE{side}"] = [control.enable]
    for output, name in behind.items():
        ram["connections"][output] = cells.pop(name)["connections"]["Q"]


def _registers_by_input(cells: Mapping[str, Any]) -> dict[int | str, str]:
    """Net -> a flip-flop that it is the data of."""
    return {
        cell["connections"]["DI"][0]: name
        for name, cell in cells.items()
        if cell["type"] == _REGISTER and cell["connections"].get("DI")
    }


def _uses(module: Mapping[str, Any]) -> Counter[int | str]:
    """How often a net stands anywhere: at the port of a cell, whichever way, or of the module."""
    found: Counter[int | str] = Counter()
    for cell in module["cells"].values():
        for bits in cell["connections"].values():
            found.update(bits)
    for port in module.get("ports", {}).values():
        found.update(port["bits"])
    return found


def _registers_behind(
    ram: Mapping[str, Any],
    port: _ReadPort,
    readers: Mapping[int | str, str],
    uses: Counter[int | str],
    cells: Mapping[str, Any],
) -> dict[str, str]:
    """Output -> the flip-flop behind it; nothing where the port's register cannot replace them."""
    modes = {ram["parameters"].get(f"REGMODE_{side}", "NOREG") for side in port.sides}
    if modes != {"NOREG"} or not _idle(ram, f"RST{port.control}"):
        return {}
    found: dict[str, str] = {}
    for output in port.outputs:
        bits = ram["connections"].get(output, ())
        if not bits or isinstance(bits[0], str) or uses[bits[0]] == 1:
            continue  # nobody reads it
        name = readers.get(bits[0])
        if name is None or uses[bits[0]] != 2 or not _is_plain(cells[name]):
            return {}
        found[output] = name
    controls = {_control(cells[name]) for name in found.values()}
    clock = f"CLK{port.control}"
    rising = ram["parameters"].get(f"{clock}MUX", clock) == clock
    wanted = (ram["connections"][clock][0], rising)
    return (
        found if {(c.clock, c.rising) for c in controls} == {wanted} and len(controls) == 1 else {}
    )


def _idle(cell: Mapping[str, Any], port: str) -> bool:
    """Whether an input of a cell is not connected, or is 0 for ever."""
    bits = cell["connections"].get(port, ())
    return not bits or bits[0] in ("0", "x", "z")


def _is_plain(register: Mapping[str, Any]) -> bool:
    """Whether a flip-flop starts at 0 and is never set or reset."""
    have = register["parameters"]
    starts_low = have.get("REGSET", "RESET") == "RESET"
    return starts_low and have.get("LSRMUX", "LSR") == "LSR" and _idle(register, "LSR")


def _control(register: Mapping[str, Any]) -> _Control:
    have, nets = register["parameters"], register["connections"]
    rising = have.get("CLKMUX", "CLK") == "CLK"
    mux = have.get("CEMUX", "1")
    enable = "1" if mux in ("0", "1") or not nets.get("CE") else nets["CE"][0]
    return _Control(nets["CLK"][0], rising, enable, mux not in ("INV", "0"))
