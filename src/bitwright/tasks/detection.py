# SPDX-License-Identifier: Apache-2.0
"""Detection: boxes of one thing, or of several, on each image, as YOLOv2 and SkyNet give them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from bitwright.base.errors import RecipeError
from bitwright.data import Dataset, DataSplits
from bitwright.data.detection_boxes import (
    ANCHORS,
    BOX_OUTPUTS,
    Floats,
    decode_all,
)
from bitwright.data.detection_many import Found, choose_anchors, most_confident, suppress
from bitwright.data.labels import UNKNOWN, BoxLabels
from bitwright.models.output import Output
from bitwright.tasks.base import LossSettings, Shown, SoftSettings, Task
from bitwright.tasks.detection_metrics import Finder, of_one, of_several
from bitwright.tasks.drawing import FOUND, TRUE, with_boxes
from bitwright.tasks.metric import Metric
from bitwright.tasks.moves import move_boxes
from bitwright.tasks.region_loss import AVERAGED, COUNTED, SUMMED, VARIANTS, RegionLoss

ONE, SEVERAL = "one", "several"
_LARGEST = 1e4  # of raw outputs: what training that diverges gives is the loss's to name
_MOST_ANCHORS = 64
_SAID, _DRAWN = 100, 1000  # boxes of an image that a page tells, and that it shows
_LARGEST_REACH = 16
_LEAST_SCORE = 0.01  # of boxes that average precision looks at
#: How much cells count in which the teacher sees nothing, beside those where it is sure.
_DOUBT = 0.02


class Detection(Task):
    """For each anchor and cell of the output's grid five numbers, a box and its confidence, and if
    asked for a score a class.

    Args:
        anchors: width and height of each, in cells of the grid; by default SkyNet's. A number: so
            many are chosen from the training boxes (`data.detection_many.choose_anchors`).
        variant: of the loss, ``averaged``, ``summed``, ``overlap``, ``ranked`` or ``counted``; see
            `tasks.region_loss.RegionLoss`. None: ``averaged`` of one thing, ``counted`` of several.
        objects: ``one``: the most confident box of an image is what was found, as SkyNet does;
            ``several``: all boxes above ``confidence`` that no better one hides.
        classes: whether the network says of which class each box is.
        confidence: least score of a box that counts as found, of several.
        overlap: of two boxes of a class that overlap more (intersection over union) the better
            one is kept, of several.
        reach: side of the square around a cell's middle, in cells, in which the centres of its
            boxes may lie; above 1 the cells around a true box's centre learn the box, too. None: 2
            with the loss that several things have by default, else 1.
        merge: a box that is found is the mean, by score, of all boxes of its class that overlap it
            by at least so much; None: as one cell gives it.
    """

    name = "detection"
    labels = BoxLabels()

    def __init__(
        self,
        anchors: int | Sequence[Sequence[float]] = ANCHORS,
        variant: str | None = None,
        objects: str = ONE,
        classes: bool = False,
        confidence: float = 0.3,
        overlap: float = 0.45,
        reach: float | None = None,
        merge: float | None = None,
    ) -> None:
        self._count, self._cells = _checked_anchors(anchors)
        if reach is None:  # an older loss that is named keeps what it has always meant
            reach = 2.0 if objects == SEVERAL and variant in (None, COUNTED) else 1.0
        if variant is None:
            variant = COUNTED if objects == SEVERAL else AVERAGED
        for value, known, what in (
            (variant, VARIANTS, "variant"),
            (objects, (ONE, SEVERAL), "objects"),
            (classes, (True, False), "classes"),
        ):
            if value not in known:
                hint = ", ".join(map(str, known)).lower()
                raise RecipeError(f"unknown {what} {value!r}", where="task.options", hint=hint)
        shares = [(confidence, "confidence"), (overlap, "overlap")]
        for share, what in shares if merge is None else [*shares, (merge, "merge")]:
            if not (isinstance(share, int | float) and 0 < share < 1):
                raise RecipeError(
                    f"{what} is {share!r}", where="task.options", hint="between 0 and 1"
                )
        if not (isinstance(reach, int | float) and 1 <= reach <= _LARGEST_REACH):
            raise RecipeError(
                f"reach is {reach!r}",
                where="task.options",
                hint=f"in cells of the output, from 1 to {_LARGEST_REACH}",
            )
        self._variant, self._several = variant, objects == SEVERAL
        self._confidence, self._overlap = confidence, overlap
        self._reach, self._merge = float(reach), merge
        self._with_classes, self._classes = classes, 0
        self._shares: Floats | None = None
        self.metrics = self._metrics()
        said = "the ones" if self._several else "the one"
        self.legend = (
            f"Green: the true boxes, orange: {said} found; in words left, top, right and bottom "
            "edge."
        )

    def _metrics(self) -> tuple[Metric, ...]:
        """Of what is known so far."""
        finder = Finder(self.found, self._classes, self._confidence)
        return of_several(finder) if self._several else of_one(finder)

    def fitted(self, data: DataSplits) -> Self:
        """The task with what it takes from the training data: number of classes, and anchors that
        suit the boxes.

        Raises:
            DataError: there are too few boxes for so many anchors.
        """
        made = copy.copy(self)
        if self._with_classes:
            made._classes = data.num_classes
        if self._cells is None:
            made._shares = choose_anchors(_sizes_in(data.train), self._count)
        own = self.metrics[: len(self.metrics) - len(self._metrics())]  # the user's stand in front
        made.metrics = (*own, *made._metrics())
        return made

    def facts(self) -> dict[str, str]:
        if self._cells is not None:
            pairs, unit = np.asarray(self._cells), "cells of the output"
        elif self._shares is not None:
            pairs, unit = self._shares, "shares of the image, from the training boxes"
        else:
            return {}
        words = ", ".join(f"{width:.4g} x {height:.4g}" for width, height in pairs)
        found = {"anchors": f"{words} (width x height, {unit})"}
        if self._reach != 1:
            found["reach"] = f"{self._reach:g} cells (of a box's centre around its cell's middle)"
        if self._merge is not None:
            found["merge"] = f"boxes that overlap the one found by {self._merge:g}, by score"
        return found

    @property
    def reach(self) -> float:
        """In cells; see the class."""
        return self._reach

    def anchors_of(self, grid: Sequence[int]) -> tuple[tuple[float, float], ...]:
        """(width, height) of the anchors in cells of a grid (H, W).

        Raises:
            RecipeError: they are to be chosen from data that the task has not seen.
        """
        if self._cells is not None:
            return self._cells
        self._check_fitted()
        assert self._shares is not None
        height, width = grid
        return tuple((float(w) * width, float(h) * height) for w, h in self._shares)

    def _check_fitted(self) -> None:
        if (self._cells is None and self._shares is None) or (
            self._with_classes and not self._classes
        ):
            raise RecipeError(
                "anchors and classes are to be taken from the training data, which the task has "
                "not seen",
                where="task",
                hint="task = task.fitted(splits)",
            )

    def output(self, data: DataSplits) -> Output:
        each = BOX_OUTPUTS + (data.num_classes if self._with_classes else 0)
        what = "boxes and confidences" + (" and classes" if self._with_classes else "")
        number = "five" if each == BOX_OUTPUTS else str(each)
        hint = f"{number} channels for each of {self._count} anchors: take num_outputs"
        return Output((each * self._count, None, None), what, hint)

    def loss(self, outputs: Tensor, labels: Tensor, how: LossSettings) -> Tensor:
        del how
        self._check_fitted()
        anchors = self.anchors_of(outputs.shape[2:])
        region = RegionLoss(anchors, self._variant, classes=self._classes, reach=self._reach)
        found = region(outputs, labels)
        return found / len(outputs) if self._variant == SUMMED else found

    def soft_loss(self, outputs: Tensor, teacher: Tensor, how: SoftSettings) -> Tensor:
        """The teacher's maps as soft targets: squared differences of places, sizes (as logarithms)
        and confidences, and the divergence of classes, of every anchor and cell, weighted by how
        confident the teacher is there: a box where it sees nothing may look like anything.
        Confidences count alike in all cells where neither is sure, once more where one is.
        """
        own, taught = (
            each.view(len(each), self._count, -1, *each.shape[2:]) for each in (outputs, teacher)
        )
        sure = taught[:, :, 4].sigmoid()
        trust = sure + _DOUBT
        trust = trust / trust.sum()
        places = (own[:, :, :2].sigmoid() - taught[:, :, :2].sigmoid()).square().sum(dim=2)
        places = places * self._reach**2  # in cells
        sizes = (own[:, :, 2:4] - taught[:, :, 2:4]).square().sum(dim=2)
        confidence = (own[:, :, 4].sigmoid() - sure).square()
        loss = ((places + sizes) * trust).sum()
        loss = loss + 5 * (confidence * trust).sum() + confidence.mean()
        if own.shape[2] > BOX_OUTPUTS:
            scores, wanted = (
                functional.log_softmax(each[:, :, BOX_OUTPUTS:] / how.temperature, dim=2)
                for each in (own, taught)
            )
            apart = functional.kl_div(scores, wanted, reduction="none", log_target=True)
            loss = loss + how.temperature**2 * (apart.sum(dim=2) * trust).sum()
        return loss

    def moved(self, labels: Tensor, moves: Tensor) -> Tensor:
        return move_boxes(labels, moves)

    def answer(self, outputs: Tensor) -> Tensor:
        every = [each.above(self._confidence) if self._several else each
                 for each in self.found(outputs)]  # fmt: skip
        most = max([len(each) for each in every] + [1])
        rows = np.zeros((len(every), most, 5), dtype=np.float32)
        rows[:, :, 0] = UNKNOWN
        for row, each in zip(rows, every, strict=True):
            row[: len(each), 0], row[: len(each), 1:] = each.classes, each.boxes
        return torch.from_numpy(rows).to(outputs.device)

    def found(self, outputs: Tensor) -> tuple[Found, ...]:
        """The boxes of each image, cut to it: the most confident one, or of several all that may
        count.
        """
        self._check_fitted()
        raw = outputs.detach().double().nan_to_num(0.0, _LARGEST, -_LARGEST).cpu().numpy()
        anchors = self.anchors_of(raw.shape[2:])
        proposed = decode_all(raw, anchors, self._classes, self._reach)
        found = (
            suppress(proposed, score=_LEAST_SCORE, overlap=self._overlap, merge=self._merge)
            if self._several
            else most_confident(proposed, merge=self._merge)
        )
        return tuple(each.inside() for each in found)

    def say(self, label: NDArray[Any], data: Dataset) -> str:
        height, width = data.image_shape[:2]
        sides = (width, height, width, height)
        boxes = []
        known = [row for row in label if row[0] != UNKNOWN]
        for row in known[:_SAID]:
            edges = ", ".join(
                f"{edge * side:.0f}" for edge, side in zip(row[1:], sides, strict=True)
            )
            kind = f"{data.classes[int(row[0])]} " if self._with_classes else ""
            boxes.append(f"{kind}box {edges}")
        if len(known) > _SAID:
            boxes.append(f"{len(known) - _SAID} more")
        return "; ".join(boxes) or "no box"

    def show(
        self, image: NDArray[Any], label: NDArray[Any], output: Tensor, data: Dataset
    ) -> Shown:
        shown = super().show(image, label, output, data)
        answer = self.answer(output)[0].cpu().numpy()
        drawn = [
            (row[1:5], colour)
            for rows, colour in ((label, TRUE), (answer, FOUND))
            for row in [row for row in rows if row[0] != UNKNOWN][:_DRAWN]
        ]
        return Shown(shown.label, shown.prediction, with_boxes(shown.picture, drawn))


_Pairs = tuple[tuple[float, float], ...]


def _checked_anchors(anchors: int | Sequence[Sequence[float]]) -> tuple[int, _Pairs | None]:
    """How many there are, and which; None if they are to be chosen."""
    if type(anchors) is int and 0 < anchors <= _MOST_ANCHORS:
        return anchors, None
    try:
        assert not isinstance(anchors, int)
        pairs = tuple((float(width), float(height)) for width, height in anchors)
    except (AssertionError, TypeError, ValueError):
        pairs = ()
    if not pairs or not all(0 < side < float("inf") for pair in pairs for side in pair):
        raise RecipeError(
            f"anchors are {anchors!r:.80}",
            where="task.options",
            hint="pairs of width and height in cells of the output: [[1.5, 2.4], [4, 5.8]]; "
            f"or how many to choose from the training boxes, at most {_MOST_ANCHORS}",
        )
    return len(pairs), pairs


def _sizes_in(data: Dataset) -> Floats:
    """(M, 2) widths and heights of all boxes whose images are known."""
    labels = np.asarray(data.labels, dtype=np.float64)
    rows = labels[data.kind.known(data.labels)].reshape(-1, labels.shape[-1])
    rows = rows[rows[:, 0] != UNKNOWN]
    sizes: Floats = rows[:, 3:5] - rows[:, 1:3]
    return sizes
