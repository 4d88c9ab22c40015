# SPDX-License-Identifier: Apache-2.0
"""SkyNet's region loss, in both of its published variants, with YOLOv2's classes, and with a term
for the overlap itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bitwright.base.errors import DataError, ModelError
from bitwright.data.detection_boxes import ANCHORS, BOX_OUTPUTS
from bitwright.data.labels import BOX_FIELDS, UNKNOWN

SUMMED, AVERAGED, OVERLAP, RANKED = "summed", "averaged", "overlap", "ranked"
COUNTED = "counted"
VARIANTS = (SUMMED, AVERAGED, OVERLAP, RANKED, COUNTED)


@dataclass(frozen=True)
class RegionLoss:
    """The loss of a detector's raw output against true boxes.

    For a true box the assigned cell is that of its centre, with the anchor whose size overlaps the
    box's best. There x and y (after the sigmoid) regress on the centre's place in the cell, w and h
    on the logarithm of the size by the anchor's. The confidence regresses on a target in assigned
    cells and on zero elsewhere, except where a box already overlaps some true box by more than
    ``ignore``. Scores of classes have the cross entropy with the true box's class, in assigned
    cells alone (Redmon and Farhadi 2017).

    * ``summed`` (as published with SkyNet): the confidence's target is the overlap of the box
      predicted there with the true box; every term is half the sum of squared errors, that of
      confidences weighted by ``object_scale`` in assigned cells; cross entropies are added up.
    * ``averaged``: the target is 1; coordinates are weighted by 2 - the true box's share of the
      image and averaged over assigned cells; confidences are averaged over assigned cells
      (weighted by ``object_scale``) and over the others, apart; so are cross entropies.
    * ``overlap``: as ``averaged``, and the mean over assigned cells of one minus the complete
      intersection over union (`complete_iou`), so that what is measured is trained, too.
    * ``ranked``: as ``overlap``, but confidences say how good boxes are: the target is a box's own
      overlap with the true box that it covers best, in assigned cells and wherever that is more
      than ``fair``, and zero elsewhere; both kinds are averaged apart.
    * ``counted``: as ``overlap``, but each cell counts as often as there is one, so that a
      confidence is the probability that the cell has a true box, which it must be where a
      threshold says how many things there are: the binary cross entropies of all cells are added
      up and divided by the number of assigned ones (Ge et al. 2021, YOLOX).

    With a ``reach`` of more than one cell, other cells whose middle lies within half of it from the
    centre of a true box, along either axis, and inside of the box are assigned, too, with the same
    anchor; of several true boxes the one with the nearest centre counts there.

    If two true boxes fall on the same cell and anchor the later one counts, as published.

    Attributes:
        anchors: (width, height) in cells of the output.
        classes: how many scores of classes each anchor has.
        fair: overlap of a box from which on its confidence is to say it, of ``ranked``.
        reach: side of the square around a cell's middle in which centres of its boxes may lie, in
            cells.
    """

    anchors: tuple[tuple[float, float], ...] = ANCHORS
    variant: str = SUMMED
    ignore: float = 0.6
    object_scale: float = 5.0
    empty_scale: float = 1.0
    coordinate_scale: float = 1.0
    class_scale: float = 1.0
    classes: int = 0
    fair: float = 0.3
    reach: float = 1.0

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ModelError(
                f"unknown variant {self.variant!r}",
                where="region loss",
                hint=f"known: {', '.join(VARIANTS)}",
            )

    def __call__(self, output: Tensor, truth: Sequence[Tensor] | Tensor) -> Tensor:
        """The loss, a scalar.

        Args:
            output: (N, (5 + classes) * anchors, H, W), raw.
            truth: labels (N, K, 5) as `data.labels.BoxLabels` has them; or for each image (K, 4):
                xmin, ymin, xmax, ymax as shares of width and height.

        Raises:
            DataError: shapes do not fit, a class is unknown, or a box is empty or has its centre
                outside the image.
        """
        fields = self._fields(output, len(truth))
        labels = truth if isinstance(truth, Tensor) else _packed(truth)
        anchors = output.new_tensor(self.anchors)
        there = labels[:, :, 0] != UNKNOWN
        grid = _grid_boxes(labels.to(output)[:, :, 1:], there, output.shape[2:])
        boxes = _decode(fields, anchors, self.reach)
        covered = _covered(boxes, grid, there)
        ignored = covered > self.ignore
        # Cells of true boxes: image, anchor, row, column, and which box.
        owners, chosen = _owners(grid, there, anchors, output.shape[2:])
        if self.reach > 1:
            half = self.reach / 2
            owners, chosen = _with_neighbours(owners, chosen, grid, half, covered.shape)
        image, anchor, row, column = owners
        true = grid[image, chosen]
        assigned = torch.zeros_like(ignored)
        assigned[owners] = True
        own = fields[image, anchor, :, row, column]
        conf = fields[:, :, 4].sigmoid()
        wanted = torch.cat(
            [true[:, :2] - torch.stack([column, row], 1), (true[:, 2:] / anchors[anchor]).log()], 1
        )
        place = _places(own[:, :2], self.reach)
        found = torch.cat([place, own[:, 2:4]], dim=1)
        coordinates = (found - wanted).square().sum(dim=1)
        empties = conf[~assigned & ~ignored].square()
        classed = self._cross_entropy(own, labels[image, chosen, 0])
        if self.variant == SUMMED:
            target = _iou(boxes[owners], true)
            errors = self.coordinate_scale * coordinates.sum()
            errors = errors + self.object_scale * (conf[owners] - target).square().sum()
            errors = errors + self.empty_scale * empties.sum()
            return errors / 2 + self.class_scale * classed.sum()
        weight = 2 - true[:, 2:].prod(dim=1) / (output.shape[2] * output.shape[3])
        boxes_off = _mean(coordinates * weight)
        if self.variant in (OVERLAP, RANKED, COUNTED):
            cell = torch.stack([column, row], dim=1)
            size = own[:, 2:4].clamp(-_SMALLEST, _LARGEST).exp() * anchors[anchor]
            placed = torch.cat([place + cell, size], dim=1)
            boxes_off = boxes_off + _mean(1 - complete_iou(placed, true))
        rest = self.coordinate_scale * boxes_off + self.class_scale * _mean(classed)
        if self.variant == COUNTED:
            asked = assigned | ~ignored
            raw, there = fields[:, :, 4][asked], assigned[asked].to(fields)
            off = functional.binary_cross_entropy_with_logits(raw, there, reduction="sum")
            return rest + off / max(1, len(image))
        objects = (conf[owners] - 1).square()
        if self.variant == RANKED:
            good = assigned | (covered > self.fair)
            objects, empties = (conf - covered)[good].square(), conf[~good].square()
        return rest + self.object_scale * _mean(objects) + self.empty_scale * _mean(empties)

    def _fields(self, output: Tensor, images: int) -> Tensor:
        each = BOX_OUTPUTS + self.classes
        count = each * len(self.anchors)
        if output.dim() != 4 or output.shape[1] != count:
            raise DataError(
                f"the output is {tuple(output.shape)}, expected (N, {count}, H, W)",
                where="region loss",
            )
        if images != len(output):
            raise DataError(
                f"{len(output)} images, but true boxes of {images}", where="region loss"
            )
        return output.view(len(output), len(self.anchors), each, *output.shape[2:])

    def _cross_entropy(self, own: Tensor, classes: Tensor) -> Tensor:
        """(M,) of the scores of M assigned cells; nothing without scores."""
        if not self.classes:
            return own.new_zeros(len(own))
        numbers = classes.long()
        if len(numbers) and int(numbers.max()) >= self.classes:
            raise DataError(
                f"a true box has the class {int(numbers.max())}, of {self.classes}",
                where="region loss",
            )
        return functional.cross_entropy(own[:, BOX_OUTPUTS:], numbers, reduction="none")


def _packed(truth: Sequence[Tensor]) -> Tensor:
    """Boxes (K, 4) of each image as labels (N, K, 5) of one class."""
    for number, corners in enumerate(truth):
        if corners.dim() != 2 or corners.shape[1] != 4:
            raise DataError(
                f"true boxes are (K, 4), found {tuple(corners.shape)}", where=f"image {number}"
            )
    most = max((len(corners) for corners in truth), default=0)
    labels = truth[0].new_zeros((len(truth), max(1, most), BOX_FIELDS))
    labels[:, :, 0] = UNKNOWN
    for row, corners in zip(labels, truth, strict=True):
        row[: len(corners), 0] = 0
        row[: len(corners), 1:] = corners
    return labels


def _decode(fields: Tensor, anchors: Tensor, reach: float) -> Tensor:
    """(N, A, H, W, 4): centre, width and height in cells, without a gradient."""
    raw = fields.detach()
    columns = torch.arange(raw.shape[4], dtype=raw.dtype, device=raw.device)
    rows = torch.arange(raw.shape[3], dtype=raw.dtype, device=raw.device)[:, None]
    sizes = anchors[None, :, :, None, None]
    return torch.stack(
        [
            _places(raw[:, :, 0], reach) + columns,
            _places(raw[:, :, 1], reach) + rows,
            raw[:, :, 2].clamp(-_SMALLEST, _LARGEST).exp() * sizes[:, :, 0],
            raw[:, :, 3].clamp(-_SMALLEST, _LARGEST).exp() * sizes[:, :, 1],
        ],
        dim=-1,
    )


def _places(raw: Tensor, reach: float) -> Tensor:
    """Where the centre lies, in cells from the cell's corner."""
    place = raw.sigmoid()
    return place if reach == 1 else (place - 0.5) * reach + 0.5


