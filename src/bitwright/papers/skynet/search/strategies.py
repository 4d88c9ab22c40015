# SPDX-License-Identifier: Apache-2.0
"""Ways to search in the same harness and with the same budget: the swarm, chance, NSGA-II."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bitwright.base.errors import ToolError
from bitwright.papers.skynet.search.candidate import GRAIN, Candidate
from bitwright.papers.skynet.search.swarm import (
    Measure,
    Measured,
    Settings,
    Visit,
    front,
    search,
)


@dataclass(frozen=True)
class Trial:
    """A candidate, what is known of it, and how many epochs it was trained."""

    candidate: Candidate
    measured: Measured
    epochs: int


def swarm(settings: Settings, measure: Measure) -> tuple[Trial, ...]:
    """The group-based particle swarm."""
    return tuple(_trial(settings, visit) for visit in search(settings, measure))


def _trial(settings: Settings, visit: Visit) -> Trial:
    return Trial(visit.candidate, visit.measured, settings.epochs[visit.iteration])


def by_chance(settings: Settings, measure: Measure) -> tuple[Trial, ...]:
    """Candidates drawn at random, all groups alike, each trained as long as the swarm's last ones,
    as many as that budget allows.
    """
    random, epochs = np.random.default_rng(settings.seed), settings.epochs[-1]
    drawn = [
        settings.bounds.drawn(settings.groups[number % len(settings.groups)], random)
        for number in range(settings.total_epochs // epochs)
    ]
    found = measure(drawn, epochs)
    return tuple(Trial(c, m, epochs) for c, m in zip(drawn, found, strict=True))


def genetic(settings: Settings, measure: Measure) -> tuple[Trial, ...]:
    """NSGA-II of Optuna over (accuracy, time), without a target; same candidates and budget as
    `by_chance`, a population as large as the swarm.

    Raises:
        ToolError: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise ToolError(
            "the search nsga2 needs Optuna", hint="pip install 'bitwright[search]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    epochs, population = settings.epochs[-1], len(settings.groups) * settings.size
    sampler = optuna.samplers.NSGAIISampler(population_size=population, seed=settings.seed)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    trials: list[Trial] = []
    left = settings.total_epochs // epochs
    while left:
        count = min(left, population)
        asked = [study.ask() for _ in range(count)]
        drawn = [_suggested(each, settings) for each in asked]
        for trial, candidate, known in zip(asked, drawn, measure(drawn, epochs), strict=True):
            trials.append(Trial(candidate, known, epochs))
            if known.accuracy is None or known.time_ms is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, [known.accuracy, known.time_ms])
        left -= count
    return tuple(trials)


def _suggested(trial: Any, settings: Settings) -> Candidate:
    bounds = settings.bounds
    bundle = trial.suggest_categorical("bundle", list(settings.groups))
    channels = tuple(
        bounds.inside(trial.suggest_int(f"channels{place}", bounds.least, bounds.most, step=GRAIN))
        for place in range(bounds.repeats)
    )
    # Places of pools as the order of keys: every choice is a legal one.
    keys = [trial.suggest_float(f"pool{place}", 0, 1) for place in range(bounds.repeats)]
    places = set(np.argsort(keys, kind="stable")[: bounds.pools].tolist())
    return Candidate(bundle, channels, tuple(p in places for p in range(bounds.repeats)))


STRATEGIES: dict[str, Callable[[Settings, Measure], tuple[Trial, ...]]] = {
    "swarm": swarm,
    "random": by_chance,
    "nsga2": genetic,
}


def best_of(trials: Sequence[Trial]) -> list[Trial]:
    """Those that no other one beats in time and accuracy, the fastest first."""
    built = [t for t in trials if t.measured.accuracy is not None]
    points = [(t.measured.time_ms or 0.0, t.measured.accuracy or 0.0) for t in built]
    return [built[at] for at in front(points)]


def nearest_to(trials: Sequence[Trial], target_ms: float) -> tuple[Trial | None, bool]:
    """The most accurate candidate that meets a target; if none does the fastest, and False."""
    built = [t for t in trials if t.measured.time_ms is not None]
    meeting = [t for t in built if (t.measured.time_ms or 0.0) <= target_ms]
    if meeting:
        return max(meeting, key=lambda t: t.measured.accuracy or 0.0), True
    fastest = min(built, key=lambda t: t.measured.time_ms or 0.0, default=None)
    return fastest, False
