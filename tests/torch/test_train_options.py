# SPDX-License-Identifier: Apache-2.0
"""Optimizers, decay, moving averages, mixed precision and several devices."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.hostile_folder import hostile_folder
from torch import nn

from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.base.trust import importable
from bitwright.data import Dataset, DataSplits, load_dataset
from bitwright.models import build_model
from bitwright.quantize import Policy, apply
from bitwright.train import (
    Augmentation,
    TrainConfig,
    TrainProgress,
    augment,
    evaluate,
    fit,
    loop,
    start,
)
from bitwright.train.optimizers import make_optimizer, moving_average
from bitwright.train.transforms import Draws, flip, rotate_zoom, shift

ROOT = Path(__file__).resolve().parents[2]

SHORT = TrainConfig(epochs=2, batch_size=32, lr=1e-2, keep="last", threads=1)


@pytest.fixture(scope="module")
def few() -> DataSplits:
    splits = load_dataset("digits")
    return replace(splits, train=splits.train.take(range(128)))


def network(seed: int = 0, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(seed)
    middle = nn.BatchNorm1d(24) if norm else nn.Identity()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), middle, nn.ReLU(), nn.Linear(24, 10))


def same(first: nn.Module, second: nn.Module) -> bool:
    states = first.state_dict(), second.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_augmentation_crops_flips_and_turns_in_this_order() -> None:
    images = torch.rand(8, 3, 32, 32)
    generator = torch.Generator().manual_seed(4)
    found = augment(images, Augmentation(shift=4, flip=True, rotate=15.0), generator)
    generator.manual_seed(4)
    draws = Draws(generator, len(images), slice(None))
    wanted = flip(shift(images, 4, draws)[0], draws)[0]
    assert torch.equal(found, rotate_zoom(wanted, 15.0, 0.0, draws)[0])


def test_nesterov_steps_are_those_of_the_formula() -> None:
    """v' = g v - lr grad(w + g v), w' = w + v', in the terms of the point looked ahead to."""
    curve = torch.tensor([1.0, 3.0])
    model = nn.Linear(2, 1, bias=False)
    start = torch.tensor([[2.0, -1.0]])
    model.weight.data.copy_(start)
    config = TrainConfig(optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=0.0)
    optimizer = make_optimizer(model, config)
    assert optimizer.param_groups[0]["nesterov"]
    ahead, speed = start[0].clone(), torch.zeros(2)
    for _ in range(5):
        optimizer.zero_grad()
        (0.5 * curve * model.weight[0] ** 2).sum().backward()
        optimizer.step()
        gradient = curve * ahead  # taken ahead, at w + g v
        here = ahead - 0.9 * speed
        speed = 0.9 * speed - 0.1 * gradient
        ahead = here + speed + 0.9 * speed
        assert torch.allclose(model.weight[0], ahead, atol=1e-6)
    plain = make_optimizer(model, config.model_copy(update={"nesterov": False}))
    assert not plain.param_groups[0]["nesterov"]


@pytest.mark.parametrize("optimizer", ["sgd", "asgd", "adam", "adamw"])
def test_decay_leaves_biases_norms_and_scales_alone(
    few: DataSplits, tmp_path: Path, optimizer: str
) -> None:
    images = torch.from_numpy(few.train.reals()[:16])
    policy = Policy.uniform(weight="int4", activation="uint4", input="uint8")
    student = apply(network(norm=True), policy, "train", images)
    groups = make_optimizer(student, SHORT.model_copy(update={"optimizer": optimizer})).param_groups
    names = {id(value): name for name, value in student.named_parameters()}
    decayed = {names[id(p)] for p in groups[0]["params"]}
    assert decayed == {"1.weight", "4.weight"}
    fields = {"optimizer": optimizer, "weight_decay": 0.1, "weight_decay_on": "all"}
    (group,) = make_optimizer(student, SHORT.model_copy(update=fields)).param_groups
    assert len(group["params"]) == len(names) and group["weight_decay"] == 0.1
    model = network()
    fit(model, few, SHORT.model_copy(update={"optimizer": optimizer}), run_dir=tmp_path)
    assert not same(model, network())


