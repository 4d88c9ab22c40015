# SPDX-License-Identifier: Apache-2.0
"""Training costs: described devices, numbers from files, and what a publication prints."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from math import isclose
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import BitwrightError, DataError, RecipeError, TargetError
from bitwright.low_precision.costs.devices import Device, list_devices, load_device
from bitwright.low_precision.costs.given import read_costs, write_costs
from bitwright.low_precision.costs.model import Variant
from bitwright.low_precision.costs.network import LayerWork, Network
from bitwright.low_precision.costs.roofline import forecast_costs
from bitwright.low_precision.costs.schedule import Schedule, parse_schedule
from bitwright.low_precision.ladder import parse_level

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "benchmarks" / "published_costs"

CONV = LayerWork("conv", "conv", (8, 4, 10, 10), (6, 4, 3, 3), (8, 6, 8, 8))
HEAD = LayerWork("head", "linear", (8, 20, 1, 1), (5, 20, 1, 1), (8, 5, 1, 1))
NETWORK = Network("net", 8, (CONV, HEAD), 316, rest_bytes=10_000, rest_operations=12)


def test_every_device_is_whole() -> None:
    names = [device.name for device in list_devices()]
    assert {"epyc-avx2", "xeon-vnni", "rtx-2080-ti", "h100-sxm", "h200-sxm", "fpga-u250"} <= {
        *names
    }
    for device in list_devices():
        for level in ("int8", "int12", "int16", "float16", "float32"):
            assert device.choice(parse_level(level)).rate > 0


@pytest.mark.parametrize(
    ("device", "level", "unit"),
    [
        ("epyc-avx2", "int8", "int16"),
        ("epyc-avx2", "int12", "int16"),
        ("xeon-vnni", "int8", "int8"),
        ("xeon-vnni", "int16", "int16"),  # two slices of 8 bits take four products, no faster
        ("rtx-2080-ti", "int16", "4 x int8"),
        ("rtx-2080-ti", "bfloat16", "float32"),  # its range does not fit float16
        ("h100-sxm", "bfloat16", "bfloat16"),
        ("h100-sxm", "e4m3", "e4m3"),
        ("h100-sxm", "mxfp8", "e4m3"),
        ("h100-sxm", "int16", "4 x int8"),
        ("fpga-u250", "float16", "float32"),
    ],
)
def test_products_run_where_they_are_exact_and_fastest(device: str, level: str, unit: str) -> None:
    assert load_device(device).choice(parse_level(level)).text == unit


def hand_made(**changed: object) -> Device:
    """1 GMAC/s in float32, 8 in int8, 1 GB/s, 1 W idle and 5 W at most."""
    fields = {
        "name": "hand",
        "description": "by hand",
        "kind": "other",
        "unit": [
            {"format": "float32", "macs_per_second": 1e9, "pj_per_mac": 1000, "source": "hand"},
            {"format": "int8", "macs_per_second": 8e9, "pj_per_mac": 100, "source": "hand"},
        ],
        "memory": {"bytes_per_second": 1e9, "pj_per_byte": 100, "source": "hand"},
        "power": {"idle_watts": 1, "full_watts": 5, "source": "hand"},
    }
    return Device.model_validate({**fields, **changed})


def test_a_product_takes_the_longer_of_computing_and_moving() -> None:
    """An 8 x 6 x 8 x 8 output of 36 products each: 110 592 of them."""
    network = replace(NETWORK, layers=(CONV,))
    made = forecast_costs(network, hand_made(), ["int8"], 1)
    (first, *_) = made.levels["float32"].products
    assert first.part == "forward"
    assert isclose(first.cost.seconds, 110_592 / 1e9)  # 25 952 bytes would take 26 us
    assert isclose(first.cost.joules or 0, 110_592e-9 + 110_592e-9 + 25_952e-10)
    (first, *_) = made.levels["int8"].products
    moved = 3200 + 216 + 4 * 3072
    assert isclose(first.cost.seconds, moved / 1e9)  # 13.8 us to compute
    native = made.levels["int8"].native
    assert native is not None
    assert isclose(native[0].cost.seconds, 110_592 / 8e9)  # 8-bit results move faster


def test_quantizing_reads_twice_and_writes_once() -> None:
    network = replace(NETWORK, layers=(HEAD,))
    made = forecast_costs(network, hand_made(), ["int8"], 1)
    sizes = {part.part: part.cost.seconds for part in made.levels["int8"].quantize}
    assert isclose(sizes["weights"], 100 * 9 / 1e9)
    assert isclose(sizes["activations"], 160 * 9 / 1e9)
    assert isclose(sizes["gradients"], (40 + 100) * 9 / 1e9)


def test_no_device_draws_more_than_it_can() -> None:
    for device in [*list_devices(), hand_made()]:
        made = forecast_costs(NETWORK, device, ["int8", "int16", "float16"], 7)
        for level in made.levels:
            for variant in Variant:
                found = made.epoch(level, variant).total
                assert found.joules is not None
                watts = found.joules / found.seconds
                assert device.power.idle_watts <= watts * (1 + 1e-9)
                assert watts <= device.power.full_watts * (1 + 1e-9)


@given(st.floats(1, 100), st.floats(1, 100))
def test_a_faster_device_is_never_slower(compute: float, memory: float) -> None:
    slow = hand_made()
    fast = slow.model_copy(
        update={
            "unit": tuple(
                u.model_copy(update={"macs_per_second": u.macs_per_second * compute})
                for u in slow.unit
            ),
            "memory": slow.memory.model_copy(update={"bytes_per_second": 1e9 * memory}),
        }
    )
    for level in ("int8", "float32"):
        before = forecast_costs(NETWORK, slow, ["int8"], 1).epoch(level).total.seconds
        after = forecast_costs(NETWORK, fast, ["int8"], 1).epoch(level).total.seconds
        assert after <= before * (1 + 1e-12)


def integers() -> Device:
    unit = {"format": "int8", "macs_per_second": 1e9, "pj_per_mac": 1, "source": "hand"}
    return hand_made(unit=[unit])


def test_a_device_without_a_unit_is_refused() -> None:
    with pytest.raises(TargetError, match="no unit of hand computes in float32"):
        forecast_costs(NETWORK, integers(), ["int8"], 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "cannot be read"),
        ('name = "x"', "memory: Field required"),
        ("cores = 1", "description: Field required"),
    ],
)
def test_a_bad_device_file_is_explained(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "device.toml"
    path.write_text(text)
    with pytest.raises(TargetError, match=message) as caught:
        load_device(path)
    assert str(path) in str(caught.value)


def test_rates_are_given_once(tmp_path: Path) -> None:
    whole = (ROOT / "src/bitwright/low_precision/costs/devices/epyc-avx2.toml").read_text()
    path = tmp_path / "device.toml"
    path.write_text(
        whole.replace("macs_per_cycle = 16", "macs_per_cycle = 16\nmacs_per_second = 1e9")
    )
    with pytest.raises(TargetError, match="either macs_per_second or macs_per_cycle"):
        load_device(path)
    path.write_text(whole.replace("cores = 2", ""))
    with pytest.raises(TargetError, match="needs cores and clock_ghz"):
        load_device(path)


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(TargetError, match=r"unknown device 'gtx'; known are .*rtx-2080-ti"):
        load_device("gtx")
    with pytest.raises(TargetError, match="no such file"):
        load_device("nowhere/x.toml")


# Numbers from files


def test_costs_are_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    made = forecast_costs(NETWORK, load_device("rtx-2080-ti"), ["int8"], 9)
    for costs in (made, replace(made, notes=())):
        write_costs(path, costs, {"batch": 8})
        back = read_costs(path)
        assert back.facts == {"batch": 8}
        assert back.table.source == costs.source
        for level in costs.levels:
            for variant in Variant:
                old, new = costs.epoch(level, variant), back.table.epoch(level, variant)
                assert isclose(old.total.seconds, new.total.seconds)
                assert isclose(old.total.joules or 0, new.total.joules or 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rest": None}, "rest"),
        ({"rest": -1.0}, "rest"),
        ({"rest": float("inf")}, "rest"),
        ({"steps": 0}, "steps"),
        ({"level": []}, "level"),
        ({"level": [{"name": "int8"}]}, "level.0.products: Field required"),
        ({"level": [{"name": "int8x", "products": 1}]}, "level.0.name"),
        ({"level": [{"name": "int8", "products": 1}] * 2}, "there twice"),
        ({"sauce": 1}, "sauce"),
    ],
)
def test_bad_numbers_are_named(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    whole = {
        "name": "x",
        "source": "given",
        "steps": 1,
        "rest": 1.0,
        "level": [{"name": "int8", "products": 1}],
        **changes,
    }
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({key: value for key, value in whole.items() if value is not None}))
    with pytest.raises(RecipeError, match=message) as caught:
        read_costs(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_costs(tmp_path / "none.toml")
    (tmp_path / "x.toml").write_text("= nothing")
    with pytest.raises(DataError, match="cannot be read"):
        read_costs(tmp_path / "x.toml")


def test_a_schedule_in_a_file_keeps_to_its_levels(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(
        'name = "x"\nsource = "given"\nsteps = 1\nrest = 1\n[[level]]\nname = "int8"\n'
        'products = 1\n[[schedule]]\nname = "s"\nphases = "int8:3,float32:2"\n'
    )
    with pytest.raises(RecipeError, match="schedule 's': level 'float32' is not on the ladder"):
        read_costs(tmp_path / "x.toml")


# What the publication prints


def published(name: str) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Modelled minutes, printed minutes, printed ratios."""
    found = read_costs(PUBLISHED / f"muppet-{name}.toml")
    costs, (muppet,) = found.table, found.schedules
    epochs = found.facts["baseline_epochs"]
    runs = {
        "float32": costs.run(Schedule.constant("float32", epochs, "baseline")),
        "mixed": costs.run(Schedule.constant("float16", epochs, "mixed"), Variant.IDEAL),
        "current": costs.run(muppet),
        "ideal": costs.run(muppet, Variant.IDEAL),
    }
    minutes = {kind: run.total.seconds / 60 for kind, run in runs.items()}
    return minutes, found.facts, found.facts["ratios"]


