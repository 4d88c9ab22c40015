# SPDX-License-Identifier: Apache-2.0
"""Registers that steer a block and are read by another one get a copy for each such reader.

Whether a block moves (its enable, which is also what it says to its neighbours) is one register
that thousands of flip-flops look at, so it stands in the middle of them; what decides from it in
the blocks in front and behind lies at the other end of a long wire, and has still to decide. A copy
(see `build.copies`) stands at its reader.
"""

from __future__ import annotations

from collections import defaultdict

from bitwright.build.copies import Cell, Copies

#: Inputs of cells from which on a register is one that steers.
MANY = 64


def copy_for_readers(module: Cell) -> int:
    """Give each flip-flop of `MANY` readers or more a copy for each other block that reads it, in
    place. Blocks are the instances of the top module: a design in a board's shell is one of them,
    for copies inside of it were measured and do not help there (digits 166, 163 and 166 MHz with
    them, 170, 170 and 174 without; mnist-cnn-w4a4 154 and 155).

    Args:
        module: a flattened module of a JSON netlist for ECP5.

    Returns:
        flip-flops that came.
    """
    copies = Copies(module, _decides)
    readers: dict[int, list[str]] = defaultdict(list)
    for name, cell in module["cells"].items():
        for net in copies.read_by(cell):
            readers[net].append(name)
    for net, all_of_them in sorted(readers.items()):
        if len(all_of_them) < MANY:
            continue
        name = copies.registers[net]
        blocks: dict[str, list[str]] = defaultdict(list)
        for reader in all_of_them:
            blocks[_block(reader)].append(reader)
        blocks.pop(_block(name), None)
        for block, there in sorted(blocks.items()):
            if block:  # between blocks there is no place to stand at
                copies.give(net, f"{name}_for_{block}", there)
    return copies.made


def _block(name: str) -> str:
    """The block that a cell belongs to, by its name; nothing: no block."""
    first, dot, _ = name.partition(".")
    return first if dot and not first.startswith("$") else ""


def _decides(port: str) -> bool:
    """Inputs that decide something: neither clocks nor resets, which reach all blocks alike."""
    return "CLK" not in port and not port.startswith(("LSR", "RST"))
