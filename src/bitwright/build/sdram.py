# SPDX-License-Identifier: Apache-2.0
"""The SDRAM of a board: pads between the controller's two commands a cycle and the chip, and the
chip's model in their place in simulation.
"""

from __future__ import annotations

from importlib import resources

from bitwright.base.errors import TargetError
from bitwright.build.target import SDRAM_PINS, Board
from bitwright.engine.sdram import SdramChip
from bitwright.sim.toolchain import instance_parameters

#: Of the controller: name -> direction and width.
SLOT_PORTS = {
    "row_command_o": ("output", 3),
    "row_bank_o": ("output", 2),
    "row_address_o": ("output", 13),
    "column_command_o": ("output", 3),
    "column_bank_o": ("output", 2),
    "column_address_o": ("output", 13),
    "oe_o": ("output", 1),
    "dq_o": ("output", 32),
    "dq_i": ("input", 32),
}
_PADS = {"ecp5": "sdram_pads_ecp5"}
#: Name of the chip's model, a file of `bitwright.sim`.
CHIP = "sdram_chip"


def needs_memory(board: Board) -> None:
    """Make sure that a board has an SDRAM.

    Raises:
        TargetError: it has none.
    """
    if not board.sdram:
        raise TargetError(
            "the design works with an SDRAM, and this board has none that its file knows",
            where=f"board {board.name}",
            hint="choose a board with one (ulx3s), or add its pins to the board file",
        )


def pad_module(family: str) -> str:
    """Name of the module with the pads; its file is ``shell/prim/NAME.sv``.

    Raises:
        TargetError: there is none for the family.
    """
    if family not in _PADS:
        raise TargetError(
            f"there are no pads of an SDRAM for the family {family}",
            hint=f"families with them are {', '.join(_PADS)}",
        )
    return _PADS[family]


def pad_ports() -> list[str]:
    """The chip's pins as ports of the board's top."""
    return [
        _port("inout" if name == "d" else "output", width, f"sdram_{name}")
        for name, width in SDRAM_PINS.items()
    ]


def slot_ports() -> list[str]:
    """The controller's pins as ports."""
    return [_port(direction, width, name) for name, (direction, width) in SLOT_PORTS.items()]


def slot_wires() -> str:
    """The same as signals of a module."""
    return "\n".join(f"  logic {_width(width)}{name};" for name, (_, width) in SLOT_PORTS.items())


def pad_instance(family: str) -> str:
    """The pads, between the controller's signals and the pins, as SystemVerilog."""
    pins = ", ".join(f".sdram_{name}" for name in SDRAM_PINS)
    slots = ", ".join(f".{_turned(name)}({name})" for name in SLOT_PORTS)
    return f"""{slot_wires()}

  {pad_module(family)} i_pads (
    .clk_i(core_clk), .fast_i(fast_clk), {slots},
    {pins}
  );
"""


def simulated_top(serial: str, chip: SdramChip, mhz: float) -> str:
    """A top with a chip behind the serial one, of the same ports: ``<serial>_sdram``.

    Raises:
        TargetError: the chip is not that fast.
    """
    rules = instance_parameters(chip.clocks(2 * mhz))
    return f"""// SPDX-License-Identifier: Apache-2.0
`default_nettype none
module {serial}_sdram (
  input  logic clk_i,
  input  logic locked_i,
  input  logic button_i,
  input  logic rx_i,
  output logic tx_o,
  output logic open_o
);
{slot_wires()}
  {serial} i_serial (
    .clk_i, .locked_i, .button_i, .rx_i, .tx_o, .open_o,
    {", ".join(f".{name}" for name in SLOT_PORTS)}
  );
  {CHIP}{rules} i_chip (
    .clk_i, .command0_i(row_command_o), .bank0_i(row_bank_o), .address0_i(row_address_o),
    .command1_i(column_command_o), .bank1_i(column_bank_o), .address1_i(column_address_o),
    .oe_i(oe_o), .dq_i(dq_o), .dq_o(dq_i), .drives_o(), .broken_o()
  );
endmodule
`default_nettype wire
"""


def chip_source() -> str:
    """The model of a chip that the simulated top has in it."""
    return resources.files("bitwright.sim").joinpath(f"{CHIP}.sv").read_text()


def _port(direction: str, width: int, name: str) -> str:
    kind = "wire " if direction == "inout" else "logic"
    return f"  {direction.ljust(6)} {kind} {_width(width)}{name}"


def _width(width: int) -> str:
    return f"[{width - 1}:0] " if width > 1 else ""


def _turned(name: str) -> str:
    """The pads' port for one of the controller's: an output of one is an input of the other."""
    return name[:-1] + {"o": "i", "i": "o"}[name[-1]]
