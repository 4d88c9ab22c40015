# SPDX-License-Identifier: Apache-2.0
"""Recipes of other tasks than classification: every verb, and RTL == graph."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from bitwright.base.errors import BitwrightError, DataError, ModelError, RecipeError
from bitwright.base.figures import Source
from bitwright.cli import entry
from bitwright.pipeline.api import (
    Pipeline,
    diff_run,
    estimate_recipe,
    explain_recipe,
    inspect_model,
)
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.steps.names import step_folder
from bitwright.report.record import Report

SMALL = {"data.image_size": "[16, 16]"}
#: Recipes with the metric that chooses, and what makes them quick.
RECIPES = {
    "shapes-boxes-w4a4": ("IoU", {"model.options.widths": "[4, 4, 8]", **SMALL}),
    "shapes-map-w4a4": ("mean IoU", {"model.options.widths": "[4, 4]", **SMALL}),
    "shapes-values-w4a4": ("mean absolute error", {"model.options.widths": "[4, 4]", **SMALL}),
    "digits-embedding-w4a4": ("nearest neighbour", {"model.options.widths": "[4, 4]"}),
}
#: Those whose RTL is simulated here: outputs of the others are vectors, as a classifier's.
SIMULATED = ("shapes-boxes-w4a4", "shapes-map-w4a4")
QUICK = {
    "train.float.epochs": 2, "train.float.warmup": 0, "train.quantized.epochs": 1,
    "data.keep": "{train: 96, validation: 30, test: 40}", "simulate.images": 4,
    "simulate.stall_images": 2, "report.sample_images": 4,
    "hardware.fill": None, "hardware.budget": None, "hardware.target_fps": 1000,
}  # fmt: skip
#: What the whole recipes reach, with room: the least of a share, the most of an error.
REACHED = {
    "shapes-boxes-w4a4": 0.8,
    "shapes-map-w4a4": 0.8,
    "shapes-values-w4a4": 0.04,
    "digits-embedding-w4a4": 0.9,
}


def quick(name: str, **more: object) -> list[str]:
    changes = {**QUICK, **RECIPES[name][1], **more}
    return [f"{key}={'null' if value is None else value}" for key, value in changes.items()]


@pytest.fixture(name="runs", scope="module")
def _runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each recipe, of some through the simulation, and its report."""
    made = {}
    for name in RECIPES:
        made[name] = tmp_path_factory.mktemp("tasks") / name
        pipeline = Pipeline(load_recipe(name, quick(name)), made[name])
        pipeline.build("simulate" if name in SIMULATED else "map")
        pipeline.step("report")
    return made


@pytest.mark.long
@pytest.mark.parametrize("name", RECIPES)
def test_every_level_gives_the_same_and_is_measured_with_its_error(
    name: str, runs: dict[str, Path]
) -> None:
    metric, _ = RECIPES[name]
    summary = Pipeline(load_recipe(runs[name] / "recipe.yaml"), runs[name]).build("map")
    trained = summary.figure(f"{metric}, float")
    assert trained is not None and trained.error is not None
    assert trained.count == 40 or name == "digits-embedding-w4a4"
    quantized = summary.figure(f"{metric}, quantized")
    assert quantized == summary.figure(f"{metric}, integer graph")
    if name in SIMULATED:
        rtl = summary.figure(f"{metric}, RTL")
        assert rtl is not None and (rtl.source, rtl.count) == (Source.SIMULATION, 4)
        simulated = json.loads((runs[name] / step_folder("simulate") / "result.json").read_text())
        assert simulated["differences"] == 0 and simulated["compared_values"] > 0
    with np.load(runs[name] / step_folder("lower") / "levels.npz") as levels:
        assert set(levels.files) == {"inputs", "scores"}  # nothing is ranked


@pytest.mark.long
@pytest.mark.parametrize("name", RECIPES)
def test_the_report_shows_what_the_task_says(name: str, runs: dict[str, Path]) -> None:
    metric, _ = RECIPES[name]
    folder = runs[name] / step_folder("report")
    report = Report.model_validate_json((folder / "report.json").read_text())
    assert report.metric == metric and report.quality[3].stage == "integer graph"
    assert len(report.quality) == (5 if name in SIMULATED else 4)
    assert len(report.samples) == 4 and all(s.right is None for s in report.samples)
    drawn = name in SIMULATED  # boxes and maps
    stages = [[level.stage for level in sample.levels] for sample in report.samples]
    assert all(each[:1] == ["float"] for each in stages)
    assert any(each == ["float", "RTL"] for each in stages) == drawn
    for sample in report.samples:  # of the images that were simulated the RTL says the same
        rtl = [level for level in sample.levels if level.stage == "RTL"]
        assert all((level.png, level.value) == (sample.png, sample.value) for level in rtl)
    assert [curve.title.rpartition(": ")[2] for curve in report.curves] == ["loss", metric]
    maps = name == "shapes-map-w4a4"
    assert bool(report.confusion) == maps
    page = (folder / "report.html").read_text()
    assert f"{metric[0].upper()}{metric[1:]} at every stage" in page
    assert "Top-1" not in page and ("Accuracy" in page) is False


