# SPDX-License-Identifier: Apache-2.0
"""Many threads, each with a runner of its own: jobs are submitted and collected asynchronously.

A runner stands for one queue of a device: what is submitted is done in order by its own thread,
while the host's thread goes on. `run_jobs` shares jobs among host threads as disjoint, contiguous
stretches, so results line up with jobs. Whatever ends a thread, an exception or a kill, is an error
of the whole run; nothing waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from bitwright.base.errors import BitwrightError, RecipeError, RunError

J = TypeVar("J")
R = TypeVar("R")

#: Jobs that a host thread has under way: one is done while the next one waits.
DEPTH = 2
#: Seconds between two looks at whether who is waited for still lives.
_LOOK = 0.2
#: Seconds that one job may take.
LIMIT_S = 600.0


class Runner(Generic[J, R]):
    """One queue and the thread that works it off.

    Args:
        work: what one job becomes; called in the runner's thread alone.
        name: for messages.
    """

    def __init__(self, work: Callable[[J], R], name: str = "runner") -> None:
        self._work, self.name = work, name
        self._queue: SimpleQueue[tuple[J, Future[R]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: J) -> Future[R]:
        """Put a job at the end of the queue; returns at once, with what `collect` takes.

        Raises:
            RunError: the runner has ended.
        """
        if not self._thread.is_alive():
            raise self._ended()
        ticket: Future[R] = Future()
        self._queue.put((job, ticket))
        return ticket

    def collect(self, ticket: Future[R], limit_s: float = LIMIT_S) -> R:
        """What a job has become; waits for it.

        Raises:
            RunError: the runner has ended, or the job takes longer than allowed.
            BaseException: what the work itself has raised.
        """
        deadline = time.monotonic() + limit_s
        while True:
            alive = self._thread.is_alive()  # asked before: a result may come in between
            try:
                return ticket.result(min(_LOOK, limit_s))
            except TimeoutError:
                if ticket.done():
                    raise
            if not alive:
                raise self._ended()
            if time.monotonic() > deadline:
                raise RunError(
                    f"a job took longer than {limit_s:g} s",
                    where=self.name,
                    hint="raise the limit, or give smaller jobs",
                )

    def close(self) -> None:
        """End behind the jobs that are submitted; returns at once."""
        self._queue.put(None)

    def _ended(self) -> RunError:
        return RunError(
            "its thread has ended", where=self.name, hint="something killed it; run again"
        )

    def _serve(self) -> None:
        with suppress(SystemExit):  # told to end between two jobs: `collect` sees that it is gone
            self._work_off()

    def _work_off(self) -> None:
        while (entry := self._queue.get()) is not None:
            job, ticket = entry
            try:
                result = self._work(job)
            except BaseException as error:  # whoever collects it decides what it means
                with suppress(InvalidStateError):
                    ticket.set_exception(error)
                if not isinstance(error, Exception):
                    return  # the thread was told to end
            else:
                ticket.set_result(result)


@dataclass(frozen=True)
class Ran(Generic[R]):
    """A finished run.

    Attributes:
        results: of the jobs, in their order.
        seconds: from the start of the first thread to the end of the last.
        latencies: seconds from submission to collection of each job.
    """

    results: list[R]
    seconds: float
    latencies: list[float]


def run_jobs(
    makers: Sequence[Callable[[], Callable[[J], R]]],
    jobs: Sequence[J],
    *,
    depth: int = DEPTH,
    warm: bool = True,
    limit_s: float = LIMIT_S,
) -> Ran[R]:
    """Do all jobs, one host thread and one runner for each maker.

    Making runners and, if `warm`, one job on each of them come before the clock is started.

    Args:
        makers: of what each runner works with.
        jobs: such as single images; each thread gets a contiguous stretch.
        depth: jobs that a thread has under way at a time; 1 waits for each before the next.
        limit_s: seconds that one job may take.

    Raises:
        RecipeError: no jobs, no threads, or more threads than jobs.
        RunError: a thread failed or was killed; says which and why.
    """
    _check(len(makers), len(jobs), depth)
    bounds = [len(jobs) * k // len(makers) for k in range(len(makers) + 1)]
    with _runners(makers) as runners:
        if warm:
            for runner in runners:
                _guarded(runner, jobs[0], limit_s)
        team = _Team(runners, jobs, bounds, depth, limit_s)
        seconds = team.run()
    return Ran(team.results, seconds, team.latencies)


def _check(threads: int, jobs: int, depth: int) -> None:
    if jobs < 1:
        raise RecipeError("there are no images to run", where="images", hint="give at least one")
    if threads < 1:
        raise RecipeError("there is no thread to run them", where="threads", hint="1 or more")
    if threads > jobs:
        raise RecipeError(
            f"{threads} threads for {jobs} images: some would have none",
            where="threads",
            hint=f"at most {jobs}",
        )
    if depth < 1:
        raise RecipeError(f"expected a depth of 1 or more, got {depth}", where="depth")


def _guarded(runner: Runner[J, R], job: J, limit_s: float) -> None:
    try:
        runner.collect(runner.submit(job), limit_s)
    except BitwrightError:
        raise
    except Exception as error:
        raise RunError(
            f"its first job failed: {type(error).__name__}: {error}", where=runner.name
        ) from error


@contextmanager
def _runners(
    makers: Sequence[Callable[[], Callable[[J], R]]],
) -> Iterator[list[Runner[J, R]]]:
    runners: list[Runner[J, R]] = []
    try:
        for index, make in enumerate(makers):
            with _room_for_threads(len(makers)):
                runners.append(Runner(make(), f"runner {index}"))
        yield runners
    finally:
        for runner in runners:
            runner.close()


@contextmanager
def _room_for_threads(count: int) -> Iterator[None]:
    """Inside, what the system says where it has no more threads becomes an error of the user's."""
    try:
        yield
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        raise RunError(
            f"the system has no room for {count} threads", where="threads", hint="use fewer"
        ) from error


