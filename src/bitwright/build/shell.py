# SPDX-License-Identifier: Apache-2.0
"""The serial shell: a design with AXI-Stream ports made usable on a board with four pins.

The host sends an input frame as bytes, beat by beat, low byte first; the shell answers with a
frame of each output in turn. A serial break resets the design. The hand-written part is in
``shell/*.sv``; this module writes the two tops that only wire it up: ``<top>_serial`` (simulated
as it is) and ``<top>_board`` (clock).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from bitwright.base.errors import TargetError
from bitwright.build.pins import pin_file, pin_suffix
from bitwright.build.plls import Clock, choose_clock, clock_instance, clock_module
from bitwright.build.target import Board, Target
from bitwright.sim.spec import Design, Port, load_design

_SHELL = Path(__file__).parent / "shell"
_LIBRARY = Path(__file__).parent.parent / "rtl" / "lib"
_SHELL_FILES = (
    "shell_uart_rx.sv",
    "shell_uart_tx.sv",
    "shell_beats_in.sv",
    "shell_beats_out.sv",
    "shell_merge.sv",
    "shell_reset.sv",
)
_LIBRARY_FILES = ("stream_fifo.sv", "mem_ram.sv", "stream_check.sv")
_MAX_FIFO_BYTES = 1 << 15
_MAX_BAUD_ERROR = 0.02


@dataclass(frozen=True)
class BoardDesign:
    """A design in its shell.

    Attributes:
        folder: complete design folder of the board top, with its own ``design.json``.
        constraints: pin file.
        clock: of the design.
        clocks_per_bit: of the serial line.
        baud: that results.
    """

    folder: Path
    constraints: Path
    clock: Clock
    clocks_per_bit: int
    baud: float


def beyond_shell(design: Design) -> str | None:
    """Why the serial shell cannot carry a design; None if it can."""
    if design.memory_ports:
        return "its weights come from a memory outside, which the serial shell does not have"
    if len(design.inputs) != 1 or not design.outputs:
        return (
            "the serial shell carries one input and at least one output, and the design has "
            f"{len(design.inputs)} and {len(design.outputs)}"
        )
    for port in (*design.inputs, *design.outputs):
        if port.width % 8 or port.signals is not None:
            return (
                "the serial shell carries AXI streams of whole bytes, and the stream "
                f"{port.name} is not one: {port.width} bits"
            )
    return None


def write_board_design(
    design_dir: Path, board: Board, target: Target, out_dir: Path, clock_mhz: float
) -> BoardDesign:
    """Copy a design, put the serial shell and the board's clock around it, and write its pins.

    Args:
        design_dir: the generated design.
        board: gives pins, oscillator and baud rate.
        target: gives the family: of the PLL and of the pin file.
        out_dir: replaced.
        clock_mhz: wanted clock of the design; the PLL gives the nearest one not above it.

    Raises:
        GraphError: the design folder is not whole.
        TargetError: the design has not exactly one input, or clock and baud rate do not fit
            together.
    """
    design = load_design(design_dir)
    reason = beyond_shell(design)
    if reason is not None:
        raise TargetError(reason, hint="implement it out of context instead (no bitstream)")
    clock = choose_clock(board.clock_mhz, clock_mhz, target.family)
    clocks_per_bit, baud = _baud(clock.mhz, board.uart_baud)
    shutil.rmtree(out_dir, ignore_errors=True)
    files = _copy_sources(design_dir, design, out_dir, clock_module(target.family))
    serial, top = f"{design.top}_serial", f"{design.top}_board"
    (out_dir / f"{serial}.sv").write_text(serial_top(design, clocks_per_bit))
    (out_dir / f"{top}.sv").write_text(
        _board_top(serial, top, clock_instance(target.family, clock, board), board)
    )
    table = {
        "top": top,
        "clock": "clk",
        "reset": "button",  # of boards that have one; the shell also resets itself
        "files": [*files, f"{serial}.sv", f"{top}.sv"],
        "memories": list(design.memories),
    }
    (out_dir / "design.json").write_text(json.dumps(table, indent=1) + "\n")
    constraints = out_dir / f"{top}{pin_suffix(target.family)}"
    constraints.write_text(pin_file(board, target.family))
    return BoardDesign(out_dir, constraints, clock, clocks_per_bit, baud)


def _baud(clock_mhz: float, wanted: int) -> tuple[int, float]:
    clocks = max(4, round(clock_mhz * 1e6 / wanted))
    baud = clock_mhz * 1e6 / clocks
    if abs(baud / wanted - 1) > _MAX_BAUD_ERROR:
        raise TargetError(
            f"{wanted} baud cannot be made from a clock of {clock_mhz:g} MHz within 2 % "
            f"(nearest: {baud:.0f})",
            hint="choose another clock, or another uart_baud in the board file",
        )
    return clocks, baud


def _copy_sources(design_dir: Path, design: Design, out_dir: Path, clock: str) -> list[str]:
    """Copy the design, the shell and the library modules it needs; the Verilog files."""
    for name in (*design.files, *design.memories):
        (out_dir / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(design_dir / name, out_dir / name)
    present = {Path(name).name for name in design.files}
    (out_dir / "shell").mkdir(parents=True, exist_ok=True)
    sources = [_SHELL / name for name in _SHELL_FILES] + [_SHELL / "prim" / f"{clock}.sv"]
    sources += [_LIBRARY / name for name in _LIBRARY_FILES if name not in present]
    added = []
    for source in sources:
        shutil.copyfile(source, out_dir / "shell" / source.name)
        added.append(f"shell/{source.name}")
    return [*design.files, *added]


def fifo_bytes(port: Port) -> int:
    """Depth of the input FIFO: one frame of bytes up to 32 KiB, as a power of two."""
    need = max(16, port.beats * port.width // 8)
    return min(_MAX_FIFO_BYTES, 1 << (need - 1).bit_length())


_HEADER = """\
// SPDX-License-Identifier: Apache-2.0
// Generated by Bitwright: instances and constants only. Do not edit.
`default_nettype none
"""


def _board_top(serial: str, top: str, clock: str, board: Board) -> str:
    """The top with the board's pins; what the board has not is left out or held still."""
    inverted = {port: "~" if port in board.active_low else "" for port in board.pins}
    ports = [f"  {_DIRECTIONS[port]} logic {port}" for port in _DIRECTIONS if port in board.pins]
    button = f"{inverted['button']}button" if "button" in board.pins else "1'b0"
    lamp = f"\n  assign led = {inverted['led']}overrun;" if "led" in board.pins else ""
    listed = ",\n".join(ports)
    return f"""{_HEADER}module {top} (
{listed}
);
  logic core_clk, locked, overrun;

{clock}
  {serial} i_serial (
    .clk_i(core_clk), .locked_i(locked), .button_i({button}),
    .rx_i(uart_rx), .tx_o(uart_tx), .overrun_o(overrun)
  );{lamp}
endmodule
`default_nettype wire
"""


_DIRECTIONS = {
    "clk": "input ",
    "button": "input ",
    "uart_rx": "input ",
    "uart_tx": "output",
    "led": "output",
}


def serial_top(design: Design, clocks_per_bit: int) -> str:
    """SystemVerilog of the top with serial pins around a design with one input."""
    source = design.inputs[0]
    outputs = "\n".join(_output_lines(k, port) for k, port in enumerate(design.outputs))
    ports = "\n".join(_output_ports(k, port) for k, port in enumerate(design.outputs)).rstrip(",")
    count = len(design.outputs)
    if design.frame_error:  # the shell counts beats itself, so its tlast is always in place
        ports += f",\n    .{design.frame_error}()"
    return f"""{_HEADER}module {design.top}_serial (
  input  logic clk_i,
  input  logic locked_i,
  input  logic button_i,
  input  logic rx_i,
  output logic tx_o,
  output logic overrun_o
);
  logic rst_n, serial_break;
  logic rx_valid, fifo_ready, fifo_valid, in_ready;
  logic [7:0] rx_data, fifo_data;
  logic source_valid, source_ready, source_last;
  logic [{source.width - 1}:0] source_data;
  logic [{count - 1}:0] out_valid, out_ready, out_last;
  logic [{8 * count - 1}:0] out_data;
  logic tx_valid, tx_ready;
  logic [7:0] tx_data;
{outputs}
  shell_reset i_reset (
    .clk_i, .locked_i, .button_i, .request_i(serial_break), .rst_no(rst_n)
  );
  shell_uart_rx #(.ClocksPerBit({clocks_per_bit})) i_rx (
    .clk_i, .rst_ni(rst_n), .rx_i,
    .out_valid_o(rx_valid), .out_data_o(rx_data), .break_o(serial_break)
  );
  stream_fifo #(.Width(8), .Depth({fifo_bytes(source)}), .RamStyle(0)) i_fifo (
    .clk_i, .rst_ni(rst_n),
    .in_valid_i(rx_valid), .in_ready_o(fifo_ready), .in_data_i(rx_data),
    .out_valid_o(fifo_valid), .out_ready_i(in_ready), .out_data_o(fifo_data)
  );
  shell_beats_in #(.Bytes({source.width // 8}), .Beats({source.beats})) i_in (
    .clk_i, .rst_ni(rst_n),
    .in_valid_i(fifo_valid), .in_ready_o(in_ready), .in_data_i(fifo_data),
    .out_valid_o(source_valid), .out_ready_i(source_ready), .out_data_o(source_data),
    .out_last_o(source_last)
  );
  {design.top} i_design (
    .{design.clock}(clk_i), .{design.reset}(rst_n),
    .{source.name}_tdata(source_data), .{source.name}_tvalid(source_valid),
    .{source.name}_tready(source_ready), .{source.name}_tlast(source_last),
{ports}
  );
  shell_merge #(.Ports({count})) i_merge (
    .clk_i, .rst_ni(rst_n),
    .in_valid_i(out_valid), .in_ready_o(out_ready), .in_data_i(out_data), .in_last_i(out_last),
    .out_valid_o(tx_valid), .out_ready_i(tx_ready), .out_data_o(tx_data)
  );
  shell_uart_tx #(.ClocksPerBit({clocks_per_bit})) i_tx (
    .clk_i, .rst_ni(rst_n),
    .in_valid_i(tx_valid), .in_ready_o(tx_ready), .in_data_i(tx_data), .tx_o
  );

  always_ff @(posedge clk_i) begin : p_overrun
    if (!rst_n) overrun_o <= 1'b0;
    else if (rx_valid && !fifo_ready) overrun_o <= 1'b1;
  end
endmodule
`default_nettype wire
"""


def _output_lines(index: int, port: Port) -> str:
    return f"""\
  logic beat{index}_valid, beat{index}_ready;
  logic [{port.width - 1}:0] beat{index}_data;
  shell_beats_out #(.Bytes({port.width // 8}), .Beats({port.beats})) i_out{index} (
    .clk_i, .rst_ni(rst_n),
    .in_valid_i(beat{index}_valid), .in_ready_o(beat{index}_ready), .in_data_i(beat{index}_data),
    .out_valid_o(out_valid[{index}]), .out_ready_i(out_ready[{index}]),
    .out_data_o(out_data[{8 * index} +: 8]), .out_last_o(out_last[{index}])
  );"""


def _output_ports(index: int, port: Port) -> str:
    return f"""\
    .{port.name}_tdata(beat{index}_data), .{port.name}_tvalid(beat{index}_valid),
    .{port.name}_tready(beat{index}_ready), .{port.name}_tlast(),"""
