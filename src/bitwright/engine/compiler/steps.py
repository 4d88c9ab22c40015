# SPDX-License-Identifier: Apache-2.0
"""What the units do, in steps: what one piece of weights is loaded for, executed and stored.

A step knows the words that each of its instructions touches, as intervals; the order of the program
and its tokens follow from them (`schedule.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from bitwright.engine.isa import Exec, Input, Instruction, Load, Output, Store


class Space(IntEnum):
    """What an instruction reads and writes; MEMORY is the one outside."""

    FEATURES = 0
    WEIGHTS = 1
    PARAMETERS = 2
    TABLES = 3
    MEMORY = 4


@dataclass(frozen=True)
class Access:
    """Words ``low .. high - 1`` of a memory (rows of weights), at most."""

    space: Space
    low: int
    high: int
    write: bool

    def meets(self, other: Access) -> bool:
        """Whether the order of the two matters."""
        return (
            self.space == other.space
            and (self.write or other.write)
            and self.low < other.high
            and other.low < self.high
        )


@dataclass(frozen=True)
class Action:
    """An instruction, what it touches, and the layer that it is for.

    Attributes:
        settings: INPUT and OUTPUT that an EXEC needs.
    """

    instruction: Load | Exec | Store
    accesses: tuple[Access, ...]
    layer: str
    settings: tuple[Input, Output] | None = None

    def meets(self, other: Action) -> bool:
        return any(a.meets(b) for a in self.accesses for b in other.accesses)


@dataclass
class Step:
    """Loads, what they are for, and what can be stored afterwards."""

    loads: list[Action] = field(default_factory=list)
    execs: list[Action] = field(default_factory=list)
    stores: list[Action] = field(default_factory=list)


@dataclass(frozen=True)
class Placed:
    """An instruction in the order of the program, with the layer that it is for."""

    instruction: Instruction
    layer: str
