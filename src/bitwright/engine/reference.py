# SPDX-License-Identifier: Apache-2.0
"""What is made from the table of instructions: the page of their bits, and the modules of the RTL
that take an instruction apart. ``python -m bitwright.engine`` writes both.
"""

from __future__ import annotations

from enum import IntEnum
from inspect import getdoc
from pathlib import Path

from bitwright.engine.isa import (
    INSTRUCTION_BYTES,
    INSTRUCTIONS,
    OPCODE_BITS,
    Instruction,
    Slot,
    layout,
)

_MADE = "<!-- Made by `make references`: change engine/isa.py, not this page. -->"
_HEAD = f"""# The engine's instructions, bit by bit

{_MADE}

An instruction has {INSTRUCTION_BYTES} bytes, little endian. Bits that no field has are 0. What the
instructions do, step by step, is in [the programmed engine](engine.md).
"""


def page() -> str:
    """``docs/engine-isa.md``."""
    lines = [_HEAD]
    for kind in INSTRUCTIONS:
        lines += [
            f"## {kind.__name__.upper()}, opcode {int(kind.opcode)}",
            "",
            f"Unit: {kind.unit.name.lower()}. {_sentence(kind)}",
            "",
            "| bits | field | values | meaning |",
            "|---|---|---|---|",
            f"| {OPCODE_BITS - 1}:0 | opcode | {int(kind.opcode)} | |",
            *(_row(slot) for slot in layout(kind)),
            "",
        ]
    return "\n".join(lines)


def _sentence(kind: type[IntEnum] | type[Instruction]) -> str:
    return " ".join((getdoc(kind) or "").split())


def _row(slot: Slot) -> str:
    last = slot.position + slot.bits - 1
    if issubclass(slot.kind, IntEnum):
        values = ", ".join(f"{int(v)} {v.name.lower()}" for v in slot.kind)
    elif slot.signed:
        values = f"{-(1 << (slot.bits - 1))} .. {(1 << (slot.bits - 1)) - 1}"
    else:
        values = f"{slot.low} .. {(1 << slot.bits) - 1}"
    return f"| {last}:{slot.position} | {slot.name} | {values} | {slot.meaning} |"


def module_name(kind: type[Instruction]) -> str:
    return f"engine_fields_{kind.__name__.lower()}"


def module(kind: type[Instruction]) -> str:
    """The SystemVerilog module that gives the fields of a kind of instruction as wires."""
    slots = layout(kind)
    ports = [f"  output logic {f'[{slot.bits - 1}:0]':<8} {slot.name}_o," for slot in slots]
    ports[-1] = ports[-1].removesuffix(",")
    assigns = [
        f"  assign {slot.name}_o = word_i[{slot.position + slot.bits - 1}:{slot.position}];"
        for slot in slots
    ]
    taken = {bit for slot in slots for bit in range(slot.position, slot.position + slot.bits)}
    unused = [bit for bit in range(8 * INSTRUCTION_BYTES) if bit not in taken]
    return "\n".join(
        [
            "// SPDX-License-Identifier: Apache-2.0",
            f"// The fields of the engine's instruction {kind.__name__.upper()}, opcode "
            f"{int(kind.opcode)}; wires only.",
            "// Generated from engine/isa.py by `make references`: do not edit.",
            "// What the fields mean: docs/engine-isa.md.",
            "`default_nettype none",
            f"module {module_name(kind)} (",
            f"  input  logic [{8 * INSTRUCTION_BYTES - 1}:0] word_i,",
            *ports,
            ");",
            *assigns,
            "  logic unused;",
            "  assign unused = ^{",
            *(f"    {part}," for part in _ranges(unused)[:-1]),
            f"    {_ranges(unused)[-1]}",
            "  };",
            "endmodule",
            "`default_nettype wire",
            "",
        ]
    )


def _ranges(bits: list[int]) -> list[str]:
    """The bits as part selects, highest first."""
    runs: list[list[int]] = []
    for bit in bits:
        if runs and runs[-1][1] == bit - 1:
            runs[-1][1] = bit
        else:
            runs.append([bit, bit])
    return [f"word_i[{high}:{low}]" for low, high in reversed(runs)]


def files(root: Path) -> dict[Path, str]:
    """Every made file below the repository's root, with what it must say."""
    library = root / "src" / "bitwright" / "rtl" / "lib"
    made = {library / f"{module_name(kind)}.sv": module(kind) for kind in INSTRUCTIONS}
    return {root / "docs" / "engine-isa.md": page()} | made
