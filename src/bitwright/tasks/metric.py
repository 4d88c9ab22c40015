# SPDX-License-Identifier: Apache-2.0
"""How well a network does its task: a value for each image, and what follows from them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitwright.base.errors import ModelError
from bitwright.base.figures import Figure, Measured, Source
from bitwright.base.plugins import users_code
from bitwright.base.statistics import mean_of, share_of
from bitwright.tasks.catalog import SHARE

OfEach = Callable[[Tensor, Tensor], Tensor]

#: Of statistics of several images at a time.
_MOST_BYTES = 1 << 28


@dataclass(frozen=True)
class Metric:
    """One way to measure a network.

    Attributes:
        name: in words, singular: ``accuracy``, ``mean absolute error``.
        of_each: outputs (N, ...) and labels (N, ...) -> values (N,), NaN for an image that has
            none; with ``of_sums`` statistics (N, K).
        unit: of the values; ``share`` lies in [0, 1] and is shown in percent.
        larger_is_better: the direction.
        of_sums: what is no mean of values of images, but a function of sums over them, as the
            intersection over union of a class: statistics (..., K), summed -> (...).
    """

    name: str
    of_each: OfEach
    unit: str = SHARE
    larger_is_better: bool = True
    of_sums: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None

    @property
    def key(self) -> str:
        """The name as one word, as files and curves have it."""
        return "".join(c if c.isalnum() else "_" for c in self.name.replace("-", ""))

    def goodness(self, value: float) -> float:
        """The value such that more is better."""
        return value if self.larger_is_better else -value

    def statistics(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """What `of_each` gives, checked: (N,) or (N, K) float64.

        Raises:
            ModelError: it fails or gives something of another shape.
        """
        hint = "a metric takes outputs (N, ...) and labels (N, ...) and gives N values"
        with users_code(f"measuring {self.name}", self.name, hint, __file__):
            found = torch.as_tensor(self.of_each(outputs, labels)).to(outputs.device, torch.float64)
        if found.shape[:1] != outputs.shape[:1] or found.ndim != (2 if self.of_sums else 1):
            raise ModelError(
                f"gives {tuple(found.shape)} for {len(outputs)} images", where=self.name, hint=hint
            )
        return found

    def is_share_of(self, values: NDArray[np.float64]) -> bool:
        """Whether each of these values says right or wrong: then the value is a proportion."""
        whole = self.unit == SHARE and self.of_sums is None
        return whole and bool(np.isin(values, (0.0, 1.0)).all())

    def sums(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(K,) on the outputs' device: what, added up over batches, `value_of` makes the value of.

        Raises:
            ModelError: as `statistics`.
        """
        if self.of_sums is not None:
            return _total(self._parts(outputs, labels))
        found = self.statistics(outputs, labels)
        return torch.stack([found.nansum(), (~found.isnan()).sum().double()])

    def value_of(self, sums: Tensor) -> float:
        """The value of all the images that the sums are of; NaN of none."""
        total = sums.cpu().numpy()
        if self.of_sums is not None:
            return float(self.of_sums(total))
        return float(total[0] / total[1]) if total[1] else float("nan")

    def measure(self, outputs: Tensor, labels: Tensor) -> Measurement:
        """Measure N images; NaN with the count 0 where none has a value.

        Raises:
            ModelError: as `statistics`.
        """
        if self.of_sums is not None:
            return self._of_sums(outputs, labels)
        return self._mean(self.statistics(outputs, labels).cpu().numpy())

    def _parts(self, outputs: Tensor, labels: Tensor) -> Iterable[Tensor]:
        """The statistics, to be gone through several times; made anew each time, some images at a
        time, where they are many: an image may have any number of them, as those of its classes.
        """
        count, size = len(outputs), 0
        if count > 1:
            size = self.statistics(outputs[:1], labels[:1]).nbytes
        step = max(1, _MOST_BYTES // max(1, size))
        if step >= count:
            return [self.statistics(outputs, labels)]
        return _Parts(self, outputs, labels, step)

    def _mean(self, each: NDArray[np.float64]) -> Measurement:
        known = each[~np.isnan(each)]
        if not len(known):
            return Measurement(self, Measured(float("nan")), 0, each)
        summary = share_of(known.astype(bool)) if self.is_share_of(known) else mean_of(known)
        return Measurement(self, summary, len(known), each)

    def _of_sums(self, outputs: Tensor, labels: Tensor) -> Measurement:
        """The value with the error of the jackknife: leaving out each image in turn."""
        assert self.of_sums is not None
        parts, count = self._parts(outputs, labels), len(outputs)
        total = _total(parts).cpu().numpy()
        value = float(self.of_sums(total))
        if count == 1:
            return Measurement(self, Measured(value), 1, np.array([value]))
        without = np.concatenate([self.of_sums(total - part.cpu().numpy()) for part in parts])
        each = count * value - (count - 1) * without  # Tukey's pseudo-values
        return Measurement(self, Measured(value, mean_of(each).error), count, each)


@dataclass(frozen=True, eq=False)
class _Parts:
    """Statistics of some images at a time."""

    metric: Metric
    outputs: Tensor
    labels: Tensor
    step: int

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, len(self.outputs), self.step):
            part = slice(start, start + self.step)
            yield self.metric.statistics(self.outputs[part], self.labels[part])


def _total(parts: Iterable[Tensor]) -> Tensor:
    total: Tensor | None = None
    for part in parts:
        total = part.sum(dim=0) if total is None else total + part.sum(dim=0)
    assert total is not None  # there is a part of no images, too
    return total


@dataclass(frozen=True, eq=False)
class Measurement:
    """What one metric says about N images.

    Attributes:
        metric: which one.
        summary: value and standard error over the images.
        count: images that have a value.
        each: (N,) values of the images, NaN where one has none; where the metric is no mean, those
            whose mean it nearly is (pseudo-values of the jackknife).
    """

    metric: Metric
    summary: Measured
    count: int
    each: NDArray[np.float64] = field(repr=False)

    @property
    def value(self) -> float:
        return self.summary.value

    @property
    def goodness(self) -> float:
        """The value such that more is better."""
        return self.metric.goodness(self.value)

    @property
    def known(self) -> NDArray[np.float64] | NDArray[np.bool_]:
        """The values of the images that have one; where each is right or wrong, which are right."""
        known = self.each[~np.isnan(self.each)]
        right = known.astype(bool)
        return right if self.metric.is_share_of(known) else known

    def figure(self, source: Source = Source.MEASUREMENT) -> Figure:
        """The value for people, with its error and the number of images."""
        unit, error = self.metric.unit, self.summary.error
        return Figure(self.value, unit, source, error=error, count=self.count)
