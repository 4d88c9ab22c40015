# SPDX-License-Identifier: Apache-2.0
"""Transforms of whole batches on the device, deterministic from a generator."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bitwright.base.errors import RecipeError
from bitwright.train.config import Augmentation

_SIGNALS = 3  # axes of a batch


def check_augmentation(how: Augmentation, sample_shape: tuple[int, ...], where: str) -> None:
    """Refuse changes that make no sense for signals (C, L) or rows of a table (F,).

    Raises:
        RecipeError: names them.
    """
    able = {1: (), 2: ("shift",)}.get(len(sample_shape), tuple(Augmentation.model_fields))
    asked = [name for name in sorted(how.model_fields_set) if getattr(how, name)]
    wrong = [name for name in asked if name not in able]
    if wrong:
        kind = "rows of a table" if len(sample_shape) == 1 else "signals"
        raise RecipeError(
            f"{', '.join(wrong)} of {kind}",
            where=f"{where}.augmentation",
            hint=f"leave it out; {kind} can have: {', '.join(able) or 'none'}",
        )


def to_real(images: Tensor, scale: float) -> Tensor:
    """Levels to float32 reals; bit for bit the same as ``Dataset.reals``."""
    return images.to(torch.float32) * scale


@dataclass(frozen=True)
class Draws:
    """Random numbers for the images of one batch. They are drawn for the whole batch, so that every
    device that takes a share of it goes on from the same state of the generator.

    Attributes:
        generator: lives on the CPU, so that a run draws the same numbers on every device.
        whole: images of the batch.
        share: which of them are at hand.
    """

    generator: torch.Generator
    whole: int
    share: slice

    def uniform(self, *rows: int) -> Tensor:
        """(..., images at hand) in [0, 1)."""
        return torch.rand((*rows, self.whole), generator=self.generator)[..., self.share]

    def below(self, end: int, *rows: int) -> Tensor:
        """(..., images at hand) whole numbers from 0 to ``end`` - 1."""
        found = torch.randint(0, end, (*rows, self.whole), generator=self.generator)
        return found[..., self.share]


def augment(
    images: Tensor,
    how: Augmentation,
    generator: torch.Generator,
    *,
    whole: int | None = None,
    share: slice = slice(None),
) -> Tensor:
    """Move, mirror and turn a batch (N, C, H, W) of reals at random; zero is background. Signals
    (N, C, L) can be moved alone (`check_augmentation`).

    Windows of random size are another matter, as they may have to be cut out of larger images:
    `train.images.Feed` does so before.

    Args:
        whole: images of the whole batch, of which ``images`` are the ``share``; by default they are
            all of it.
    """
    draws = Draws(generator, len(images) if whole is None else whole, share)
    if how.shift:
        images = shift(images, how.shift, draws)
    if how.flip:
        images = flip(images, draws)
    if how.rotate or how.zoom:
        images = rotate_zoom(images, how.rotate, how.zoom, draws)
    return images


def shift(images: Tensor, most: int, draws: Draws) -> Tensor:
    """Move each image by up to ``most`` pixels along each axis, zeros coming in (pad and crop); a
    signal by samples.
    """
    if images.dim() == _SIGNALS:
        drawn = draws.below(2 * most + 1).to(images.device)
        steps = torch.arange(images.shape[2], device=images.device) + drawn[:, None]
        padded = functional.pad(images, (most, most))
        return padded.gather(2, steps[:, None, :].expand_as(images))
    count, _, height, width = images.shape
    offsets = draws.below(2 * most + 1, 2).to(images.device)
    windows = functional.pad(images, (most,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    rows = torch.arange(count, device=images.device)
    return windows[rows, :, offsets[0], offsets[1]]


def flip(images: Tensor, draws: Draws) -> Tensor:
    """Mirror half of the images left and right."""
    chosen = draws.uniform().to(images.device) < 0.5
    return torch.where(chosen[:, None, None, None], images.flip(3), images)


def rotate_zoom(images: Tensor, degrees: float, zoom: float, draws: Draws) -> Tensor:
    """Turn each image about its centre and change its size (bilinear, zeros coming in)."""
    count = len(images)
    drawn = 2 * draws.uniform(2) - 1
    angle = drawn[0] * math.radians(degrees)
    size = 1 + drawn[1] * zoom
    cosine, sine, nothing = torch.cos(angle) / size, torch.sin(angle) / size, torch.zeros(count)
    matrix = torch.stack([cosine, -sine, nothing, sine, cosine, nothing], dim=1).view(-1, 2, 3)
    grid = functional.affine_grid(matrix.to(images.device), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def cut_out(images: Tensor, windows: Tensor) -> Tensor:
    """One window of each image, resized to the image's size (bilinear).

    Args:
        images: (N, C, H, W) reals.
        windows: (N, 4) left, top, right, bottom in pixels, inside the image.
    """
    height, width = images.shape[2:]
    left, top, right, bottom = windows.unbind(1)
    nothing = torch.zeros(len(images))
    across = [(right - left) / width, nothing, (left + right) / width - 1]
    down = [nothing, (bottom - top) / height, (top + bottom) / height - 1]
    matrix = torch.stack(across + down, dim=1).view(-1, 2, 3).to(images.device)
    grid = functional.affine_grid(matrix, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
