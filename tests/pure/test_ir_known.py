# SPDX-License-Identifier: Apache-2.0
"""What is known of a parameter is found once, and goes with it."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bitwright.ir import IntArray
from bitwright.ir.known import Known
from bitwright.ir.node import frozen


def test_a_question_is_answered_once_for_what_nobody_writes_to() -> None:
    asked: list[tuple[int, object]] = []
    known: Known[int] = Known()

    def total(array: IntArray, question: object) -> int:
        def answer() -> int:
            asked.append((id(array), question))
            return int(array.sum())

        return known.of(array, question, answer)

    first, second = frozen(np.arange(5)), frozen(np.arange(6))
    assert [total(a, q) for a in (first, second, first) for q in "ab"] == [10, 10, 15, 15, 10, 10]
    assert len(asked) == 4
    open_one, view = np.arange(5), first[:3]
    assert total(open_one, "a") == 10 and total(view, "a") == 3
    open_one[0] = 7
    assert total(open_one, "a") == 17  # anew: it can be written to
    for _ in range(50):  # another array in the place of one that has gone
        assert total(frozen(np.full(5, 3)), "a") == 15
        assert total(frozen(np.full(5, 4)), "a") == 20
    gc.collect()
    assert len(known._found) == 2
    assert [total(second, str(n)) for n in range(200)] == [15] * 200
    assert len(known._found[id(second)][1]) <= 64


def test_threads_may_ask_at_once() -> None:
    known: Known[int] = Known()
    array = frozen(np.arange(9))

    def ask(start: int) -> list[int]:
        return [known.of(array, (start + k) % 150, lambda k=k: start + k) for k in range(300)]  # type: ignore[misc]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(ask, range(8)))
    finally:
        sys.setswitchinterval(before)
    for start, row in enumerate(found):
        assert all((value - start - k) % 150 == 0 for k, value in enumerate(row))
