# SPDX-License-Identifier: Apache-2.0
"""Transforms of whole batches on the device, deterministic from a generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bitwright.base.errors import RecipeError
from bitwright.tasks.moves import affine, still, then
from bitwright.train.config import Augmentation, Distortion

_SIGNALS = 3  # axes of a batch
_COLOURS = 3
_Moved = tuple[Tensor, Tensor]
"""Images, and where their points have gone (`tasks.moves`)."""


def check_augmentation(how: Augmentation, sample_shape: tuple[int, ...], where: str) -> None:
    """Refuse changes that make no sense for signals (C, L) or rows of a table (F,).

    Raises:
        RecipeError: names them.
    """
    able = {1: (), 2: ("shift",)}.get(len(sample_shape), tuple(Augmentation.model_fields))
    wrong = [name for name in sorted(how.asked) if name not in able]
    if wrong:
        kind = "rows of a table" if len(sample_shape) == 1 else "signals"
        raise RecipeError(
            f"{', '.join(wrong)} of {kind}",
            where=f"{where}.augmentation",
            hint=f"leave it out; {kind} can have: {', '.join(able) or 'none'}",
        )
    if how.distort is not None and sample_shape[0] not in (1, _COLOURS):
        raise RecipeError(
            f"distort of images with {sample_shape[0]} channels, which are no colours",
            where=f"{where}.augmentation",
            hint="leave it out",
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
    """Images changed as `augment_moving` does; where their points have gone is not asked."""
    return augment_moving(images, how, generator, whole=whole, share=share)[0]


def augment_moving(
    images: Tensor,
    how: Augmentation,
    generator: torch.Generator,
    *,
    whole: int | None = None,
    share: slice = slice(None),
) -> _Moved:
    """Move, mirror and turn a batch (N, C, H, W) of reals at random; zero is background. Signals
    (N, C, L) can be moved alone (`check_augmentation`).

    Windows of random size are another matter, as they may have to be cut out of larger images:
    `train.images.Feed` does so before.

    Args:
        whole: images of the whole batch, of which ``images`` are the ``share``; by default they are
            all of it.

    Returns:
        The images, and their moves (N, 2, 3) (`tasks.moves`).
    """
    draws = Draws(generator, len(images) if whole is None else whole, share)
    moves = still(len(images), images.device)
    steps: list[Callable[[Tensor], _Moved]] = []
    if how.jitter:
        steps.append(lambda x: jitter(x, how.jitter, draws))
    if how.shift:
        steps.append(lambda x: shift(x, how.shift, draws))
    if how.flip:
        steps.append(lambda x: flip(x, draws))
    if how.rotate or how.zoom:
        steps.append(lambda x: rotate_zoom(x, how.rotate, how.zoom, draws))
    for step in steps:
        images, moved = step(images)
        moves = then(moves, moved)
    if how.distort is not None:
        images = distort(images, how.distort, draws)
    return images, moves


def jitter(images: Tensor, most: float, draws: Draws) -> _Moved:
    """Cut out windows whose edges lie up to a share ``most`` of the side from the image's, inside
    or outside, and resize them to the image (bilinear, zeros coming in).
    """
    height, width = images.shape[2:]
    left, top, right, bottom = (2 * draws.uniform(4) - 1) * most
    windows = torch.stack([left, top, 1 + right, 1 + bottom], dim=1)
    windows = windows * torch.tensor([width, height, width, height])
    return cut_out(images, windows, padding="zeros"), window_moves(windows, images)


def shift(images: Tensor, most: int, draws: Draws) -> _Moved:
    """Move each image by up to ``most`` pixels along each axis, zeros coming in (pad and crop); a
    signal by samples.
    """
    if images.dim() == _SIGNALS:
        drawn = draws.below(2 * most + 1).to(images.device)
        steps = torch.arange(images.shape[2], device=images.device) + drawn[:, None]
        padded = functional.pad(images, (most, most))
        found = padded.gather(2, steps[:, None, :].expand_as(images))
        return found, still(len(images), images.device)  # a signal's label does not move
    count, _, height, width = images.shape
    offsets = draws.below(2 * most + 1, 2).to(images.device)
    windows = functional.pad(images, (most,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    rows = torch.arange(count, device=images.device)
    down, across = (most - offsets).to(images.dtype)
    one, nothing = torch.ones_like(down), torch.zeros_like(down)
    moves = affine((one, nothing, across / width), (nothing, one, down / height))
    return windows[rows, :, offsets[0], offsets[1]], moves


def flip(images: Tensor, draws: Draws) -> _Moved:
    """Mirror half of the images left and right."""
    chosen = draws.uniform().to(images.device) < 0.5
    turned = chosen.to(images.dtype)
    one, nothing = torch.ones_like(turned), torch.zeros_like(turned)
    moves = affine((1 - 2 * turned, nothing, turned), (nothing, one, nothing))
    return torch.where(chosen[:, None, None, None], images.flip(3), images), moves


def rotate_zoom(images: Tensor, degrees: float, zoom: float, draws: Draws) -> _Moved:
    """Turn each image about its centre and change its size (bilinear, zeros coming in)."""
    count = len(images)
    drawn = 2 * draws.uniform(2) - 1
    angle = drawn[0] * math.radians(degrees)
    size = 1 + drawn[1] * zoom
    cosine, sine, nothing = torch.cos(angle) / size, torch.sin(angle) / size, torch.zeros(count)
    matrix = torch.stack([cosine, -sine, nothing, sine, cosine, nothing], dim=1).view(-1, 2, 3)
    grid = functional.affine_grid(matrix.to(images.device), list(images.shape), align_corners=False)
    # The matrix says where each point comes from, as seen from the centre.
    turn = torch.linalg.inv(matrix[:, :, :2])
    moves = torch.cat([turn, 0.5 - turn.sum(dim=2, keepdim=True) / 2], dim=2)
    return functional.grid_sample(images, grid, align_corners=False), moves.to(images.device)


def distort(images: Tensor, how: Distortion, draws: Draws) -> Tensor:
    """Other colours: the hue turned, saturation and value multiplied (in HSV), of images in [0, 1];
    of grey ones the value alone.
    """
    drawn, larger = draws.uniform(3).to(images.device), draws.uniform(2).to(images.device) < 0.5
    turn = (2 * drawn[0] - 1) * how.hue
    factors = []
    for most, share, up in zip((how.saturation, how.exposure), drawn[1:], larger, strict=True):
        factor = 1 + share * (most - 1)
        factors.append(torch.where(up, factor, 1 / factor)[:, None, None])
    value = images.amax(dim=1)
    if images.shape[1] != _COLOURS:
        return (images * factors[1][:, None]).clamp(0, 1)
    # With value v, saturation s and hue h a channel is v - v s f(h), f between 0 and 1.
    chroma = value - images.amin(dim=1)
    saturation = chroma / value.clamp(min=_TINY)
    hue = _hue(images, value, chroma) + 6 * turn[:, None, None]
    saturation = (saturation * factors[0]).clamp(max=1)
    value = (value * factors[1]).clamp(max=1)
    channels = []
    for place in (5, 3, 1):
        k = torch.remainder(place + hue, 6)
        share = torch.minimum(k, 4 - k).clamp(0, 1)
        channels.append(value - value * saturation * share)
    return torch.stack(channels, dim=1)


_TINY = 1e-8


def _hue(images: Tensor, value: Tensor, chroma: Tensor) -> Tensor:
    """(N, H, W) hue in [0, 6) of red, green and blue."""
    red, green, blue = images.unbind(1)
    by = chroma.clamp(min=_TINY)
    of_red = torch.remainder((green - blue) / by, 6)
    of_green, of_blue = (blue - red) / by + 2, (red - green) / by + 4
    return torch.where(value == red, of_red, torch.where(value == green, of_green, of_blue))


def window_moves(windows: Tensor, images: Tensor) -> Tensor:
    """(N, 2, 3): where the points of images have gone of which windows (N, 4) were cut out."""
    height, width = images.shape[2:]
    left, top, right, bottom = windows.to(images.device).unbind(1)
    nothing = torch.zeros_like(left)
    across, down = right - left, bottom - top
    return affine((width / across, nothing, -left / across), (nothing, height / down, -top / down))


def cut_out(images: Tensor, windows: Tensor, *, padding: str = "border") -> Tensor:
    """One window of each image, resized to the image's size (bilinear).

    Args:
        images: (N, C, H, W) reals.
        windows: (N, 4) left, top, right, bottom in pixels.
        padding: what lies outside of the image: its ``border``, or ``zeros``.
    """
    height, width = images.shape[2:]
    left, top, right, bottom = windows.unbind(1)
    nothing = torch.zeros(len(images))
    across = [(right - left) / width, nothing, (left + right) / width - 1]
    down = [nothing, (bottom - top) / height, (top + bottom) / height - 1]
    matrix = torch.stack(across + down, dim=1).view(-1, 2, 3).to(images.device)
    grid = functional.affine_grid(matrix, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode=padding, align_corners=False)
