# SPDX-License-Identifier: Apache-2.0
"""Detection: the box of one thing on each image, as YOLOv2 and SkyNet give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitwright.base.errors import RecipeError
from bitwright.data import Dataset, DataSplits
from bitwright.data.detection_boxes import ANCHORS, decode, iou
from bitwright.data.labels import UNKNOWN, BoxLabels
from bitwright.models.output import Output
from bitwright.tasks.base import LossSettings, Shown, Task
from bitwright.tasks.drawing import FOUND, TRUE, with_boxes
from bitwright.tasks.metric import Metric
from bitwright.tasks.region_loss import AVERAGED, SUMMED, RegionLoss

_FIELDS = 5
_ENOUGH = 0.5  # overlap of a box that counts as found (Everingham et al. 2010, PASCAL VOC)
_LARGEST = 1e4  # of raw outputs: what training that diverges gives is the loss's to name


class Detection(Task):
    """For each anchor and cell of the output's grid five numbers: a box and its confidence; the
    most confident box is what was found. Of what class a thing is is not asked.

    Args:
        anchors: width and height of each, in cells of the grid; by default SkyNet's.
        variant: of the loss, ``averaged`` or ``summed``; see `tasks.region_loss.RegionLoss`.
    """

    name = "detection"
    labels = BoxLabels()
    legend = (
        "Green: the true box, orange: the one found; in words left, top, right and bottom edge."
    )

    def __init__(
        self, anchors: Sequence[Sequence[float]] = ANCHORS, variant: str = AVERAGED
    ) -> None:
        try:
            pairs = tuple((float(width), float(height)) for width, height in anchors)
        except (TypeError, ValueError):
            pairs = ()
        if not pairs or not all(0 < side < float("inf") for pair in pairs for side in pair):
            raise RecipeError(
                f"anchors are {anchors!r:.80}",
                where="task.options",
                hint="pairs of width and height in cells of the output: [[1.5, 2.4], [4, 5.8]]",
            )
        if variant not in (AVERAGED, SUMMED):
            raise RecipeError(
                f"unknown variant {variant!r}", where="task.options", hint=f"{AVERAGED}, {SUMMED}"
            )
        self.anchors = pairs
        self._loss = RegionLoss(pairs, variant)
        self.metrics = (Metric("IoU", self.overlap), Metric("IoU above 0.5", self.is_found))

    def output(self, data: DataSplits) -> Output:
        del data
        channels = _FIELDS * len(self.anchors)
        hint = f"five channels for each of {len(self.anchors)} anchors: take num_outputs"
        return Output((channels, None, None), "boxes and confidences", hint)

    def loss(self, outputs: Tensor, labels: Tensor, how: LossSettings) -> Tensor:
        del how
        truth = [boxes[boxes[:, 0] != UNKNOWN, 1:] for boxes in labels]
        found: Tensor = self._loss(outputs, truth)
        return found / len(outputs) if self._loss.variant == SUMMED else found

    def answer(self, outputs: Tensor) -> Tensor:
        boxes = self._decoded(outputs)
        rows = np.concatenate([np.zeros((len(boxes), 1)), boxes], axis=1)[:, None]
        return torch.from_numpy(rows.astype(np.float32)).to(outputs.device)

    def overlap(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(N,): intersection over union of the box that was found and the true box that it covers
        best; NaN where there is none.
        """
        rows = labels.cpu().numpy().astype(np.float64)
        covered = iou(self._decoded(outputs)[:, None], rows[:, :, 1:])
        there = rows[:, :, 0] != UNKNOWN
        best = np.where(there, covered, 0.0).max(axis=1)
        return torch.from_numpy(np.where(there.any(axis=1), best, np.nan))

    def is_found(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(N,): whether that overlap is more than a half."""
        best = self.overlap(outputs, labels)
        return torch.where(best.isnan(), best, (best > _ENOUGH).double())

    def _decoded(self, outputs: Tensor) -> NDArray[np.float64]:
        raw = outputs.detach().double().nan_to_num(0.0, _LARGEST, -_LARGEST).cpu().numpy()
        return decode(raw, self.anchors).boxes

    def say(self, label: NDArray[Any], data: Dataset) -> str:
        height, width = data.image_shape[:2]
        rows = [row for row in label if row[0] != UNKNOWN]
        sides = (width, height, width, height)
        boxes = (
            ", ".join(f"{edge * side:.0f}" for edge, side in zip(row[1:], sides, strict=True))
            for row in rows
        )
        return "; ".join(f"box {edges}" for edges in boxes) or "no box"

    def show(
        self, image: NDArray[Any], label: NDArray[Any], output: Tensor, data: Dataset
    ) -> Shown:
        shown = super().show(image, label, output, data)
        found = self.answer(output)[0].cpu().numpy()
        drawn = [(row[1:5], TRUE) for row in label if row[0] != UNKNOWN]
        drawn += [(row[1:5], FOUND) for row in found]
        return Shown(shown.label, shown.prediction, with_boxes(shown.picture, drawn))
