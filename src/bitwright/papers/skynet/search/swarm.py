# SPDX-License-Identifier: Apache-2.0
"""Group-based particle swarm search over channels and pools (Zhang et al. 2020, algorithm 1).

A group has one kind of bundle and never meets the others. A particle moves by random percentages of
the way to the best place that it has been at, and to the best of its group now; there is no inertia
and no best of all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bitwright.base.errors import RecipeError
from bitwright.papers.skynet.search.candidate import GRAIN, MOST_CHANNELS, Candidate

Swarm = tuple[tuple[Candidate, ...], ...]
"""Groups of candidates."""


@dataclass(frozen=True)
class Fitness:
    """``accuracy + alpha * (time - target)``.

    Attributes:
        alpha: by millisecond; below zero.
        target_ms: time that is wanted.
    """

    alpha: float
    target_ms: float

    def __post_init__(self) -> None:
        if not self.alpha < 0:
            raise RecipeError(
                f"alpha is {self.alpha:g}: a slower network would be fitter",
                where="alpha",
                hint="a number below zero, such as -0.01: accuracy that a millisecond is worth",
            )

    def of(self, accuracy: float | None, time_ms: float | None) -> float:
        """The fitness; minus infinity of what cannot be built."""
        if accuracy is None or time_ms is None:
            return -np.inf
        return accuracy + self.alpha * (time_ms - self.target_ms)


@dataclass(frozen=True)
class Bounds:
    """Where particles may be.

    Attributes:
        repeats: of the bundle.
        pools: how many of the places have one.
        least, most: channels.
    """

    repeats: int
    pools: int
    least: int
    most: int

    def __post_init__(self) -> None:
        fits = GRAIN <= self.least and self._fewest <= self.most
        if not (0 < self.pools <= self.repeats and fits):
            raise RecipeError(
                f"{self.repeats} repetitions, {self.pools} pools, {self.least} to {self.most} "
                "channels",
                where="search",
                hint="as many pools as repetitions at most; channels are multiples of "
                f"{GRAIN}, from {GRAIN} on",
            )  # fmt: skip
        if self.most > MOST_CHANNELS:
            raise RecipeError(f"at most {MOST_CHANNELS} channels", where="search")

    @property
    def _fewest(self) -> int:
        return -(-self.least // GRAIN) * GRAIN

    def drawn(self, bundle: str, random: np.random.Generator) -> Candidate:
        """Any candidate of a bundle."""
        steps = random.integers(
            self._fewest // GRAIN, self.most // GRAIN, self.repeats, endpoint=True
        )
        places = set(random.permutation(self.repeats)[: self.pools].tolist())
        return Candidate(
            bundle,
            tuple(int(step) * GRAIN for step in steps),
            tuple(place in places for place in range(self.repeats)),
        )

    def inside(self, channels: float) -> int:
        """The nearest number of channels that is allowed."""
        whole = int(np.floor(channels / GRAIN + 0.5)) * GRAIN
        return min(max(whole, self._fewest), self.most // GRAIN * GRAIN)


@dataclass(frozen=True)
class Velocity:
    """How far one place is from another: channels, and places of pools that are missing there or
    too many.
    """

    channels: tuple[int, ...]
    missing: tuple[int, ...]
    surplus: tuple[int, ...]


def velocity(here: Candidate, there: Candidate) -> Velocity:
    """The way from one candidate of a group to another."""
    pairs = list(enumerate(zip(here.pools, there.pools, strict=True)))
    return Velocity(
        tuple(b - a for a, b in zip(here.channels, there.channels, strict=True)),
        tuple(place for place, (a, b) in pairs if b and not a),
        tuple(place for place, (a, b) in pairs if a and not b),
    )


def evolve(
    here: Candidate, ways: Sequence[Velocity], bounds: Bounds, random: np.random.Generator
) -> Candidate:
    """A candidate moved by a random percentage of each way: of channels each by its own, and each
    misplaced pool goes where it is missing with such a chance.
    """
    channels = np.array(here.channels, dtype=np.float64)
    pools = list(here.pools)
    for way in ways:
        channels += random.uniform(size=len(channels)) * way.channels
        share = random.uniform()
        for old, new in zip(way.surplus, way.missing, strict=True):
            if random.uniform() < share and pools[old] and not pools[new]:
                pools[old], pools[new] = False, True
    kept = tuple(bounds.inside(float(each)) for each in channels)
    return replace(here, channels=kept, pools=tuple(pools))


@dataclass(frozen=True)
class Settings:
    """A search.

    Attributes:
        groups: kinds of bundles, one a group.
        size: networks a group.
        epochs: of fast training in each iteration; they grow.
        seed: of all that is drawn.
    """

    groups: tuple[str, ...]
    size: int
    epochs: tuple[int, ...]
    bounds: Bounds
    fitness: Fitness
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.groups or self.size < 1 or not self.epochs or min(self.epochs) < 1:
            raise RecipeError("a search needs groups, networks and epochs", where="search")
        if list(self.epochs) != sorted(self.epochs):
            raise RecipeError(
                f"epochs are {list(self.epochs)}",
                where="epochs",
                hint="those of a later iteration are as many or more",
            )

    @property
    def total_epochs(self) -> int:
        """Epochs of training that the whole search takes at most."""
        return len(self.groups) * self.size * sum(self.epochs)


@dataclass(frozen=True)
class Measured:
    """What is known of a candidate.

    Attributes:
        accuracy: by the task's first metric on validation images, the larger the better; None of
            one that cannot be built.
        time_ms: an image, predicted: at the rate of a stream, or of a lone one, as was asked for;
            None as well.
        reason: why it cannot be built.
    """

    accuracy: float | None
    time_ms: float | None
    reason: str = ""


Measure = Callable[[Sequence[Candidate], int], Sequence[Measured]]
"""Candidates and epochs of training -> what is known of each; in any order inside, and at once."""


@dataclass(frozen=True)
class Visit:
    """A particle at one iteration."""

    iteration: int
    group: int
    particle: int
    candidate: Candidate
    measured: Measured
    fitness: float


def search(settings: Settings, measure: Measure) -> tuple[Visit, ...]:
    """Run the swarm; every place that a particle has been at comes back.

    The same settings and measurements give the same search, so one that was stopped goes on from
    what was measured before.
    """
    bounds, random = settings.bounds, np.random.default_rng(settings.seed)
    swarm: Swarm = tuple(
        tuple(bounds.drawn(bundle, random) for _ in range(settings.size))
        for bundle in settings.groups
    )
    visits: list[Visit] = []
    for iteration, epochs in enumerate(settings.epochs):
        flat = [candidate for group in swarm for candidate in group]
        found = iter(measure(flat, epochs))
        now = [
            Visit(iteration, i, j, candidate, known, _fitness(settings, known))
            for i, group in enumerate(swarm)
            for j, (candidate, known) in enumerate(zip(group, found, strict=False))
        ]
        visits += now
        moved = []
        for i, group in enumerate(swarm):
            best = max((v for v in now if v.group == i), key=lambda v: v.fitness)
            particles = []
            for j, here in enumerate(group):
                past = [v for v in visits if (v.group, v.particle) == (i, j)]
                own = max(past, key=lambda v: v.fitness)
                ways = [velocity(here, v.candidate) for v in (own, best)]
                particles.append(evolve(here, ways, bounds, random))
            moved.append(tuple(particles))
        swarm = tuple(moved)
    return tuple(visits)


def _fitness(settings: Settings, known: Measured) -> float:
    return settings.fitness.of(known.accuracy, known.time_ms)


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Numbers of the points (time, accuracy) that no other one beats in both, fastest first."""
    order = sorted(range(len(points)), key=lambda at: (points[at][0], -points[at][1]))
    kept: list[int] = []
    best = -np.inf
    for at in order:
        if points[at][1] > best:
            kept.append(at)
            best = points[at][1]
    return kept


def hypervolume(points: Sequence[tuple[float, float]], worst: tuple[float, float]) -> float:
    """Area that a front (time, accuracy) covers up to a worst point: what takes longer, or is less
    accurate, adds nothing.
    """
    inside = [p for p in points if p[0] <= worst[0] and p[1] >= worst[1]]
    area, accuracy = 0.0, worst[1]
    for at in front(inside):
        time, value = inside[at]
        area += (worst[0] - time) * (value - accuracy)
        accuracy = value
    return area