class _Team(Generic[J, R]):
    """The host threads of one run."""

    def __init__(
        self,
        runners: Sequence[Runner[J, R]],
        jobs: Sequence[J],
        bounds: Sequence[int],
        depth: int,
        limit_s: float,
    ) -> None:
        self._runners, self._jobs, self._bounds = runners, jobs, bounds
        self._depth, self._limit = depth, limit_s
        self._failed = threading.Event()
        self._errors: list[tuple[int, BaseException]] = []
        self._finished = [False] * len(runners)
        self.results: list[Any] = [None] * len(jobs)
        self.latencies = [0.0] * len(jobs)

    def run(self) -> float:
        threads = [
            threading.Thread(target=self._work, args=(k,), name=f"host {k}", daemon=True)
            for k in range(len(self._runners))
        ]
        start = time.perf_counter()
        try:
            with _room_for_threads(len(threads)):
                for thread in threads:
                    thread.start()
        except RunError:
            self._failed.set()  # those that run end
            raise
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - start
        self._raise()
        return seconds

    def _raise(self) -> None:
        """The first failure, or that of a thread that ended without a word."""
        for index, error in sorted(self._errors, key=lambda item: item[0]):
            if isinstance(error, BitwrightError):
                raise error
            raise RunError(
                f"thread {index} failed: {type(error).__name__}: {error}", where=f"host {index}"
            ) from error
        if not all(self._finished):
            index = self._finished.index(False)
            raise RunError("its thread has ended before its images", where=f"host {index}")

    def _work(self, index: int) -> None:
        try:
            self._stretch(self._runners[index], *self._bounds[index : index + 2])
            self._finished[index] = True
        except BaseException as error:  # told by `run`, in the caller's thread
            self._failed.set()
            self._errors.append((index, error))

    def _stretch(self, runner: Runner[J, R], begin: int, end: int) -> None:
        under_way: deque[tuple[int, float, Future[R]]] = deque()
        for place in range(begin, end):
            if self._failed.is_set():
                return
            if len(under_way) == self._depth:
                self._collect(runner, *under_way.popleft())
            submitted = time.perf_counter()
            under_way.append((place, submitted, runner.submit(self._jobs[place])))
        while under_way:
            self._collect(runner, *under_way.popleft())

    def _collect(
        self, runner: Runner[J, R], place: int, submitted: float, ticket: Future[R]
    ) -> None:
        self.results[place] = runner.collect(ticket, self._limit)
        self.latencies[place] = time.perf_counter() - submitted
