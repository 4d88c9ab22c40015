# SPDX-License-Identifier: Apache-2.0
"""A data set in files goes through the pipeline: trained in low precision, quantized, lowered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.e2e.tiny import tiny_recipe

from bitwright.base.errors import DataError, RecipeError, RunError
from bitwright.pipeline.api import Pipeline
from bitwright.pipeline.recipe import Recipe
from bitwright.pipeline.steps import preflight
from bitwright.pipeline.steps.workspace import Workspace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, bright and dark, in pictures of different sizes."""
    random = np.random.default_rng(0)
    for split, count in (("train", 20), ("val", 6)):
        for number, name in enumerate(("dark", "light")):
            (tmp_path / "set" / split / name).mkdir(parents=True)
            for index in range(count):
                shape = (20 + index, 40 - index, 3)
                pixels = random.integers(0, 128, shape, dtype=np.uint8) + np.uint8(127 * number)
                Image.fromarray(pixels).save(tmp_path / "set" / split / name / f"{index:02}.jpg")
    return tmp_path / "set"


def recipe_of(folder: Path, **data: Any) -> Recipe:
    low = {"policy": "muppet", "ladder": [8, "float32"], "float_epochs": 1, "engine": "emulated"}
    steps = {"epochs": 3, "batch_size": 8, "lr": 0.01, "optimizer": "sgd", "threads": 1}
    crop = {"random_resized_crop": 0.5, "flip": True}
    return tiny_recipe(
        data={"name": "imagenet", "path": folder, "image_size": [8, 8],
              "stream": {"short_side": 10}, **data},
        train={"float": {**steps, "low_precision": low, "augmentation": crop}, "quantized": None},
        quant={"input": "uint8", "weight": "int8", "activation": "uint8"},
    )  # fmt: skip


def test_from_files_to_the_integer_graph(folder: Path, tmp_path: Path) -> None:
    Pipeline(recipe_of(folder), tmp_path / "run").build(until="lower")
    found = json.loads((tmp_path / "run" / "03-lower" / "result.json").read_text())
    assert found["compared_images"] == 12
    assert (tmp_path / "run" / "01-train" / "logs" / "precision.jsonl").is_file()
    again = Pipeline(recipe_of(folder), tmp_path / "run")
    again.build(until="lower")
    assert [done.was_done for done in again.outcomes] == [True] * 3, "the images are known again"


def test_more_test_images_than_memory_holds_are_refused_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_COMPARED_BYTES", 12 * 8 * 8 * 3 * 10)
    with pytest.raises(RecipeError, match=r"data\.keep\.test: every one of 12 test images"):
        Pipeline(recipe_of(folder), tmp_path / "run").build(until="lower")
    assert not (tmp_path / "run" / "01-train").exists()
    fewer = Workspace(recipe_of(folder, keep={"test": 6}))
    preflight._check_test_images(fewer, ["lower"])


def changed(recipe: Recipe, **low: Any) -> Recipe:
    before = recipe.train.float_
    assert before.low_precision is not None
    after = before.model_copy(update={"low_precision": before.low_precision.model_copy(update=low)})
    train = recipe.train.model_copy(update={"float_": after})
    return recipe.model_copy(update={"train": train})


def test_a_precision_that_does_not_fit_is_refused_at_once(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="the accumulator int16 holds 32767"):
        Pipeline(changed(recipe_of(folder), accumulator="int16"), tmp_path / "run").build(
            until="train"
        )
    assert not (tmp_path / "run" / ".work-01-train").exists()


def test_an_interrupted_training_is_kept_from_another_policy(folder: Path, tmp_path: Path) -> None:
    recipe, work = recipe_of(folder), tmp_path / "run" / ".work-01-train"
    Pipeline(recipe, tmp_path / "run").build(until="train")
    (tmp_path / "run" / "01-train").rename(work)  # as if it had been stopped
    (work / "step.json").unlink()
    (work / ".key").write_text("of the settings before")
    with pytest.raises(RunError, match=r"low_precision\.lr_every = 15, but now"):
        Pipeline(changed(recipe, lr_every=7), tmp_path / "run").build(until="train")
    assert (work / "logs" / "checkpoint.pt").is_file()


def test_a_file_that_is_no_image_is_named_before_anything_is_written(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "train" / "light" / "03.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"1 file is no image: train/light/03\.jpg"):
        Pipeline(recipe_of(folder), tmp_path / "run").build(until="train")
    assert not (tmp_path / "run" / "01-train").exists()
