# SPDX-License-Identifier: Apache-2.0
"""A network on the programmed engine: by its recipe, in a design folder, a second one beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.e2e.tiny import tiny_recipe

from bitwright.base.errors import RecipeError, RunError
from bitwright.engine import ENGINES, EngineConfig
from bitwright.engine.image import EngineImage
from bitwright.ir import INTEGER, load_graph
from bitwright.pipeline.api import Pipeline, estimate_recipe
from bitwright.pipeline.designs import steps
from bitwright.pipeline.designs.folder import Design, open_design
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import EngineResult


def test_a_recipe_for_the_engine(built: Path, tmp_path: Path) -> None:
    """The trained network of another run: only `map` differs, and it is the last step."""
    run = tmp_path / "run"
    shutil.copytree(built, run)
    recipe = tiny_recipe(hardware={"kind": "engine"})
    pipeline = Pipeline(recipe, run)
    summary = pipeline.build()
    assert [o.name for o in pipeline.outcomes if not o.was_done] == ["map"]
    found = load_result(EngineResult, run / "04-map")
    assert found.engine == "4x8x8" and found.images == 4 and found.compared_values > 0
    assert found.host == ("top_k of scores, k = 1",)
    assert 0 < found.utilisation < 1
    assert found.cycles >= sum(layer.busy for layer in found.layers)
    rows = {row.label: row for row in summary.rows}
    assert rows["cycles an image, predicted"].figure.value == found.cycles
    assert "50,000 asked for and kept" in rows["images a second"].note
    image = EngineImage.from_bytes((run / "04-map" / "program.bwe").read_bytes())
    assert image.config == ENGINES["e256"] and len(image.program) == found.instructions
    with pytest.raises(RecipeError, match="a run of kind engine has no step 'simulate'"):
        pipeline.step("simulate")
    assert estimate_recipe(recipe)["engine"] == "4x8x8"


def test_a_design_folder_for_an_engine_of_ones_own(built: Path, tmp_path: Path) -> None:
    graph = load_graph(built / "03-lower" / "graph.bwg", {"integer": INTEGER})
    config = tmp_path / "small.json"
    config.write_text(EngineConfig(pixels=2, feature_words=1 << 12).to_json())
    folder = tmp_path / "design"
    wanted = {"kind": "engine", "engine": str(config)}
    Design(folder, graph, steps_settings(wanted)).save()
    design = open_design(folder)
    made = load_result(EngineResult, steps.map_design(design))
    assert made.engine == "2x8x8"
    labels = [row.label for row in steps.summary_of(design)]
    assert "utilisation" in labels and "LUT" not in labels
    for verb in (steps.simulate_design, steps.implement_design, steps.report_design):
        with pytest.raises(RecipeError, match="it ends with the program"):
            verb(design)


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