def _grid_boxes(corners: Tensor, there: Tensor, size: torch.Size) -> Tensor:
    """(N, K, 4) shares of the image -> centre, width and height in cells."""
    height, width = size
    low, high = corners[:, :, :2], corners[:, :, 2:]
    centre = (low + high) / 2
    fits = ((high > low) & (centre >= 0) & (centre < 1)).all(dim=2)
    wrong = (there & ~fits).any(dim=1)
    if bool(wrong.any()):
        raise DataError(
            "a true box is empty or has its centre outside the image",
            where=f"image {int(wrong.nonzero()[0])}",
            hint="boxes are xmin, ymin, xmax, ymax as shares of width and height",
        )
    scale = corners.new_tensor([width, height])
    return torch.cat([centre * scale, (high - low) * scale], dim=2)


_Cells = tuple[Tensor, Tensor, Tensor, Tensor]


def _owners(
    grid: Tensor, there: Tensor, anchors: Tensor, size: torch.Size
) -> tuple[_Cells, Tensor]:
    """Image, anchor, row and column of each cell that a true box is assigned to, each (M,), and
    the number of the box in its image: of several the last.
    """
    sizes = grid[:, :, None, 2:]
    shared = torch.minimum(sizes, anchors).prod(dim=-1)
    union = sizes.prod(dim=-1) + anchors.prod(dim=-1) - shared
    best = (shared / union).argmax(dim=2)
    images, numbers = there.nonzero(as_tuple=True)
    column, row = grid[images, numbers, :2].floor().long().unbind(1)
    anchor = best[images, numbers]
    count, (height, width) = len(anchors), size
    place = ((images * count + anchor) * height + row) * width + column
    last = torch.full((len(grid) * count * height * width,), -1, device=grid.device)
    order = torch.arange(len(place), device=grid.device)
    last = last.scatter_reduce(0, place, order, "amax")
    kept = last[place] == order
    return (images[kept], anchor[kept], row[kept], column[kept]), numbers[kept]


