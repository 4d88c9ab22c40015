# SPDX-License-Identifier: Apache-2.0
"""A network on the programmed engine: by its recipe, in a design folder, a second one beside it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.tiny import tiny_recipe
from tests.e2e.tools import Tools
from tests.engine_programs import SMALL

from bitwright.base.errors import RecipeError, RunError, TargetError
from bitwright.build.implement import read_result
from bitwright.cli import show
from bitwright.cli.output import Output
from bitwright.engine.image import EngineImage, load_image
from bitwright.engine.sdram import ULX3S, SdramMemory
from bitwright.engine.timing import simulate
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType, load_graph
from bitwright.pipeline.api import (
    Pipeline,
    diff_run,
    estimate_recipe,
    explain_engine,
    explain_recipe,
)
from bitwright.pipeline.board import run_on_board
from bitwright.pipeline.board_subject import find_subject
from bitwright.pipeline.designs import steps
from bitwright.pipeline.designs.folder import Design, open_design
from bitwright.pipeline.steps.implement_engine import board_cycles
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import EngineResult, SimulateResult
from bitwright.sim.spec import load_design


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The file of a small engine."""
    path = tmp_path / "small.json"
    path.write_text(SMALL.to_json())
    return path


def simulators() -> int:
    """How many compiled simulators the cache holds."""
    return sum(1 for _ in (Path(os.environ["BITWRIGHT_CACHE"]) / "simulators").iterdir())


