# SPDX-License-Identifier: Apache-2.0
"""What the report shows of single images: some of them, and how the metric lies over all."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bitwright.base.figures import Figure, Source, show
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.report.record import Sample, SampleLevel
from bitwright.train.images import label_tensor

if TYPE_CHECKING:
    from torch import Tensor, nn

    from bitwright.tasks import Measurement, Shown

    Stage = Callable[[int], Tensor | None]

_BARS = 10
_MOST_CLASSES = 1000


def samples(
    work: Workspace, outputs: Tensor, count: int, stages: Mapping[str, Stage] | None = None
) -> tuple[Sample, ...]:
    """Some held-out images: half of them at most are those that the network does worst, by its
    first metric, the others do at least as well as the mean.

    Args:
        outputs: (N, ...) of all test images, of the integer graph.
        stages: of other stages of the pipeline, by what they are called, what gives the outputs of
            one image; shown where a task draws on its images.
    """
    test, found = work.data.test, _measured(work, outputs)
    each = np.where(np.isnan(found.each), found.value, found.each)
    good = each if found.metric.larger_is_better else -each
    mean = float(good.mean())
    order = np.argsort(good, kind="stable")
    poor = order[good[order] < mean][: count // 2]
    fair = np.flatnonzero(good >= mean)[: count - len(poor)]
    chosen = []
    for at in (int(place) for place in (*poor, *fair)):
        shown = _shown(work, at, outputs[at : at + 1])
        levels = []
        for stage, give in (stages or {}).items() if shown.right is None else ():
            output = give(at)
            if output is not None:
                other = _shown(work, at, output)
                value = _value(work, output, at)
                levels.append(
                    SampleLevel(
                        stage=stage,
                        prediction=other.prediction,
                        png=_png(other.picture),
                        value=value,
                    )
                )
        chosen.append(
            Sample(
                index=int(test.indices[at]),
                label=shown.label,
                prediction=shown.prediction,
                png=_png(shown.picture),
                right=shown.right,
                value=_value(work, outputs[at : at + 1], at) if shown.right is None else "",
                levels=tuple(levels),
            )
        )
    return tuple(chosen)


def stages_of(work: Workspace, model: nn.Module, simulated: Tensor | None) -> dict[str, Stage]:
    """The stages around the integer graph, for `samples`.

    Args:
        model: the float network.
        simulated: (n, ...) outputs of the RTL for the first n test images.
    """
    from bitwright.train.evaluation import run_batches

    def floats(at: int) -> Tensor:
        import torch

        reals = torch.from_numpy(work.data.test.take(np.array([at])).reals())
        return run_batches(model, reals, 1)

    def rtl(at: int) -> Tensor | None:
        if simulated is None or at >= len(simulated):
            return None
        return simulated[at : at + 1]

    return {"float": floats, "RTL": rtl}


def _shown(work: Workspace, at: int, output: Tensor) -> Shown:
    test = work.data.test
    return work.task.show(test.images[at], test.labels[at], output, test)


def _value(work: Workspace, output: Tensor, at: int) -> str:
    """The first metric that is a mean over images, of one image, in words; empty without any."""
    labels = label_tensor(work.data.test.labels[at : at + 1])
    for metric in work.task.metrics:
        if metric.of_sums is None:
            value = float(metric.statistics(output, labels)[0])
            figure = Figure(value, metric.unit, Source.MEASUREMENT)
            return "" if np.isnan(value) else f"{metric.name} {show(figure)}"
    return ""


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
    """Row = label, column = prediction of the integer graph; nothing where there are no classes,
    or more than anybody looks at: it grows with their square.
    """
    test = work.data.test
    if len(test.classes) > _MOST_CLASSES:
        return ()
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
