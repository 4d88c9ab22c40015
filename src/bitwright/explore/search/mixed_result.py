# SPDX-License-Identifier: Apache-2.0
"""What a mixed-precision search gives back: the policy, the table, the front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from bitwright.explore.search.goals import Cost, Goal
from bitwright.explore.search.sensitivity import SensitivityTable
from bitwright.explore.sizes import SizeReport
from bitwright.quantize.policy import Policy
from bitwright.report.table import Column, Kind, Table, Value, rows_to_csv

_LAYERS = (
    Column("layer", "layer"),
    Column("role", "role"),
    Column("format", "format"),
    Column("bits", "bits", Kind.NUMBER),
    Column("values", "values", Kind.NUMBER),
    Column("stored_bits", "kB", Kind.NUMBER),
    Column("damage", "damage", Kind.NUMBER),
)
_NETWORKS = (
    Column("size", "parameters", Kind.NUMBER, "kB"),
    Column("memory", "with features", Kind.NUMBER, "kB"),
    Column("bops", "bit operations", Kind.NUMBER, "M"),
    Column("accuracy", "accuracy", Kind.SHARE),
    Column("mark", ""),
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
        return [
            {
                "layer": unit.name,
                "role": unit.role.value,
                "format": unit.options[index].format.name,
                "bits": unit.options[index].bits,
                "values": unit.count,
                "stored_bits": unit.options[index].stored_bits,
                "damage": unit.options[index].damage,
            }
            for unit, index in chosen
        ]

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

    def to_csv(self) -> str:
        """The table of layers."""
        return rows_to_csv(self.rows())

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
            self._layers().to_markdown(),
            self._networks().to_markdown(),
        ]
        lines += ["## Sensitivities", "", self.table.to_markdown()]
        lines += [f"- {note}" for note in self.table.space.notes]
        return "\n".join(lines) + "\n"

    def _layers(self) -> Table:
        rows: list[dict[str, Value]] = [
            {**row, "stored_bits": row["stored_bits"] / 8000} for row in self.rows()
        ]
        return Table("", _LAYERS, tuple(rows))

    def _networks(self) -> Table:
        rows: list[dict[str, Value]] = [
            {
                "size": row["size_bits"] / 8000,
                "memory": row["memory_bits"] / 8000,
                "bops": row["bops"] / 1e6,
                "accuracy": row["accuracy"],
                "mark": "chosen" if row["chosen"] else "front" if row["front"] else "",
            }
            for row in self.point_rows()
        ]
        return Table("", _NETWORKS, tuple(rows))
