# SPDX-License-Identifier: Apache-2.0
"""From cell types of a mapped netlist to `bitwright.base.figures.Resources`, family by family.

Each table gives what one cell costs. Cells that take nothing of the four resources (wide
multiplexers, buffers, carry chains beside the LUTs) are listed as free; a cell type that no table
names is an error, so that a new one is never silently free.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from bitwright.base.errors import ToolError
from bitwright.base.figures import Resources

_LUT, _FF = Resources(lut=1), Resources(ff=1)
_DSP, _BRAM = Resources(dsp=1), Resources(bram=1)
_FREE = Resources()


def _lut(count: float) -> Resources:
    return Resources(lut=count)


_EPSILON = 1e-9

_Rule = tuple[str, Resources]

_ECP5: tuple[_Rule, ...] = (
    ("LUT4", _LUT),
    ("CCU2C", _lut(2)),
    ("TRELLIS_DPR16X4", _lut(6)),  # four LUTs of RAM, two of write port: nextpnr's own count
    ("TRELLIS_FF", _FF),
    ("DP16KD|PDPW16KD", _BRAM),
    ("MULT18X18D", _DSP),
    ("MULT9X9D", Resources(dsp=0.5)),
    (
        "PFUMX|L6MUX21|ALU54B|ALU24B|EHXPLLL|[IO]DDRX1F|TRELLIS_IO|IB|OB|OBZ|BB|GSR|PUR|VHI|VLO|INV",
        _FREE,
    ),
)
# SB_CARRY stands beside the LUT of the sum, which the netlist has, too.
_ICE40: tuple[_Rule, ...] = (
    ("SB_LUT4", _LUT),
    ("SB_DFFN?E?(SR|SS|R|S)?", _FF),
    ("SB_RAM40_4K(NR|NW|NRNW)?", _BRAM),
    ("SB_MAC16", _DSP),
    ("SB_CARRY|SB_IO|SB_GB|SB_GB_IO|SB_PLL40_(CORE|PAD)|ICESTORM_LC", _FREE),
)
_XILINX: tuple[_Rule, ...] = (
    ("LUT[1-6]|INV", _LUT),
    ("FD[RSCP]E(_1)?|LD[CP]E", _FF),
    ("SRL16E|SRLC16E|SRLC32E|RAM(16|32|64)X1S|RAM32X1S(_1)?|RAM64X1S(_1)?", _LUT),
    ("RAM(16|32|64)X1D(_1)?|RAM128X1S", _lut(2)),
    ("RAM32M|RAM64M|RAM128X1D|RAM256X1S|RAM64X2S", _lut(4)),
    ("RAM32M16|RAM64M8|RAM256X1D|RAM512X1S", _lut(8)),
    ("RAMB18E[12]", _BRAM),
    ("RAMB36E[12]", Resources(bram=2)),
    ("URAM288", Resources(bram=16)),
    ("DSP48E[12]", _DSP),
    ("CARRY[48]|MUXF[789]|IBUF|OBUF|OBUFT|IOBUF|BUFG|BUFGCTRL|VCC|GND", _FREE),
)
_CYCLONEV: tuple[_Rule, ...] = (
    ("MISTRAL_ALUT[2-6]|MISTRAL_ALUT_ARITH|MISTRAL_NOT", _LUT),
    ("MISTRAL_MLAB", _LUT),
    ("MISTRAL_FF", _FF),
    ("MISTRAL_M10K", _BRAM),
    ("MISTRAL_MUL27X27", _DSP),
    ("MISTRAL_MUL18X18", Resources(dsp=1 / 2)),
    ("MISTRAL_MUL9X9", Resources(dsp=1 / 3)),
    ("MISTRAL_(IB|OB|IO|CLKBUF|CONST|BUF)", _FREE),
)
_TABLES: Mapping[str, tuple[_Rule, ...]] = {
    "ecp5": _ECP5,
    "ice40": _ICE40,
    "xc7": _XILINX,
    "xcup": _XILINX,
    "cyclonev": _CYCLONEV,
}


def cell_cost(family: str, cell: str) -> Resources:
    """What one mapped cell takes on a device.

    Raises:
        ToolError: the cell type is not known, so the netlist is not mapped to this family.
    """
    if cell in _MARKS:
        return _FREE
    for pattern, cost in _TABLES[family]:
        if re.fullmatch(pattern, cell):
            return cost
    raise ToolError(
        f"the netlist has a cell of type {cell!r}, which is no {family} cell known here",
        where="yosys",
        hint="this is a gap in bitwright/build/resources.py or in the mapping of this Yosys",
    )


_MARKS = frozenset({"$scopeinfo", "$print", "$check", "$assert", "$assume", "$cover", "$live"})


def count_resources(family: str, cells: Mapping[str, int]) -> Resources:
    """Resources of a netlist given how many cells there are of each type.

    Raises:
        ToolError: a cell type is not known for this family.
    """
    costs = (cell_cost(family, cell) * number for cell, number in cells.items())
    return Resources(*map(_tidy, sum(costs, Resources()).to_json().values()))


def _tidy(value: float) -> float:
    """Whole numbers as int, so that reports show 12 and not 12.0."""
    return round(value) if abs(value - round(value)) < _EPSILON else value
