# SPDX-License-Identifier: Apache-2.0
"""Copies of flip-flops in a JSON netlist for ECP5: the same data, enable and reset, so the same at
all times, at another place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

from bitwright.build.netlist import free_nets

Cell = dict[str, Any]
_REGISTER = "TRELLIS_FF"


class Copies:
    """The flip-flops of a flattened module, and what reads them.

    Args:
        module: changed in place by `give`.
        counts: whether an input of a cell, by its name, may read a copy.

    Attributes:
        registers: net -> the flip-flop that drives it, of those that may have copies.
        made: flip-flops that came.
    """

    def __init__(self, module: Cell, counts: Callable[[str], bool]) -> None:
        self._cells: dict[str, Cell] = module["cells"]
        self._counts = counts
        alone = _not_to_copy(module)
        self.registers = {
            net: name
            for name, cell in self._cells.items()
            if cell["type"] == _REGISTER
            for net in cell["connections"].get("Q", ())
            if net not in alone
        }
        self._free = free_nets(module)
        self.made = 0

    def read_by(self, cell: Mapping[str, Any]) -> set[int]:
        """Nets of flip-flops that a cell reads."""
        nets = {bit for port in self._ports(cell) for bit in cell["connections"][port]}
        return nets & self.registers.keys()

    def give(self, net: int, name: str, readers: Iterable[str]) -> None:
        """Let some cells read a new copy of the flip-flop of a net; its name, or one with lines
        behind it where Yosys has a cell of that name.
        """
        copy = deepcopy(self._cells[self.registers[net]])
        own = next(self._free)
        copy["connections"]["Q"] = [own]
        while name in self._cells:
            name += "_"
        self._cells[name] = copy
        for reader in readers:
            cell = self._cells[reader]
            for port in self._ports(cell):
                bits = cell["connections"][port]
                cell["connections"][port] = [own if bit == net else bit for bit in bits]
        self.made += 1

    def _ports(self, cell: Mapping[str, Any]) -> list[str]:
        ways = cell["port_directions"]
        return [p for p in cell["connections"] if ways.get(p) == "input" and self._counts(p)]


def _not_to_copy(module: Mapping[str, Any]) -> set[Any]:
    """Nets of registers between two clocks: copies could differ for a clock."""
    return {
        bit
        for item in module.get("netnames", {}).values()
        if "dont_replicate" in item.get("attributes", {})
        for bit in item["bits"]
    }
