# SPDX-License-Identifier: Apache-2.0
"""MuPPET's switching rule on sequences of metrics whose switches were found by hand.

T(j) = 1 + 1.5 exp(-0.1 j), from a table: T(4) 2.0055, T(5) 1.9098, T(6) 1.8232, T(7) 1.7449,
T(8) 1.6740, T(9) 1.6099, T(10) 1.5518, T(11) 1.4993, T(12) 1.4518.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.low_precision.rule import SwitchRule
from bitwright.low_precision.settings import MuppetSettings

# Epoch 3 is the first with a metric (four gradients), so the sequences begin there.
FIRST = 3

# e=0: S {.9}; p 1.8 < T(4); p 2.0 > T(5): 1; p 1 < T(6); p 2.25 > T(7): 2, switch.
# e=8: S {.3}; p 1.5 < T(9); p 1.5 < T(10); p 1.5 > T(11) = 1.4993: 1; p 1.5 > T(12): 2, switch.
# e=13: S {.25}; p 1 < T, however long.
RECORDED = [0.9, 0.5, 0.45, 0.9, 0.4, 0.3, 0.2, 0.2, 0.2, 0.2, 0.25, 0.25, 0.25, 0.25]
# Falls to 0.4 of the first metric of every level: p = 2.5 > T from epoch 1 on, so a level has its
# first epoch and two violations.
STEEP = [1.0, 0.4, 0.4] * 4


def switches(diversities: list[float | None], first: int = FIRST, **settings: Any) -> list[int]:
    """The epochs, from 0, behind which a level is left."""
    rule = SwitchRule(MuppetSettings(**settings))
    found = []
    for epoch, diversity in enumerate(diversities, start=first):
        if diversity is not None:
            rule.observe(epoch, diversity)
        if rule.wants_switch:
            found.append(epoch)
            rule.enter(epoch + 1)
    return found


def test_the_threshold_is_that_of_the_table() -> None:
    table = {0: 2.5, 5: 1.9098, 10: 1.5518, 15: 1.3347, 19: 1.2244, 20: 1.2030, 30: 1.0747}
    table |= {37: 1.0371, 50: 1.0101, 75: 1.0008}
    rule = SwitchRule(MuppetSettings())
    assert {j: round(rule.threshold(j), 4) for j in table} == table


def test_recorded_sequences_switch_where_they_must() -> None:
    assert switches(RECORDED) == [7, 12]
    assert switches(STEEP) == [5, 8, 11, 14]


def test_a_metric_that_stays_or_rises_never_switches() -> None:
    # p = max(S) / D is 1 or less, and T > 1 always.
    assert switches([0.3] * 300) == []
    assert switches([0.3 + 0.001 * step for step in range(300)]) == []


def test_only_the_present_level_counts() -> None:
    # 4.0 in the first level, then a level at 0.5: against 4.0 every p would be 8.
    # p 4.0/1.0 > T(4): 1, again: 2, switch behind 5; S = {.5}: p is 1 from then on.
    assert switches([4.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5]) == [5]


def test_the_largest_metric_counts_not_the_last() -> None:
    # S {1.0, .9, .8, ..}: each step is small, but 1.0/.5 = 2 > T(8), 1.0/.4 > T(9).
    assert switches([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4]) == [9]


def test_exceeding_the_patience_takes_one_violation_more() -> None:
    # As RECORDED, but behind 7 the level stays: p = .9/.3 = 3 > T(8): the third.
    # Then e=9: S {.2}, p 1 until the end; .2/.25 < 1.
    assert switches(RECORDED, count="exceeds") == [8]


def test_consecutive_violations_begin_anew() -> None:
    # 5: one; 6: p = 1, none; 7: one; 8: p = 3: two, switch.
    assert switches(RECORDED, violations="consecutive") == [8]


def test_the_threshold_may_begin_anew_with_a_level() -> None:
    # First level as before (e = 0). Then j counts from 8: T falls below 1.5 at 11, epoch 19.
    longer = [*RECORDED[:6], *[0.2] * 12]
    assert switches(longer, epoch="since_switch") == [7, 20]


def test_the_five_parameters_matter() -> None:
    # patience 1: the first violations of each level. 5: p 2.0. e=6: S {.9}; .9/.4 > T(7).
    # e=8: S {.3}, p 1.5 > T(11). e=12: S {.2}, .2/.25 < 1.
    assert switches(RECORDED, patience=1) == [5, 7, 11]
    # beta 0: T = 1: p 1.8 > 1: 4, 5. e=6: S {.9}; p 2.25; p 3: 7, 8. e=9: S {.2}: p 1.
    assert switches(RECORDED, beta=0.0) == [5, 8]
    # lambda 0: T = 2.5 always: .9/.4 = 2.25 is none, .9/.3 = 3 and .9/.2 are 8 and 9.
    # e=10: S {.2}: p 1 and below.
    assert switches(RECORDED, **{"lambda": 0.0}) == [9]
    # alpha 1.5 adds 0.5 to T: 5 (2.0 < 2.41), 7 (2.25 > 2.2449): 1, 8 (3): 2. e=9: p 1.
    assert switches(RECORDED, alpha=1.5) == [8]


def test_an_epoch_without_a_metric_counts_as_none() -> None:
    # As STEEP's first level, with a gap between the two violations, which do not go away ..
    assert switches([1.0, 0.4, None, 0.4]) == [6]
    # .. not even where violations must be consecutive.
    assert switches([1.0, 0.4, None, 0.4], violations="consecutive") == [6]
    assert switches([None, None, 1.0, 0.4, 0.4]) == [7]


def literal(deltas: list[float], alpha: float, beta: float, lam: float, gamma: int) -> list[int]:
    """The rule as it is printed, with everything recomputed from the whole past at every epoch."""
    found: list[int] = []
    for j in range(len(deltas)):
        e = found[-1] + 1 if found else 0
        violations = 0
        for k in range(e, j + 1):
            members = [deltas[i] for i in range(len(deltas)) if e <= i < k]
            if members and max(members) / deltas[k] > alpha + beta * math.exp(-lam * k):
                violations = violations + 1
        if violations >= gamma:
            found.append(j)
    return found


@given(
    st.lists(st.floats(0.05, 20.0), max_size=40),
    st.floats(0.0, 2.0),
    st.floats(0.0, 3.0),
    st.floats(0.0, 1.0),
    st.integers(1, 5),
)
def test_equals_a_literal_transcription(
    deltas: list[float], alpha: float, beta: float, lam: float, gamma: int
) -> None:
    found = switches(deltas, first=0, alpha=alpha, beta=beta, patience=gamma, **{"lambda": lam})
    assert found == literal(deltas, alpha, beta, lam, gamma)


@given(st.lists(st.floats(0.05, 20.0), max_size=30), st.floats(0.01, 100.0))
def test_a_common_factor_changes_nothing(deltas: list[float], factor: float) -> None:
    # A power of two is exact.
    power = 2.0 ** round(math.log2(factor))
    assert switches([power * delta for delta in deltas]) == switches(deltas)


@pytest.mark.parametrize(("window", "length"), [("literal", 4), ("resolution", 3)])
def test_the_window_has_one_gradient_more_where_the_sum_is_taken_literally(
    window: str, length: int
) -> None:
    assert MuppetSettings(window=window).gradients == length
