# SPDX-License-Identifier: Apache-2.0
"""Registers that steer a block and are read by another one get a copy for each such reader.

Whether a block moves (its enable, which is also what it says to its neighbours) is one register
that thousands of flip-flops look at, so it stands in the middle of them; what decides from it in
the blocks in front and behind lies at the other end of a long wire, and has still to decide. A copy
(see `build.copies`) stands at its reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import count

from bitwright.build.copies import Cell, Copies
from bitwright.build.timing import DESIGN

_Path = tuple[str, ...]

#: Inputs of cells from which on a register is one that steers.
MANY = 64


def copy_for_readers(module: Cell) -> int:
    """Give each flip-flop of `MANY` readers or more a copy for each other block that reads it, in
    place. Blocks are the instances of the top module and, where it is a board's shell, those of the
    design in it.

    Args:
        module: a flattened module of a JSON netlist for ECP5.

    Returns:
        flip-flops that came.
    """
    copies = Copies(module, _decides)
    design = _design_in_shell(module["cells"])
    readers: dict[int, list[str]] = defaultdict(list)
    for name, cell in module["cells"].items():
        for net in copies.read_by(cell):
            readers[net].append(name)
    for net, all_of_them in sorted(readers.items()):
        if len(all_of_them) < MANY:
            continue
        name = copies.registers[net]
        blocks: dict[_Path, list[str]] = defaultdict(list)
        for reader in all_of_them:
            blocks[_block(reader, design)].append(reader)
        blocks.pop(_block(name, design), None)
        for block, there in sorted(blocks.items()):
            if block:  # between blocks there is no place to stand at
                copies.give(net, f"{name}_for_{block[-1]}", there)
    return copies.made


def _path(name: str) -> _Path:
    """The instances that a cell lies in, from the top on, by its name."""
    return tuple(name.split(".")[:-1])


def _design_in_shell(names: Iterable[str]) -> _Path:
    """Where the design is an instance of a shell; nothing: it is the top."""
    paths = (path for name in names if DESIGN in (path := _path(name)))
    return next((path[: path.index(DESIGN) + 1] for path in paths), ())


def _block(name: str, design: _Path) -> _Path:
    """The block that a cell belongs to: the instance below the last of those on the way to the
    design that it lies in; nothing: no block.
    """
    path = _path(name)
    shared = next(n for n in count() if path[: n + 1] != design[: n + 1] or n == len(design))
    return path[: shared + 1] if path[shared:] and not path[shared].startswith("$") else ()


def _decides(port: str) -> bool:
    """Inputs that decide something: neither clocks nor resets, which reach all blocks alike."""
    return "CLK" not in port and not port.startswith(("LSR", "RST"))
