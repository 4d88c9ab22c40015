# SPDX-License-Identifier: Apache-2.0
"""Energy, ratios and power: every derived figure of the published tables, from its inputs."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bitwright.base.errors import RecipeError
from bitwright.base.figures import Source
from bitwright.explore.bench.page import Benched, charts, compared_table, sweep_table, write_bench
from bitwright.explore.bench.performance import Performance, Point, against, best_of
from bitwright.explore.bench.power import NOMINAL, counters, metered, parse_watts
from bitwright.explore.bench.sweep import SweepSettings
from bitwright.papers.dpu.calibration import published
from bitwright.report.svg import standalone

NETWORKS = ("densenet21", "densenet37", "densenet63")
PLATFORMS = ("cpu", "qcpu", "gpu", "dpu")
HALF = 0.005 + 1e-9  # of the last digit that is printed; zeros at the end are left out


def performance(network: str, platform: str, latency: float = 0.0) -> Performance:
    """As printed, with the latency moved."""
    row = published()[network][platform]
    return Performance(
        platform,
        row["throughput"],
        row["latency"] + latency,
        published()["watts"][platform],
    )


@pytest.mark.parametrize(("network", "platform"), [*product(NETWORKS, PLATFORMS)])
def test_every_derived_figure_follows_from_its_inputs(network: str, platform: str) -> None:
    """Inputs are rounded as printed; what is derived must lie within what that leaves open."""
    row = published()[network][platform]
    derive = {
        "latency_energy": lambda one, base: one.latency_energy_mj,
        "throughput_energy": lambda one, base: one.throughput_energy_mj,
        "throughput_speedup": lambda one, base: against(one, base).throughput,
        "latency_speedup": lambda one, base: against(one, base).latency,
    }
    moved = [*product((-HALF, 0.0, HALF), repeat=2)]
    for name in derive.keys() & row.keys():
        found = [
            derive[name](performance(network, platform, own), performance(network, "cpu", base))
            for own, base in moved
        ]
        assert min(found) - HALF <= row[name] <= max(found) + HALF, (name, row[name], found)
    if platform == "cpu":
        return
    for term in ("latency", "throughput"):  # efficiencies follow from the energies as printed
        own, base = (published()[network][p][f"{term}_energy"] for p in (platform, "cpu"))
        found = [(base + above) / (own + below) for above, below in moved]
        printed = row[f"{term}_efficiency"]
        assert min(found) - HALF <= printed <= max(found) + HALF, (term, printed, found)
        efficiency = against(performance(network, platform), performance(network, "cpu"))
        assert getattr(efficiency, f"{term}_energy") == pytest.approx(printed, rel=0.01)
    assert len(row) == 8


def test_the_best_energy_is_always_at_the_best_throughput() -> None:
    for network, platform in product(NETWORKS, PLATFORMS):
        one = performance(network, platform)
        assert one.energy_mj == one.throughput_energy_mj
        assert one.latency_energy_mj is not None and one.energy_mj is not None
        assert one.energy_mj < one.latency_energy_mj


def test_the_claims_of_the_abstract_hold_for_the_smallest_network_alone() -> None:
    """9 times the latency and 4 times the efficiency of every other platform."""
    for network in NETWORKS:
        dpu = performance(network, "dpu")
        others = [performance(network, name) for name in PLATFORMS[:3]]
        holds = all(
            other.latency_ms / dpu.latency_ms >= 9
            and (other.energy_mj or 0) / (dpu.energy_mj or 1) >= 4
            for other in others
        )
        assert holds == (network == "densenet21")


def test_constants_are_those_that_give_the_printed_energies() -> None:
    watts = published()["watts"]
    assert {name: watts[name] for name in NOMINAL} == dict(NOMINAL)


def point(**fields: object) -> Point:
    given = {"platform": "cpu int8", "batch": 1, "threads": 1, "workers": 1, "images": 9}
    given |= {"throughput": 100.0, "latency_ms": 10.0} | fields
    return Point(**given)  # type: ignore[arg-type]


def test_the_best_of_a_sweep() -> None:
    found = best_of(
        [point(), point(batch=8, throughput=400.0, latency_ms=20.0), point(latency_ms=9.0)], 95.0
    )
    assert (found.throughput, found.latency_ms, found.watts) == (400.0, 9.0, 95.0)
    assert found.watts_source is Source.GIVEN
    assert found.latency_energy_mj == pytest.approx(855.0)
    assert found.throughput_energy_mj == pytest.approx(237.5)
    measured = best_of([point(watts=30.0)], 95.0)
    assert (measured.watts, measured.watts_source) == (30.0, Source.MEASUREMENT)
    unknown = best_of([point()], None)
    assert unknown.energy_mj is None and against(unknown, found).latency_energy is None
    with pytest.raises(RecipeError, match="no batch of one image"):
        best_of([point(batch=8)], None)
    with pytest.raises(RecipeError, match="throughput must be positive, got 0"):
        Performance("x", 0.0, 1.0)


def rapl(folder: Path, name: str, energy: str) -> Path:
    place = folder / name
    place.mkdir()
    (place / "energy_uj").write_text(energy)
    (place / "max_energy_range_uj").write_text("1000000")
    return place


def test_power_is_measured_where_the_machine_counts_energy(tmp_path: Path) -> None:
    package = rapl(tmp_path, "intel-rapl:0", "999000")
    rapl(tmp_path, "intel-rapl:0:0", "5")  # a part of the package: counted in it
    rapl(tmp_path, "intel-rapl:1", "none")  # cannot be read
    assert list(counters(tmp_path)) == ["intel-rapl:0"]
    with metered(tmp_path) as meter:
        (package / "energy_uj").write_text("1000")  # it has begun anew: 2000 microjoules
    assert meter.watts is not None and meter.watts > 0
    assert meter.domains == ("intel-rapl:0",)
    with metered(tmp_path / "nowhere") as meter:
        pass
    assert meter.watts is None


def test_constants_of_the_users_own() -> None:
    assert parse_watts(None) == dict(NOMINAL)
    assert parse_watts("cpu=15, tpu=2")["cpu"] == 15.0
    for text in ("cpu", "cpu=x", "cpu=0", "=3", "cpu=-1"):
        with pytest.raises(RecipeError, match="is no power"):
            parse_watts(text)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batches": (8,)}, "a batch of one image is needed"),
        ({"batches": (1, 1)}, "different numbers"),
        ({"threads": (0,)}, "from 1 on"),
        ({"workers": 0}, "must be positive"),
        ({"seconds": 0.0}, "must be positive"),
    ],
)
def test_settings_that_cannot_be(fields: dict[str, object], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        SweepSettings(**fields)  # type: ignore[arg-type]


def test_tables_and_charts(tmp_path: Path) -> None:
    """The published platforms, as a benchmark would show them."""
    found = Benched(
        "densenet21",
        (point(), point(platform="dpu int8", source=Source.MODEL)),
        tuple(performance("densenet21", name) for name in PLATFORMS),
        ("a note",),
    )
    assert found.base.platform == "cpu"
    rows = compared_table(found).cells()
    assert [row[0] for row in rows] == list(PLATFORMS)
    dpu = dict(zip(compared_table(found).columns, rows[3], strict=True))
    shown = {column.key: value for column, value in dpu.items()}
    assert (shown["throughput_ratio"], shown["latency_ratio"]) == ("\u00d75.52", "\u00d79.55")
    assert (shown["latency_energy"], shown["energy"]) == ("15.73", "6.21")
    assert compared_table(found).notes[-1] == "a note"
    assert len(sweep_table(found).rows) == 2
    for chart in charts(found).values():
        drawn = ElementTree.fromstring(standalone(chart.to_svg()))
        texts = [element.text or "" for element in drawn.iter() if element.tag.endswith("text")]
        assert texts[0].startswith("densenet21: ") and "dpu" in texts
    written = write_bench(tmp_path, [found], {"command": "bitwright bench"})
    page = written["html"].read_text()
    assert page.count("<svg") == 3 and "what is not measured here says so" in page
    assert {file.name for file in tmp_path.glob("*.svg")} == {
        f"densenet21-{name}.svg" for name in ("throughput", "latency", "energy")
    }
