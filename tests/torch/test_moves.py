# SPDX-License-Identifier: Apache-2.0
"""Labels move along with what is on an image: bright boxes are found where the labels say."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch

from bitwright.base.errors import RecipeError
from bitwright.tasks.moves import move_boxes, move_maps, still, then
from bitwright.train import Augmentation
from bitwright.train.config import Distortion
from bitwright.train.transforms import Draws, augment_moving, check_augmentation, distort

H, W = 48, 64


def scenes(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A bright box on each image, and its label."""
    rng = np.random.default_rng(0)
    images, labels = torch.zeros((count, 1, H, W)), torch.zeros((count, 2, 5))
    labels[:, 1, 0] = -1
    for image, label in zip(images, labels, strict=True):
        top, left = rng.integers(4, 20, 2)
        bottom, right = top + rng.integers(10, 22), left + rng.integers(10, 36)
        image[0, top:bottom, left:right] = 1
        label[0, 1:] = torch.tensor([left / W, top / H, right / W, bottom / H])
    return images, labels


@pytest.mark.parametrize(
    "how",
    [
        {"jitter": 0.15},
        {"shift": 3},
        {"flip": True},
        {"zoom": 0.3},
        {"jitter": 0.1, "flip": True, "shift": 4, "zoom": 0.1, "distort": {}},
    ],
)
def test_a_moved_box_lies_around_what_has_moved(how: dict[str, object]) -> None:
    images, labels = scenes(60)
    generator = torch.Generator().manual_seed(1)
    found, moves = augment_moving(images, Augmentation.model_validate(how), generator)
    moved = move_boxes(labels, moves)
    assert (moved[:, 1] == labels[:, 1]).all()  # the row that fills up
    seen = 0
    for image, row in zip(found, moved[:, 0], strict=True):
        bright = image[0] > image.max() / 2
        if row[0] < 0:
            continue
        rows, columns = (np.flatnonzero(bright.any(dim=axis).numpy()) for axis in (1, 0))
        edges = [columns[0] / W, rows[0] / H, (columns[-1] + 1) / W, (rows[-1] + 1) / H]
        assert np.abs(np.array(edges) - row[1:].numpy()).max() < 1.6 / H  # half lit pixels
        seen += 1
    assert seen > 50


def test_a_turned_box_is_the_upright_one_around_it_and_a_map_turns_along() -> None:
    images, labels = scenes(40)
    generator = torch.Generator().manual_seed(2)
    found, moves = augment_moving(images, Augmentation(rotate=30.0), generator)
    moved = move_boxes(labels, moves)
    maps = move_maps((images[:, 0] > 0).long(), moves)
    for image, row, mask in zip(found[:, 0], moved[:, 0], maps, strict=True):
        assert ((image > 0.5) != (mask == 1)).float().mean() < 0.02  # at the edges alone
        rows, columns = (np.flatnonzero((image > 0.5).any(dim=axis).numpy()) for axis in (1, 0))
        edges = np.array([columns[0] / W, rows[0] / H, (columns[-1] + 1) / W, (rows[-1] + 1) / H])
        inside = np.array([-1, -1, 1, 1]) * (edges - row[1:].numpy())
        assert row[0] == 0 and (inside < 1.5 / H).all()
    assert (maps == -1).any()  # what came in is not known


def test_a_box_that_has_left_is_no_longer_there() -> None:
    labels = torch.tensor([[[2.0, 0.0, 0.4, 0.2, 0.6], [1, 0.7, 0.4, 0.9, 0.6]]])
    left = torch.tensor([[[1.0, 0.0, -0.16], [0.0, 1.0, 0.0]]])
    moved = move_boxes(labels, left)
    assert moved[0, 0].tolist() == [-1, 0, 0, 0, 0]
    assert moved[0, 1].tolist() == pytest.approx([1, 0.54, 0.4, 0.74, 0.6])
    unknown = torch.full((1, 1, 5), float("nan"))
    assert move_boxes(unknown, left).isnan().all()
    assert torch.equal(then(left, still(1)), left)


def test_maps_that_do_not_move_stay_as_they_are() -> None:
    maps = torch.randint(-1, 5, (3, 7, 9), generator=torch.Generator().manual_seed(0))
    assert torch.equal(move_maps(maps, still(3)), maps)


def test_colours_change_as_in_hsv() -> None:
    generator = torch.Generator().manual_seed(3)
    images = torch.rand((6, 3, 2, 2), generator=generator)
    how = Distortion(hue=0.2, saturation=2.0, exposure=1.5)
    draws = torch.Generator().manual_seed(4)
    found = distort(images, how, Draws(draws, 6, slice(None)))
    again = torch.Generator().manual_seed(4)
    drawn, up = torch.rand((3, 6), generator=again), torch.rand((2, 6), generator=again) < 0.5
    for at in range(6):
        factor = [
            (1 + float(drawn[i + 1, at]) * (most - 1)) ** (1 if up[i, at] else -1)
            for i, most in enumerate((2.0, 1.5))
        ]
        for y in range(2):
            for x in range(2):
                hue, saturation, value = colorsys.rgb_to_hsv(*images[at, :, y, x].tolist())
                hue = (hue + (2 * float(drawn[0, at]) - 1) * 0.2) % 1
                new = (hue, min(1, saturation * factor[0]), min(1, value * factor[1]))
                assert found[at, :, y, x].tolist() == pytest.approx(
                    colorsys.hsv_to_rgb(*new), abs=1e-5
                )


def test_what_are_no_colours_is_not_distorted() -> None:
    with pytest.raises(RecipeError, match="distort of images with 4 channels"):
        check_augmentation(Augmentation(distort=Distortion()), (4, 8, 8), "train")
    draws = Draws(torch.Generator(), 8, slice(None))
    grey = distort(torch.full((8, 1, 2, 2), 0.9), Distortion(), draws)
    assert grey.min() < 0.9 and grey.max() == 1
