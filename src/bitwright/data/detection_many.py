# SPDX-License-Identifier: Apache-2.0
"""Several boxes an image: which of the proposed ones are kept, which true ones they find, how
precise they are, and anchors that suit the boxes of a data set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.data.detection import Floats
from bitwright.data.detection_boxes import Candidates, iou

_MOST = 300  # boxes of an image that are looked at, the most confident ones
_PAIRS = 1 << 20  # of found and true boxes that are compared at a time, some 64 bytes each
_ROUNDS = 300


@dataclass(frozen=True, eq=False)
class Found:
    """The boxes of one image, the most confident first.

    Attributes:
        boxes: (M, 4) float64, xmin, ymin, xmax, ymax as shares of width and height.
        scores: (M,) float64 between 0 and 1.
        classes: (M,) int64.
    """

    boxes: Floats
    scores: Floats
    classes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.boxes)

    def inside(self) -> Found:
        """The same, cut to the image."""
        return Found(self.boxes.clip(0, 1), self.scores, self.classes)

    def above(self, score: float) -> Found:
        """Those with a higher score."""
        kept = self.scores > score
        return Found(self.boxes[kept], self.scores[kept], self.classes[kept])


def most_confident(candidates: Candidates, *, merge: float | None = None) -> tuple[Found, ...]:
    """The box with the highest score of each image, in the most likely of its classes; of equal
    scores the first counts.

    Args:
        merge: if given, what is found is the mean of all boxes of the same class that overlap that
            one by at least so much, weighted by their scores (weighted boxes fusion, Solovyev et
            al. 2021): their errors differ, those of their mean are smaller.
    """
    found = []
    for boxes, scores in zip(candidates.boxes, candidates.scores, strict=True):
        classes, best = scores.argmax(axis=1), scores.max(axis=1)
        one = int(best.argmax())
        box = boxes[one]
        if merge is not None:
            same = (iou(boxes, box) >= merge) & (classes == classes[one])
            box = _mean_box(boxes, best, same, box)
        found.append(Found(box[None], best[one : one + 1], classes[one : one + 1]))
    return tuple(found)


def _mean_box(boxes: Floats, scores: Floats, members: NDArray[np.bool_], alone: Floats) -> Floats:
    """Mean of the member boxes by score; ``alone`` if nobody has any."""
    weights = np.where(members, scores, 0.0)
    total = weights.sum()
    mean: Floats = weights @ boxes / total if total > 0 else alone
    return mean


def suppress(
    candidates: Candidates, *, score: float, overlap: float, merge: float | None = None
) -> tuple[Found, ...]:
    """For each image the boxes that are kept: those with a higher score than ``score``, each in the
    most likely of its classes, without those that overlap a more confident one of the same class by
    more than ``overlap`` (greedy non-maximum suppression). Of equal scores the first counts.

    Args:
        merge: if given, a box that is kept becomes a mean as in `most_confident`, of itself and
            of boxes that are not kept; each of these has a part in one mean.
    """
    return tuple(
        _suppressed(boxes, scores, score, overlap, merge)
        for boxes, scores in zip(candidates.boxes, candidates.scores, strict=True)
    )


def _suppressed(
    boxes: Floats, scores: Floats, score: float, overlap: float, merge: float | None
) -> Found:
    classes, best = scores.argmax(axis=1), scores.max(axis=1)
    order = np.argsort(-best, kind="stable")
    order = order[best[order] > score][:_MOST]
    boxes, best, classes = boxes[order], best[order], classes[order]
    shared = iou(boxes[:, None], boxes[None]) if len(boxes) else np.zeros((0, 0))
    alike = classes[:, None] == classes[None]
    hides = (shared > overlap) & alike
    kept = np.ones(len(boxes), dtype=bool)
    for place in range(len(boxes)):
        if kept[place]:
            kept[place + 1 :] &= ~hides[place, place + 1 :]
    chosen = boxes[kept]
    if merge is not None:
        # A box has a part in one mean only: of the most confident kept one, and the kept ones each
        # in their own. Else two that hide nothing of each other would become the same.
        members = ((shared >= merge) & alike)[kept]
        members &= members.cumsum(axis=0) == 1
        members[:, kept] = np.eye(len(members), dtype=bool)
        chosen = np.array(
            [_mean_box(boxes, best, *pair) for pair in zip(members, chosen, strict=True)]
        )
        chosen = chosen.reshape(-1, 4)
    return Found(chosen, best[kept], classes[kept])


def match(found: Found, truth: Floats, *, least: float = 0.0) -> tuple[NDArray[np.int64], Floats]:
    """Which true box each found one is: the most confident takes the true box of its class that it
    overlaps most, if that is more than ``least`` and not taken yet (Everingham et al. 2010).

    Args:
        truth: (K, 5) class, xmin, ymin, xmax, ymax.

    Returns:
        (M,) number of the true box, -1 for none; and (M,) the overlap, 0 for none.
    """
    numbers, shares = np.full(len(found), -1, dtype=np.int64), np.zeros(len(found))
    if not len(truth):
        return numbers, shares
    free = np.ones(len(truth), dtype=bool)
    rows = max(1, _PAIRS // len(truth))
    for start in range(0, len(found), rows):
        some = slice(start, start + rows)
        shared = iou(found.boxes[some, None], truth[None, :, 1:])
        same = found.classes[some, None] == truth[None, :, 0]
        for place in range(len(shared)):
            open_ = np.where(free & same[place], shared[place], -1.0)
            best = int(open_.argmax())
            if open_[best] > least:
                numbers[start + place], shares[start + place] = best, open_[best]
                free[best] = False
    return numbers, shares


def average_precision(right: Floats, wrong: Floats, truth: Floats) -> Floats:
    """Area under the curve of precision over recall, precision made falling (PASCAL VOC 2010 on).

    Args:
        right, wrong: (..., B) how many found boxes of each of B levels of confidence, the highest
            first, are a true box, and are none.
        truth: (...) how many true boxes there are.

    Returns:
        (...) between 0 and 1; 0 where there is no true box.
    """
    hits, misses = np.cumsum(right, axis=-1), np.cumsum(wrong, axis=-1)
    precision = hits / np.maximum(hits + misses, 1)
    falling = np.maximum.accumulate(precision[..., ::-1], axis=-1)[..., ::-1]
    area = (falling * right).sum(axis=-1)
    found: Floats = np.divide(area, truth, out=np.zeros_like(area), where=truth > 0)
    return found


def choose_anchors(sizes: Floats, count: int) -> Floats:
    """Widths and heights that boxes have: k-means with 1 - IoU of the sizes as distance (Redmon and
    Farhadi 2017, section 2), from quantiles of the area on, so without chance.

    Args:
        sizes: (M, 2) widths and heights of boxes.
        count: of anchors.

    Returns:
        (count, 2), the smallest area first.

    Raises:
        DataError: there are fewer different sizes than anchors.
    """
    different = len(np.unique(sizes, axis=0))
    if different < count:
        raise DataError(
            f"{different} different sizes of boxes cannot give {count} anchors",
            where="anchors",
            hint="ask for fewer, or name them: [[width, height], ..] in cells of the output",
        )
    ordered = sizes[np.argsort(sizes.prod(axis=1), kind="stable")]
    anchors = np.stack([part.mean(axis=0) for part in np.array_split(ordered, count)])
    owner = np.full(len(sizes), -1)
    for _ in range(_ROUNDS):
        nearest = _shared(sizes, anchors).argmax(axis=1)
        if (nearest == owner).all():
            break
        owner = nearest
        for number in range(count):  # an anchor that nobody is near stays where it is
            if (owner == number).any():
                anchors[number] = sizes[owner == number].mean(axis=0)
    kept: Floats = anchors[np.argsort(anchors.prod(axis=1), kind="stable")]
    return kept


def _shared(sizes: Floats, anchors: Floats) -> Floats:
    """(M, A) intersection over union of boxes with one corner in common."""
    shared = np.minimum(sizes[:, None], anchors[None]).prod(axis=2)
    union = sizes.prod(axis=1)[:, None] + anchors.prod(axis=1)[None] - shared
    found: Floats = shared / union
    return found
