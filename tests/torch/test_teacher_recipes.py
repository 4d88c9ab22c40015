# SPDX-License-Identifier: Apache-2.0
"""Recipes whose teacher is a file of scores, and recipes with images of no known class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bitwright.base.errors import BitwrightError
from bitwright.data import load_dataset
from bitwright.pipeline.api import build_recipe
from bitwright.pipeline.recipe import recipe_from_dict
from bitwright.train.teacher_outputs import TeacherOutputs, write_outputs

SHORT = {"epochs": 1, "batch_size": 256, "lr": 0.01, "threads": 1}
CACHED = {"alpha": 1.0, "outputs": "cached"}


def recipe(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "name": "tiny",
        "data": {"name": "digits"},
        "model": {"name": "mlp", "options": {"widths": [16]}},
        "quant": {"weight": "int4", "activation": "uint4", "input": "uint8"},
        "teacher": {"logits": str(folder / "scores.pt")},
        "train": {"float": SHORT, "quantized": {**SHORT, "distillation": CACHED}},
        **changes,
    }


def scores(folder: Path, spec: dict[str, Any] | str = "digits", wrong: str = "") -> None:
    """As another program would write them: sure of every label."""
    train = load_dataset(spec).train
    sure = 5 * torch.nn.functional.one_hot(torch.from_numpy(train.labels).clamp(min=0), 10).float()
    indices = torch.from_numpy(train.indices)
    data = wrong or train.digest()
    write_outputs(folder / "scores.pt", TeacherOutputs(sure, indices, data, "by hand"))


def test_a_file_of_scores_teaches_images_without_labels_too(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "more").mkdir()
    Image.fromarray(np.full((8, 8), 99, np.uint8)).save(tmp_path / "more" / "1.png")
    data = {"name": "digits", "unlabelled": str(tmp_path / "more")}
    scores(tmp_path, data)
    fields = recipe(tmp_path, data=data)
    summary = build_recipe(recipe_from_dict(fields), tmp_path / "run", until="quantize")
    labels = [row.label for row in summary.rows]
    assert "accuracy, teacher" in labels and "accuracy, quantized" in labels
    logs = list((tmp_path / "run").rglob("tutor_study/metrics.jsonl"))
    assert len(logs) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"teacher": {"logits": "absent.pt"}}, "no file"),
        ({"teacher": {"logits": "scores.pt", "model": "mlp"}}, "either model or logits"),
        ({"teacher": {"logits": "scores.pt", "train": SHORT}}, "remove train"),
        ({"teacher": [{"logits": "scores.pt"}, {"logits": "scores.pt"}]}, "only teacher"),
        (
            {"train": {"quantized": {**SHORT, "distillation": {"alpha": 0.5}}}},
            "set distillation.outputs to cached",
        ),
        (
            {"train": {"quantized": {"co_study": SHORT}}},
            "co_study trains the teacher",
        ),
        ({}, "another data set"),
    ],
)
def test_scores_that_cannot_teach_are_refused_before_training(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    scores(tmp_path, wrong="0" * 32)
    with pytest.raises(BitwrightError, match=reason):
        asked = recipe_from_dict(recipe(tmp_path, **changes), base_dir=tmp_path)
        build_recipe(asked, tmp_path / "run", until="quantize")
    assert not list(tmp_path.rglob("metrics.jsonl"))


@pytest.mark.parametrize("teachers", [1, 2])
def test_an_unknown_layer_to_learn_from_is_refused_before_the_teacher_trains(
    tmp_path: Path, teachers: int
) -> None:
    path = "absent" if teachers == 1 else "fc1"
    features = [{"kind": "hint", "student": "fc1", "teacher": path}]
    train = {"float": SHORT, "quantized": {**SHORT, "distillation": {"features": features}}}
    teacher = [{"model": {"name": "mlp", "options": {"widths": [32]}}, "train": SHORT}] * teachers
    asked = recipe_from_dict(recipe(tmp_path, train=train, teacher=teacher))
    with pytest.raises(BitwrightError, match=f"no layer '{path}'") as refused:
        build_recipe(asked, tmp_path / "run", until="quantize")
    assert ("members.0.fc1" in refused.value.hint) == (teachers == 2)
    assert not list(tmp_path.rglob("metrics.jsonl"))