def _with_neighbours(
    owners: _Cells, chosen: Tensor, grid: Tensor, half: float, shape: torch.Size
) -> tuple[_Cells, Tensor]:
    """What `_owners` gives, with the cells around, inside of their boxes, whose middle is not more
    than ``half`` from the centre along either axis; ``shape`` is (N, A, H, W).
    """
    image, anchor, row, column = owners
    box = grid[image, chosen]
    count, (height, width) = shape.numel(), shape[2:]
    across = (torch.arange(width).to(box) + 0.5 - box[:, :1]).abs()[:, None]
    down = (torch.arange(height).to(box) + 0.5 - box[:, 1:2]).abs()[:, :, None]
    near = torch.maximum(down, across)
    inside = (across < box[:, 2, None, None] / 2) & (down < box[:, 3, None, None] / 2)
    near = near.masked_fill(~inside | (near > half), torch.inf)
    near[torch.arange(len(box)), row, column] = -1.0  # what is assigned stays
    number, down_to, across_to = (near < torch.inf).nonzero(as_tuple=True)
    order = near[number, down_to, across_to].argsort(stable=True)
    number, down_to, across_to = number[order], down_to[order], across_to[order]
    place = ((image[number] * shape[1] + anchor[number]) * height + down_to) * width + across_to
    rank = torch.arange(len(place), device=grid.device)
    first = torch.full((count,), len(place), device=grid.device)
    kept = first.scatter_reduce(0, place, rank, "amin")[place] == rank
    number = number[kept]
    cells = (image[number], anchor[number], down_to[kept], across_to[kept])
    return cells, chosen[number]


