# SPDX-License-Identifier: Apache-2.0
"""Which level of precision is trained for how many epochs: written down, or read from a log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from bitwright.base.errors import RecipeError
from bitwright.low_precision.log import read_log

_MOST = 100_000


@dataclass(frozen=True)
class Phase:
    """Epochs at one level."""

    level: str
    epochs: int


@dataclass(frozen=True)
class Schedule:
    """Phases of a run, in order.

    Attributes:
        name: for tables.
        adaptive: a policy watches gradients while it runs, which costs something.
    """

    name: str
    phases: tuple[Phase, ...]
    adaptive: bool = True

    @classmethod
    def constant(cls, level: str, epochs: int, name: str) -> Schedule:
        """One level all the time, nobody watching."""
        return cls(name, (Phase(level, epochs),), adaptive=False)

    @classmethod
    def of_levels(cls, name: str, levels: Iterable[str], *, adaptive: bool = True) -> Schedule:
        """From the level of every epoch."""
        phases = (Phase(level, len(list(run))) for level, run in groupby(levels))
        return cls(name, tuple(phases), adaptive)

    @property
    def epochs(self) -> int:
        return sum(phase.epochs for phase in self.phases)

    @property
    def levels(self) -> tuple[str, ...]:
        """The level of every epoch."""
        return tuple(phase.level for phase in self.phases for _ in range(phase.epochs))

    def __str__(self) -> str:
        return ",".join(f"{phase.level}:{phase.epochs}" for phase in self.phases)


def parse_schedule(text: str, ladder: Sequence[str] | None = None, *, name: str = "") -> Schedule:
    """A schedule such as ``int8:37,int12:9,float32:45``.

    Args:
        ladder: the levels that there are; None allows any.

    Raises:
        RecipeError: it is no such list, or names a level that is not on the ladder.
    """
    phases = []
    for part in text.replace(" ", "").split(","):
        found = re.fullmatch(r"([A-Za-z0-9_<>.]+?):([0-9]{1,6})", part)
        if found is None or not 1 <= int(found[2]) <= _MOST:
            raise RecipeError(
                f"{part!r} is no phase of a schedule",
                where="schedule",
                hint="LEVEL:EPOCHS, comma, LEVEL:EPOCHS ..: int8:37,int12:9,float32:45",
            )
        phases.append(Phase(found[1], int(found[2])))
    check_levels((phase.level for phase in phases), ladder)
    return Schedule(name or text, tuple(phases))


def check_levels(levels: Iterable[str], ladder: Sequence[str] | None) -> None:
    """Make sure that levels are on the ladder.

    Raises:
        RecipeError: names the one that is not, and the ladder.
    """
    if ladder is None:
        return
    for level in levels:
        if level not in ladder:
            raise RecipeError(
                f"level {level!r} is not on the ladder",
                where="schedule",
                hint=f"the ladder is {', '.join(ladder)}",
            )


def schedule_of_log(path: Path, *, name: str | None = None) -> Schedule:
    """What a run really did.

    Raises:
        DataError: the log is missing, damaged or empty.
    """
    levels = [entry.level for entry in read_log(path)]
    return Schedule.of_levels(path.parent.name if name is None else name, levels)
