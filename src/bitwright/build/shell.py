# SPDX-License-Identifier: Apache-2.0
"""The serial shell: a design with AXI-Stream ports made usable on a board with four pins.

The host sends frames in packets with checksums, and the shell answers in the same way
(docs/board-protocol.md). A serial break resets the design. The hand-written part is in
``shell/*.sv``; this module writes the two tops that only wire it up: ``<top>_serial`` (simulated
as it is) and ``<top>_board`` (clock).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from bitwright.base.errors import TargetError
from bitwright.base.figures import RESOURCE_WORDS, Resources
from bitwright.base.folders import make_folder
from bitwright.build.pins import pin_file, pin_suffix
from bitwright.build.plls import Clock, choose_clock, clock_instance, clock_module
from bitwright.build.sdram import (
    SLOT_PORTS,
    needs_memory,
    pad_instance,
    pad_module,
    pad_ports,
    slot_ports,
)
from bitwright.build.target import Board, Target
from bitwright.host.description import (
    FILE,
    MOST_BAUD,
    MOST_MHZ,
    Description,
    Output,
    describe_engine,
    describe_streams,
    design_digest,
)
from bitwright.host.protocol import ANSWER_CHUNK, VERSION
from bitwright.hw.memory import STYLE_CODES, ram_style
from bitwright.hw.rams import ram_lines, rows_resources
from bitwright.rtl import needed_files
from bitwright.sim.spec import Design, Port, load_design
from bitwright.sim.toolchain import instance_parameters

_SHELL = Path(__file__).parent / "shell"
_SHELL_FILES = (
    "shell_sync.sv",
    "shell_uart_rx.sv",
    "shell_uart_tx.sv",
    "shell_beats_in.sv",
    "shell_beats_out.sv",
    "shell_merge.sv",
    "shell_reset.sv",
    "shell_crc.sv",
    "shell_receive.sv",
    "shell_session.sv",
    "shell_stopwatch.sv",
    "shell_send.sv",
    "shell_link.sv",
)
_PHASE = 1 << 16  # steps of a bit on the line
_MAX_BAUD_ERROR = 0.02
#: As `bitwright.host.description.Description` has them.
_MOST_MHZ, _MOST_BAUD = 1e6, 1e9
_LEAST_CLOCKS_PER_BIT = 8  # of the receiver, which takes three samples of each
_BUFFER_BITS = 11  # of the input store: one block RAM of an ECP5
_PAUSE_BITS = 20


@dataclass(frozen=True)
class BoardDesign:
    """A design in its shell.

    Attributes:
        folder: complete design folder of the board top, with its own ``design.json``.
        constraints: pin file.
        clock: of the design.
        description: what a host must know, as far as the design itself says it.
    """

    folder: Path
    constraints: Path
    clock: Clock
    description: Description


def beyond_shell(design: Design, target: Target | None = None) -> str | None:
    """Why the serial shell cannot carry a design, on a target if one is named; None if it can."""
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
    if target is None:
        return None
    need, have = kept_frames(design, target.family), target.capacity
    short = [
        f"{need.to_json()[kind]:g} {RESOURCE_WORDS[kind]} of {have.to_json()[kind]:g}"
        for kind in need.shortage(have)
    ]
    if not short:
        return None
    return (
        "the serial shell sends one output after another and keeps a frame of all but the "
        f"largest, which by itself takes {', '.join(short)}"
    )


def kept_frames(design: Design, family: str) -> Resources:
    """Memory in the shell for the outputs that wait until a larger one has been sent."""
    ports = [output.port for output in describe_streams(design)[1][1:]]
    stores = [(port.beats, port.width) for port in ports if port.beats > 1]
    return sum(
        (rows_resources(family, *store, ram_style(family, *store)) for store in stores),
        Resources(),
    )


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
    reason = beyond_shell(design, target)
    if reason is not None:
        raise TargetError(reason, hint="implement it out of context instead (no bitstream)")
    double = design.sdram is not None
    if double:
        needs_memory(board)
    clock = choose_clock(board.clock_mhz, clock_mhz, target.family, double=double)
    line = choose_line(clock.mhz, board.uart_baud)
    shutil.rmtree(out_dir, ignore_errors=True)
    files = copy_sources(design_dir, design, out_dir)
    modules = [clock_module(target.family), *([pad_module(target.family)] if double else [])]
    for module in modules:
        shutil.copyfile(_SHELL / "prim" / f"{module}.sv", out_dir / "shell" / f"{module}.sv")
    serial, top = f"{design.top}_serial", f"{design.top}_board"
    description = describe(design, clock.mhz, line)
    (out_dir / f"{serial}.sv").write_text(serial_top(design, description, line, target.family))
    clocks = clock_instance(target.family, clock, board, double=double)
    pads = pad_instance(target.family) if double else ""
    (out_dir / f"{top}.sv").write_text(_board_top(serial, top, clocks, board, pads))
    table = {
        "top": top,
        "clock": "clk",
        "reset": "button",  # of boards that have one; the shell also resets itself
        "files": [
            *files,
            *(f"shell/{module}.sv" for module in modules),
            f"{serial}.sv",
            f"{top}.sv",
        ],
        "memories": list(design.memories),
    }
    (out_dir / "design.json").write_text(json.dumps(table, indent=1) + "\n")
    (out_dir / FILE).write_text(description.to_json())
    constraints = out_dir / f"{top}{pin_suffix(target.family)}"
    constraints.write_text(pin_file(board, target.family, sdram=double))
    return BoardDesign(out_dir, constraints, clock, description)


@dataclass(frozen=True)
class LineTiming:
    """How the shell works its line.

    Attributes:
        step: bits a clock, in 1 / 2^16.
        baud: that results.
        pause_bits: a pause of so many clocks, as a power of two, ends a packet.
    """

    step: int
    baud: float
    pause_bits: int = _PAUSE_BITS


def choose_line(clock_mhz: float, wanted: int) -> LineTiming:
    """The wanted baud rate, or a half, a quarter and so on where the clock is too slow for it.

    Serial chips make the fractions of their highest rate exactly. The shell adds up fractions of a
    bit, so its own rate is off by 0.1 % at most, and each bit by a clock.

    Raises:
        TargetError: the clock makes no such rate within 2 %, or there is no such clock or line.
    """
    if clock_mhz > _MOST_MHZ or wanted > _MOST_BAUD:
        raise TargetError(
            f"a clock of {clock_mhz:g} MHz and a line of {wanted:g} baud",
            hint=f"at most {_MOST_MHZ:g} MHz and {_MOST_BAUD:g} baud",
        )
    baud = float(wanted)
    while baud * _LEAST_CLOCKS_PER_BIT > clock_mhz * 1e6:
        baud /= 2
    step = round(baud * _PHASE / (clock_mhz * 1e6))
    made = step * clock_mhz * 1e6 / _PHASE
    if abs(made / baud - 1) > _MAX_BAUD_ERROR:
        raise TargetError(
            f"{baud:g} baud cannot be made from a clock of {clock_mhz:g} MHz within 2 % "
            f"(nearest: {made:.0f})",
            hint="choose a slower clock, or a higher uart_baud in the board file",
        )
    return LineTiming(step, baud)


def describe(design: Design, clock_mhz: float, line: LineTiming) -> Description:
    """What a host must know of a design in its shell.

    Raises:
        TargetError: no board has such a clock, or such a line.
    """
    if not (0 < clock_mhz <= MOST_MHZ and 0 < line.baud <= MOST_BAUD):
        raise TargetError(
            f"no board has a core at {clock_mhz:g} MHz with a line of {line.baud:g} baud",
            where=design.top,
            hint=f"at most {MOST_MHZ:g} MHz and {MOST_BAUD:g} baud",
        )
    source, outputs = describe_streams(design)
    return Description(
        protocol=VERSION,
        name=design.top,
        digest=design_digest(design),
        clock_mhz=clock_mhz,
        baud=line.baud,
        buffer_bytes=1 << _BUFFER_BITS,
        chunk=min(ANSWER_CHUNK, sum(output.frame_bytes for output in outputs)),
        interval=design.interval,
        latency=design.latency,
        input=source,
        outputs=outputs,
        engine=describe_engine(design),
    )


def copy_sources(design_dir: Path, design: Design, out_dir: Path) -> list[str]:
    """Copy the design, the shell and the library modules it needs; the Verilog files."""
    for name in (*design.files, *design.memories):
        make_folder((out_dir / name).parent)
        shutil.copyfile(design_dir / name, out_dir / name)
    present = {Path(name).name for name in design.files}
    make_folder(out_dir / "shell")
    sources = [_SHELL / name for name in _SHELL_FILES]
    sources += [path for path in needed_files({"stream_fifo"}) if path.name not in present]
    for source in sources:
        shutil.copyfile(source, out_dir / "shell" / source.name)
    return [*design.files, *(f"shell/{source.name}" for source in sources)]


_HEADER = """\
// SPDX-License-Identifier: Apache-2.0
// Generated by Bitwright: instances and constants only. Do not edit.
`default_nettype none
"""


def _board_top(serial: str, top: str, clock: str, board: Board, pads: str) -> str:
    """The top with the board's pins; what the board has not is left out or held still. ``pads``:
    those of the memory, if the design has one.
    """
    inverted = {port: "~" if port in board.active_low else "" for port in board.pins}
    ports = [f"  {_DIRECTIONS[port]} logic {port}" for port in _DIRECTIONS if port in board.pins]
    button = f"{inverted['button']}button" if "button" in board.pins else "1'b0"
    lamp = f"\n  assign led = {inverted['led']}open;" if "led" in board.pins else ""
    listed = ",\n".join([*ports, *(pad_ports() if pads else [])])
    slots = f",\n    {', '.join(f'.{name}' for name in SLOT_PORTS)}" if pads else ""
    return f"""{_HEADER}module {top} (
{listed}
);
  logic core_clk, locked, open;

{clock}
{pads}  {serial} i_serial (
    .clk_i(core_clk), .locked_i(locked), .button_i({button}),
    .rx_i(uart_rx), .tx_o(uart_tx), .open_o(open){slots}
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


def serial_top(
    design: Design, description: Description, line: LineTiming, family: str = "ecp5"
) -> str:
    """SystemVerilog of the top with serial pins around a design with one input.

    Args:
        family: of the device, which says what memory of some size is made of.
    """
    source = design.inputs[0]
    pairs = list(enumerate(description.outputs))
    outputs = "\n".join(_output_lines(k, output, family) for k, output in pairs)
    ports = "\n".join(_output_ports(k, output.port) for k, output in pairs).rstrip(",")
    count = len(pairs)
    waits = " | ".join(f"(beat{k}_valid & ~beat{k}_ready)" for k, _ in pairs)
    if design.frame_error:  # the shell counts beats itself, so its tlast is always in place
        ports += f",\n    .{design.frame_error}()"
    memory = "".join(f",\n{port}" for port in slot_ports()) if design.sdram else ""
    if design.sdram:
        ports += ",\n    .power_ni(rst_n), " + ", ".join(f".{name}" for name in SLOT_PORTS)
    hello = int.from_bytes(description.hello().payload(), "little")
    digest = int.from_bytes(bytes.fromhex(description.digest), "little")
    return f"""{_HEADER}module {design.top}_serial (
  input  logic clk_i,
  input  logic locked_i,
  input  logic button_i,
  input  logic rx_i,
  output logic tx_o,
  output logic open_o{memory}
);
  logic rst_n, core_rst_n, serial_break;
  logic byte_valid, byte_ready, source_valid, source_ready, source_last;
  logic [7:0] byte_data;
  logic [{source.width - 1}:0] source_data;
  logic [{count - 1}:0] out_valid, out_ready, out_last;
  logic [{8 * count - 1}:0] out_data;
  logic answer_valid, answer_ready;
  logic [7:0] answer_data;
{outputs}
  shell_reset i_reset (
    .clk_i, .locked_i, .button_i, .request_i(serial_break), .rst_no(rst_n)
  );
  shell_link #(
    .Step({line.step}), .BufferBits({description.buffer_bytes.bit_length() - 1}),
    .PauseBits({line.pause_bits}),
    .Bytes({description.answer_bytes}), .Chunk({description.chunk}),
    .Digest(64'h{digest:016x}),
    .Hello(256'h{hello:064x})
  ) i_link (
    .clk_i, .rst_ni(rst_n), .rx_i, .tx_o, .break_o(serial_break), .open_o,
    .core_rst_no(core_rst_n),
    .out_valid_o(byte_valid), .out_ready_i(byte_ready), .out_data_o(byte_data),
    .in_valid_i(answer_valid), .in_ready_o(answer_ready), .in_data_i(answer_data),
    .beat_fire_i(source_valid & source_ready), .beat_last_i(source_last),
    .hungry_i(source_ready & ~source_valid & ~byte_valid),
    .blocked_i({waits}),
    .frame_end_i(out_valid[{count - 1}] & out_ready[{count - 1}] & out_last[{count - 1}])
  );
  shell_beats_in #(.Bytes({source.width // 8}), .Beats({source.beats})) i_in (
    .clk_i, .rst_ni(core_rst_n),
    .in_valid_i(byte_valid), .in_ready_o(byte_ready), .in_data_i(byte_data),
    .out_valid_o(source_valid), .out_ready_i(source_ready), .out_data_o(source_data),
    .out_last_o(source_last)
  );
  {design.top}{instance_parameters(design.parameters_at(description.clock_mhz))} i_design (
    .{design.clock}(clk_i), .{design.reset}(core_rst_n),
    .{source.name}_tdata(source_data), .{source.name}_tvalid(source_valid),
    .{source.name}_tready(source_ready), .{source.name}_tlast(source_last),
{ports}
  );
  shell_merge #(.Ports({count})) i_merge (
    .clk_i, .rst_ni(core_rst_n),
    .in_valid_i(out_valid), .in_ready_o(out_ready), .in_data_i(out_data), .in_last_i(out_last),
    .out_valid_o(answer_valid), .out_ready_i(answer_ready), .out_data_o(answer_data)
  );
endmodule
`default_nettype wire
"""


def _output_lines(index: int, output: Output, family: str) -> str:
    port = output.port
    held = index > 0 and port.beats > 1
    from_ = f"held{index}" if held else f"beat{index}"
    lines = f"""\
  logic beat{index}_valid, beat{index}_ready;
  logic [{port.width - 1}:0] beat{index}_data;
  logic [{8 * output.element_bytes * port.lanes - 1}:0] line{index}_data;
