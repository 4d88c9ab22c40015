# SPDX-License-Identifier: Apache-2.0
"""Registers that steer a block and are read by another one get a copy for each such reader.

Whether a block moves (its enable, which is also what it says to its neighbours) is one register
that thousands of flip-flops look at, so it stands in the middle of them; what decides from it in
the blocks in front and behind lies at the other end of a long wire, and has still to decide. A copy
has the same data, enable and reset, so it holds the same at all times, and stands at its reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from bitwright.build.spread import FreeNets, not_to_copy

Cell = dict[str, Any]
_REGISTER = "TRELLIS_FF"
#: Inputs of cells from which on a register is one that steers.
MANY = 64


def copy_for_readers(module: Cell) -> int:
    """Give each flip-flop of `MANY` readers or more a copy for each other block that reads it, in
    place. Blocks are the instances of the top module: a design in a board's shell is one of them.

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
    readers: dict[int, list[str]] = defaultdict(list)
    for name, cell in cells.items():
        for net in _inputs(cell):
            if net in registers:
                readers[net].append(name)
    free = FreeNets(module)
    made = 0
    for net, all_of_them in sorted(readers.items()):
        if len(all_of_them) < MANY:
            continue
        name = registers[net]
        blocks: dict[str, set[str]] = defaultdict(set)
        for reader in all_of_them:
            blocks[_block(reader)].add(reader)
        blocks.pop(_block(name), None)
        for block, there in sorted(blocks.items()):
            if not block:
                continue  # between blocks: no place to stand at
            copy = deepcopy(cells[name])
            copy["connections"]["Q"] = [free.take()]
            own = f"{name}_for_{block}"
            while own in cells:  # Yosys may have made one of that name
                own += "_"
            cells[own] = copy
            for reader in there:
                _reconnect(cells[reader], net, copy["connections"]["Q"][0])
            made += 1
    return made


def _block(name: str) -> str:
    """The block that a cell belongs to, by its name; nothing: no block."""
    first, dot, _ = name.partition(".")
    return first if dot and not first.startswith("$") else ""


def _ports(cell: Mapping[str, Any]) -> list[str]:
    """Inputs that decide something: neither clocks nor resets, which reach all blocks alike."""
    return [
        port
        for port, way in cell["port_directions"].items()
        if way == "input"
        and port in cell["connections"]
        and "CLK" not in port
        and not port.startswith(("LSR", "RST"))
    ]


def _inputs(cell: Mapping[str, Any]) -> set[Any]:
    """Nets that these inputs read."""
    return {bit for port in _ports(cell) for bit in cell["connections"][port]}


def _reconnect(cell: Cell, old: int, new: int) -> None:
    for port in _ports(cell):
        bits = cell["connections"][port]
        cell["connections"][port] = [new if bit == old else bit for bit in bits]
