# SPDX-License-Identifier: Apache-2.0
"""Registers that steer many block RAMs get copies, one for each few of them.

Block RAMs of an ECP5 lie in columns over the whole device. Where the words of a layer's weights are
hundreds of bits wide, one address register reaches tens of them, and its wire is the slowest of the
design: the farthest block RAM is a device away, wherever the register is put. A copy has the same
data, clock and enable, so it holds the same at all times, and each stands beside its own RAMs.
Synthesis would merge what is written twice in the RTL, and nextpnr copies nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import count, pairwise
from typing import Any

Cell = dict[str, Any]
_RAM, _REGISTER = "DP16KD", "TRELLIS_FF"
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
    cells: dict[str, Cell] = module["cells"]
    alone = not_to_copy(module)
    registers = {
        net: name
        for name, cell in cells.items()
        if cell["type"] == _REGISTER
        for net in cell["connections"].get("Q", ())
        if net not in alone
    }
    steered: dict[int, set[str]] = defaultdict(set)
    for name, cell in cells.items():
        if cell["type"] == _RAM:
            for _, net in _inputs(cell):
                if net in registers:
                    steered[net].add(name)
    free = FreeNets(module)
    made = 0
    for net, rams in sorted(steered.items()):
        for group in _groups(sorted(rams, key=_in_order))[1:]:
            name = registers[net]
            copy = deepcopy(cells[name])
            copy["connections"]["Q"] = [free.take()]
            number = next(n for n in count(made) if f"{name}_copy{n}" not in cells)
            cells[f"{name}_copy{number}"] = copy
            for ram in group:
                _reconnect(cells[ram], net, copy["connections"]["Q"][0])
            made += 1
    return made


class FreeNets:
    """Numbers of nets that a module has not used."""

    def __init__(self, module: Mapping[str, Any]) -> None:
        self._next = 1 + max(_nets(module), default=1)

    def take(self) -> int:
        """The next one."""
        self._next += 1
        return self._next - 1


def not_to_copy(module: Mapping[str, Any]) -> set[Any]:
    """Nets of registers between two clocks: copies could differ for a clock."""
    return {
        bit
        for item in module.get("netnames", {}).values()
        if "dont_replicate" in item.get("attributes", {})
        for bit in item["bits"]
    }


def _inputs(cell: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Ports and nets that steer a RAM or go into it; its clocks have wires of their own."""
    for port, bits in cell["connections"].items():
        if cell["port_directions"].get(port) == "input" and not port.startswith("CLK"):
            yield from ((port, bit) for bit in bits)


def _reconnect(cell: Cell, old: int, new: int) -> None:
    for port, net in list(_inputs(cell)):
        if net == old:
            cell["connections"][port] = [new]


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


def _nets(module: Mapping[str, Any]) -> Iterator[int]:
    for part in ("cells", "netnames"):
        for item in module.get(part, {}).values():
            for bits in item["connections"].values() if part == "cells" else (item["bits"],):
                yield from (bit for bit in bits if isinstance(bit, int))