"""
    if held:
        lines += _frame_store(index, port, family)
    return f"""{lines}{_widened(index, from_, output)}
  shell_beats_out #(
    .Bytes({output.element_bytes * port.lanes}), .Beats({port.beats})
  ) i_out{index} (
    .clk_i, .rst_ni(core_rst_n),
    .in_valid_i({from_}_valid), .in_ready_o({from_}_ready), .in_data_i(line{index}_data),
    .out_valid_o(out_valid[{index}]), .out_ready_i(out_ready[{index}]),
    .out_data_o(out_data[{8 * index} +: 8]), .out_last_o(out_last[{index}])
  );"""


def _frame_store(index: int, port: Port, family: str) -> str:
    """Room for a frame of an output that is sent behind others: what it comes from may be a branch
    of what these come from, and would wait for it while the line waits for them.
    """
    style = ram_style(family, port.beats, port.width)
    lines = ram_lines(port.beats, port.width, style)
    return f"""\
  logic held{index}_valid, held{index}_ready;
  logic [{port.width - 1}:0] held{index}_data;
  stream_fifo #(
    .Width({port.width}), .Depth({port.beats}),
    .RamStyle({STYLE_CODES[style]}), .RamLines({lines})
  ) i_held{index} (
    .clk_i, .rst_ni(core_rst_n),
    .in_valid_i(beat{index}_valid), .in_ready_o(beat{index}_ready), .in_data_i(beat{index}_data),
    .out_valid_o(held{index}_valid), .out_ready_i(held{index}_ready),
    .out_data_o(held{index}_data)
  );
"""


def _widened(index: int, from_: str, output: Output) -> str:
    """Every element in whole bytes, with its sign: an element of one bit that stands for -1 or +1
    becomes that number.
    """
    port, wide = output.port, 8 * output.element_bytes
    lines, more = [], wide - port.lane_bits
    for lane in range(port.lanes):
        low, high = lane * port.lane_bits, (lane + 1) * port.lane_bits - 1
        value = f"{from_}_data[{low} +: {port.lane_bits}]"
        if port.bipolar:
            value = f"{{{{7{{~{from_}_data[{low}]}}}}, 1'b1}}"
        elif more:
            fill = f"{from_}_data[{high}]" if output.signed else "1'b0"
            value = f"{{{{{more}{{{fill}}}}}, {value}}}"
        lines.append(f"  assign line{index}_data[{lane * wide} +: {wide}] = {value};")
    return "\n".join(lines)


def _output_ports(index: int, port: Port) -> str:
    return f"""\
    .{port.name}_tdata(beat{index}_data), .{port.name}_tvalid(beat{index}_valid),
    .{port.name}_tready(beat{index}_ready), .{port.name}_tlast(),"""
