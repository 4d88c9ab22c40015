# SPDX-License-Identifier: Apache-2.0
"""The weight port of a generated top level: a reader for each unit and the arbiter they share."""

from __future__ import annotations

from collections.abc import Mapping

from bitwright.hw.blocks import Block
from bitwright.hw.external import BURST, EPOCH_BITS
from bitwright.hw.memory import STYLE_CODES
from bitwright.hw.weight_image import BASE, PORT, MemoryPlan, Region
from bitwright.rtl.text import instance_lines

MODULES = frozenset({"axi_weights", "axi_arbiter"})

# (signal, width or None for one bit; A address, D data, I identifier), as the top drives them.
_OUTPUTS = (
    ("arvalid", ""), ("araddr", "A"), ("arid", "I"), ("arlen", "8"), ("arsize", "3"),
    ("arburst", "2"), ("arcache", "4"), ("arprot", "3"), ("rready", ""),
)  # fmt: skip
_INPUTS = (("arready", ""), ("rvalid", ""), ("rdata", "D"), ("rid", "I"), ("rresp", "2"),
           ("rlast", ""))  # fmt: skip


def port_lines(plan: MemoryPlan) -> list[str]:
    """Declarations of the ports, without commas."""
    widths = {"A": plan.memory.address_bits, "D": plan.memory.data_bits, "I": plan.id_bits}

    def one(way: str, name: str, width: str) -> str:
        bits = widths.get(width) or int(width or 0)
        vector = f"[{bits - 1}:0] " if width else ""
        return f"{way} logic {vector}{name}"

    lines = [one("input ", BASE, "A")]
    lines += [one("output", f"{PORT}_{signal}", width) for signal, width in _OUTPUTS]
    return lines + [one("input ", f"{PORT}_{signal}", width) for signal, width in _INPUTS]


def weight_pins(prefix: str) -> str:
    """Pins of the weight stream of a matrix unit."""
    return (
        f".weight_valid_i({prefix}_valid), .weight_ready_o({prefix}_ready), "
        f".weight_data_i({prefix}_data)"
    )


def reader_lines(
    plan: MemoryPlan, prefixes: Mapping[str, str], blocks: Mapping[str, Block]
) -> list[str]:
    """Signals and instances of readers and arbiter.

    Args:
        prefixes: matrix unit -> prefix of its weight stream.
    """
    count, width, address = len(plan.regions), plan.memory.data_bits, plan.memory.address_bits
    lines = [
        f"  logic [{count - 1}:0] gmem0_ar_valid, gmem0_ar_ready, gmem0_r_valid;",
        f"  logic [{count * address - 1}:0] gmem0_ar_addr;",
        f"  logic [{count * 8 - 1}:0] gmem0_ar_len;",
        f"  logic [{width - 1}:0] gmem0_r_data;",
    ]
    for number, region in enumerate(plan.regions):
        style = STYLE_CODES[blocks[region.node].string("ram_style")]
        lines += _reader(plan, region, number, prefixes[region.node], style)
    signals = ", ".join(
        f".{name}_{'i' if name in ('ar_valid', 'ar_addr', 'ar_len') else 'o'}(gmem0_{name})"
        for name in ("ar_valid", "ar_ready", "ar_addr", "ar_len", "r_valid", "r_data")
    )
    pins = [signals, *(f".m_axi_{signal}({PORT}_{signal})" for signal, _ in (*_OUTPUTS, *_INPUTS))]
    values = {
        "Readers": count,
        "DataWidth": width,
        "AddrWidth": address,
        "EpochWidth": EPOCH_BITS,
    }
    return [*lines, "", *instance_lines("axi_arbiter", "i_gmem0_arbiter", pins, values)]


def _reader(plan: MemoryPlan, region: Region, number: int, prefix: str, style: int) -> list[str]:
    parameters = {
        "DataWidth": plan.memory.data_bits,
        "AddrWidth": plan.memory.address_bits,
        "Offset": region.offset,
        "Beats": region.beats,
        "Burst": BURST,
        "Places": region.prefetch,
        "CellBeats": region.cell_beats,
        "CellWords": region.cell_words,
        "WordWidth": region.word_bits,
        "RamStyle": style,
    }
    address = f"gmem0_ar_addr[{number}*{plan.memory.address_bits} +: {plan.memory.address_bits}]"
    pins = [
        f".base_i({BASE})",
        f".ar_valid_o(gmem0_ar_valid[{number}]), .ar_ready_i(gmem0_ar_ready[{number}])",
        f".ar_addr_o({address})",
        f".ar_len_o(gmem0_ar_len[{number}*8 +: 8])",
        f".r_valid_i(gmem0_r_valid[{number}]), .r_data_i(gmem0_r_data)",
        f".out_valid_o({prefix}_valid), .out_ready_i({prefix}_ready)",
        f".out_data_o({prefix}_data)",
    ]
    return [
        "",
        f"  // weights of {region.node}: {region.words} words of {region.word_bits} bits",
        f"  logic {prefix}_valid, {prefix}_ready;",
        f"  logic [{region.word_bits - 1}:0] {prefix}_data;",
        *instance_lines("axi_weights", f"i_{prefix}", pins, parameters),
    ]