def test_a_moving_average_follows_the_formula() -> None:
    model = nn.Linear(3, 2)
    model.register_buffer("count", torch.tensor(0))
    average = moving_average(model, 0.8)
    wanted = None
    for step in range(20):
        with torch.no_grad():
            model.weight.add_(torch.randn(2, 3))
        model.count += 1
        average.update_parameters(model)
        share = min(0.8, (1 + step) / (10 + step))
        now = model.weight.detach().clone()
        wanted = now if wanted is None else share * wanted + (1 - share) * now
        assert torch.allclose(average.module.weight, wanted, atol=1e-5)
        assert average.module.count == step + 1


@pytest.mark.parametrize("quantized", [False, True])
def test_the_average_is_what_is_measured_and_kept(
    few: DataSplits, tmp_path: Path, quantized: bool
) -> None:
    images = torch.from_numpy(few.train.reals()[:32])
    policy = Policy.uniform(weight="int4", activation="uint4", input="uint8")

    def fresh() -> nn.Module:
        model = network(norm=True)
        return apply(model, policy, "train", images) if quantized else model

    plain, averaged, resumed = fresh(), fresh(), fresh()
    fit(plain, few, SHORT, run_dir=tmp_path / "plain")
    config = SHORT.model_copy(update={"ema": 0.95, "schedule": "plateau", "patience": 0})
    found = fit(averaged, few, config, run_dir=tmp_path / "ema")
    assert not same(plain, averaged)
    assert evaluate(averaged, few.validation).accuracy == found.validation_accuracy

    def stop(now: TrainProgress) -> None:
        if now.last is not None and now.last.epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(fresh(), few, config, run_dir=tmp_path / "parts", on_progress=stop)
    assert fit(resumed, few, config, run_dir=tmp_path / "parts").resumed_from == 1
    assert same(averaged, resumed)


def test_a_plateau_lowers_the_rate_and_resumes(few: DataSplits, tmp_path: Path) -> None:
    """At a rate too high to learn, every epoch is a plateau."""
    fields = {"schedule": "plateau", "patience": 0, "divisor": 2.0, "epochs": 5, "lr": 1e-9}
    config = SHORT.model_copy(update={**fields, "optimizer": "sgd"})
    history = fit(network(), few, config, run_dir=tmp_path).history
    assert [entry.lr for entry in history] == pytest.approx([1e-9, 1e-9, 5e-10, 2.5e-10, 1.25e-10])


def test_half_of_the_bits_train_too(few: DataSplits, tmp_path: Path) -> None:
    full, half, again = network(), network(), network()
    config = SHORT.model_copy(update={"epochs": 6})
    fit(full, few, config, run_dir=tmp_path / "32")
    narrow = config.model_copy(update={"precision": "bf16"})
    fit(half, few, narrow, run_dir=tmp_path / "bf16", teacher=None)
    fit(again, few, narrow, run_dir=tmp_path / "bf16 again")
    assert same(half, again) and not same(full, half)
    assert all(value.dtype == torch.float32 for value in half.state_dict().values())
    right = [evaluate(model, few.validation).accuracy for model in (full, half)]
    assert right[1] > 0.5 and abs(right[0] - right[1]) < 0.1
    images = torch.from_numpy(few.train.reals()[:32])
    policy = Policy.uniform(weight="int4", activation="uint4", input="uint8")
    student = apply(network(norm=True), policy, "train", images)
    fit(student, few, narrow, run_dir=tmp_path / "few bits")
    assert evaluate(student, few.validation).accuracy > 0.5
    if not torch.cuda.is_available():
        with pytest.raises(RecipeError, match="precision 16 needs a GPU"):
            fit(full, few, SHORT.model_copy(update={"precision": "16"}), run_dir=tmp_path / "16")


