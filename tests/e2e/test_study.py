# SPDX-License-Identifier: Apache-2.0
"""`bitwright study`: the arms are what they say, and its table says what the arms gave."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.tiny import tiny_recipe

from bitwright.base.errors import RecipeError
from bitwright.base.figures import Measured
from bitwright.explore import study as studies
from bitwright.explore.changes import recipe_of
from bitwright.explore.study import StudyReport, StudyRequest, run_study, with_bits
from bitwright.explore.study_jobs import ARMS, RIGHT, train_arms, train_float
from bitwright.jobs import Job, JobResult
from bitwright.pipeline.api import Pipeline
from bitwright.pipeline.recipe import Recipe
from bitwright.pipeline.steps.names import step_folder
from bitwright.pipeline.steps.quantize import read_integers
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.train import evaluate

_PHASE = {"epochs": 1, "batch_size": 32, "lr": 0.005, "threads": 1}


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return tiny_recipe(
        train={
            "float": {"epochs": 2, "batch_size": 32, "lr": 0.01, "threads": 1},
            "quantized": {
                "self_study": _PHASE,
                "co_study": {**_PHASE, "peer": {"lr": 0.001}},
                "tutor_study": {**_PHASE, "distillation": {"alpha": 0.7, "temperature": 4}},
            },
        },
        teacher={
            "model": {"name": "digits_cnn", "options": {"widths": [6, 8]}},
            "train": {"epochs": 2, "batch_size": 32, "lr": 0.01, "threads": 1},
        },
    )


def in_this_process(jobs: list[Job], **_: object) -> tuple[JobResult, ...]:
    """Jobs as calls: what `run_jobs` adds has tests of its own."""
    calls = {"train_float": train_float, "train_arms": train_arms}
    results = []
    for job in jobs:
        job.prepare(1)
        value = calls[job.call.partition(":")[2]](job.arguments, job.folder)
        results.append(JobResult(job.name, job.folder, value))
    return tuple(results)


@pytest.fixture(scope="module")
def studied(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyReport, Path]:
    out = tmp_path_factory.mktemp("study")
    request = StudyRequest(recipe, out, seeds=2, bits=(4,), arms=tuple(ARMS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "run_jobs", in_this_process)
        return run_study(request), out


@pytest.mark.long
def test_the_last_arm_is_what_a_build_of_the_recipe_gives(
    recipe: Recipe, studied: tuple[StudyReport, Path], tmp_path: Path
) -> None:
    _, out = studied
    same = with_bits(recipe, 4)
    Pipeline(same, tmp_path / "run").build(until="quantize")
    work = Workspace(same)
    frozen = read_integers(tmp_path / "run" / step_folder("quantize"))
    test = work.data.test
    wanted = evaluate(frozen, test).predictions == test.labels
    with np.load(out / "seed-0" / "w4a4" / RIGHT) as kept:
        assert np.array_equal(kept["qkd"], wanted)


def test_the_table_holds_the_mean_of_the_seeds_and_paired_differences(
    studied: tuple[StudyReport, Path],
) -> None:
    report, out = studied
    right = {}
    for seed in range(2):
        with np.load(out / f"seed-{seed}" / "w4a4" / RIGHT) as kept:
            right[seed] = {arm: float(kept[arm].mean()) for arm in ARMS}
    rows = {str(row["arm"]): row for row in report.table.rows}
    assert list(rows) == list(ARMS)
    for arm, row in rows.items():
        found = [right[seed][arm] for seed in range(2)]
        apart = [right[seed][arm] - right[seed]["ptq"] for seed in range(2)]
        assert row["test"] == Measured(
            pytest.approx(np.mean(found)), pytest.approx(abs(found[0] - found[1]) / 2)
        )
        if arm != "ptq":
            assert row["ptq"] == Measured(
                pytest.approx(np.mean(apart)), pytest.approx(abs(apart[0] - apart[1]) / 2)
            )
    assert [rows[arm]["epochs"] for arm in ARMS] == [0, 0, 1, 3, 2, 3]
    assert rows["baseline"]["bits"] == "float32"
    assert rows["qkd"]["bits"] == "int4/uint4"
    page = report.paths["html"].read_text(encoding="utf-8")
    assert "self-study" in page
    assert "<svg" in page


def test_what_is_there_is_not_trained_again(
    recipe: Recipe, studied: tuple[StudyReport, Path]
) -> None:
    report, out = studied
    before = {path: path.stat().st_mtime_ns for path in out.rglob("checkpoint.pt")}
    request = StudyRequest(recipe, out, seeds=2, bits=(4,), arms=tuple(ARMS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "run_jobs", in_this_process)
        again = run_study(request)
    assert again.table.rows == report.table.rows
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("checkpoint.pt")}


def test_a_network_of_another_policy_is_not_taken_for_ours(
    studied: tuple[StudyReport, Path], tmp_path: Path
) -> None:
    """The folder holds checkpoints of the same shapes and the same training settings."""
    before = studied[1] / "seed-0" / "w4a4"
    shutil.copytree(before, tmp_path / "used")
    (tmp_path / "new").mkdir()
    asked = json.loads((before / "job.json").read_text(encoding="utf-8"))["arguments"]
    asked |= {"arms": ["ss"], "recipe": with_bits(recipe_of(asked), 2).resolved()}
    found = [train_arms(asked, tmp_path / name) for name in ("new", "used")]
    assert found[0] == found[1]
    place = "ss/self_study/checkpoint.pt"
    assert (tmp_path / "used" / place).read_bytes() != (before / place).read_bytes()


def test_widths_change_formats_and_nothing_else(recipe: Recipe) -> None:
    quant = {"input": "uint4", "weight": {"format": "int3", "scale": "learned"}}
    wide = tiny_recipe(quant=quant)
    assert with_bits(wide, 8).quant["weight"] == {"format": "int8", "scale": "learned"}
    assert with_bits(wide, 1).quant["weight"] == {"format": "bipolar", "scale": "learned"}
    assert with_bits(recipe, 1).quant["activation"]["format"] == "uint1"
    signed = tiny_recipe(quant={"activation": {"format": "int4", "scale": "learned"}})
    assert with_bits(signed, 1).quant["activation"] == {"format": "bipolar"}
    assert with_bits(recipe, 8).train == recipe.train
    assert with_bits(tiny_recipe(quant={"weight": "int4n"}), 4).quant["weight"]["format"] == "int4n"
    with pytest.raises(RecipeError, match="no format"):
        with_bits(tiny_recipe(quant={"weight": None}), 4)


def test_a_study_that_makes_no_sense_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    request = StudyRequest(recipe, tmp_path / "out")
    with pytest.raises(RecipeError, match="co_study is not there"):
        run_study(replace(request, recipe=tiny_recipe()))
    with pytest.raises(RecipeError, match="no such arm: 'kqd'"):
        run_study(replace(request, arms=("kqd",)))
    with pytest.raises(RecipeError, match="1 to 16 bits, found 0"):
        run_study(replace(request, bits=(0,)))
    assert not (tmp_path / "out").exists()
