# SPDX-License-Identifier: Apache-2.0
"""What earlier versions wrote still loads, or the user is told what is done again and why.

``golden/run-0.1.0`` is a run of the recipe digits up to `lower`, without its large files and most
of its history, by the last version before the law that a converted model in evaluation is the
integer network.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from bitwright.base.errors import RunError
from bitwright.cli import entry
from bitwright.jobs import Job, run_jobs
from bitwright.pipeline.api import STEP_NAMES, Pipeline
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.run_files import read_record
from bitwright.pipeline.steps.results_run import Results
from bitwright.quantize.policy import Policy

GOLDEN = Path(__file__).parents[1] / "golden" / "run-0.1.0"


@pytest.fixture(name="old")
def _old(tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN, tmp_path / "run")


def test_its_recipe_means_the_same(old: Path) -> None:
    old_fields, fields = (load_recipe(name).resolved() for name in (old / "recipe.yaml", "digits"))
    # A budget was of cells of synthesis; it is of what the device fills, and digits has more.
    assert [f["hardware"]["budget"].pop("lut") for f in (old_fields, fields)] == [3000, 3400]
    for section in ("name", "seed", "data", "model", "train", "hardware", "simulate", "report"):
        assert old_fields[section] == fields[section]
    Policy.from_dict(old_fields["quant"])


def test_its_results_are_read_or_the_user_is_told(old: Path) -> None:
    for step in ("train", "quantize", "lower"):
        folder = old / f"{STEP_NAMES.index(step):02d}-{step}"
        assert read_record(folder) is not None
        try:
            found = getattr(Results.load({step: folder}), step)
        except RunError as error:
            assert "delete the folder" in str(error.hint)
        else:
            assert found.figure.value > 0.98


def test_every_step_is_done_again_and_says_so(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pending = Pipeline(load_recipe(old / "recipe.yaml"), old).pending()
    assert pending == [name for name in STEP_NAMES if name != "teach"]
    assert entry.run(["build", str(old), "--until", "train"]) == 0
    assert "again: another version of Bitwright did it" in capsys.readouterr().out
    assert entry.run(["build", str(old), "--until", "train"]) == 0
    assert "done before" in capsys.readouterr().out
    record = old / "01-train" / "step.json"
    fields = json.loads(record.read_text())
    fields["key"], fields["parts"]["code:train"] = "other", "other"
    record.write_text(json.dumps(fields))
    assert entry.run(["build", str(old), "--until", "train", "--json"]) == 0
    (step,) = json.loads(capsys.readouterr().out)["steps"]
    assert step["reason"] == "changed since: code"


def test_a_job_that_a_function_of_another_name_has_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job("a", "platform:python_version_tuple", {}, tmp_path / "a")
    job.prepare(threads=1)
    old = {"schema": 1, **job.request, "call": "bitwright.lab.sweep:run_point", "value": 1}
    (job.folder / "result.json").write_text(json.dumps(old))
    assert job.finished() is None
    with caplog.at_level(logging.WARNING):
        (result,) = run_jobs([job], workers=1)
    assert not result.was_done
    said = "done again: results by bitwright.lab.sweep:run_point, now by platform:"
    assert said in caplog.text
