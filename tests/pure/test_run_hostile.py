# SPDX-License-Identifier: Apache-2.0
"""Run directories of strangers: nothing beside them is touched, no private path lies in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bitwright.pipeline.recipe import RECIPES
from bitwright.pipeline.run_files import (
    SCHEMA,
    folder_of_recipe,
    named_from,
    recipe_folder,
    recover,
)

RECORD = {
    "schema": SCHEMA, "name": "x", "key": "k", "inputs": {}, "artefacts": {}, "seconds": 1.0,
}  # fmt: skip


@pytest.mark.parametrize("name", [".work-", ".work-.", ".work-precious", ".old-", ".old-.work-x"])
def test_only_folders_of_steps_are_put_in_their_place(name: str, tmp_path: Path) -> None:
    run, beside = tmp_path / "run", tmp_path / ".old-run"
    for folder in (run / name, beside):
        folder.mkdir(parents=True)
        (folder / "step.json").write_text(json.dumps(RECORD))
    recover(run)
    assert (beside / "step.json").is_file() and (run / name / "step.json").is_file()


def test_a_step_that_is_whole_is(tmp_path: Path) -> None:
    (tmp_path / ".work-01-train").mkdir()
    (tmp_path / ".work-01-train" / "step.json").write_text(json.dumps(RECORD))
    recover(tmp_path)
    assert (tmp_path / "01-train" / "step.json").is_file()


def test_the_recipes_folder_is_named_from_the_run(tmp_path: Path) -> None:
    run = tmp_path / "project" / "runs" / "x"
    run.mkdir(parents=True)
    assert folder_of_recipe(run, {"recipe_dir": "../.."}) == tmp_path / "project"
    assert folder_of_recipe(run, {"recipe_dir": "/home/someone"}) == Path("/home/someone")
    assert folder_of_recipe(run, {}) == run == recipe_folder(run)
    assert named_from(run, tmp_path / "project") == "../.."
    assert named_from(run, RECIPES) == "<bitwright>/recipes"
    assert folder_of_recipe(run, {"recipe_dir": named_from(run, RECIPES)}) == RECIPES