@pytest.mark.long
def test_a_recipe_for_the_engine(
    built: Path, tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trained network of another run, compiled, proven on the RTL, implemented (but for the
    tools) and reported anew.
    """
    tools = Tools(monkeypatch, fmax=60.0, bitstream=60.0)
    run = tmp_path / "run"
    shutil.copytree(built, run)
    recipe = tiny_recipe(hardware={"kind": "engine", "engine": str(small), "target": "ecp5-45k"})
    pipeline = Pipeline(recipe, run)
    pipeline.build(until="simulate")
    assert [o.name for o in pipeline.outcomes if not o.was_done] == ["map", "simulate"]
    summary = pipeline.build()
    assert tools.calls == 1
    found = load_result(EngineResult, run / "04-map")
    assert found.engine == "2x8x8" and found.images == 4 and found.compared_values > 0
    assert found.host == ("top_k of scores, k = 1",)
    assert found.exact and 0 < found.utilisation < 1
    standing = sum(wait.cycles for wait in found.waits)
    assert sum(layer.busy for layer in found.layers) + standing <= found.cycles
    proof = load_result(SimulateResult, run / "05-simulate")
    assert proof.interval == proof.predicted_interval == found.cycles
    assert proof.instructions > 12 * (found.instructions // 2) and proof.differences == 0
    rows = {row.label: row for row in summary.rows}
    assert rows["accuracy, RTL"].figure.count == 12
    assert rows["cycles an image, predicted"].figure.value == found.cycles
    report = diff_run(recipe, run)
    assert [stage.stage for stage in report.stages][-1] == "graph" and report.bad is None
    assert "no hardware graph" in report.note
    assert rows["Fmax"].figure.value == 60 and rows["LUT"].figure.value == 1
    assert rows["images a second"].figure.value == pytest.approx(6e7 / found.cycles, abs=1)
    assert "60 MHz, reached; 100 were asked for" in rows["images a second"].note
    check_board(run / "06-implement", run / "04-map" / "program.bwe")
    image = EngineImage.from_bytes((run / "04-map" / "program.bwe").read_bytes())
    assert image.config == SMALL and len(image.program) == found.instructions
    page = (run / "07-report" / "report.html").read_text()
    for words in ("The three units over time", "waits for weights of", "every layer", "2x8x8"):
        assert words.lower() in page.lower()
    assert "instructions began and ended in the predicted cycle" in summary.proof
    assert estimate_recipe(recipe)["cycles"] == pytest.approx(found.cycles, rel=0.05)
    pytest.importorskip("serial", reason="pyserial is not installed")
    sent = run_on_board(find_subject(run), [], simulated=True, count=2)
    assert sent.compared == 2 * 11 and sent.differences == 0 and sent.labels is not None
    assert sent.cycles == sent.description.interval == board_cycles(image, 60.0)
    assert 0 < sent.line_rate < sent.core_rate


def check_board(folder: Path, program: Path) -> None:
    """What was given to the tools is the engine with its memory and a console, at a clock that the
    memory takes; the network's rate is that of the exact model.
    """
    made = read_result(folder / "implement.json")
    design = load_design(folder / "rtl")
    assert design.top == "engine_board" and design.sdram == ULX3S
    assert made.clock_mhz == ULX3S.most_mhz < 100
    image = load_image(program)
    cycles = board_cycles(image, 60.0)
    size = image.words * image.config.word_bytes
    assert cycles == simulate(image.program, SMALL, SdramMemory(mhz=60.0), size).cycles[0]
    assert any(f"{cycles} cycles a frame, {6e7 / cycles:.1f} frames" in n for n in made.notes)
    assert any("the memory takes 66.7 MHz at most; 100 were asked for" in n for n in made.notes)


def test_a_second_network_on_the_same_circuit(built: Path, tmp_path: Path, small: Path) -> None:
    """In a design folder: its program is another, the simulator the one of before."""
    graph = load_graph(built / "03-lower" / "graph.bwg", {"integer": INTEGER})
    folders = []
    for name, network in (("one", graph), ("two", other_network())):
        folder = tmp_path / name
        wanted = {"kind": "engine", "engine": str(small), "target": "ecp5-45k"}
        Design(folder, network, steps_settings(wanted)).save()
        design = open_design(folder)
        made = load_result(EngineResult, steps.map_design(design))
        assert made.engine == "2x8x8"
        steps.simulate_design(design)
        page = steps.report_design(design) / "report.html"
        assert "The three units over time" in page.read_text()
        labels = [row.label for row in steps.summary_of(design)]
        assert "utilisation" in labels and "LUT" not in labels
        folders.append((folder, simulators()))
    (one, before), (two, after) = folders
    assert before == after
    files = [folder / "map" / "program.bwe" for folder in (one, two)]
    assert files[0].read_bytes() != files[1].read_bytes()
    for path in sorted((one / "map" / "rtl").rglob("*.*")):
        assert path.read_bytes() == (two / path.relative_to(one)).read_bytes()
    with pytest.raises(RecipeError, match="there is no hardware graph"):
        steps.diff_design(open_design(two))


def other_network() -> Graph:
    """A convolution of an image of another size."""
    builder = GraphBuilder("other", INTEGER)
    pixels = parse_format("uint8")
    edge = builder.input("x", TensorType((5, 6, 3), pixels, (1.0,), 0, 255))
    weight = np.random.default_rng(0).integers(-8, 8, (9, 3, 3, 3))
    attrs = {"padding": (1, 1, 1, 1), "weight_format": "int4", "weight_scale": (1.0,)}
    return builder.finish(builder.add("conv", (edge,), attrs=attrs, params={"weight": weight}))


def steps_settings(hardware: dict[str, str]) -> object:
    from bitwright.pipeline.designs.folder import DesignSettings

    return DesignSettings.model_validate({"hardware": hardware})


@pytest.mark.parametrize(
    ("hardware", "says"),
    [
        ({"kind": "engin"}, "hardware.kind"),
        ({"kind": "engine", "devices": 2, "target_fps": None}, "are of kind dataflow"),
        ({"kind": "engine", "weights": {"external": "all"}}, "always come from outside"),
    ],
)
def test_wrong_sections(hardware: dict[str, object], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        tiny_recipe(hardware=hardware)


def test_an_unknown_engine(built: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(built, run)
    with pytest.raises((RecipeError, RunError), match="unknown engine 'e255'"):
        Pipeline(tiny_recipe(hardware={"kind": "engine", "engine": "e255"}), run).build()


def test_an_engine_larger_than_the_target_is_refused_before_anything_is_trained(
    tmp_path: Path,
) -> None:
    recipe = tiny_recipe(hardware={"kind": "engine", "engine": "e256", "target": "ecp5-25k"})
    with pytest.raises(TargetError, match="take 186 block RAMs, ecp5-25k has 56") as caught:
        Pipeline(recipe, tmp_path / "run").build()
    assert "ecp5-85k" in str(caught.value)
    assert not any((tmp_path / "run").glob("0*"))


def test_explain_tells_how_layers_are_mapped(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is trained; the cycles are those of `estimate`."""
    wanted = {"kind": "engine", "engine": str(small), "target": "ecp5-45k"}
    recipe = tiny_recipe(hardware=wanted)
    found = explain_engine(recipe)
    assert found is not None and found.program is not None and not found.refused
    assert [row.layer for row in found.layers] == [row.name for row in found.program.layers]
    assert found.program.cycles == estimate_recipe(recipe)["cycles"]
    assert "conv1" in {node for row in found.layers for node in row.nodes}
    show.explanation(
        Output(json_wanted=False), explain_recipe(recipe), found.model_dump(mode="json")
    )
    said = capsys.readouterr().out
    for words in (
        "operands",
        "128 products of 8 bits or 256 of 4",
        "utilisation",
        "requantization",
    ):
        assert words in said, words
    assert explain_engine(tiny_recipe()) is None


def test_explain_names_what_has_no_mapping(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {"kind": "engine", "engine": str(small), "target": "ecp5-45k"}
    found = explain_engine(tiny_recipe(hardware=wanted, quant={"activation": "e3m2"}))
    assert found is not None and found.program is None and not found.layers
    assert any("requant_float is not done by the engine" in why for why in found.refused.values())
    show.explanation(Output(json_wanted=False), [], found.model_dump(mode="json"))
    said = capsys.readouterr().out
    assert "no mapping on the engine" in said and "bitwright split" in said
