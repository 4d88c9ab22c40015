# SPDX-License-Identifier: Apache-2.0
"""Sweeps of batch sizes and of numbers of threads, each point as long as is asked for."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import BitwrightError, RecipeError
from bitwright.base.plugins import load_attribute, plugged
from bitwright.base.progress import Progress, no_progress
from bitwright.explore.bench.engines import Array, Engine, engines_of
from bitwright.explore.bench.performance import Performance, Point, best_of
from bitwright.explore.bench.power import metered
from bitwright.explore.bench.runner import LIMIT_S, run_jobs
from bitwright.explore.bench.subject import BenchSubject

_MOST_JOBS = 100_000
_FEWEST = 3  # jobs of a thread, so that a median means something


@dataclass(frozen=True)
class SweepSettings:
    """What is measured.

    Attributes:
        batches: images of a job, for engines whose jobs may be larger than one image.
        threads: runners beside each other, each with jobs of one image on one processor thread.
        workers: processor threads of one job in the sweep of batches.
        seconds: that a point lasts, about.
    """

    batches: tuple[int, ...] = (1, 8, 32, 128)
    threads: tuple[int, ...] = (1, 2, 4, 8)
    workers: int = 1
    seconds: float = 1.0

    def __post_init__(self) -> None:
        for name in ("batches", "threads"):
            values = getattr(self, name)
            if any(value < 1 for value in values) or len(set(values)) != len(values):
                raise RecipeError(
                    f"expected different numbers from 1 on, got {list(values)}", where=name
                )
        if 1 not in self.batches:
            raise RecipeError(
                "a batch of one image is needed: the latency is of it",
                where="batches",
                hint="let the batches begin with 1",
            )
        if self.workers < 1 or not 0 < self.seconds < float("inf"):
            raise RecipeError("workers and seconds must be positive", where="sweep")


@dataclass(frozen=True)
class Swept:
    """What a sweep found.

    Attributes:
        points: every measurement, and those of models.
        power: which power counts, by platform.
        notes: what could not be had, and why.
    """

    points: tuple[Point, ...]
    power: Mapping[str, str]
    notes: tuple[str, ...] = ()


def sweep(
    subject: BenchSubject,
    settings: SweepSettings,
    *,
    engines: Sequence[Engine] | None = None,
    platforms: Sequence[str] | None = None,
    progress: Progress = no_progress,
) -> Swept:
    """Every engine at every batch and number of threads, and the platforms of plug-ins.

    Args:
        engines: by default all that are here.
        platforms: names of plug-ins; by default all.

    Raises:
        RecipeError: more threads than images, or none of either.
    """
    found: list[Point] = []
    notes: list[str] = []
    power: dict[str, str] = {}
    chosen = engines_of(subject) if engines is None else engines
    models = plugged("platforms")
    names = [*models] if platforms is None else platforms
    total = len(chosen) * (len(settings.batches) + len(settings.threads)) + len(names)
    for engine in chosen:
        power[engine.name] = engine.power
        for batch in settings.batches:
            progress(f"{engine.name}, batch {batch}", len(found), total)
            found.append(batch_point(engine, batch, settings))
        for threads in () if engine.own_device else settings.threads:
            progress(f"{engine.name}, {threads} threads", len(found), total)
            found.append(thread_point(engine, threads, settings))
    for name in names:
        progress(name, len(found), total)
        try:
            points: tuple[Point, ...] = load_attribute(models[name])(subject, settings)
        except BitwrightError as error:
            notes.append(f"{name}: {error.message}")
            continue
        found += points
        power |= dict.fromkeys((point.platform for point in points), name)
    progress("measured", total, total)
    return Swept(tuple(found), power, tuple(notes))


def performances(swept: Swept, watts: Mapping[str, float]) -> tuple[Performance, ...]:
    """The best of every platform, in the order that they were measured in.

    Args:
        watts: constants by kind, where the machine does not show its power; see `power.NOMINAL`.
    """
    names = dict.fromkeys(point.platform for point in swept.points)
    return tuple(
        best_of([p for p in swept.points if p.platform == name], watts.get(swept.power[name]))
        for name in names
    )


def accuracy_of(
    engine: Engine, labels: NDArray[np.int64], threads: int, limit_s: float = LIMIT_S
) -> tuple[float, float]:
    """Share of all images whose largest score is their label, and seconds, by so many runners.

    The results come in the order of the images, whatever thread has made them.
    """
    call = engine.make(1)
    jobs = [engine.images[k : k + 1] for k in range(len(engine.images))]
    ran = run_jobs([lambda: call] * threads, jobs, limit_s=limit_s)
    scores = np.concatenate([np.asarray(result) for result in ran.results])
    found = scores.reshape(len(jobs), -1).argmax(axis=1)
    return float(np.mean(found == labels)), ran.seconds


def batch_point(engine: Engine, batch: int, settings: SweepSettings) -> Point:
    """Jobs of so many images, one after the other."""
    return _point(engine, batch, 1, settings.workers, settings.seconds)


def thread_point(engine: Engine, threads: int, settings: SweepSettings) -> Point:
    """Jobs of one image, by so many runners."""
    return _point(engine, 1, threads, 1, settings.seconds)


def _point(engine: Engine, batch: int, threads: int, workers: int, seconds: float) -> Point:
    call = engine.make(workers)
    jobs = _jobs(engine.images, batch, threads * _FEWEST)
    makers = [lambda: call] * threads
    depth = 1 if threads == 1 else 2  # one alone: its latency is what is asked for
    first = run_jobs(makers, jobs, depth=depth, limit_s=LIMIT_S)
    wanted = ceil(seconds / max(first.seconds / len(jobs), 1e-6))
    count = min(_MOST_JOBS, max(len(jobs), wanted))
    jobs = _jobs(engine.images, batch, count)
    with metered() as meter:
        ran = run_jobs(makers, jobs, depth=depth, warm=False, limit_s=LIMIT_S)
    images = batch * len(jobs)
    return Point(
        engine.name,
        batch,
        threads,
        workers,
        images,
        images / ran.seconds,
        1e3 * statistics.median(ran.latencies),
        meter.watts if engine.power == "cpu" else None,
    )


def _jobs(images: Array, batch: int, count: int) -> list[Array]:
    """So many batches, taking turns through the images; views where they lie together."""
    if not len(images):
        raise RecipeError("there are no images to run", where="images", hint="give at least one")
    if batch > len(images):
        images = np.ascontiguousarray(np.resize(images, (batch, *images.shape[1:])))
    starts = range(0, len(images) - batch + 1, batch)
    return [images[(start := starts[k % len(starts)]) : start + batch] for k in range(count)]
