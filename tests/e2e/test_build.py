# SPDX-License-Identifier: Apache-2.0
"""The whole path on a tiny network: built, resumed, changed, reported, implemented."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.e2e.tiny import assert_tells_nothing_of_the_machine, tiny_recipe

from bitwright.base.errors import RunError
from bitwright.base.figures import Source
from bitwright.cli import entry
from bitwright.ir import INTEGER, load_graph, random_feeds
from bitwright.pipeline.api import STEP_NAMES, Pipeline, estimate_recipe, explain_recipe
from bitwright.pipeline.run_files import read_record
from bitwright.pipeline.steps.results import LowerResult, load_result
from bitwright.pipeline.steps.results_hardware import MapResult, SimulateResult
from bitwright.report.record import Report


def test_every_level_gives_the_same_integers(built: Path) -> None:
    lowered = load_result(LowerResult, built / "03-lower")
    simulated = load_result(SimulateResult, built / "05-simulate")
    mapped = load_result(MapResult, built / "04-map")
    assert lowered.compared_images == 359
    assert lowered.compared_values == 359 * 11
    assert (simulated.images, simulated.stall_images, simulated.differences) == (12, 4, 0)
    assert simulated.interval == simulated.predicted_interval == mapped.interval
    assert mapped.interval <= 100e6 / 50_000
    assert mapped.checked_cycles > 6 * mapped.interval and mapped.unchecked == ""
    depths = {fifo.instance: fifo.depth for fifo in mapped.fifos}
    assert set(simulated.high_water) == set(depths)
    assert all(mark <= depths[name] for name, mark in simulated.high_water.items())


def test_sums_beyond_the_floats_of_onnx_do_not_stop_a_build(tmp_path: Path) -> None:
    recipe = tiny_recipe(quant={"weight": "e5m10", "activation": "uint8"})
    pipeline = Pipeline(recipe, tmp_path / "run")
    pipeline.build(until="lower")
    lowered = load_result(LowerResult, tmp_path / "run" / "03-lower")
    assert "float32" in lowered.qonnx_refused and lowered.qonnx_images == 0
    assert lowered.compared_images == 359, "the graph itself was compared"
    assert not (tmp_path / "run" / "03-lower" / "model.onnx").exists()


def test_the_page_is_whole_and_every_figure_has_a_source(built: Path) -> None:
    page = (built / "07-report" / "report.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', page), "nothing outside the file"
    record = Report.model_validate_json((built / "07-report" / "report.json").read_text())
    sources = {row.label: row.figure and row.figure.source for row in record.summary}
    assert sources["accuracy, RTL"] is Source.SIMULATION
    assert sources["cycles an image, predicted"] is Source.MODEL
    assert sources["LUT"] is Source.MODEL
    assert sources["Fmax"] is None, "not implemented yet"
    assert sum(map(sum, record.confusion)) == 359
    assert len(record.samples) == 8
    assert [layer.op for layer in record.layers] == ["conv", "conv", "dense"]
    assert len(record.baselines) == 4
    for name in ("time_per_step.json", "op_and_param_counts.json"):
        json.loads((built / "07-report" / name).read_text())
    for name in (
        "04-map/estimate_layer_cycles.json",
        "04-map/estimate_layer_resources.json",
        "04-map/estimate_network_performance.json",
        "04-map/final_hw_config.json",
        "05-simulate/rtlsim_performance.json",
    ):
        json.loads((built / name).read_text())


def test_the_model_of_a_run_is_packed(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.bwq"
    argv = ["export", str(built), "--format", "packed", "--out", str(path), "--json"]
    assert entry.run(argv) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["bytes"] == {"net.bwq": path.stat().st_size}
    assert entry.run(["import", str(path), "--out", str(tmp_path / "net")]) == 0
    one = load_graph(built / "03-lower" / "graph.bwg", {"integer": INTEGER})
    two = load_graph(tmp_path / "net" / "graph.bwg", {"integer": INTEGER})
    feeds = random_feeds(one, 8, np.random.default_rng(0))
    renamed = dict(zip(two.inputs, feeds.values(), strict=True))
    found = two.run(renamed)
    for edge, value in one.run(feeds).items():
        assert np.array_equal(found[edge], value)


def test_a_second_call_does_nothing(built: Path) -> None:
    pipeline = Pipeline(tiny_recipe(), built)
    pipeline.build(until="simulate")
    assert all(outcome.was_done for outcome in pipeline.outcomes)
    assert pipeline.pending() == ["implement"]


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ({"seed": 1}, "train"),
        ({"model": {"name": "tfc"}}, "train"),
        ({"train": {"float": {"epochs": 4}}}, "train"),
        ({"train": {"quantized": None}}, "quantize"),
        ({"quant": {"weight": "int4"}}, "quantize"),
        ({"hardware": {"clock_mhz": 90}}, "map"),
        ({"simulate": {"images": 13}}, "simulate"),
        ({"implement": {"seeds": 2}}, "implement"),
        ({"report": {"sample_images": 9}}, "report"),
    ],
)
def test_a_change_reruns_only_what_depends_on_it(
    built: Path, change: dict[str, Any], first: str
) -> None:
    pending = Pipeline(tiny_recipe(**change), built).pending()
    # In this run directory `implement` has never been done.
    assert set(pending) == {*STEP_NAMES[STEP_NAMES.index(first) :], "implement"}
    # The headers now tell of the changed recipe; put them back for the other tests.
    Pipeline(tiny_recipe(), built).pending()


def test_a_damaged_artefact_is_made_again_and_nothing_else(copied: Path) -> None:
    top = copied / "04-map" / "rtl" / "tiny.sv"
    whole = top.read_text()
    top.write_text(whole[: len(whole) // 2])
    pipeline = Pipeline(tiny_recipe(), copied)
    pipeline.build(until="simulate")
    redone = [outcome.name for outcome in pipeline.outcomes if not outcome.was_done]
    assert redone == ["map"]
    assert top.read_text() == whole


def test_damaged_weights_are_trained_again_to_the_same_bits(copied: Path) -> None:
    weights = copied / "01-train" / "weights.pt"
    before = read_record(copied / "01-train")
    weights.write_bytes(weights.read_bytes()[:-100])
    pipeline = Pipeline(tiny_recipe(), copied)
    pipeline.step("lower")
    assert [o.name for o in pipeline.outcomes if not o.was_done] == ["train"]
    after = read_record(copied / "01-train")
    assert before is not None and after is not None
    assert before.artefacts["weights.pt"] == after.artefacts["weights.pt"]


def test_the_verbs_work_on_a_run_directory(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.run(["simulate", str(copied), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [step["was_done"] for step in result["steps"]] == [True] * 5
    assert result["figures"]["accuracy, RTL"]["source"] == "simulation"
    assert entry.run(["build", str(copied), "--until", "map", "--set", "seed=0"]) == 0
    assert "cycles an image, simulated" in capsys.readouterr().out


def test_a_run_of_another_version_is_left_alone(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = copied / "run.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "schema": 0}))
    assert entry.run(["build", str(copied)]) == RunError.exit_code
    said = capsys.readouterr().err
    assert "run schema 0" in said and "--run-dir" in said


def test_estimate_and_explain_need_no_training() -> None:
    mapped = estimate_recipe(tiny_recipe())
    assert mapped["interval"] <= 2000
    assert mapped["resources"]["lut"] > 0
    rows = explain_recipe(tiny_recipe())
    formats = {(row["layer"], row["operand"]): row["format"] for row in rows}
    assert formats["conv1", "weight"] == "int3n"
    assert formats["act1", "activation"] == "uint2"


@pytest.mark.long
def test_implementation_gives_a_bitstream(copied: Path) -> None:
    pipeline = Pipeline(tiny_recipe(), copied)
    summary = pipeline.build()
    assert [o.name for o in pipeline.outcomes if not o.was_done] == ["implement", "report"]
    fmax = summary.figure("Fmax")
    assert fmax is not None and fmax.source is Source.PLACE_AND_ROUTE and fmax.value > 50
    assert list((copied / "06-implement").glob("*.bit"))
    assert summary.report is not None and summary.report.is_file()
    assert_tells_nothing_of_the_machine(copied)
