# SPDX-License-Identifier: Apache-2.0
"""Transforms of whole batches on the device, deterministic from a generator."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from bitwright.train.config import Augmentation


def to_real(images: Tensor, scale: float) -> Tensor:
    """uint8 pixels to float32 reals; bit for bit the same as ``Dataset.reals``."""
    return images.to(torch.float32) * scale


def augment(images: Tensor, how: Augmentation, generator: torch.Generator) -> Tensor:
    """Move, mirror and turn a batch (N, C, H, W) of reals at random; zero is background.

    The generator lives on the CPU, so that a run draws the same numbers on every device.
    """
    if how.shift:
        images = shift(images, how.shift, generator)
    if how.flip:
        images = flip(images, generator)
    if how.rotate or how.zoom:
        images = rotate_zoom(images, how.rotate, how.zoom, generator)
    return images


def shift(images: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Move each image by up to ``most`` pixels along each axis, zeros coming in (pad and crop)."""
    count, _, height, width = images.shape
    offsets = torch.randint(0, 2 * most + 1, (2, count), generator=generator).to(images.device)
    windows = functional.pad(images, (most,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    rows = torch.arange(count, device=images.device)
    return windows[rows, :, offsets[0], offsets[1]]


def flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror half of the images left and right."""
    chosen = torch.rand(len(images), generator=generator).to(images.device) < 0.5
    return torch.where(chosen[:, None, None, None], images.flip(3), images)


def rotate_zoom(images: Tensor, degrees: float, zoom: float, generator: torch.Generator) -> Tensor:
    """Turn each image about its centre and change its size (bilinear, zeros coming in)."""
    count = len(images)
    draws = 2 * torch.rand((2, count), generator=generator) - 1
    angle = draws[0] * math.radians(degrees)
    size = 1 + draws[1] * zoom
    cosine, sine, nothing = torch.cos(angle) / size, torch.sin(angle) / size, torch.zeros(count)
    matrix = torch.stack([cosine, -sine, nothing, sine, cosine, nothing], dim=1).view(-1, 2, 3)
    grid = functional.affine_grid(matrix.to(images.device), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)
