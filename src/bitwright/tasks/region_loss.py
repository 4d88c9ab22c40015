# SPDX-License-Identifier: Apache-2.0
"""SkyNet's region loss (YOLOv2's without classes), in both of its published variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bitwright.base.errors import DataError, ModelError
from bitwright.data.detection_boxes import ANCHORS

SUMMED, AVERAGED = "summed", "averaged"
_FIELDS = 5


@dataclass(frozen=True)
class RegionLoss:
    """The loss of a detector's raw output against true boxes.

    For a true box the assigned cell is that of its centre, with the anchor whose size overlaps the
    box's best. There x and y (after the sigmoid) regress on the centre's place in the cell, w and h
    on the logarithm of the size by the anchor's. The confidence regresses on a target in assigned
    cells and on zero elsewhere, except where a box already overlaps some true box by more than
    ``ignore``.

    * ``summed`` (as published with SkyNet): the confidence's target is the overlap of the box
      predicted there with the true box; every term is half the sum of squared errors, that of
      confidences weighted by ``object_scale`` in assigned cells.
    * ``averaged``: the target is 1; coordinates are weighted by 2 - the true box's share of the
      image and averaged over assigned cells; confidences are averaged over assigned cells
      (weighted by ``object_scale``) and over the others, apart.

    If two true boxes fall on the same cell and anchor the later one counts, as published.
    """

    anchors: tuple[tuple[float, float], ...] = ANCHORS
    variant: str = SUMMED
    ignore: float = 0.6
    object_scale: float = 5.0
    empty_scale: float = 1.0
    coordinate_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.variant not in (SUMMED, AVERAGED):
            raise ModelError(
                f"unknown variant {self.variant!r}",
                where="region loss",
                hint=f"known: {SUMMED}, {AVERAGED}",
            )

    def __call__(self, output: Tensor, truth: Sequence[Tensor]) -> Tensor:
        """The loss, a scalar.

        Args:
            output: (N, 5 * anchors, H, W), raw.
            truth: for each image (K, 4), xmin, ymin, xmax, ymax as shares of width and height.

        Raises:
            DataError: shapes do not fit, or a box is empty or has its centre outside the image.
        """
        fields = self._fields(output, truth)
        anchors = output.new_tensor(self.anchors)
        boxes = _decode(fields, anchors)
        x, y, conf = (fields[:, :, i].sigmoid() for i in (0, 1, 4))
        found = torch.stack([x, y, fields[:, :, 2], fields[:, :, 3]], dim=2)
        wanted = torch.zeros_like(found)
        target, weight = torch.zeros_like(conf), torch.zeros_like(conf)
        assigned = torch.zeros_like(conf, dtype=torch.bool)
        ignored = torch.zeros_like(assigned)
        with torch.no_grad():
            for image, corners in enumerate(truth):
                if not len(corners):
                    continue
                grid = _grid_boxes(corners.to(output), output.shape[2:], f"image {image}")
                overlap = _iou(boxes[image].reshape(-1, 1, 4), grid[None])
                ignored[image] = overlap.amax(dim=1).view(ignored[image].shape) > self.ignore
                for place, cell in enumerate(_cells(grid, anchors)):
                    at = (image, *cell)
                    cx, cy, w, h = grid[place]
                    aw, ah = anchors[cell[0]]
                    values = torch.stack(
                        [cx - cell[2], cy - cell[1], (w / aw).log(), (h / ah).log()]
                    )
                    wanted[image, cell[0], :, cell[1], cell[2]] = values
                    assigned[at] = True
                    summed = self.variant == SUMMED
                    target[at] = _iou(boxes[at], grid[place]) if summed else 1.0
                    weight[at] = 2 - w * h / (output.shape[2] * output.shape[3])
        empty = ~assigned & ~ignored
        coordinates = (found - wanted).square().sum(dim=2)
        confidences = (conf - target).square()
        if self.variant == SUMMED:
            scale = self.object_scale * assigned + self.empty_scale * empty
            boxed = self.coordinate_scale * (coordinates * assigned).sum()
            return (boxed + (confidences * scale).sum()) / 2
        return (
            self.coordinate_scale * _mean(coordinates * weight, assigned)
            + self.object_scale * _mean(confidences, assigned)
            + self.empty_scale * _mean(confidences, empty)
        )

    def _fields(self, output: Tensor, truth: Sequence[Tensor]) -> Tensor:
        count = _FIELDS * len(self.anchors)
        if output.dim() != 4 or output.shape[1] != count:
            raise DataError(
                f"the output is {tuple(output.shape)}, expected (N, {count}, H, W)",
                where="region loss",
            )
        if len(truth) != len(output):
            raise DataError(
                f"{len(output)} images, but true boxes of {len(truth)}", where="region loss"
            )
        return output.view(len(output), len(self.anchors), _FIELDS, *output.shape[2:])


def _decode(fields: Tensor, anchors: Tensor) -> Tensor:
    """(N, A, H, W, 4): centre, width and height in cells, without a gradient."""
    raw = fields.detach()
    columns = torch.arange(raw.shape[4], dtype=raw.dtype, device=raw.device)
    rows = torch.arange(raw.shape[3], dtype=raw.dtype, device=raw.device)[:, None]
    sizes = anchors[None, :, :, None, None]
    return torch.stack(
        [
            raw[:, :, 0].sigmoid() + columns,
            raw[:, :, 1].sigmoid() + rows,
            raw[:, :, 2].exp() * sizes[:, :, 0],
            raw[:, :, 3].exp() * sizes[:, :, 1],
        ],
        dim=-1,
    )


def _grid_boxes(corners: Tensor, size: torch.Size, where: str) -> Tensor:
    """Shares of the image -> centre, width and height in cells."""
    if corners.dim() != 2 or corners.shape[1] != 4:
        raise DataError(f"true boxes are (K, 4), found {tuple(corners.shape)}", where=where)
    height, width = size
    low, high = corners[:, :2], corners[:, 2:]
    centre = (low + high) / 2
    if not bool(((high > low) & (centre >= 0) & (centre < 1)).all()):
        raise DataError(
            "a true box is empty or has its centre outside the image",
            where=where,
            hint="boxes are xmin, ymin, xmax, ymax as shares of width and height",
        )
    scale = corners.new_tensor([width, height])
    return torch.cat([centre * scale, (high - low) * scale], dim=1)


def _cells(grid: Tensor, anchors: Tensor) -> list[tuple[int, int, int]]:
    """Anchor, row and column of each true box."""
    sizes = grid[:, None, 2:]
    shared = torch.minimum(sizes, anchors).prod(dim=-1)
    union = sizes.prod(dim=-1) + anchors.prod(dim=-1) - shared
    best = (shared / union).argmax(dim=1)
    places = grid[:, :2].floor().long()
    return [(int(a), int(p[1]), int(p[0])) for a, p in zip(best, places, strict=True)]


def _iou(first: Tensor, second: Tensor) -> Tensor:
    """Overlap of boxes given by centre, width and height."""
    low = torch.maximum(first[..., :2] - first[..., 2:] / 2, second[..., :2] - second[..., 2:] / 2)
    high = torch.minimum(first[..., :2] + first[..., 2:] / 2, second[..., :2] + second[..., 2:] / 2)
    shared = (high - low).clamp(min=0).prod(dim=-1)
    return shared / (first[..., 2:].prod(dim=-1) + second[..., 2:].prod(dim=-1) - shared)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum().clamp(min=1)
