# SPDX-License-Identifier: Apache-2.0
"""The DenseNet recipes of CIFAR-10: as long as published, and every training of them starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bitwright.base.progress import no_progress
from bitwright.data import Dataset, DataSplits
from bitwright.models.pretrained import find_pretrained
from bitwright.pipeline.recipe import Recipe, load_recipe, recipe_from_dict
from bitwright.pipeline.steps.quantize import calibrated, integer_model
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.train import evaluate, fit, study
from bitwright.train.config import TrainConfig
from bitwright.train.schedule import lr_factor

FULL = ("cifar-densenet21-qkd-w8a8", "cifar-densenet21-qkd-w4a4")
SMALL = "cifar-densenet21-qkd-small"
PHASES = ("self_study", "co_study", "tutor_study")


def noise(count: int, seed: int) -> Dataset:
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    labels = random.integers(0, 10, count)
    names = tuple("abcdefghij")
    return Dataset("noise", images, labels, names, 1 / 255, np.arange(count))


def shortened(recipe: Recipe) -> Recipe:
    """The same trainings, one epoch each, in batches of eight."""
    fields = recipe.resolved()
    changes = {"epochs": 1, "milestones": [0.5], "warmup": 0.5, "batch_size": 8, "device": "cpu"}
    train = fields["train"]
    sections = [fields["teacher"][0]["train"], train["float"], *train["quantized"].values()]
    for section in sections:
        section.update(changes)
    return recipe_from_dict(fields)


@pytest.fixture
def splits() -> DataSplits:
    return DataSplits("noise", noise(16, 0), noise(8, 1), noise(8, 2), "noise")


@pytest.mark.parametrize("name", FULL)
def test_the_published_lengths_and_schedules(name: str) -> None:
    recipe = load_recipe(name)
    phases = recipe.train.quantized
    assert phases is not None
    assert phases.self_study and phases.co_study and phases.tutor_study
    long = (recipe.train.float_, recipe.teacher[0].train)
    for config in long:
        assert config is not None
        assert [round(0.1 * lr_factor(config, e * 10, 10), 6) for e in (2, 60, 120, 160)] == [
            0.1,
            0.02,
            0.004,
            0.0008,
        ]
        assert config.epochs == 200
    assert [config.epochs for _, config in phases.present] == [60, 100, 100]
    for _, config in phases.present:
        assert config.augmentation.model_dump() == {
            "random_resized_crop": None,
            "shift": 4,
            "flip": True,
            "rotate": 15,
            "zoom": 0,
            "jitter": 0,
            "distort": None,
        }
    for config in (phases.co_study, phases.tutor_study):
        assert config.distillation is not None
        assert (config.distillation.alpha, config.distillation.temperature) == (0.7, 8)
        assert config.milestones == (40, 60, 80)


@pytest.mark.slow  # about ten seconds each on a quiet core
@pytest.mark.parametrize("name", FULL)
def test_every_training_of_the_full_length_starts(
    name: str, splits: DataSplits, tmp_path: Path
) -> None:
    recipe = shortened(load_recipe(name))
    work = Workspace(recipe)
    work.data = splits
    (teacher,) = work.fresh_teachers()
    student = work.fresh_model()
    config = recipe.teacher[0].train
    assert config is not None and recipe.train.quantized is not None
    fit(teacher, splits, config, run_dir=tmp_path / "teacher")
    fit(student, splits, recipe.train.float_, run_dir=tmp_path / "student")
    model = calibrated(work, student, no_progress)
    before = {key: value.clone() for key, value in teacher.state_dict().items()}
    done = study(model, splits, recipe.train.quantized, run_dir=tmp_path, teacher=teacher)
    assert [phase.name for phase in done] == list(PHASES)
    assert any(not torch.equal(before[k], v) for k, v in teacher.state_dict().items())
    evaluate(integer_model(work, model), splits.test)


def test_the_small_student_comes_trained_by_its_own_recipe() -> None:
    recipe, study_of = load_recipe("cifar-densenet21-small"), load_recipe(SMALL)
    assert study_of.model == recipe.model
    assert study_of.train.float_ == recipe.train.float_
    assert recipe.train.pretrained and study_of.train.pretrained
    entry = find_pretrained(recipe.model, (32, 32, 3), 10, "cifar10")
    assert entry.training is not None
    assert TrainConfig.model_validate(entry.training) == recipe.train.float_