def _covered(boxes: Tensor, grid: Tensor, there: Tensor) -> Tensor:
    """The largest overlap of the box of each cell (N, A, H, W, 4) with a true one (N, K, 4), as
    ``there`` (N, K) says: (N, A, H, W). Some true boxes at a time: an image may have any number.
    """
    flat = boxes.flatten(1, 3)
    best, which = flat.new_zeros(flat.shape[:2]), there.new_zeros(flat.shape[:2], dtype=torch.long)
    step = max(1, _PAIRS // max(1, best.numel()))
    with torch.no_grad():
        for start in range(0, grid.shape[1], step):
            part = slice(start, start + step)
            overlap = _iou(flat[:, :, None], grid[:, None, part])
            most, at = torch.where(there[:, None, part], overlap, 0.0).max(dim=2)
            which = torch.where(most > best, at + start, which)
            best = torch.maximum(best, most)
    if not grid.shape[1]:
        return best.view(boxes.shape[:4])
    found = _iou(flat, grid.gather(1, which[:, :, None].expand(-1, -1, 4)))
    return torch.where(best <= 0, 0.0, found).view(boxes.shape[:4])


def _iou(first: Tensor, second: Tensor) -> Tensor:
    """Overlap of boxes given by centre, width and height."""
    low = torch.maximum(first[..., :2] - first[..., 2:] / 2, second[..., :2] - second[..., 2:] / 2)
    high = torch.minimum(first[..., :2] + first[..., 2:] / 2, second[..., :2] + second[..., 2:] / 2)
    shared = (high - low).clamp(min=0).prod(dim=-1)
    return shared / (first[..., 2:].prod(dim=-1) + second[..., 2:].prod(dim=-1) - shared)


#: Of cells and true boxes, of which overlaps are had at a time.
_PAIRS = 1 << 22
#: Of the logarithm of a size by its anchor's, where the overlap is asked for.
_LARGEST = 6.0
_SMALLEST = 20.0
_TINY = 1e-9


def complete_iou(first: Tensor, second: Tensor) -> Tensor:
    """CIoU of boxes (..., 4) given by centre, width and height (Zheng et al. 2020, eq. 10): the
    intersection over union, less the distance of the centres by the diagonal of the box around
    both, squared, less what the proportions differ by. At most 1, of equal boxes; boxes apart have
    a gradient, too.
    """
    overlap = _iou(first, second)
    low = torch.minimum(first[..., :2] - first[..., 2:] / 2, second[..., :2] - second[..., 2:] / 2)
    high = torch.maximum(first[..., :2] + first[..., 2:] / 2, second[..., :2] + second[..., 2:] / 2)
    diagonal = (high - low).square().sum(dim=-1)
    apart = (first[..., :2] - second[..., :2]).square().sum(dim=-1) / diagonal.clamp(min=_TINY)
    slopes = (torch.atan2(each[..., 2], each[..., 3]) for each in (first, second))
    turn = 4 / math.pi**2 * (next(slopes) - next(slopes)).square()
    with torch.no_grad():
        share = turn / (1 - overlap + turn).clamp(min=_TINY)
    return overlap - apart - share * turn


def _mean(values: Tensor) -> Tensor:
    """The mean, zero of no value."""
    return values.sum() / max(1, len(values))
