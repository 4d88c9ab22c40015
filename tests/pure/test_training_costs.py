# SPDX-License-Identifier: Apache-2.0
"""Time and energy of training: products, the model, schedules, what a policy can do, logs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from math import isclose
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import DataError, RecipeError
from bitwright.base.figures import Source
from bitwright.low_precision.config import LowPrecision, MuppetSettings
from bitwright.low_precision.costs.cases import possible_schedules, shortest_stays
from bitwright.low_precision.costs.log import side_by_side, totals
from bitwright.low_precision.costs.model import (
    Cost,
    CostTable,
    LevelCosts,
    PartCost,
    Variant,
    compare,
)
from bitwright.low_precision.costs.network import LayerWork, Network
from bitwright.low_precision.costs.schedule import Phase, Schedule, parse_schedule, schedule_of_log
from bitwright.low_precision.log import write_log
from bitwright.low_precision.policy import Entry, Plan

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "benchmarks" / "published_costs"

CONV = LayerWork("conv", "conv", (8, 4, 10, 10), (6, 4, 3, 3), (8, 6, 8, 8))
HEAD = LayerWork("head", "linear", (8, 20, 1, 1), (5, 20, 1, 1), (8, 5, 1, 1))
NETWORK = Network("net", 8, (CONV, HEAD), 316, rest_bytes=10_000, rest_operations=12)
EVERY = {
    "forward": ((8 * 64, 6, 36), (8 * 400, 216, 8 * 384)),
    "grad_input": ((8 * 64, 36, 6), (8 * 384, 216, 8 * 400)),
    "grad_weight": ((6, 36, 8 * 64), (8 * 400, 8 * 384, 216)),
}


def forward(a: Cost, b: Cost) -> tuple[PartCost, ...]:
    """The forward products of two layers."""
    return PartCost("a", "forward", a), PartCost("b", "forward", b)


def table(**changed: object) -> CostTable:
    """Two levels with round numbers; 10 steps an epoch."""
    quantize = (
        PartCost("a", "weights", Cost(0.1, 0.1)),
        PartCost("a", "activations", Cost(0.2, 0.1)),
        PartCost("b", "activations", Cost(0.3, 0.1)),
    )
    few = LevelCosts(
        "int8", forward(Cost(0.5, 1.0), Cost(0.25, 0.5)), forward(Cost(0.4, 1.0), Cost(0.2, 0.5)),
        quantize,
    )  # fmt: skip
    levels = {
        "float32": LevelCosts("float32", forward(Cost(3.0, 9.0), Cost(1.0, 1.0))),
        "int8": few,
    }
    made = CostTable("net here", Source.GIVEN, 10, Cost(1.0, 2.0), Cost(7.0, 3.0), levels)
    return replace(made, **changed)


@pytest.mark.parametrize("name", EVERY)
def test_a_product_has_the_sizes_of_its_matrices(name: str) -> None:
    found = CONV.product(name)
    sizes, tensors = EVERY[name]
    assert (found.m, found.n, found.k) == sizes
    assert (found.left, found.right, found.result) == tensors
    assert found.macs == 8 * 64 * 6 * 36


@given(
    st.integers(1, 9), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6),
    st.integers(1, 3), st.integers(1, 5),
)  # fmt: skip
def test_all_three_products_take_as_many_multiplications(
    batch: int, groups: int, inputs: int, outputs: int, kernel: int, size: int
) -> None:
    layer = LayerWork(
        "x",
        "conv",
        (batch, groups * inputs, size + kernel, size + kernel),
        (groups * outputs, inputs, kernel, kernel),
        (batch, groups * outputs, size, size),
        groups=groups,
    )
    counts = {layer.product(name).macs for name in layer.products}
    assert counts == {batch * size**2 * groups * inputs * outputs * kernel**2}


def test_an_epoch_is_the_sum_of_its_parts() -> None:
    epoch = table().epoch("int8")
    assert epoch.rest == Cost(10.0, 20.0)
    assert epoch.products == Cost(7.5, 15.0)
    assert isclose(epoch.quantize.seconds, 6.0)
    assert epoch.policy == Cost(7.0, 3.0)
    assert isclose(epoch.total.seconds, 30.5)
    assert isclose(epoch.total.joules or 0, 41.0)


def test_ideal_is_native_and_quantizes_for_nothing() -> None:
    epoch = table().epoch("int8", Variant.IDEAL)
    assert isclose(epoch.products.seconds, 6.0)
    assert epoch.quantize.seconds == 0
    assert epoch.policy.seconds == 7.0


def test_nobody_decides_in_float32_or_in_a_fixed_schedule() -> None:
    assert table().epoch("float32").policy.seconds == 0
    assert table().epoch("int8", adaptive=False).policy.seconds == 0


def test_unknown_energy_stays_unknown() -> None:
    silent = table(rest=Cost(1.0))
    run = silent.run(parse_schedule("int8:2,float32:1"))
    assert run.total.joules is None
    assert "energy" not in run.to_json()["total"]


def test_a_run_is_compared_with_float32_twice() -> None:
    (current, ideal) = compare(table(), [parse_schedule("int8:4,float32:2")], baseline_epochs=10)
    # epochs of 50 s in float32 and 30.5 s in 8 bits
    assert isclose(current.run.total.seconds, 4 * 30.5 + 2 * 50)
    assert isclose(current.equal_epochs, 300 / 222)
    assert isclose(current.baseline, 500 / 222)
    assert ideal.baseline > current.baseline
    assert current.to_json()["total"]["time"]["source"] == "given"


def test_levels_mix_by_layer() -> None:
    mixed = table().mixture("both", {("b", "forward"): "int8"})
    epoch = mixed.epoch("both")
    assert isclose(epoch.products.seconds, 10 * (3.0 + 0.25))
    assert isclose(epoch.quantize.seconds, 10 * 0.3)
    assert isclose(mixed.epoch("both", Variant.IDEAL).products.seconds, 10 * (3.0 + 0.2))


def test_levels_do_not_mix_where_only_sums_are_known() -> None:
    sums = {"int8": LevelCosts("int8", (PartCost("", "products", Cost(1.0)),))}
    made = table(levels={**table().levels, **sums})
    with pytest.raises(RecipeError, match="only sums over the network"):
        made.mixture("both", {("b", "forward"): "int8"})
    fixed = replace(made, levels={"int8": made.levels["int8"]})
    with pytest.raises(RecipeError, match="only sums over the network"):
        fixed.mixture("both", {("b", "forward"): "int8"})


def test_a_level_without_numbers_is_named() -> None:
    with pytest.raises(RecipeError, match="no numbers for level 'int12'") as caught:
        table().run(parse_schedule("int12:3"))
    assert "float32, int8" in caught.value.message


def test_schedules_are_written_and_read() -> None:
    text = "int8:37,int12:9,float32:45"
    found = parse_schedule(text)
    assert str(found) == text
    assert found.epochs == 91
    assert Schedule.of_levels("again", found.levels).phases == found.phases


@pytest.mark.parametrize("text", ["", "int8", "int8:", "int8:0", "int8:x", "int8:3;int12:4", ":3"])
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="no phase of a schedule"):
        parse_schedule(text)


def test_a_schedule_keeps_to_the_ladder() -> None:
    with pytest.raises(RecipeError, match="'int10' is not on the ladder") as caught:
        parse_schedule("int8:3,int10:2", ("int8", "float32"))
    assert "int8, float32" in str(caught.value)


def test_a_log_is_a_schedule(tmp_path: Path) -> None:
    levels = ["int8"] * 3 + ["int12"] * 2 + ["float32"]
    write_log(tmp_path / "p.jsonl", [Entry(i, lv, "because") for i, lv in enumerate(levels, 1)])
    assert schedule_of_log(tmp_path / "p.jsonl").phases == (
        Phase("int8", 3), Phase("int12", 2), Phase("float32", 1),
    )  # fmt: skip
    with pytest.raises(DataError):
        schedule_of_log(tmp_path / "none.jsonl")


# What a policy can do


def plan(settings: LowPrecision, epochs: int) -> Plan:
    return Plan(
        ("a",), len(settings.ladder), settings.float_level, epochs, settings.float_epochs, 10,
        names=settings.ladder,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        ({}, (6, 3, 3, 3)),
        ({"window": "resolution"}, (5, 3, 3, 3)),
        ({"count": "exceeds"}, (7, 4, 4, 4)),
        ({"history": "clear"}, (6, 6, 6, 6)),
        ({"resolution": 1, "patience": 1}, (3, 2, 2, 2)),
    ],
)
def test_how_soon_muppet_can_climb(changes: dict[str, object], stays: tuple[int, ...]) -> None:
    assert shortest_stays(MuppetSettings(**changes), 5) == stays


def test_the_cases_of_muppet() -> None:
    settings = LowPrecision()
    found = {s.name: str(s) for s in possible_schedules(settings, plan(settings, 150))}
    assert found == {
        "soonest": "int8:6,int12:3,int14:3,int16:3,float32:45",
        "latest": "int8:105,float32:45",
    }


def test_the_slowest_case_is_at_the_dearest_level() -> None:
    settings = LowPrecision(ladder=["int8", "float32"], float_epochs=2)
    dear = LowPrecision(ladder=["int8", "int16", "float32"], float_epochs=2)
    sixteen = {"int16": LevelCosts("int16", (PartCost("a", "forward", Cost(9.0)),))}
    made = table(levels={**table().levels, **sixteen})
    found = {s.name: str(s) for s in possible_schedules(dear, plan(dear, 30), made)}
    assert found["slowest"] == "int8:6,int16:22,float32:2"
    found = {s.name: str(s) for s in possible_schedules(settings, plan(settings, 30), table())}
    assert found == {"soonest": "int8:6,float32:2", "latest": "int8:28,float32:2"}


def test_the_deadline_cuts_the_climb() -> None:
    settings = LowPrecision(float_epochs=4)
    (soonest, *_) = possible_schedules(settings, plan(settings, 12))
    assert str(soonest) == "int8:6,int12:2,float32:4"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"kind": "baseline"}, "float32:20"),
        ({"kind": "mixed"}, "float16:20"),
        ({"kind": "fixed", "switch_at": 7}, "int8:7,float32:13"),
        ({"kind": "replay", "schedule": [[0, 8], [5, "float32"]]}, "int8:5,float32:3"),
    ],
)
def test_schedules_that_are_known_are_told(policy: dict[str, object], expected: str) -> None:
    settings = LowPrecision(policy=policy, ladder=["int8", "float32"], float_epochs=3)
    (only,) = possible_schedules(settings, plan(settings, 20))
    assert str(only) == expected
    assert not only.adaptive


# Logs


def test_measured_and_modelled_stand_side_by_side() -> None:
    entries = [
        Entry(1, "int8", "so"),
        Entry(2, "int8 to float32", "so", products={"a/forward": "int8", "b/forward": "float32"}),
        Entry(3, "float32", "so"),
        Entry(4, "int12", "so"),
    ]
    measured = {epoch: 40.0 + epoch for epoch in range(1, 5)}
    rows = side_by_side(entries, measured, table())
    assert [row.modelled for row in rows] == [
        pytest.approx(30.5),
        pytest.approx(10 * (1.0 + 0.5 + 1.0 + 0.3) + 7.0),
        pytest.approx(50.0),
        None,
    ]
    assert [row.measured for row in rows] == [41.0, 42.0, 43.0, 44.0]
    found = totals(rows)
    assert found["int8"] == (1, 41.0, pytest.approx(30.5))
    assert found["total"] == (4, 170.0, None)
    with pytest.raises(DataError, match="the metrics have 2 epochs"):
        side_by_side(entries, {1: 41.0, 2: 42.0}, table())


def test_the_model_needs_no_torch() -> None:
    rooms = "cases devices given log model network roofline schedule"
    names = [f"bitwright.low_precision.costs.{room}" for room in rooms.split()]
    script = f"import sys\nfor m in {names!r}: __import__(m)\nassert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
