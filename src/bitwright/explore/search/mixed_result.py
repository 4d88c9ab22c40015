# SPDX-License-Identifier: Apache-2.0
"""What a mixed-precision search gives back: the policy, the table, the front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from bitwright.explore.search.goals import Cost, Goal
from bitwright.explore.search.sensitivity import UNITS, SensitivityTable, unit_row
from bitwright.explore.sizes import SizeReport
from bitwright.quantize.policy import Policy
from bitwright.report.table import Column, Kind, Table

_NETWORKS = (
    Column("size_bits", "parameters", Kind.NUMBER, "kB", per=8000),
    Column("memory_bits", "with features", Kind.NUMBER, "kB", per=8000),
    Column("bops", "bit operations", Kind.NUMBER, "M", per=1e6),
    Column("damage", "predicted damage", Kind.NUMBER),
    Column("accuracy", "accuracy", Kind.SHARE),
    Column("front", "on the front"),
    Column("chosen", "chosen"),
)


@dataclass(frozen=True)
class Point:
    """A network that was calibrated and measured.

    Attributes:
        chosen: index of the option of each unit.
        size: bits of its parameters, tables and scales included.
        memory: the same with the features of one image.
        bops: bit operations of one image.
        damage: as it was predicted.
        accuracy: as it was measured.
    """

    chosen: tuple[int, ...]
    size: int
    memory: int
    bops: int
    damage: float
    accuracy: float

    def cost(self, cost: Cost) -> int:
        return {Cost.SIZE: self.size, Cost.MEMORY: self.memory, Cost.BOPS: self.bops}[cost]


@dataclass(frozen=True)
class MixedResult:
    """The outcome of a search.

    Attributes:
        goal: what was asked for.
        cost: what was bounded or made small.
        metric: name of the accuracy.
        baseline: accuracy of the float network.
        best: the network chosen.
        points: every network that was measured.
        table: the sensitivities.
        recipe: the ``quant`` section of the network chosen.
        report: its size.
        floating: costs of the float network.
        seconds: how long the search took.
    """

    goal: Goal
    cost: Cost
    metric: str
    baseline: float
    best: Point
    points: tuple[Point, ...]
    table: SensitivityTable
    recipe: Mapping[str, Any]
    report: SizeReport
    floating: Mapping[Cost, int]
    seconds: float

    @property
    def policy(self) -> Policy:
        """What `apply` and `calibrate` take."""
        return Policy.from_dict(self.recipe)

    def front(self) -> list[Point]:
        """Measured networks that no other one beats in cost and accuracy, by cost."""
        found: list[Point] = []
        for point in sorted(self.points, key=lambda p: (p.cost(self.cost), -p.accuracy)):
            if not found or point.accuracy > found[-1].accuracy:
                found.append(point)
        return found

    def to_yaml(self) -> str:
        """The policy as the ``quant`` section of a recipe."""
        head = (
            f"# {self.goal}; {self.metric} {100 * self.best.accuracy:.2f} % "
            f"(float {100 * self.baseline:.2f} %), {self.best.size / 8000:.4g} kB of parameters\n"
        )
        return head + yaml.safe_dump({"quant": dict(self.recipe)}, sort_keys=False)

    def rows(self) -> list[dict[str, Any]]:
        """What each unit became."""
        chosen = zip(self.table.space.units, self.best.chosen, strict=True)
        return [unit_row(unit, unit.options[index]) for unit, index in chosen]

    def point_rows(self) -> list[dict[str, Any]]:
        """Every measured network, by cost."""
        front = {point.chosen for point in self.front()}
        return [
            {
                "size_bits": p.size,
                "memory_bits": p.memory,
                "bops": p.bops,
                "damage": p.damage,
                "accuracy": p.accuracy,
                "front": p.chosen in front,
                "chosen": p.chosen == self.best.chosen,
            }
            for p in sorted(self.points, key=lambda p: p.cost(self.cost))
        ]

    def to_json(self) -> dict[str, Any]:
        best = {k: v for k, v in asdict(self.best).items() if k != "chosen"}
        return {
            "goal": str(self.goal),
            "minimised": self.cost.value,
            "metric": self.metric,
            "baseline": self.baseline,
            "best": best,
            "float": {cost.value: value for cost, value in self.floating.items()},
            "layers": self.rows(),
            "points": self.point_rows(),
            "size": {k: v for k, v in self.report.to_json().items() if k != "entries"},
            "quant": dict(self.recipe),
            "sensitivity": self.table.to_json(),
            "seconds": self.seconds,
        }

    def layers(self) -> Table:
        """What each unit became, as a table."""
        return Table("", UNITS, tuple(self.rows()))

    def networks(self) -> Table:
        """Every measured network, as a table."""
        return Table("", _NETWORKS, tuple(self.point_rows()))

    def to_markdown(self) -> str:
        """Summary, layers, measured networks, sensitivities."""
        best, sizes = self.best, self.report
        lines = [
            "# Mixed precision",
            "",
            f"Goal {self.goal}: {self.metric} {100 * best.accuracy:.2f} % "
            f"(float {100 * self.baseline:.2f} %), {best.size / 8000:.4g} kB of parameters "
            f"({sizes.parameter_rate:.2f} times fewer bits than float), "
            f"{best.memory / 8000:.4g} kB with the features of one image "
            f"(memory ratio {sizes.memory_ratio:.2f}, mean of factors {sizes.network_rate:.2f}), "
            f"{best.bops / 1e6:.4g} M bit operations. {len(self.points)} networks measured in "
            f"{self.seconds:.0f} s.",
            "",
            self.layers().to_markdown(),
            self.networks().to_markdown(),
        ]
        lines += ["## Sensitivities", "", self.table.to_markdown()]
        lines += [f"- {note}" for note in self.table.space.notes]
        return "\n".join(lines) + "\n"
