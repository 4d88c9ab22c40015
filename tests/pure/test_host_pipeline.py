# SPDX-License-Identifier: Apache-2.0
"""A host in stages: order, completeness, bounds, errors, speed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.base.errors import RecipeError
from bitwright.host.pipeline import HostStage, pipelined, sequential


def stages(*workers: int, wait: float = 0.0) -> list[HostStage]:
    def work(number: int) -> int:
        time.sleep(wait * (number * 7 % 3))
        return number + 1

    return [HostStage(f"stage {i}", work, count) for i, count in enumerate(workers)]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 30), st.integers(1, 4))
def test_frames_leave_in_order_and_all_of_them(workers: list[int], count: int, depth: int) -> None:
    line = stages(*workers, wait=0.0005)
    found = list(pipelined(range(count), line, depth=depth))
    assert found == list(sequential(range(count), line)) == [n + len(workers) for n in range(count)]


def test_no_more_frames_are_read_than_there_is_room_for() -> None:
    read = []

    def frames() -> Iterator[int]:
        for number in range(1000):
            read.append(number)
            yield number

    line = pipelined(frames(), stages(2, 1), depth=2)
    assert next(line) == 2
    time.sleep(0.3)
    assert len(read) < 20
    line.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("host ")]


def test_an_error_is_raised_in_its_frames_place() -> None:
    def fails(number: int) -> int:
        if number == 5:
            raise ValueError("frame 5")
        return number

    found = []
    with pytest.raises(ValueError, match="frame 5"):
        for each in pipelined(range(50), [HostStage("infer", fails, 3)]):
            found.append(each)
    assert found == [0, 1, 2, 3, 4]

    def broken() -> Iterator[int]:
        yield 0
        raise OSError("no camera")

    with pytest.raises(OSError, match="no camera"):
        list(pipelined(broken(), stages(1)))
    assert not [t for t in threading.enumerate() if t.name.startswith("host ")]


def test_stages_work_at_the_same_time() -> None:
    """While the last of three is at item 3, those before it are at items 4 and 5."""
    meet = threading.Barrier(3, timeout=60)

    def stage(name: str, meets_at: int) -> HostStage:
        def work(number: int) -> int:
            if number == meets_at:
                meet.wait()  # broken, and an error, where one works after the other
            return number

        return HostStage(name, work)

    line = [stage(name, 5 - place) for place, name in enumerate(("fetch", "infer", "boxes"))]
    assert list(pipelined(range(40), line)) == list(range(40))
    assert not meet.broken


@pytest.mark.parametrize("make", [lambda: HostStage("a", int, 0), lambda: next(pipelined([], []))])
def test_lines_that_make_no_sense_are_refused(make: object) -> None:
    with pytest.raises(RecipeError):
        make()  # type: ignore[operator]
