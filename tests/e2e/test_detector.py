# SPDX-License-Identifier: Apache-2.0
"""A detector of one's own, from images and boxes as COCO has them to RTL: recipe `my-detector`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bitwright.pipeline.api import Pipeline
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.steps.names import step_folder
from bitwright.report.record import Report

QUICK = {
    "data.image_size": "[16, 32]",
    "task.options": "{anchors: 2, objects: several, classes: true, variant: ranked, reach: 3, "
    "merge: 0.7}",
    "train.float.epochs": 1, "train.float.warmup": 0,
    "train.quantized.self_study.epochs": 1, "train.quantized.tutor_study.epochs": 1,
    "simulate.images": "all", "simulate.stall_images": 1, "report.sample_images": 2,
    "hardware.target": "ecp5-45k",
}  # fmt: skip


SKYNET = "model.options={width: 0.02, scratch: true}"
SMALL = "model={name: box_cnn, options: {widths: [4, 4, 8]}}"


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """48 images of other sizes than the network's, bright and dark boxes on them."""
    rng = np.random.default_rng(0)
    images, boxes = [], []
    (tmp_path / "images").mkdir()
    for number in range(48):
        pixels = rng.integers(90, 140, (24, 40, 3), dtype=np.uint8)
        for kind in range(number % 3):
            x, y, w, h = (*rng.integers(0, 12, 2), *rng.integers(6, 12, 2))
            pixels[y : y + h, x : x + w] = 20 + 215 * kind
            box = [int(each) for each in (x, y, w, h)]
            boxes.append({"image_id": number, "category_id": kind, "bbox": box})
        name = f"{number:02}.png"
        Image.fromarray(pixels).save(tmp_path / "images" / name)
        images.append({"id": number, "file_name": name, "width": 40, "height": 24})
    kinds = [{"id": 0, "name": "dark"}, {"id": 1, "name": "bright"}]
    table = {"images": images, "categories": kinds, "annotations": boxes}
    (tmp_path / "annotations.json").write_text(json.dumps(table))
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize(
    "model", [SMALL, pytest.param(SKYNET, marks=pytest.mark.slow)], ids=["small", "skynet"]
)
def test_from_images_and_boxes_to_the_report(folder: Path, tmp_path: Path, model: str) -> None:
    settings = [model, *(f"{key}={value}" for key, value in QUICK.items())]
    recipe = load_recipe("my-detector", [*settings, f"data.path={folder}"])
    run = tmp_path / "run"
    pipeline = Pipeline(recipe, run)
    summary = pipeline.build("simulate")
    pipeline.step("report")
    assert summary.figure("AP50, integer graph") == summary.figure("AP50, quantized")
    simulated = json.loads((run / step_folder("simulate") / "result.json").read_text())
    assert simulated["differences"] == 0 and simulated["compared_values"] > 0
    report = Report.model_validate_json((run / step_folder("report") / "report.json").read_text())
    assert report.classes == ("bright", "dark")
    assert "shares of the image" in report.facts["anchors"]
    assert "3 cells" in report.facts["reach"] and "0.7" in report.facts["merge"]
    assert {"IoU", "false boxes"} <= set(report.quality[0].others)
    levels = [level.stage for sample in report.samples for level in sample.levels]
    assert levels.count("float") == 2 and "RTL" in levels
    rows = (run / step_folder("train") / "logs" / "metrics.jsonl").read_text().splitlines()
    assert "validation_AP50" in json.loads(rows[0])
