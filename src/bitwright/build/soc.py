# SPDX-License-Identifier: Apache-2.0
"""A design beside a processor: DMA and registers around it, and what its driver must know. An
engine, which reads and writes memory by itself, has registers alone (`bitwright.build.soc_engine`).

The hand-written part is in ``soc/*.sv``: registers on AXI4-Lite, a reader and a writer on AXI4. It
is the same for Zynq and Cyclone V. This module writes the top that wires it up, in plain Verilog,
which Vivado wants of a module in a block design, and the constants of the C driver.

In memory a frame is its beats in order, each in a slot of 1, 2, 4 or a multiple of 8 bytes, low end
first; the frame is filled up to a multiple of 8 bytes. Frames follow one another.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from bitwright.base.folders import make_folder
from bitwright.base.names import c_text
from bitwright.build.shell import beyond_shell
from bitwright.build.soc_engine import DEVICE_FILES, SocParts, beyond_soc_engine, engine_parts
from bitwright.build.soc_ports import (
    CONTROL,
    CONTROL_SIGNALS,
    Master,
    constants,
    register_ports,
    top_ports,
)
from bitwright.host.board_files import copy_c_files
from bitwright.host.description import design_digest
from bitwright.rtl import needed_files
from bitwright.sim.spec import Design, Port, load_design
from bitwright.sim.toolchain import instance_parameters

_SOC = Path(__file__).parent / "soc"
_MODULES = (
    "soc_registers", "soc_control", "soc_reader", "soc_writer", "soc_beats_in", "soc_beats_out",
)  # fmt: skip
_DRIVER_FILES = (*DEVICE_FILES, "bitwright_soc.h", "bitwright_soc.c", "example.c")
_WORD = 8
DRIVER = "driver"


@dataclass(frozen=True)
class Layout:
    """Where the frames of a stream lie in memory.

    Attributes:
        slot: bytes of a beat.
        words: 64-bit words of a frame.
    """

    slot: int
    words: int

    @property
    def frame_bytes(self) -> int:
        return self.words * _WORD


def layout(port: Port) -> Layout:
    """The layout of a stream's frames."""
    needed = (port.width + 7) // 8
    narrow = next((slot for slot in (1, 2, 4) if slot >= needed), 0)
    slot = narrow or -(-needed // _WORD) * _WORD
    return Layout(slot, -(-port.beats * slot // _WORD))


@dataclass(frozen=True)
class SocDesign:
    """A design with DMA and registers.

    Attributes:
        top: name of its top module, in ``TOP.v``.
        files: Verilog of everything, relative to the folder, the top last.
        memories: images, relative to the folder.
        masters: its AXI4 ports.
        digest: what the register 0x04 holds: of everything that the design consists of.
        usage: how the driver is compiled and started, {control}: the address of the registers.
    """

    top: str
    files: tuple[str, ...]
    memories: tuple[str, ...]
    masters: tuple[Master, ...]
    digest: int
    usage: tuple[str, ...]


def beyond_soc(design: Design) -> str | None:
    """Why a design cannot stand beside a processor like this; None if it can."""
    if design.control is not None:
        return beyond_soc_engine(design)
    if design.sdram is not None:
        return "it has the pins of an SDRAM of its own, and beside a processor there is none"
    reason = beyond_shell(design)
    return None if reason is None else reason.replace("serial shell", "project with a processor")


def write_soc(design_dir: Path, folder: Path) -> SocDesign:
    """Copy a design into a folder, with the modules around it, its top, and its driver.

    Raises:
        GraphError: the design folder is not whole.
        ValueError: the design is beyond it (`beyond_soc` says why).
    """
    design = load_design(design_dir)
    reason = beyond_soc(design)
    if reason is not None:
        raise ValueError(reason)
    for name in (*design.files, *design.memories):
        make_folder((folder / name).parent)
        shutil.copyfile(design_dir / name, folder / name)
    digest = int(design_digest(design)[:8], 16)
    runs_programs = design.control is not None
    parts = engine_parts(design, digest) if runs_programs else _stream_parts(design, digest)
    present = {Path(name).name for name in design.files}
    sources = [_SOC / f"{name}.sv" for name in parts.modules]
    sources += [path for path in needed_files(set(parts.shared)) if path.name not in present]
    make_folder(folder / "soc")
    for source in sources:
        shutil.copyfile(source, folder / "soc" / source.name)
    top = f"{design.top}_soc"
    (folder / f"{top}.v").write_text(parts.top)
    (folder / DRIVER).mkdir(exist_ok=True)
    for name in parts.driver:
        shutil.copyfile(_SOC / DRIVER / name, folder / DRIVER / name)
    copy_c_files(parts.hosts, folder / DRIVER)
    (folder / DRIVER / "design.h").write_text(parts.header)
    return SocDesign(
        top=top,
        files=(*design.files, *(f"soc/{source.name}" for source in sources), f"{top}.v"),
        memories=tuple(design.memories),
        masters=parts.masters,
        digest=digest,
        usage=parts.usage,
    )


def _stream_parts(design: Design, digest: int) -> SocParts:
    """What stands around a design that streams go through."""
    return SocParts(
        top=soc_top(design, digest),
        masters=stream_masters(design),
        modules=_MODULES,
        shared=("stream_fifo",),
        driver=_DRIVER_FILES,
        header=driver_header(design, digest),
        usage=(
            "cc -std=c99 -O2 -o example example.c bitwright_soc.c bitwright_device.c",
            "sudo ./example {control} udmabuf0 < levels.txt",
        ),
    )


def stream_masters(design: Design) -> tuple[Master, ...]:
    """The AXI4 ports, one for every output; the first also reads the input."""
    return tuple(Master(f"m_axi_{k}") for k in range(len(design.outputs)))


# --- the top -------------------------------------------------------------------------------------


def soc_top(design: Design, digest: int) -> str:
    """Verilog of the top around a design with one input."""
    count, ports = len(design.outputs), stream_masters(design)
    still = [constants(CONTROL, CONTROL_SIGNALS)]
    still += [constants(m.name, m.signals, reads=m is ports[0]) for m in ports]
    assigned = "\n".join(still)
    streams = "\n".join(_output(k, port) for k, port in enumerate(design.outputs))
    return f"""\
// SPDX-License-Identifier: Apache-2.0
// Generated by Bitwright: instances and constants only. Do not edit.
`default_nettype none
module {design.top}_soc (
{top_ports(ports)}
);
  wire          start, in_busy, in_error, word_valid, word_ready;
  wire          beat_valid, beat_ready, beat_last;
  wire [31:0]   frames;
  wire [63:0]   in_addr, word;
  wire [{64 * count - 1}:0] out_addr;
  wire [{design.inputs[0].width - 1}:0] beat;

{assigned}

{_control(count, digest)}
{_input(design.inputs[0])}
{streams}
{_instance(design)}
endmodule
`default_nettype wire
"""


def _control(count: int, digest: int) -> str:
    """The registers, for so many outputs."""
    busy = " | ".join(("in_busy", *(f"out{k}_busy" for k in range(count))))
    error = " | ".join(("in_error", *(f"out{k}_error" for k in range(count))))
    return f"""\
  soc_control #(.Digest(32'h{digest:08x}), .Outputs({count})) i_control (
{register_ports()}
    .start_o(start), .frames_o(frames), .in_addr_o(in_addr), .out_addr_o(out_addr),
    .busy_i({busy}),
    .error_i({error})
  );"""


def _input(source: Port) -> str:
    """The reader of the input's frames, and what makes beats of its words."""
    place = layout(source)
    return f"""\
  soc_reader #(.FrameWords({place.words})) i_reader (
    .clk_i(aclk), .rst_ni(aresetn), .start_i(start), .addr_i(in_addr), .frames_i(frames),
    .busy_o(in_busy), .error_o(in_error),
    .araddr_o(m_axi_0_araddr), .arlen_o(m_axi_0_arlen),
    .arvalid_o(m_axi_0_arvalid), .arready_i(m_axi_0_arready),
    .rdata_i(m_axi_0_rdata), .rresp_i(m_axi_0_rresp),
    .rvalid_i(m_axi_0_rvalid), .rready_o(m_axi_0_rready),
    .out_valid_o(word_valid), .out_ready_i(word_ready), .out_data_o(word)
  );
  soc_beats_in #(.Width({source.width}), .Slot({place.slot}), .Beats({source.beats})) i_in (
    .clk_i(aclk), .rst_ni(aresetn),
    .in_valid_i(word_valid), .in_ready_o(word_ready), .in_data_i(word),
    .out_valid_o(beat_valid), .out_ready_i(beat_ready), .out_data_o(beat),
    .out_last_o(beat_last)
  );"""


def _instance(design: Design) -> str:
    """The design between its streams."""
    source = design.inputs[0]
    joined = ",\n".join(
        f"    .{port.name}_tdata(out{k}_data), .{port.name}_tvalid(out{k}_valid),\n"
        f"    .{port.name}_tready(out{k}_ready), .{port.name}_tlast()"
        for k, port in enumerate(design.outputs)
    )
    if design.frame_error:  # beats are counted here, so tlast is always in place
        joined += f",\n    .{design.frame_error}()"
    return f"""\
  {design.top}{instance_parameters(design.parameters)} i_design (
    .{design.clock}(aclk), .{design.reset}(aresetn),
    .{source.name}_tdata(beat), .{source.name}_tvalid(beat_valid),
    .{source.name}_tready(beat_ready), .{source.name}_tlast(beat_last),
{joined}
  );"""


def _output(index: int, port: Port) -> str:
    place, axi, name = layout(port), f"m_axi_{index}", f"out{index}"
    return f"""\
  wire          {name}_valid, {name}_ready, {name}_filled, {name}_taken, {name}_busy, {name}_error;
  wire [{port.width - 1}:0] {name}_data;
  wire [63:0]   {name}_word;
  soc_beats_out #(.Width({port.width}), .Slot({place.slot}), .Beats({port.beats})) i_{name} (
    .clk_i(aclk), .rst_ni(aresetn),
    .in_valid_i({name}_valid), .in_ready_o({name}_ready), .in_data_i({name}_data),
    .out_valid_o({name}_filled), .out_ready_i({name}_taken), .out_data_o({name}_word)
  );
  soc_writer #(.FrameWords({place.words})) i_writer{index} (
    .clk_i(aclk), .rst_ni(aresetn), .start_i(start),
    .addr_i(out_addr[{64 * index} +: 64]), .frames_i(frames),
    .busy_o({name}_busy), .error_o({name}_error),
    .awaddr_o({axi}_awaddr), .awlen_o({axi}_awlen),
    .awvalid_o({axi}_awvalid), .awready_i({axi}_awready),
    .wdata_o({axi}_wdata), .wlast_o({axi}_wlast),
    .wvalid_o({axi}_wvalid), .wready_i({axi}_wready),
    .bresp_i({axi}_bresp), .bvalid_i({axi}_bvalid), .bready_o({axi}_bready),
    .in_valid_i({name}_filled), .in_ready_o({name}_taken), .in_data_i({name}_word)
  );"""


# --- the driver ----------------------------------------------------------------------------------


def driver_header(design: Design, digest: int) -> str:
    """C constants: the streams of the design and where their frames lie."""
    streams = ",\n".join(_stream(port) for port in (*design.inputs, *design.outputs))
    return f"""\
/* SPDX-License-Identifier: Apache-2.0 */
/* Generated by Bitwright for the design {design.top}. Do not edit. */
#ifndef BITWRIGHT_DESIGN_H
#define BITWRIGHT_DESIGN_H

#include "bitwright_soc.h"

#define BITWRIGHT_DIGEST UINT32_C(0x{digest:08x})
#define BITWRIGHT_OUTPUTS {len(design.outputs)}u

/* The input first, then the outputs: name, slot bytes, frame bytes, beats, lanes, lane bits,
   signed, bipolar. */
static const struct bw_stream bitwright_streams[1 + BITWRIGHT_OUTPUTS] = {{
{streams}
}};

#endif
"""


def _stream(port: Port) -> str:
    place = layout(port)
    sizes = (place.slot, place.frame_bytes, port.beats, port.lanes, port.lane_bits)
    flags = (int(port.signed), int(port.bipolar))
    listed = ", ".join(f"{value}u" for value in (*sizes, *flags))
    return f'    {{"{c_text(port.tensor or port.name)}", {listed}}}'
