# SPDX-License-Identifier: Apache-2.0
"""Ports of a top beside a processor: registers on AXI4-Lite, memory on AXI4, clock and reset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Name, direction seen from the design, width, what stands still ("": the design drives it).
Signal = tuple[str, str, int, str]

CONTROL = "s_axi_control"


@dataclass(frozen=True)
class Master:
    """An AXI4 port to the processor's memory.

    Attributes:
        name: prefix of its signals.
        data_bits: of a beat.
        id_bits: of identifiers.
        still: whether what the modules of ``soc/`` never change (identifiers, sizes, strobes) is a
            constant of the top; else the design drives it.
    """

    name: str
    data_bits: int = 64
    id_bits: int = 1
    still: bool = True

    @property
    def signals(self) -> tuple[Signal, ...]:
        found: tuple[Signal, ...] = (
            *self._address("ar"),
            ("rid", "input", self.id_bits, ""),
            ("rdata", "input", self.data_bits, ""),
            ("rresp", "input", 2, ""),
            ("rlast", "input", 1, ""),
            ("rvalid", "input", 1, ""),
            ("rready", "output", 1, ""),
            *self._address("aw"),
            ("wdata", "output", self.data_bits, ""),
            ("wstrb", "output", self.data_bits // 8, "8'hff"),
            ("wlast", "output", 1, ""),
            ("wvalid", "output", 1, ""),
            ("wready", "input", 1, ""),
            ("bid", "input", self.id_bits, ""),
            ("bresp", "input", 2, ""),
            ("bvalid", "input", 1, ""),
            ("bready", "output", 1, ""),
        )
        return found if self.still else tuple((*signal[:3], "") for signal in found)

    def _address(self, channel: str) -> tuple[Signal, ...]:
        """The address channel of reads ("ar") or of writes ("aw")."""
        return (
            (f"{channel}id", "output", self.id_bits, "1'b0"),
            (f"{channel}addr", "output", 64, ""),
            (f"{channel}len", "output", 8, ""),
            (f"{channel}size", "output", 3, "3'd3"),
            (f"{channel}burst", "output", 2, "2'd1"),
            (f"{channel}cache", "output", 4, "4'd3"),
            (f"{channel}prot", "output", 3, "3'd0"),
            (f"{channel}valid", "output", 1, ""),
            (f"{channel}ready", "input", 1, ""),
        )


CONTROL_SIGNALS: tuple[Signal, ...] = (
    ("awaddr", "input", 8, ""),
    ("awprot", "input", 3, ""),
    ("awvalid", "input", 1, ""),
    ("awready", "output", 1, ""),
    ("wdata", "input", 32, ""),
    ("wstrb", "input", 4, ""),
    ("wvalid", "input", 1, ""),
    ("wready", "output", 1, ""),
    ("bresp", "output", 2, "2'd0"),
    ("bvalid", "output", 1, ""),
    ("bready", "input", 1, ""),
    ("araddr", "input", 8, ""),
    ("arprot", "input", 3, ""),
    ("arvalid", "input", 1, ""),
    ("arready", "output", 1, ""),
    ("rdata", "output", 32, ""),
    ("rresp", "output", 2, "2'd0"),
    ("rvalid", "output", 1, ""),
    ("rready", "input", 1, ""),
)
#: On ports that only write.
_NO_READS = {"araddr": "64'd0", "arlen": "8'd0", "arvalid": "1'b0", "rready": "1'b1"}


def _ports(prefix: str, signals: Sequence[Signal]) -> str:
    return ",\n".join(
        f"  {direction:6s} wire {f'[{width - 1}:0] ' if width > 1 else ''}{prefix}_{name}"
        for name, direction, width, _ in signals
    )


def constants(prefix: str, signals: Sequence[Signal], *, reads: bool = True) -> str:
    """What stands still of a port."""
    still = {name: value for name, _, _, value in signals if value}
    still |= {} if reads else _NO_READS
    return "\n".join(f"  assign {prefix}_{name} = {value};" for name, value in still.items())


def top_ports(masters: Sequence[Master]) -> str:
    """Clock, reset, registers, and AXI4 ports."""
    names = ":".join((CONTROL, *(master.name for master in masters)))
    listed = ",\n".join(
        (_ports(CONTROL, CONTROL_SIGNALS), *(_ports(m.name, m.signals) for m in masters))
    )
    return f"""\
  (* X_INTERFACE_INFO = "xilinx.com:signal:clock:1.0 aclk CLK",
     X_INTERFACE_PARAMETER = "ASSOCIATED_BUSIF {names}, ASSOCIATED_RESET aresetn" *)
  input  wire        aclk,
  (* X_INTERFACE_INFO = "xilinx.com:signal:reset:1.0 aresetn RST",
     X_INTERFACE_PARAMETER = "POLARITY ACTIVE_LOW" *)
  input  wire        aresetn,
{listed}"""


def register_ports() -> str:
    """Connections of a module that holds the registers."""
    return """\
    .clk_i(aclk), .rst_ni(aresetn),
    .awaddr_i(s_axi_control_awaddr), .awvalid_i(s_axi_control_awvalid),
    .awready_o(s_axi_control_awready),
    .wdata_i(s_axi_control_wdata), .wvalid_i(s_axi_control_wvalid),
    .wready_o(s_axi_control_wready),
    .bvalid_o(s_axi_control_bvalid), .bready_i(s_axi_control_bready),
    .araddr_i(s_axi_control_araddr), .arvalid_i(s_axi_control_arvalid),
    .arready_o(s_axi_control_arready),
    .rdata_o(s_axi_control_rdata), .rvalid_o(s_axi_control_rvalid),
    .rready_i(s_axi_control_rready),"""