@pytest.mark.filterwarnings("ignore:You passed")
def test_scaled_gradients_train_both_of_a_co_study(
    few: DataSplits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 bits want a GPU; their scale of gradients, which every step may change, is tried here."""
    settings = {"precision": "16", "clip_norm": 0.5, "distillation": {}, "peer": {}}
    config = TrainConfig.model_validate({**SHORT.model_dump(), "optimizer": "sgd", **settings})
    plain = loop.make_fabric

    def scaled(*args: Any, **options: Any) -> Any:
        fabric = plain(*args, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
        fabric.strategy.precision.scaler = scaler
        return fabric

    monkeypatch.setattr(start, "_needs_gpu", lambda device: None)
    pairs = (network(), network(5)), (network(), network(5))
    fit(pairs[0][0], few, config, run_dir=tmp_path / "plain", peer=pairs[0][1])
    monkeypatch.setattr(loop, "make_fabric", scaled)
    fit(pairs[1][0], few, config, run_dir=tmp_path / "scaled", peer=pairs[1][1])
    for first, second in zip(*pairs, strict=True):
        for a, b in zip(first.parameters(), second.parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-5)


def test_two_processes_train_as_one(few: DataSplits, tmp_path: Path) -> None:
    """Within the order of float sums, augmentation, distillation and hints included."""
    pair = {"kind": "hint", "student": "1", "teacher": "1"}
    learned = {"alpha": 0.5, "temperature": 2.0, "features": [pair]}
    config = TrainConfig.model_validate(
        {
            **SHORT.model_dump(),
            "lr": 0.02,
            "optimizer": "sgd",
            "ema": 0.9,
            "augmentation": {"shift": 1},
            "distillation": learned,
        }
    )
    one, two = network(), network()
    fit(one, few, config, run_dir=tmp_path / "1", teacher=network(7))
    seen: list[TrainProgress] = []
    both = config.model_copy(update={"devices": 2})
    how = {"run_dir": tmp_path / "2", "teacher": network(7)}
    found = fit(two, few, both, on_progress=seen.append, **how)
    for first, second in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.allclose(first, second, atol=1e-5)
    assert len(found.history) == 2 and found.resumed_from == 0
    assert seen[-1].done == 1.0 and seen[-1].epoch == 2
    assert evaluate(two, few.validation).accuracy == found.validation_accuracy
    again = network()
    assert fit(again, few, both, **how).resumed_from == 2 and same(two, again)


OWN_NET = """
import torch
class Scaled(torch.nn.Linear):
    pass
def make(num_classes):
    return torch.nn.Sequential(torch.nn.Flatten(), Scaled(64, num_classes))
"""


def test_processes_import_what_the_recipe_names_and_nothing_else(
    few: DataSplits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harmed = hostile_folder(tmp_path / "downloads")
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "own_net_of_a_test.py").write_text(OWN_NET)
    monkeypatch.chdir(harmed.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT / "src", ROOT))))
    with importable(tmp_path / "recipe"):
        model = build_model("own_net_of_a_test:make", 10, (8, 8, 1))
        done = fit(model, few, SHORT.model_copy(update={"devices": 2}), run_dir=tmp_path / "run")
    assert len(done.history) == SHORT.epochs
    assert not harmed.exists(), harmed.read_text()


@pytest.mark.long
def test_what_a_process_raises_is_raised_here(few: DataSplits, tmp_path: Path) -> None:
    """From quantized networks too: they travel to the processes."""
    images = torch.from_numpy(few.train.reals()[:32])
    policy = Policy.uniform(weight="int4", activation="uint4", input="uint8")
    student = apply(network(norm=True), policy, "train", images)
    wild = SHORT.model_copy(
        update={"lr": 1e30, "optimizer": "sgd", "schedule": "constant", "devices": 2}
    )
    with pytest.raises(ModelError, match="training diverged"):
        fit(student, few, wild, run_dir=tmp_path)


def test_unlabelled_images_join_the_training_images(tmp_path: Path) -> None:
    from PIL import Image

    folder = tmp_path / "more" / "deep"
    folder.mkdir(parents=True)
    for number in range(3):
        pixels = np.full((16, 12, 3), 40 * (number + 1), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    plain = load_dataset("digits")
    splits = load_dataset({"name": "digits", "unlabelled": tmp_path / "more"})
    assert len(splits.train) == len(plain.train) + 3
    extra: Dataset = splits.train.take(range(len(plain.train), len(splits.train)))
    assert extra.labels.tolist() == [-1] * 3 and extra.image_shape == (8, 8, 1)
    assert np.allclose(extra.reals()[1], 80 / 255, atol=1 / 16)
    assert len(set(splits.train.indices)) == len(splits.train)
    taken = {*splits.validation.indices, *splits.test.indices}
    assert not taken & set(splits.train.indices)
    assert splits.labelled().train.digest() == plain.train.digest() != splits.train.digest()
    assert splits.test.digest() == plain.test.digest()
    with pytest.raises(DataError, match="no such folder"):
        load_dataset({"name": "digits", "unlabelled": tmp_path / "absent"})
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no image") as refused:
        load_dataset({"name": "digits", "unlabelled": tmp_path / "empty"})
    assert "without labels" in refused.value.hint and "CLASS" not in refused.value.hint