@pytest.mark.parametrize("name", ["alexnet", "resnet18", "googlenet"])
def test_the_printed_speed_ups_come_out_of_the_model(name: str) -> None:
    """Vink 2023, table 3.2. Hours are printed to the minute, ratios to two digits, and the ratio of
    two rounded times is known only so far.
    """
    found, minutes, ratios = published(name)
    for kind, ratio in ratios.items():
        slack = 0.005 + ratio * (0.5 / minutes["float32"] + 0.5 / minutes[kind])
        assert abs(found["float32"] / found[kind] - ratio) <= slack, kind
    assert abs(found["float32"] - minutes["float32"]) < 0.5
    assert abs(found["mixed"] - minutes["mixed"]) < 0.5


def test_the_printed_comparisons_come_out_of_the_model() -> None:
    """1.05 and 1.23 are quotients of the hours; 1.48 (GoogLeNet) is that of the printed ratios,
    1.84 / 1.24, while its hours give 1.487.
    """
    resnet, _, _ = published("resnet18")
    assert round(resnet["mixed"] / resnet["ideal"], 2) == 1.05
    alexnet, _, _ = published("alexnet")
    assert round(alexnet["mixed"] / alexnet["current"], 2) == 1.23
    googlenet, _, ratios = published("googlenet")
    assert round(ratios["ideal"] / ratios["mixed"], 2) == 1.48
    assert round(googlenet["mixed"] / googlenet["ideal"], 3) == 1.487


def test_the_published_files_are_what_their_equations_give(tmp_path: Path) -> None:
    """Make them again with ``python benchmarks/published_costs.py``."""
    script = (
        "import sys; sys.path[:0] = ['src', 'benchmarks']\n"
        "import published_costs as p\n"
        "for row in p.TABLE:\n"
        "    assert (p.FOLDER / f'muppet-{row.network}.toml').read_text() == p.document(row)\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60, check=True)


def test_every_error_says_what_to_do(tmp_path: Path) -> None:
    calls = (
        lambda: load_device("gtx"),
        lambda: parse_schedule("int8"),
        lambda: read_costs(tmp_path / "none.toml"),
        lambda: forecast_costs(NETWORK, hand_made(), [], 1).level("int12"),
        lambda: forecast_costs(NETWORK, hand_made(), [], 0),
        lambda: integers().choice(parse_level("float32")),
    )
    for call in calls:
        with pytest.raises(BitwrightError) as caught:
            call()
        assert caught.value.where
        assert caught.value.hint
