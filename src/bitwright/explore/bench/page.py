# SPDX-License-Identifier: Apache-2.0
"""What was measured, as tables and bar charts: HTML, Markdown, JSON, CSV, and SVG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitwright.base.figures import Source, number
from bitwright.base.files import atomic_write
from bitwright.explore.bench.performance import Performance, Point, against
from bitwright.report.bars import Bars
from bitwright.report.svg import standalone
from bitwright.report.table import Column, Kind, Table, Value
from bitwright.report.table_page import Section, write_report

#: The platform that others are compared with, if it is there; else the first.
BASE = "cpu float32"


@dataclass(frozen=True)
class Benched:
    """One network on its platforms."""

    network: str
    points: tuple[Point, ...]
    platforms: tuple[Performance, ...]
    notes: tuple[str, ...] = ()

    @property
    def base(self) -> Performance:
        """What the ratios are relative to."""
        return next((p for p in self.platforms if p.platform == BASE), self.platforms[0])


_SWEEP = (
    Column("platform", "platform"),
    Column("batch", "batch", Kind.NUMBER),
    Column("threads", "threads", Kind.NUMBER, about="runners beside each other"),
    Column("workers", "workers", Kind.NUMBER, about="processor threads of one job"),
    Column("throughput", "throughput", Kind.NUMBER, "images/s", 1),
    Column("latency_ms", "latency", Kind.NUMBER, "ms", 3, "of a job, submission to collection"),
    Column(
        "watts", "power", Kind.NUMBER, "W", 1, "measured; a dash: this machine does not show it"
    ),
    Column("source", "source"),
)
_COMPARED = (
    Column("platform", "platform"),
    Column("throughput", "throughput", Kind.NUMBER, "images/s", 2),
    Column("throughput_ratio", "speed-up", Kind.RATE, about="of throughput, against the base"),
    Column("latency_ms", "latency", Kind.NUMBER, "ms", 3),
    Column("latency_ratio", "speed-up of latency", Kind.RATE),
    Column("watts", "power", Kind.NUMBER, "W", 1),
    Column("latency_energy", "energy an image, best latency", Kind.NUMBER, "mJ", 2, "P x latency"),
    Column("latency_energy_ratio", "efficiency, best latency", Kind.RATE),
    Column(
        "throughput_energy",
        "energy an image, best throughput",
        Kind.NUMBER,
        "mJ",
        2,
        "P / throughput",
    ),
    Column("throughput_energy_ratio", "efficiency, best throughput", Kind.RATE),
    Column("energy", "energy an image", Kind.NUMBER, "mJ", 2, "the smaller of both"),
    Column("source", "source", about="of times; of power"),
)


def sweep_table(found: Benched) -> Table:
    """Every point."""
    rows: list[dict[str, Value]] = []
    for point in found.points:
        fields: dict[str, Value] = {c.key: getattr(point, c.key) for c in _SWEEP}
        rows.append(fields | {"source": str(point.source)})
    return Table(f"{found.network}: every measurement", _SWEEP, tuple(rows))


def compared_table(found: Benched) -> Table:
    """Every platform at its best, against the base."""
    rows = []
    for one in found.platforms:
        ratios = against(one, found.base)
        power = "no power" if one.watts is None else f"power {one.watts_source}"
        rows.append(
            {
                "platform": one.platform,
                "throughput": one.throughput,
                "throughput_ratio": ratios.throughput,
                "latency_ms": one.latency_ms,
                "latency_ratio": ratios.latency,
                "watts": one.watts,
                "latency_energy": one.latency_energy_mj,
                "latency_energy_ratio": ratios.latency_energy,
                "throughput_energy": one.throughput_energy_mj,
                "throughput_energy_ratio": ratios.throughput_energy,
                "energy": one.energy_mj,
                "source": f"{one.source}; {power}",
            }
        )
    note = f"Ratios are relative to {found.base.platform}; more than 1 is better."
    return Table(found.network, _COMPARED, tuple(rows), (note, *found.notes))


def charts(found: Benched) -> dict[str, Bars]:
    """Bar charts of throughput, latency and energy."""
    return {
        name: Bars(f"{found.network}: {title} [{unit}]", _bars(found.platforms, attribute))
        for name, title, unit, attribute in (
            ("throughput", "throughput", "images/s", "throughput"),
            ("latency", "latency of one image", "ms", "latency_ms"),
            ("energy", "energy an image", "mJ", "energy_mj"),
        )
    }


def _bars(platforms: Sequence[Performance], attribute: str) -> tuple[tuple[str, float, str], ...]:
    values = [(p.platform, getattr(p, attribute)) for p in platforms]
    return tuple((name, value, number(value)) for name, value in values if value is not None)


def write_bench(
    folder: Path, results: Sequence[Benched], facts: Mapping[str, str]
) -> dict[str, Path]:
    """``bench.html`` and the same as Markdown, JSON and CSV; charts as SVG files beside it."""
    sections = []
    for found in results:
        drawn = charts(found)
        sections.append(Section(compared_table(found), tuple(drawn.values())))
        sections.append(Section(sweep_table(found)))
        for name, chart in drawn.items():
            if chart.rows:
                file = folder / f"{found.network}-{name}.svg"
                atomic_write(file, standalone(chart.to_svg()) + "\n")
    modelled = any(p.source is not Source.MEASUREMENT for r in results for p in r.points)
    lead = "Throughput, latency and energy of an image, each platform at its best"
    if modelled:
        lead += "; what is not measured here says so"
    return write_report(
        folder, "bench", title="Benchmark", lead=lead, sections=sections, facts=facts
    )
