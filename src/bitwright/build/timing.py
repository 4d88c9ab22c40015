# SPDX-License-Identifier: Apache-2.0
"""The reports of nextpnr: utilisation, clocks and critical paths, from its JSON and its log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bitwright.base.errors import ToolError
from bitwright.base.files import parse_json

_USAGE = re.compile(r"^Info:\s+([A-Z][A-Z0-9_]+):\s+(\d+)/\s*(\d+)\s+\d+%$")


@dataclass(frozen=True)
class Use:
    """How many of one kind of element are used, and how many there are."""

    used: int
    available: int


@dataclass(frozen=True)
class Hop:
    """One step of a path: through a cell ("logic") or along a net ("routing").

    Attributes:
        kind: nextpnr's word: clk-to-q, logic, routing, setup, source.
        delay_ns: of this step.
        cell: where the step ends.
        port: of that cell.
        net: the net of a routing step, else "".
        source: first source location of that net, or "".
    """

    kind: str
    delay_ns: float
    cell: str
    port: str
    net: str = ""
    source: str = ""


@dataclass(frozen=True)
class PathPart:
    """A stretch of a path within one instance of the design's top."""

    instance: str
    levels: int
    logic_ns: float
    routing_ns: float

    def plus(self, other: PathPart) -> PathPart:
        """This stretch and the one behind it."""
        return PathPart(
            self.instance,
            self.levels + other.levels,
            round(self.logic_ns + other.logic_ns, 4),
            round(self.routing_ns + other.routing_ns, 4),
        )


@dataclass(frozen=True)
class CriticalPath:
    """The slowest register-to-register path of a clock.

    Attributes:
        start_clock, end_clock: clock edges, as nextpnr names them.
        delay_ns: of the whole path, set-up time included.
        logic_ns, routing_ns: its two parts.
        hops: every step.
    """

    start_clock: str
    end_clock: str
    delay_ns: float
    logic_ns: float
    routing_ns: float
    hops: tuple[Hop, ...]

    @property
    def start(self) -> str:
        """The cell at which the path starts."""
        return self.hops[0].cell

    @property
    def end(self) -> str:
        """The cell at which the path ends."""
        return self.hops[-1].cell

    @property
    def levels(self) -> int:
        """Number of cells passed between the two registers."""
        return sum(hop.kind == "logic" for hop in self.hops)

    def by_instance(self) -> tuple[PathPart, ...]:
        """The path in the blocks that it goes through, in order.

        A net counts to the block that it leads into. What belongs to no block of the design is
        called "serial shell" where there is one, else "top".
        """
        parts: list[PathPart] = []
        for hop in self.hops:
            instance = instance_of(hop.cell)
            routing = hop.kind == "routing"
            now = PathPart(
                instance,
                levels=int(hop.kind == "logic"),
                logic_ns=0.0 if routing else hop.delay_ns,
                routing_ns=hop.delay_ns if routing else 0.0,
            )
            if parts and parts[-1].instance == instance:
                parts[-1] = parts[-1].plus(now)
            else:
                parts.append(now)
        return tuple(parts)

    def summary(self) -> str:
        """One line for logs and tables."""
        return (
            f"{self.delay_ns:.2f} ns ({self.logic_ns:.2f} logic, {self.routing_ns:.2f} routing, "
            f"{self.levels} levels) from {self.start} to {self.end}"
        )


@dataclass(frozen=True)
class TimingReport:
    """What nextpnr's JSON report says.

    Attributes:
        fmax_mhz: achieved frequency of each clock that has register-to-register paths.
        paths: the critical path within each of those clocks.
        utilisation: elements used and available, by type.
    """

    fmax_mhz: Mapping[str, float]
    paths: tuple[CriticalPath, ...]
    utilisation: Mapping[str, Use]

    @property
    def slowest(self) -> str | None:
        """The clock with the lowest achieved frequency; None when no path has two registers."""
        return min(self.fmax_mhz, key=lambda name: self.fmax_mhz[name], default=None)

    def path_of(self, clock: str) -> CriticalPath | None:
        """The critical path within one clock."""
        edge = re.compile(rf"(pos|neg)edge {re.escape(clock)}")
        inside = [
            p for p in self.paths if edge.fullmatch(p.start_clock) and edge.fullmatch(p.end_clock)
        ]
        return max(inside, key=lambda p: p.delay_ns, default=None)


def parse_report(text: str, *, where: str) -> TimingReport:
    """Read nextpnr's ``--report`` file.

    Raises:
        ToolError: it is not JSON, or lacks a part.
    """
    try:
        table: dict[str, Any] = parse_json(text)
        return TimingReport(
            fmax_mhz={name: float(c["achieved"]) for name, c in table["fmax"].items()},
            paths=tuple(_path(entry) for entry in table["critical_paths"] if entry["path"]),
            utilisation={
                name: Use(int(use["used"]), int(use["available"]))
                for name, use in table["utilization"].items()
            },
        )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ToolError(f"the timing report cannot be read: {error!r}", where=where) from error


def _path(entry: dict[str, Any]) -> CriticalPath:
    hops = tuple(
        Hop(
            kind=str(step["type"]),
            delay_ns=float(step["delay"]),
            cell=str(step["to"]["cell"]),
            port=str(step["to"]["port"]),
            net=str(step.get("net", "")),
            source=str((step.get("sources") or [""])[0]),
        )
        for step in entry["path"]
    )
    routing = sum(hop.delay_ns for hop in hops if hop.kind == "routing")
    total = sum(hop.delay_ns for hop in hops)
    return CriticalPath(
        start_clock=str(entry["from"]),
        end_clock=str(entry["to"]),
        delay_ns=round(total, 4),
        logic_ns=round(total - routing, 4),
        routing_ns=round(routing, 4),
        hops=hops,
    )


def parse_log_utilisation(text: str) -> dict[str, Use]:
    """Elements used and available from nextpnr's log, which also a failing run writes."""
    found = {}
    for line in text.splitlines():
        match = _USAGE.match(line.rstrip())
        if match:
            found[match[1]] = Use(int(match[2]), int(match[3]))
    return found


def first_errors(text: str, count: int = 3) -> str:
    """The first error lines of a log, one a line."""
    errors = [line for line in text.splitlines() if line.startswith("ERROR:")]
    return "\n".join(errors[:count])


SHELL, DESIGN = "i_serial", "i_design"  # instances of a board's tops, see `bitwright.build.shell`


def instance_of(cell: str) -> str:
    """The block of the design that a cell belongs to, from its name."""
    levels = cell.removeprefix("$flatten").lstrip("\\").split(".")
    inside = levels[:2] == [SHELL, DESIGN]
    rest = levels[2:] if inside else levels
    if len(rest) > 1 and not rest[0].startswith("$") and (inside or rest[0] != SHELL):
        return rest[0].lstrip("\\")
    return "serial shell" if levels[0] == SHELL and not inside else "top"
