# SPDX-License-Identifier: Apache-2.0
"""A network on two devices by its recipe: mapped, wired together, simulated, synthesised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.tiny import tiny_recipe

from bitwright.base.errors import RecipeError
from bitwright.build.implement import read_result
from bitwright.pipeline.api import Pipeline
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import MapResult, SimulateResult


@pytest.mark.long
def test_two_devices_by_recipe(tmp_path: Path) -> None:
    budget = {"lut": 620, "ff": 2000, "dsp": 0, "bram": 4}
    hardware = {"target": "xc7z020", "devices": 2, "budget": budget, "target_fps": None}
    pipeline = Pipeline(tiny_recipe(hardware=hardware), tmp_path / "run")
    pipeline.build(until="simulate")
    mapped = load_result(MapResult, tmp_path / "run" / "04-map")
    assert mapped.partition is not None and mapped.checked_cycles > 0
    parts = mapped.partition["parts"]
    assert len(parts) == 2 and mapped.partition["links"]
    assert all(part["resources"]["lut"] <= budget["lut"] for part in parts)
    assert mapped.capacity.lut == 2 * 53200
    simulated = load_result(SimulateResult, tmp_path / "run" / "05-simulate")
    assert simulated.differences == 0 and simulated.interval == mapped.interval
    depths = {fifo.instance: fifo.depth for fifo in mapped.fifos}
    assert set(simulated.high_water) == set(depths)
    pipeline.build()
    made = read_result(tmp_path / "run" / "06-implement" / "implement.json")
    alone = [
        read_result(tmp_path / "run" / "06-implement" / part["folder"] / "implement.json")
        for part in parts
    ]
    assert made.figures["lut"].value == sum(part.figures["lut"].value for part in alone)
    assert any(name.startswith("i_part1.") for name in made.instances)
    for part in parts:
        script = made.files[f"{part['folder']}, vendor_project"]
        assert (tmp_path / "run" / "06-implement" / script).is_file()
    assert any("`vivado -mode batch -source run.tcl` in vendor/" in note for note in made.notes)
    record = json.loads((tmp_path / "run" / "07-report" / "report.json").read_text())
    assert record["facts"]["devices"] == "2 of xc7z020"


def test_several_devices_take_no_folding_file() -> None:
    with pytest.raises(RecipeError, match="several devices take no folding file"):
        tiny_recipe(hardware={"devices": 2, "weights": {"external": "all"}})
