# SPDX-License-Identifier: Apache-2.0
"""What the report shows of single images: some of them, and how the metric lies over all."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bitwright.base.figures import Figure, Source, show
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.report.record import Sample
from bitwright.train.images import label_tensor

if TYPE_CHECKING:
    from torch import Tensor

    from bitwright.tasks import Measurement

_BARS = 10


def samples(work: Workspace, outputs: Tensor, count: int) -> tuple[Sample, ...]:
    """Some held-out images: half of them at most are those that the network does worst, by its
    first metric, the others do at least as well as the mean.

    Args:
        outputs: (N, ...) of all test images.
    """
    test, found = work.data.test, _measured(work, outputs)
    each = np.where(np.isnan(found.each), found.value, found.each)
    good = each if found.metric.larger_is_better else -each
    mean = float(good.mean())
    order = np.argsort(good, kind="stable")
    poor = order[good[order] < mean][: count // 2]
    fair = np.flatnonzero(good >= mean)[: count - len(poor)]
    chosen = []
    for at in (*poor, *fair):
        output = outputs[at : at + 1]
        shown = work.task.show(test.images[at], test.labels[at], output, test)
        value = Figure(float(found.each[at]), found.metric.unit, Source.MEASUREMENT)
        says_more = shown.right is None and found.metric.of_sums is None
        chosen.append(
            Sample(
                index=int(test.indices[at]),
                label=shown.label,
                prediction=shown.prediction,
                png=_png(shown.picture),
                right=shown.right,
                value=f"{found.metric.name} {show(value)}" if says_more else "",
            )
        )
    return tuple(chosen)


def distribution(work: Workspace, outputs: Tensor) -> tuple[tuple[str, int], ...]:
    """How many images have which value of the first metric, in ten bars of equal width; nothing
    where an image is only right or wrong, or the metric is no mean of images.
    """
    found = _measured(work, outputs)
    known = found.each[~np.isnan(found.each)]
    if found.metric.of_sums is not None or not set(np.unique(known)) - {0.0, 1.0}:
        return ()
    counts, edges = np.histogram(known, bins=_BARS)
    words = [show(Figure(float(edge), found.metric.unit, Source.MEASUREMENT)) for edge in edges]
    pairs = zip(words[:-1], words[1:], counts, strict=True)
    return tuple((f"{low} to {high}", int(number)) for low, high, number in pairs)


def confusion(work: Workspace, outputs: Tensor) -> tuple[tuple[int, ...], ...]:
    """Row = label, column = prediction of the integer graph; nothing where there are no classes."""
    test = work.data.test
    table = work.task.confusion(outputs, label_tensor(test.labels), len(test.classes))
    return () if table is None else tuple(tuple(int(n) for n in row) for row in table)


def _measured(work: Workspace, outputs: Tensor) -> Measurement:
    return work.task.measure(outputs, label_tensor(work.data.test.labels))[0]


def _png(picture: NDArray[np.uint8]) -> str:
    """A picture as base64."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")
