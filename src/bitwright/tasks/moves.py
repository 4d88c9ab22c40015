# SPDX-License-Identifier: Apache-2.0
"""Labels that move along with what is on an image.

A *move* says where each point of an image has gone: (N, 2, 3), one affine map an image, of points
(x, y) as shares of width and height: ``new = move[:, :2] @ old + move[:, 2]``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from bitwright.data.labels import UNKNOWN

#: A box of which less is left inside of the image is no longer there: what it says of the thing's
#: place would be a guess.
_LEAST_VISIBLE = 0.25
_LEAST_SIDE = 1e-3  # as a share of the image, of a box that is left


def affine(across: tuple[Tensor, Tensor, Tensor], down: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """(N, 2, 3) from its rows; each entry (N,)."""
    return torch.stack([torch.stack(across, dim=1), torch.stack(down, dim=1)], dim=1)


def still(count: int, device: torch.device | str = "cpu") -> Tensor:
    """(N, 2, 3): nothing moves."""
    return torch.eye(2, 3, device=device).expand(count, 2, 3)


def then(first: Tensor, second: Tensor) -> Tensor:
    """One move after another, as one."""
    turn = second[:, :, :2] @ first[:, :, :2]
    offset = second[:, :, :2] @ first[:, :, 2:] + second[:, :, 2:]
    return torch.cat([turn, offset], dim=2)


def move_boxes(labels: Tensor, moves: Tensor) -> Tensor:
    """Boxes (N, K, 5) where their images have gone: the smallest upright box around the four
    corners, cut to the image; class -1 where less than a quarter of it is left inside.
    """
    edges, moves = labels[:, :, 1:], moves.to(labels)
    corners = torch.stack([edges[:, :, [x, y]] for x in (0, 2) for y in (1, 3)], dim=2)
    turned = torch.einsum("nij,nkcj->nkci", moves[:, :, :2], corners)
    turned = turned + moves[:, None, None, :, 2]
    low, high = turned.amin(dim=2), turned.amax(dim=2)
    kept_low, kept_high = low.clamp(0, 1), high.clamp(0, 1)
    sides = kept_high - kept_low
    visible = sides.prod(dim=2) / (high - low).prod(dim=2)
    there = (visible >= _LEAST_VISIBLE) & (sides > _LEAST_SIDE).all(dim=2)
    there &= labels[:, :, 0] != UNKNOWN
    found = torch.cat([labels[:, :, :1], kept_low, kept_high], dim=2)
    gone = torch.zeros_like(found)
    gone[:, :, 0] = UNKNOWN
    found = torch.where(there[:, :, None], found, gone)
    return torch.where(labels.isnan().any(dim=2, keepdim=True), labels, found)


def move_maps(labels: Tensor, moves: Tensor) -> Tensor:
    """Maps (N, H, W) where their images have gone, by the nearest pixel; -1 where nothing was."""
    turn = torch.linalg.inv(moves[:, :, :2].double())
    offset = -turn @ moves[:, :, 2:].double()
    # Shares run from 0 to 1, the coordinates of `grid_sample` from -1 to 1.
    shift = turn.sum(dim=2, keepdim=True) + 2 * offset - 1
    back = torch.cat([turn, shift], dim=2).float()
    shape = [len(labels), 1, *labels.shape[1:]]
    grid = functional.affine_grid(back, shape, align_corners=False)
    lifted = (labels[:, None] - UNKNOWN).float()  # zero comes in where nothing is known
    found = functional.grid_sample(lifted, grid, mode="nearest", align_corners=False)
    return found[:, 0].round().to(labels.dtype) + UNKNOWN
