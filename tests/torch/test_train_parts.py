# SPDX-License-Identifier: Apache-2.0
"""Transforms, losses, schedules and settings of the training loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bitwright.data import Dataset
from bitwright.train import (
    Augmentation,
    TrainConfig,
    augment,
    cross_entropy,
    distillation_loss,
    to_real,
)
from bitwright.train.evaluation import on_device
from bitwright.train.schedule import lr_factor
from bitwright.train.transforms import Draws, cut_out, flip, rotate_zoom, shift


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draws(images: torch.Tensor) -> Draws:
    return Draws(generator(), len(images), slice(None))


@pytest.mark.parametrize("scale", [1 / 255, 1 / 16, 0.3])
def test_reals_have_the_same_bits_in_numpy_and_torch(scale: float) -> None:
    images = np.arange(256, dtype=np.uint8).reshape(1, 16, 8, 2)
    data = Dataset("d", images, np.zeros(1, np.int64), ("a", "b"), scale, np.arange(1))
    tensor, _ = on_device(data, "cpu")
    assert np.array_equal(to_real(tensor, scale).numpy(), data.reals())


def test_shift_moves_each_image_whole_and_fills_with_zero() -> None:
    images = torch.arange(1.0, 21.0).reshape(1, 1, 4, 5).repeat(300, 1, 1, 1)
    moved, _ = shift(images, 2, draws(images))
    seen = set()
    for image in moved[:, 0]:
        padded = torch.nn.functional.pad(images[0, 0], (2, 2, 2, 2))
        places = [
            (dy, dx)
            for dy in range(5)
            for dx in range(5)
            if torch.equal(image, padded[dy : dy + 4, dx : dx + 5])
        ]
        assert len(places) == 1
        seen.add(places[0])
    assert len(seen) == 25


def test_flip_mirrors_about_half_of_the_images() -> None:
    images = torch.rand(400, 2, 3, 4)
    flipped, _ = flip(images, draws(images))
    mirrored = sum(torch.equal(a, b.flip(2)) for a, b in zip(flipped, images, strict=True))
    kept = sum(torch.equal(a, b) for a, b in zip(flipped, images, strict=True))
    assert mirrored + kept == 400 and 150 < mirrored < 250


def test_rotation_and_zoom_are_what_they_say() -> None:
    images = torch.zeros(64, 1, 9, 9)
    images[:, :, 4, 4] = 1.0  # the centre stays where it is
    turned, _ = rotate_zoom(images, 45.0, 0.0, draws(images))
    assert torch.allclose(turned[:, :, 4, 4], torch.ones(64, 1), atol=1e-5)
    same, _ = rotate_zoom(images, 0.0, 0.0, draws(images))
    assert torch.allclose(same, images, atol=1e-5)
    square = torch.zeros(256, 1, 17, 17)
    square[:, :, 5:12, 5:12] = 1.0
    area = rotate_zoom(square, 0.0, 0.2, draws(square))[0].sum(dim=(1, 2, 3)) / 49
    assert 0.8**2 - 0.03 < area.min() < 0.9 and 1.1 < area.max() < 1.2**2 + 0.03


def test_augmentation_repeats_from_its_generator() -> None:
    images = torch.rand(8, 3, 6, 6)
    how = Augmentation(shift=1, flip=True, rotate=20.0, zoom=0.1)
    first, again, other = (augment(images, how, generator(s)) for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(augment(images, Augmentation(), generator()), images)


def test_devices_that_share_a_batch_change_its_images_as_one_would() -> None:
    images = torch.rand(8, 3, 6, 6)
    how = Augmentation(shift=1, flip=True, rotate=20.0, zoom=0.1)
    alone, after = generator(), []
    whole = augment(images, how, alone)
    for share in (slice(0, 3), slice(3, 8)):
        one = generator()
        part = augment(images[share], how, one, whole=8, share=share)
        assert torch.equal(part, whole[share])
        after.append(one.get_state())
    assert all(torch.equal(state, alone.get_state()) for state in after)


def test_windows_are_cut_out_and_resized() -> None:
    images = torch.arange(64.0).reshape(1, 1, 8, 8).repeat(2, 1, 1, 1)
    windows = torch.tensor([[0.0, 0.0, 8.0, 8.0], [2.0, 4.0, 6.0, 8.0]])
    found = cut_out(images, windows)
    assert torch.allclose(found[0], images[0], atol=1e-4)
    inside = torch.nn.functional.interpolate(images[1:, :, 4:8, 2:6], scale_factor=2.0,
                                             mode="bilinear")  # fmt: skip
    middle = (..., slice(1, -1), slice(1, -1))  # the border sees pixels outside the window
    assert torch.allclose(found[1][middle], inside[0][middle], atol=1e-4)


def test_distillation_is_cross_entropy_and_divergence() -> None:
    scores, teacher = torch.randn(5, 4, generator=generator()), torch.randn(5, 4)
    labels = torch.tensor([0, 1, 2, 3, 0])
    hard = distillation_loss(scores, teacher, labels, alpha=0.0, temperature=3.0)
    assert torch.allclose(hard, cross_entropy(scores, labels))
    soft = distillation_loss(scores, teacher, labels, alpha=1.0, temperature=3.0)
    p, q = torch.softmax(teacher / 3, 1), torch.softmax(scores / 3, 1)
    expected = 9 * (p * (p / q).log()).sum(1).mean()
    assert torch.allclose(soft, expected, atol=1e-6)
    assert distillation_loss(teacher, teacher, labels, alpha=1.0, temperature=2.0).abs() < 1e-6


@given(
    schedule=st.sampled_from(["constant", "step", "cosine", "onecycle"]),
    epochs=st.integers(1, 20),
    steps=st.integers(1, 30),
    warmup=st.floats(0.0, 1.0),
)
def test_every_schedule_stays_between_nothing_and_the_highest_rate(
    schedule: str, epochs: int, steps: int, warmup: float
) -> None:
    config = TrainConfig(epochs=epochs, schedule=schedule, warmup=warmup)
    factors = [lr_factor(config, step, steps) for step in range(epochs * steps)]
    assert all(0.0 <= factor <= 1.0 for factor in factors)
    assert max(factors) > 0


def test_schedules_have_the_shapes_of_their_names() -> None:
    def at(share: float, **fields: object) -> float:
        return lr_factor(TrainConfig(epochs=10, **fields), round(share * 1000), 100)

    assert at(0.9, schedule="constant") == 1.0
    assert at(0.49, schedule="step") == 1.0
    assert at(0.5, schedule="step") == pytest.approx(0.1)
    assert at(0.8, schedule="step", gamma=0.5) == pytest.approx(0.25)
    assert at(0.5, schedule="cosine") == pytest.approx(0.5)
    assert at(1.0, schedule="cosine", final_lr=0.2) == pytest.approx(0.2)
    assert at(0.0, schedule="cosine", warmup=2.0) < 0.01
    assert at(0.2, schedule="cosine", warmup=2.0) == pytest.approx(1.0)
    assert at(0.3, schedule="onecycle") == pytest.approx(1.0)
    assert at(0.0, schedule="onecycle") < 0.05 and at(1.0, schedule="onecycle") < 1e-6
    falling = [at(share / 20, schedule="cosine") for share in range(20)]
    assert falling == sorted(falling, reverse=True)
    assert math.isfinite(at(0.0, schedule="onecycle", warmup=10.0))


@pytest.mark.parametrize(
    "fields",
    [
        {"epochs": -1},
        {"batch_size": 1},
        {"lr": 0.0},
        {"optimizer": "lion"},
        {"warmup": 20.0},
        {"learning_rate": 0.1},
        {"augmentation": {"shear": 1}},
        {"distillation": {"alpha": 2.0}},
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TrainConfig(**fields)
