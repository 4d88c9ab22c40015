# SPDX-License-Identifier: Apache-2.0
"""A rate that is asked for is kept at the clock that place and route reaches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.e2e.tiny import tiny_recipe
from tests.e2e.tools import Tools
from torch import nn

import bitwright
from bitwright.base.errors import RecipeError
from bitwright.build.implement import (
    RESULT,
    read_result,
)
from bitwright.hw.options import Problem
from bitwright.hw.template import template
from bitwright.ir import INTEGER, load_graph
from bitwright.pipeline.api import Pipeline
from bitwright.pipeline.designs.folder import open_design
from bitwright.pipeline.designs.steps import (
    implement_design,
    proof_of,
    report_design,
    simulate_design,
)
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import MapResult

RATE = 50_000.0


def interval(folder: Path) -> int:
    return load_result(MapResult, folder).interval


def fastest_interval(run: Path) -> int:
    """The least that any folding of the run's network gives."""
    graph = load_graph(run / "03-lower" / "graph.bwg", {"integer": INTEGER})
    found = Problem(template(graph), "ecp5").fastest(None)
    assert found is not None
    return found


def test_a_run_searches_again_for_the_clock_that_was_reached(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tiny_recipe(), copied)
    before = interval(copied / "04-map")
    assert 100e6 / before >= RATE > 50e6 / before, "kept at the clock asked for alone"
    tools = Tools(monkeypatch, fmax=53.0, bitstream=50.0)
    summary = pipeline.step("implement")
    assert tools.calls == 2 and 50e6 / interval(copied / "04-map") >= RATE
    assert [o.name for o in pipeline.outcomes if not o.was_done] == ["map", "implement"]
    notes = {row.label: row.note for row in summary.rows}
    assert "50,000 asked for and kept" in notes["images a second"]
    assert "50 MHz" in notes["Fmax"]
    assert "rate_clock_mhz: 50.382" in (copied / "recipe.yaml").read_text()
    # The next call knows, and has nothing to do; the run's own recipe means the same design.
    again = Pipeline(tiny_recipe(), copied)
    assert not {"map", "implement"} & set(again.pending()) and "simulate" in again.pending()
    assert again.step("implement") and tools.calls == 2
    # Another rate is another search.
    other = Pipeline(tiny_recipe(hardware={"target_fps": 51_000}), copied)
    assert "map" in other.pending()


def test_a_rate_that_nothing_keeps_leaves_the_design_that_is_there(
    copied: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = interval(copied / "04-map")
    tools = Tools(monkeypatch, fmax=0.5, bitstream=0.5)
    summary = Pipeline(tiny_recipe(), copied).step("implement")
    assert tools.calls == 2 and interval(copied / "04-map") == before
    assert read_result(copied / "06-implement" / RESULT).bitstream_clock_mhz == 0.5
    assert "no folding keeps it" in caplog.text
    note = next(row.note for row in summary.rows if row.label == "images a second")
    assert "50,000 asked for, missed by 99%" in note
    assert "rate_clock_mhz: null" in (copied / "recipe.yaml").read_text()
    Pipeline(tiny_recipe(), copied).step("implement")
    assert tools.calls == 2, "a second call does nothing"


def test_margins_shrink_where_the_network_cannot_be_folded_as_fast(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With five percent off there is no folding; without it there is one."""
    pipeline = Pipeline(tiny_recipe(), copied)
    least = fastest_interval(copied)
    clock = RATE * least / 1e6 * 1.001
    assert clock * 1e6 / interval(copied / "04-map") < RATE
    tools = Tools(monkeypatch, fmax=clock, bitstream=clock)
    summary = pipeline.step("implement")
    assert tools.calls == 2 and interval(copied / "04-map") == least
    note = next(row.note for row in summary.rows if row.label == "images a second")
    assert "50,000 asked for and kept" in note
    assert f"rate_clock_mhz: {round(clock, 3)}" in (copied / "recipe.yaml").read_text()


def figures(report: Path) -> list[str]:
    record = json.loads((report / "report.json").read_text())
    return [row["label"] for row in record["summary"]]


def test_a_design_folder_searches_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
    )
    design = bitwright.build_model(
        network.eval(), torch.rand(4, 1, 6, 6), out=tmp_path / "own",
        quant={"input": "uint4", "weight": "int3", "activation": "uint3"},
        hardware={"target": "ecp5-25k", "target_fps": 200_000},
    ).design  # fmt: skip
    first = interval(design.folder / "map")
    tools = Tools(monkeypatch, fmax=60.0, bitstream=60.0)
    kept = implement_design(design)
    assert kept.settings == open_design(design.folder).settings
    planned = kept.settings.hardware.rate_clock_mhz
    assert tools.calls == 2 and planned == pytest.approx(60 * 0.97 * 0.98, abs=1e-3)
    assert 60e6 / interval(design.folder / "map") >= 200_000 > 60e6 / first
    proof = proof_of(kept)
    assert proof is not None and proof.interval == interval(design.folder / "map")
    assert implement_design(kept) == kept and simulate_design(kept) and tools.calls == 2
    # What is there is of these settings; with others nothing has been done yet.
    assert "cycles an image, simulated" in figures(report_design(kept))
    changed = open_design(design.folder, ["simulate.images=3"])
    assert proof_of(changed) is None
    found = figures(report_design(changed))
    assert "Fmax" in found and "cycles an image, simulated" not in found
    with design.alone(), design.alone():
        assert subprocess.run(
            [
                sys.executable, "-m", "bitwright", "simulate", str(design.folder),
                "--set", "simulate.images=5",
            ],
            capture_output=True, text=True, check=False, timeout=60,
        ).stderr.count("is in use by")  # fmt: skip
    assert open_design(design.folder).settings.simulate.images == 3, "the other one changed nothing"
    other = open_design(design.folder, ["hardware.target_fps=190000"])
    assert other.settings.hardware.rate_clock_mhz is None, "it was of another goal"


def test_a_clock_for_no_rate_is_refused() -> None:
    with pytest.raises(RecipeError, match="rate_clock_mhz"):
        tiny_recipe(hardware={"target_fps": None, "rate_clock_mhz": 90})
