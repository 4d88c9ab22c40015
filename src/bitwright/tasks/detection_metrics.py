# SPDX-License-Identifier: Apache-2.0
"""How good boxes are: of one thing an image, and of several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bitwright.data.detection_boxes import Floats, iou, overlap_over_truth
from bitwright.data.detection_many import Found, average_precision, match
from bitwright.data.labels import UNKNOWN
from bitwright.tasks.metric import Metric

_ENOUGH = 0.5  # overlap of a box that counts as found (Everingham et al. 2010, PASCAL VOC)
#: Levels that scores are rounded down to, so that precision is a function of sums over images.
_LEVELS = 200
_Overlap = Callable[[Floats, Floats], Floats]
_Pairs = list[tuple[Found, Floats]]


@dataclass(frozen=True)
class Finder:
    """What metrics of boxes are made of.

    Attributes:
        found: outputs (N, ...) -> the boxes of each image, the best first.
        classes: how many are told apart; 0: none, then every box is of the class 0.
        enough: score from which on a box counts as found, of several.
    """

    found: Callable[[Tensor], tuple[Found, ...]]
    classes: int = 0
    enough: float = 0.0

    def pairs(self, outputs: Tensor, labels: Tensor) -> _Pairs:
        """Of each image what was found, and its true boxes (K, 5)."""
        rows = labels.cpu().numpy().astype(np.float64)
        truth = [image[image[:, 0] != UNKNOWN] for image in rows]
        if not self.classes:
            truth = [np.concatenate([0 * each[:, :1], each[:, 1:]], axis=1) for each in truth]
        return list(zip(self.found(outputs), truth, strict=True))


def of_one(finder: Finder) -> tuple[Metric, ...]:
    """Of the box that was found, and the true box of its class that it covers best; NaN where there
    is no true box: ``IoU``; whether that is more than a half; and ``covered``, the share of the
    true box that lies inside of the one found, which one source calls IoU.
    """
    return (
        Metric("IoU", partial(_best, finder, iou)),
        Metric("IoU above 0.5", partial(_is_found, finder)),
        Metric("covered", partial(_best, finder, overlap_over_truth)),
    )


def _best(finder: Finder, overlap: _Overlap, outputs: Tensor, labels: Tensor) -> Tensor:
    values = []
    for found, truth in finder.pairs(outputs, labels):
        same = truth[truth[:, 0] == found.classes[0], 1:]
        shared = float(overlap(found.boxes[:1], same).max(initial=0))
        values.append(shared if len(truth) else np.nan)
    return torch.from_numpy(np.array(values))


def _is_found(finder: Finder, outputs: Tensor, labels: Tensor) -> Tensor:
    shared = _best(finder, iou, outputs, labels)
    return torch.where(shared.isnan(), shared, (shared > _ENOUGH).double())


def of_several(finder: Finder) -> tuple[Metric, ...]:
    """``AP50``: mean over the classes of average precision at an overlap of a half, scores rounded
    to 1/200; ``IoU``: of each true box the overlap of the box that found it, 0 of one that was
    missed; ``false boxes``: found ones that are no true box, an image.
    """
    classes = max(1, finder.classes)
    return (
        Metric(
            "AP50",
            partial(_level_sums, finder, classes),
            of_sums=partial(_mean_precision, classes),
        ),
        Metric("IoU", partial(_overlap, finder)),
        Metric("false boxes", partial(_too_many, finder), unit="", larger_is_better=False),
    )


def _level_sums(finder: Finder, classes: int, outputs: Tensor, labels: Tensor) -> Tensor:
    pairs = finder.pairs(outputs, labels)
    return torch.from_numpy(np.stack([_levels(found, truth, classes) for found, truth in pairs]))


def _mean_precision(classes: int, sums: Floats) -> Floats:
    parts = sums.reshape(*sums.shape[:-1], classes, 2 * _LEVELS + 1)
    truth = parts[..., -1]
    each = average_precision(parts[..., :_LEVELS], parts[..., _LEVELS:-1], truth)
    there = (truth > 0).sum(axis=-1)
    mean: Floats = each.sum(axis=-1) / np.maximum(there, 1)
    return mean


def _overlap(finder: Finder, outputs: Tensor, labels: Tensor) -> Tensor:
    values = []
    for found, truth in finder.pairs(outputs, labels):
        _, shared = match(found.above(finder.enough), truth)
        values.append(shared.sum() / len(truth) if len(truth) else np.nan)
    return torch.from_numpy(np.array(values))


def _too_many(finder: Finder, outputs: Tensor, labels: Tensor) -> Tensor:
    values = []
    for found, truth in finder.pairs(outputs, labels):
        numbers, _ = match(found.above(finder.enough), truth, least=_ENOUGH)
        values.append(float((numbers < 0).sum()))
    return torch.from_numpy(np.array(values))


def _levels(found: Found, truth: Floats, classes: int) -> Floats:
    """(classes * (2 levels + 1),): of each class how many boxes of each level of score, the highest
    first, are a true one; how many are none; how many true ones there are.
    """
    sums = np.zeros((classes, 2 * _LEVELS + 1))
    numbers, _ = match(found, truth, least=_ENOUGH)
    level = _LEVELS - 1 - np.minimum((found.scores * _LEVELS).astype(np.int64), _LEVELS - 1)
    np.add.at(sums, (found.classes, np.where(numbers >= 0, level, _LEVELS + level)), 1)
    np.add.at(sums, (truth[:, 0].astype(np.int64), np.full(len(truth), 2 * _LEVELS)), 1)
    return sums.reshape(-1)
