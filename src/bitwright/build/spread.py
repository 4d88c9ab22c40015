# SPDX-License-Identifier: Apache-2.0
"""Registers that steer many block RAMs get copies, one for each few of them.

Block RAMs of an ECP5 lie in columns over the whole device. Where the words of a layer's weights are
hundreds of bits wide, one address register reaches tens of them, and its wire is the slowest of the
design: the farthest block RAM is a device away, wherever the register is put. Each copy (see
`build.copies`) stands beside its own RAMs.
Synthesis would merge what is written twice in the RTL, and nextpnr copies nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from bitwright.build.copies import Cell, Copies

_RAM = "DP16KD"
#: Block RAMs that one register may steer.
MOST = 16
_NUMBERS = re.compile(r"(\d+)")


def copy_registers(module: Cell) -> int:
    """Give each flip-flop that steers more than `MOST` block RAMs copies, in place.

    Args:
        module: a flattened module of a JSON netlist for ECP5.

    Returns:
        flip-flops that came.
    """
    copies = Copies(module, _steers)
    steered: dict[int, set[str]] = defaultdict(set)
    for name, cell in module["cells"].items():
        if cell["type"] == _RAM:
            for net in copies.read_by(cell):
                steered[net].add(name)
    for net, rams in sorted(steered.items()):
        for group in _groups(sorted(rams, key=_in_order))[1:]:
            copies.give(net, f"{copies.registers[net]}_copy{copies.made}", group)
    return copies.made


def _steers(port: str) -> bool:
    """Ports that steer a RAM or go into it; its clocks have wires of their own."""
    return not port.startswith("CLK")


def _groups(rams: Sequence[str]) -> list[Sequence[str]]:
    """As few groups of at most `MOST` as there can be, of one size or one less: registers that
    steer the same RAMs, such as the bits of an address, have the same groups.
    """
    groups = -(-len(rams) // MOST)
    ends = [len(rams) * n // groups for n in range(groups + 1)]
    return [rams[a:b] for a, b in pairwise(ends)]


def _in_order(name: str) -> list[int | str]:
    """RAMs of neighbouring bits stand together: their names count them."""
    return [int(part) if part.isdecimal() else part for part in _NUMBERS.split(name)]
