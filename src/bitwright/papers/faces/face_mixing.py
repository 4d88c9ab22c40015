# SPDX-License-Identifier: Apache-2.0
"""New faces out of few: mixtures and warps for a teacher to describe, and jitter for a student.

A teacher gives an embedding for any face, also for one that nobody has. Blends of two aligned
faces and small smooth warps of them are such faces, so a student sees far more identities than
there are people in its training set. Jitter is what a student shall not care about: it comes after
the teacher.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bitwright.base.errors import RecipeError

#: Cells of the grid whose random displacements are smoothed into a warp.
_WARP_CELLS = 5
#: Softness of the border between two faces, as a share of the half image.
_BORDER = 0.25


@dataclass(frozen=True)
class FaceMixing:
    """How new faces are made; lengths are shares of half the image's side.

    Attributes:
        blend: share of the faces that are a blend of two, half of them as a whole, half across a
            soft border that runs anywhere.
        warp: standard deviation of the smooth displacements.
        stretch: width and height change by up to this share, one against the other.
        light: contrast and brightness change by up to this share.
    """

    blend: float = 0.65
    warp: float = 0.035
    stretch: float = 0.06
    light: float = 0.25

    def __post_init__(self) -> None:
        _shares(self)


@dataclass(frozen=True)
class FaceJitter:
    """What a student shall not care about.

    Attributes:
        rotate: degrees.
        zoom, shift: shares of the side.
        light: contrast and brightness change by up to this share.
        noise: standard deviation of the pixels' noise, of white.
    """

    rotate: float = 6.0
    zoom: float = 0.06
    shift: float = 0.03
    light: float = 0.15
    noise: float = 0.02

    def __post_init__(self) -> None:
        _shares(self, "rotate")


def _shares(settings: FaceMixing | FaceJitter, *angles: str) -> None:
    for name, value in vars(settings).items():
        most = 180.0 if name in angles else 1.0
        if not 0 <= value <= most:
            raise RecipeError(f"must lie in 0 .. {most:g}, found {value}", where=f"faces.{name}")


def mix_faces(faces: Tensor, count: int, how: FaceMixing, generator: torch.Generator) -> Tensor:
    """Make new faces out of aligned ones.

    Args:
        faces: (N, C, S, S) reals in [0, 1], all aligned alike.
        count: of new faces.

    Returns:
        (count, C, S, S) in [0, 1].
    """
    chosen = torch.randint(len(faces), (2, count), generator=generator)
    mask = _masks(count, faces.shape[-1], how.blend, generator)
    mixed = faces[chosen[0]] * (1 - mask) + faces[chosen[1]] * mask
    grid = _identity(count) @ _stretches(count, how.stretch, generator)
    field = functional.affine_grid(grid, list(mixed.shape), align_corners=False)
    coarse = how.warp * torch.randn(count, 2, _WARP_CELLS, _WARP_CELLS, generator=generator)
    smooth = functional.interpolate(
        coarse, mixed.shape[-2:], mode="bicubic", align_corners=True
    ).permute(0, 2, 3, 1)
    mixed = functional.grid_sample(
        mixed, field + smooth, padding_mode="border", align_corners=False
    )
    mirrored = torch.rand(count, generator=generator) < 0.5
    mixed = torch.where(mirrored[:, None, None, None], mixed.flip(3), mixed)
    return _relit(mixed, how.light, generator)


def jitter_faces(faces: Tensor, size: int, how: FaceJitter, generator: torch.Generator) -> Tensor:
    """(N, C, S, S) -> (N, C, size, size): moved, turned, lit and disturbed a little."""
    count = len(faces)
    draws = 2 * torch.rand(4, count, generator=generator) - 1
    angle = draws[0] * math.radians(how.rotate)
    zoom = torch.exp(draws[1] * math.log1p(how.zoom))
    cosine, sine = torch.cos(angle) * zoom, torch.sin(angle) * zoom
    x, y = 2 * how.shift * draws[2], 2 * how.shift * draws[3]
    matrix = torch.stack([cosine, -sine, x, sine, cosine, y], 1).view(-1, 2, 3)
    field = functional.affine_grid(matrix, [count, faces.shape[1], size, size], align_corners=False)
    moved = functional.grid_sample(faces, field, padding_mode="border", align_corners=False)
    lit = _relit(moved, how.light, generator)
    return (lit + how.noise * torch.randn(lit.shape, generator=generator)).clamp(0, 1)


def _masks(count: int, side: int, blend: float, generator: torch.Generator) -> Tensor:
    """(count, 1, side, side): share of the second face in every pixel; 0 in all if not blended."""
    draws = torch.rand(4, count, generator=generator)
    axis = torch.linspace(-1, 1, side)
    angle = 2 * math.pi * draws[1]
    along = (
        torch.cos(angle)[:, None, None] * axis[None, None, :]
        + torch.sin(angle)[:, None, None] * axis[None, :, None]
    )
    border = torch.sigmoid((along - (draws[2] - 0.5)[:, None, None]) / (_BORDER / 4))
    level = draws[2][:, None, None].expand_as(border)
    mask = torch.where((draws[3] < 0.5)[:, None, None], border, level)
    return (mask * (draws[0] < blend)[:, None, None])[:, None]


def _identity(count: int) -> Tensor:
    return torch.eye(2).expand(count, 2, 2)


def _stretches(count: int, most: float, generator: torch.Generator) -> Tensor:
    draw = 1 + most * (2 * torch.rand(count, generator=generator) - 1)
    matrix = torch.zeros(count, 2, 3)
    matrix[:, 0, 0], matrix[:, 1, 1] = draw, 1 / draw
    return matrix


def _relit(faces: Tensor, most: float, generator: torch.Generator) -> Tensor:
    draws = most * (2 * torch.rand(2, len(faces), 1, 1, 1, generator=generator) - 1)
    return ((faces - 0.5) * (1 + draws[0]) + 0.5 + 0.5 * draws[1]).clamp(0, 1)