@pytest.mark.long
@pytest.mark.parametrize("name", RECIPES)
def test_diff_says_what_each_level_says(
    name: str, runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    until = "rtl" if name in SIMULATED else "hardware"
    report = diff_run(runs[name] / "recipe.yaml", runs[name], until=until)
    assert report.bad is None
    assert set(report.said) == {"float model", "quantized model", "integer graph"}
    assert report.said["quantized model"] == report.said["integer graph"]
    assert entry.run(["diff", str(runs[name]), "--until", "graph"]) == 0
    assert f"integer graph: {report.said['integer graph']}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["shapes-boxes-w4a4", "shapes-map-w4a4"])
def test_estimate_explain_and_inspect_take_them(name: str) -> None:
    recipe = load_recipe(name, quick(name))
    assert estimate_recipe(recipe)["interval"] > 0
    assert explain_recipe(recipe)
    assert not inspect_model(recipe).problems


def test_the_published_detector_is_a_recipe() -> None:
    """SkyNet by its name, on small images of one's own size: the whole way is inspected."""
    changes = ["model=skynet", "task=detection", "data.image_size=[32, 32]", "data.grey=false"]
    assert not inspect_model(load_recipe("shapes-boxes-w4a4", changes)).problems


@pytest.mark.long
def test_points_of_a_sweep_have_the_tasks_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [word for text in quick("shapes-values-w4a4") for word in ("--set", text)]
    where = ["--until", "quantize", "--out", str(tmp_path / "out"), "--json"]
    call = ["sweep", "shapes-values-w4a4", *sets, "--over", "bits=3,4", "--threads", "1"]
    assert entry.run([*call, *where]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 2
    for row in found["rows"]:
        assert 0 < row["mean absolute error, quantized"]["value"] < 1
        assert "mean absolute error, calibrated" in row


def test_the_task_of_the_page_is_built(tmp_path: Path) -> None:
    """Module and recipe as docs/tasks.md has them."""
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
    python, yaml = (
        re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "yaml")
    )
    (tmp_path / "my_metrics.py").write_text(python[0])
    (tmp_path / "counting.py").write_text(python[1])
    (tmp_path / "sizes.yaml").write_text(yaml[-1])
    summary = Pipeline(load_recipe(tmp_path / "sizes.yaml"), tmp_path / "run").build("lower")
    found = summary.figure("size within 0.05, integer graph")
    assert found is not None and found.value > 0.75 and found.count == 400
    metric = {"name": "regression", "metric": "my_metrics:within_two_pixels"}
    changed = load_recipe(tmp_path / "sizes.yaml", [f"task={json.dumps(metric)}"])
    two = Pipeline(changed, tmp_path / "two").build("train")
    figure = two.figure("within two pixels, float")
    assert figure is not None and figure.unit == "share"


@pytest.mark.parametrize(
    ("name", "change", "kind", "reason"),
    [
        ("shapes-boxes-w4a4", "data=digits", DataError, "labels are classes, and boxes"),
        ("shapes-map-w4a4", "task.options={stride: 2}", ModelError, "score a class and pixel"),
        (
            "shapes-values-w4a4",
            "train.float.label_smoothing=0.1",
            RecipeError,
            "regression has none",
        ),
        ("shapes-values-w4a4", "train.float.augmentation={flip: true}", RecipeError, "flip would"),
        ("shapes-boxes-w4a4", "model=digits_cnn", ModelError, "boxes and confidences"),
        ("shapes-boxes-w4a4", "task=finding", RecipeError, "unknown task 'finding'"),
    ],
)
def test_what_cannot_be_trained_is_said_before(
    tmp_path: Path, name: str, change: str, kind: type[BitwrightError], reason: str
) -> None:
    settings = quick(name)
    key = change.partition("=")[0]
    settings = [text for text in settings if not text.startswith(key)]
    with pytest.raises(kind, match=reason):
        Pipeline(load_recipe(name, [change, *settings]), tmp_path / "run").build("train")
    assert not list((tmp_path / "run").glob("*-train"))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_whole_recipe_is_sensible(name: str, tmp_path: Path) -> None:
    summary = Pipeline(load_recipe(name), tmp_path / "run").build("simulate")
    metric, _ = RECIPES[name]
    found = summary.figure(f"{metric}, RTL")
    assert found is not None
    if metric == "mean absolute error":
        assert found.value < REACHED[name]
    else:
        assert found.value > REACHED[name]
