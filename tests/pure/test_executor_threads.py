# SPDX-License-Identifier: Apache-2.0
"""One executor, many threads: calls overlap, and each has its own numbers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.pure.test_executor import classifier

from bitwright.base.errors import GraphError
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, GraphBuilder, TensorType
from bitwright.ir.executor import Executor
from bitwright.ir.executor.compiler import native_library
from bitwright.ir.graph import random_feeds


@pytest.mark.parametrize("backend", ["auto", "numpy"])
@pytest.mark.parametrize("threads", [1, 2])
def test_calls_of_many_threads_have_their_own_results(backend: str, threads: int) -> None:
    graph = classifier()
    executor = Executor(graph, threads, backend)  # type: ignore[arg-type]
    batches = [random_feeds(graph, 1 + n % 3, np.random.default_rng(n)) for n in range(24)]
    wanted = [executor.run(feeds) for feeds in batches]
    with ThreadPoolExecutor(4) as pool:
        for expected, got in zip(wanted, pool.map(executor.run, batches), strict=True):
            for edge, value in expected.items():
                np.testing.assert_array_equal(got[edge], value)


@pytest.mark.skipif(native_library() is None, reason="no C compiler")
def test_calls_run_at_the_same_time() -> None:
    """As many pieces of memory as calls overlapped: a second call did not wait for the first."""
    graph = classifier()
    executor = Executor(graph, threads=1, backend="native")
    feeds = random_feeds(graph, 200, np.random.default_rng(0))
    start = threading.Barrier(3)

    def call() -> None:
        start.wait()
        executor.run(feeds)

    workers = [threading.Thread(target=call) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert executor._native is not None
    assert len(executor._native._seats) > 1


def test_a_call_that_fails_harms_no_other() -> None:
    graph = classifier()
    executor = Executor(graph, threads=1)
    good = random_feeds(graph, 2, np.random.default_rng(0))
    wanted = executor.run(good)
    bad = {"x": np.full((1, 32, 32, 3), 256)}

    def attempt(feeds: dict[str, np.ndarray]) -> object:
        try:
            return executor.run(feeds)
        except GraphError as error:
            return error

    with ThreadPoolExecutor(3) as pool:
        for index, found in enumerate(pool.map(attempt, [good, bad] * 6)):
            if index % 2:
                assert isinstance(found, GraphError)
            else:
                assert isinstance(found, dict)
                for edge, value in wanted.items():
                    np.testing.assert_array_equal(found[edge], value)


@pytest.mark.skipif(native_library() is None, reason="no C compiler")
@pytest.mark.parametrize(("threads", "calls"), [(1, [13, 13, 4]), (2, [26, 4])])
def test_one_call_of_c_takes_no_more_than_seconds(threads: int, calls: list[int]) -> None:
    """Within one nobody notices Ctrl-C, and a file may have millions of frames."""
    builder = GraphBuilder("heavy", INTEGER)
    x = builder.input("x", TensorType((16, 16, 256), parse_format("uint2"), (1.0,), 0, 3))
    ones = np.ones((256, 3, 3, 256), np.int64)
    attrs = {"weight_format": "int2", "weight_scale": (1.0,), "padding": (1, 1, 1, 1)}
    graph = builder.finish(builder.add("conv", (x,), attrs=attrs, params={"weight": ones}))
    executor = Executor(graph, backend="native", threads=threads)
    native, counts = executor._native, list[int]()
    assert native is not None
    run = native._run

    def noted(*arguments: object) -> int:
        counts.append(int(arguments[3]))  # type: ignore[call-overload]
        return int(run(*arguments))

    native._run = noted  # type: ignore[assignment]
    feeds = random_feeds(graph, 30, np.random.default_rng(0))  # 0.15 thousand million products each
    found = executor.run(feeds)
    assert counts == calls
    for part in (slice(0, 13), slice(12, 14), slice(25, 30)):
        alone = executor.run({x: feeds[x][part]})
        for edge, value in alone.items():
            np.testing.assert_array_equal(found[edge][part], value)
