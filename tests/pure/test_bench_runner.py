# SPDX-License-Identifier: Apache-2.0
"""Runners: results in order, calls beside each other, and no thread that dies is waited for."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.base.errors import GraphError, RecipeError, RunError
from bitwright.explore.bench.runner import Runner, run_jobs


def doubled(value: int) -> int:
    return 2 * value


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 4))
def test_results_are_in_the_order_of_the_jobs(jobs: int, threads: int, depth: int) -> None:
    if threads > jobs:
        with pytest.raises(RecipeError, match=f"{threads} threads for {jobs} images"):
            run_jobs([lambda: doubled] * threads, range(jobs), depth=depth)
        return
    ran = run_jobs([lambda: doubled] * threads, range(jobs), depth=depth)
    assert ran.results == [2 * k for k in range(jobs)]
    assert len(ran.latencies) == jobs and ran.seconds > 0


def test_stretches_are_disjoint_and_whole() -> None:
    seen: list[list[int]] = [[] for _ in range(3)]

    def maker(index: int) -> Callable[[], Callable[[int], int]]:
        return lambda: lambda job: (seen[index].append(job), job)[1]

    run_jobs([maker(k) for k in range(3)], range(11), warm=False)
    assert [job for part in seen for job in part] == list(range(11))
    assert all(seen)


@pytest.mark.parametrize(
    ("threads", "jobs", "words"),
    [(1, 0, "no images to run"), (0, 3, "no thread"), (4, 3, "4 threads for 3 images")],
)
def test_what_cannot_be_run_says_so(threads: int, jobs: int, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        run_jobs([lambda: doubled] * threads, range(jobs))


@pytest.mark.parametrize("most", [3, 9])
def test_a_system_without_room_for_threads_is_told(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the runners, then those of the hosts; none is left behind."""
    start, before, begun = threading.Thread.start, threading.active_count(), [0]

    def some(thread: threading.Thread) -> None:
        begun[0] += 1
        if begun[0] > most:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", some)
    with pytest.raises(RunError, match="no room for 8 threads"):
        run_jobs([lambda: doubled] * 8, range(100), warm=False)
    for _ in range(200):
        if threading.active_count() <= before:
            break
        time.sleep(0.02)
    assert threading.active_count() <= before


def test_runners_work_at_the_same_time() -> None:
    """Two jobs that need each other: one after the other, they would never end."""
    meeting = threading.Barrier(2, timeout=20)

    def work(job: int) -> int:
        meeting.wait()
        return job

    assert run_jobs([lambda: work] * 2, range(6), warm=False).results == list(range(6))


def test_submitting_does_not_wait() -> None:
    gate = threading.Event()
    runner: Runner[int, int] = Runner(lambda job: (gate.wait(20), job)[1])
    tickets = [runner.submit(k) for k in range(5)]
    assert not any(ticket.done() for ticket in tickets)
    gate.set()
    assert [runner.collect(ticket) for ticket in tickets] == list(range(5))
    runner.close()


def test_a_job_that_fails_ends_the_run_with_its_words() -> None:
    def work(job: int) -> int:
        if job == 7:
            raise GraphError("levels leave the interval", where="x")
        return job

    with pytest.raises(GraphError, match="leave the interval"):
        run_jobs([lambda: work] * 2, range(12), warm=False)
    with pytest.raises(RunError, match="ZeroDivisionError"):
        run_jobs([lambda: lambda job: 1 // (job - 3)] * 2, range(12), warm=False)
    with pytest.raises(RunError, match=r"runner 0: its first job failed: ValueError: broken"):
        run_jobs([lambda: _broken], range(2))


def _broken(job: int) -> int:
    raise ValueError("broken")


def kill(thread: threading.Thread) -> None:
    """What ends a thread of Python from outside."""
    ident = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))


@pytest.mark.parametrize("victim", ["runner", "host"])
def test_a_killed_thread_is_an_error_not_a_hang(victim: str) -> None:
    begun = threading.Event()

    def work(job: int) -> int:
        if job == 5:
            begun.set()
            for _ in range(2000):
                time.sleep(0.01)  # between two of them it is ended
        return job

    def killer() -> None:
        begun.wait(20)
        for thread in threading.enumerate():
            if thread.name.startswith(victim):
                kill(thread)

    hunter = threading.Thread(target=killer)
    hunter.start()
    start = time.monotonic()
    with pytest.raises(RunError, match=r"thread|SystemExit"):
        run_jobs([lambda: work] * 2, range(8), warm=False, depth=1, limit_s=15.0)
    hunter.join()
    assert time.monotonic() - start < 15


def test_a_runner_that_died_takes_no_job() -> None:
    def end(job: int) -> int:
        raise SystemExit

    runner: Runner[int, int] = Runner(end, "mine")
    ticket = runner.submit(1)
    with pytest.raises(SystemExit):
        runner.collect(ticket)
    for _ in range(200):
        if not runner._thread.is_alive():
            break
        time.sleep(0.01)
    with pytest.raises(RunError, match="mine: its thread has ended"):
        runner.submit(2)


def test_a_job_that_never_ends_is_told() -> None:
    gate = threading.Event()
    runner: Runner[int, object] = Runner(lambda job: gate.wait(20), "slow")
    with pytest.raises(RunError, match=r"slow: a job took longer than 0.3 s"):
        runner.collect(runner.submit(1), limit_s=0.3)
    gate.set()
    runner.close()
