# SPDX-License-Identifier: Apache-2.0
"""What a platform achieves, and what follows from it: energy an image, and ratios to a base.

Energy is power times time. Of one image it is ``min(P x latency, P / throughput)`` (Vailakis 2022,
equations 7.3 and 7.4); both terms are told, since the best latency and the best throughput are
reached with different batches or numbers of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bitwright.base.errors import RecipeError
from bitwright.base.figures import Source

_MILLI = 1e3


@dataclass(frozen=True)
class Performance:
    """The best of a platform.

    Attributes:
        throughput: images a second, at the best batch or number of threads.
        latency_ms: of one image, at the best of those.
        watts: drawn meanwhile; None: not known.
        watts_source: measured, or given as a constant.
        source: of throughput and latency.
    """

    platform: str
    throughput: float
    latency_ms: float
    watts: float | None = None
    watts_source: Source = Source.GIVEN
    source: Source = Source.MEASUREMENT

    def __post_init__(self) -> None:
        for name in ("throughput", "latency_ms", "watts"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise RecipeError(
                    f"{name} must be positive, got {value}", where=f"platform {self.platform}"
                )

    @property
    def latency_energy_mj(self) -> float | None:
        """Millijoules of an image at the best latency."""
        return None if self.watts is None else self.watts * self.latency_ms

    @property
    def throughput_energy_mj(self) -> float | None:
        """Millijoules of an image at the best throughput."""
        return None if self.watts is None else _MILLI * self.watts / self.throughput

    @property
    def energy_mj(self) -> float | None:
        """The smaller of both."""
        found = (self.latency_energy_mj, self.throughput_energy_mj)
        known = [value for value in found if value is not None]
        return min(known, default=None)


@dataclass(frozen=True)
class Ratios:
    """A platform against a base; more than 1 is better than that.

    Attributes:
        throughput: images a second, divided by the base's.
        latency: the base's milliseconds, divided by these.
        latency_energy, throughput_energy: the base's energy of an image, divided by this; None
            where a power is not known.
    """

    throughput: float
    latency: float
    latency_energy: float | None
    throughput_energy: float | None


def against(one: Performance, base: Performance) -> Ratios:
    """Speed-ups and efficiencies of one platform relative to another."""
    return Ratios(
        one.throughput / base.throughput,
        base.latency_ms / one.latency_ms,
        _divided(base.latency_energy_mj, one.latency_energy_mj),
        _divided(base.throughput_energy_mj, one.throughput_energy_mj),
    )


def _divided(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below


@dataclass(frozen=True)
class Point:
    """One measurement of a sweep.

    Attributes:
        batch: images of a job.
        threads: runners beside each other.
        workers: processor threads of one job; 1 for those with a device of their own.
        throughput: images a second.
        latency_ms: from submission to collection of a job, the median.
        watts: measured meanwhile; None: the machine does not show it.
    """

    platform: str
    batch: int
    threads: int
    workers: int
    images: int
    throughput: float
    latency_ms: float
    watts: float | None = None
    source: Source = Source.MEASUREMENT


def best_of(points: Sequence[Point], watts: float | None) -> Performance:
    """The best throughput of a sweep, and the best latency of its single images.

    Args:
        points: of one platform, at least one of batch 1.
        watts: the constant that counts where nothing was measured.

    Raises:
        RecipeError: no single images were measured.
    """
    single = [point for point in points if point.batch == 1]
    if not single:
        raise RecipeError(
            "no batch of one image, which the latency is of",
            where=points[0].platform if points else "sweep",
            hint="let the batches begin with 1",
        )
    fastest = max(points, key=lambda point: point.throughput)
    quickest = min(single, key=lambda point: point.latency_ms)
    measured = fastest.watts
    return Performance(
        platform=fastest.platform,
        throughput=fastest.throughput,
        latency_ms=quickest.latency_ms,
        watts=watts if measured is None else measured,
        watts_source=Source.GIVEN if measured is None else Source.MEASUREMENT,
        source=fastest.source,
    )
