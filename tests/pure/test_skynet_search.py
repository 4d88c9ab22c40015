# SPDX-License-Identifier: Apache-2.0
"""SkyNet's search without networks: places, moves, the swarm's laws, fronts, strategies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import ModelError, RecipeError
from bitwright.papers.skynet.search.candidate import BUNDLES, GRAIN, Candidate, sketch
from bitwright.papers.skynet.search.strategies import STRATEGIES, best_of, nearest_to
from bitwright.papers.skynet.search.swarm import (
    Bounds,
    Fitness,
    Measured,
    Settings,
    evolve,
    front,
    hypervolume,
    search,
    velocity,
)

BOUNDS = Bounds(4, 2, 8, 64)
SETTINGS = Settings(("dw3-pw", "conv3"), 5, (1, 2, 3, 4), BOUNDS, Fitness(-0.1, 2.0), seed=3)


def ideal(candidates: Sequence[Candidate], epochs: int) -> list[Measured]:
    """Better near 32 channels with early pools; slower with more channels; conv3 is better."""
    found = []
    for each in candidates:
        off = sum(abs(c - 32) for c in each.channels) / 128
        late = sum(place for place, pool in enumerate(each.pools) if pool) / 10
        good = 1 - off - late + 0.05 * (each.bundle == "conv3")
        found.append(Measured(good, sum(each.channels) / 100))
    return found


seeds = st.integers(0, 2**32 - 1)


@given(seeds)
def test_moves_stay_inside_and_lie_between(seed: int) -> None:
    random = np.random.default_rng(seed)
    here, own, best = (BOUNDS.drawn("dw3-pw", random) for _ in range(3))
    moved = evolve(here, [velocity(here, own)], BOUNDS, random)
    assert sum(moved.pools) == BOUNDS.pools and moved.bundle == here.bundle
    for a, b, c in zip(here.channels, own.channels, moved.channels, strict=True):
        assert c % GRAIN == 0 and min(a, b) <= c <= max(a, b)
    twice = evolve(here, [velocity(here, own), velocity(here, best)], BOUNDS, random)
    assert sum(twice.pools) == BOUNDS.pools
    assert all(8 <= c <= 64 for c in twice.channels)
    at_rest = velocity(here, here)
    assert evolve(here, [at_rest, at_rest], BOUNDS, random) == here


def test_the_swarm_gets_better_and_its_groups_never_mix() -> None:
    visits = search(SETTINGS, ideal)
    assert len(visits) == 2 * 5 * 4
    for group, bundle in enumerate(SETTINGS.groups):
        mine = [v for v in visits if v.group == group]
        assert {v.candidate.bundle for v in mine} == {bundle}
        mean = [np.mean([v.fitness for v in mine if v.iteration == i]) for i in range(4)]
        assert mean[-1] > mean[0]
    assert search(SETTINGS, ideal) == visits
    assert search(replace(SETTINGS, seed=4), ideal) != visits


def test_epochs_of_an_iteration_are_asked_for_once_each() -> None:
    asked = []

    def measure(candidates: Sequence[Candidate], epochs: int) -> list[Measured]:
        asked.append((len(candidates), epochs))
        return ideal(candidates, epochs)

    search(SETTINGS, measure)
    assert asked == [(10, 1), (10, 2), (10, 3), (10, 4)]
    assert sum(n * e for n, e in asked) == SETTINGS.total_epochs == 100


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_keeps_the_budget_and_repeats(name: str) -> None:
    if name == "nsga2":
        pytest.importorskip("optuna")
    spent = []

    def measure(candidates: Sequence[Candidate], epochs: int) -> list[Measured]:
        spent.append(len(candidates) * epochs)
        known = ideal(candidates, epochs)
        known[0] = Measured(None, None, "does not fit")
        return known

    trials = STRATEGIES[name](SETTINGS, measure)
    assert sum(spent) == SETTINGS.total_epochs
    assert [t.candidate for t in STRATEGIES[name](SETTINGS, measure)] == [
        t.candidate for t in trials
    ]
    best = best_of(trials)
    times = [t.measured.time_ms for t in best]
    assert times == sorted(times) and all(t.measured.accuracy is not None for t in best)


def test_a_target_that_nothing_meets_names_the_fastest() -> None:
    trials = STRATEGIES["random"](SETTINGS, ideal)
    chosen, meets = nearest_to(trials, 1.5)
    assert meets and chosen is not None and chosen.measured.time_ms <= 1.5
    nearest, meets = nearest_to(trials, 0.1)
    assert not meets and nearest is not None
    assert nearest.measured.time_ms == min(t.measured.time_ms for t in trials)
    assert nearest_to((), 1.0) == (None, False)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=12))
def test_the_front_and_its_volume_are_what_the_definition_says(
    points: list[tuple[int, int]],
) -> None:
    kept = front(points)
    beaten = {
        at
        for at, (x, y) in enumerate(points)
        if any((a <= x and b > y) or (a < x and b >= y) for a, b in points)
    }
    assert {points[at] for at in kept} == {p for at, p in enumerate(points) if at not in beaten}
    assert hypervolume(points, (8, 0)) == pytest.approx(
        sum(any(x <= i and y >= j for x, y in points) for i in range(1, 8) for j in range(1, 10))
    )


def test_no_candidate_has_fewer_channels_than_asked() -> None:
    random = np.random.default_rng(0)
    drawn = [Bounds(3, 1, 5, 12).drawn("conv3", random) for _ in range(30)]
    assert {channels for each in drawn for channels in each.channels} == {8, 12}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Fitness(0.0, 1.0), "a slower network would be fitter"),
        (lambda: Bounds(2, 3, 8, 16), "3 pools"),
        (lambda: Bounds(2, 2, 5, 7), "5 to 7 channels"),
        (lambda: replace(SETTINGS, epochs=(3, 2)), "are as many or more"),
        (lambda: replace(SETTINGS, groups=()), "needs groups"),
    ],
)
def test_searches_that_make_no_sense_are_refused(make: object, reason: str) -> None:
    with pytest.raises(RecipeError, match=reason):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"bundle": "conv9"}, "unknown bundle 'conv9'"),
        ({"channels": (8, 8)}, "2 channels and 3 places"),
        ({"channels": (8, 0, 8)}, "channels are"),
        ({"pools": (False, False, True), "bypass": True}, "leads around the last pool"),
    ],
)
def test_candidates_that_make_no_sense_are_refused(fields: dict[str, object], reason: str) -> None:
    given_ = {"bundle": "conv3", "channels": (8, 8, 8), "pools": (True, False, False), **fields}
    with pytest.raises(ModelError, match=reason):
        Candidate(**given_)  # type: ignore[arg-type]


def test_sketches_double_their_channels_behind_each_pool() -> None:
    for bundle in BUNDLES:
        made = sketch(bundle, 4, 8, 2)
        assert (made.channels, made.pools) == ((8, 16, 32, 32), (True, True, False, False))
        assert made.stride == 4 and Candidate.of_options(made.to_options()) == made
    with pytest.raises(ModelError, match="5 pools behind 4 bundles"):
        sketch("conv3", 4, 8, 5)
