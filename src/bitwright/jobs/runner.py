# SPDX-License-Identifier: Apache-2.0
"""Running many jobs: which are done already, where the others run, what came of each."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing

from bitwright.base.errors import BitwrightError, RecipeError
from bitwright.base.processors import available_threads
from bitwright.base.progress import Progress
from bitwright.jobs.forks import AVAILABLE, Forks
from bitwright.jobs.job import Job, JobFailure, JobResult, result_of
from bitwright.jobs.process import Limits, Stopped, environment, run_job

OnResult = Callable[[JobResult], None]
"""Called with each result as it comes, in the calling thread."""

_POLL_S = 0.2
_log = logging.getLogger(__name__)


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    ray: str | None = None,
    threads: int | None = None,
    timeout_s: float | None = None,
    retries: int = 2,
    on_progress: Progress | None = None,
    on_result: OnResult | None = None,
) -> tuple[JobResult, ...]:
    """Do every job that is not done yet; each in a process of its own.

    A job that fails does not stop the others. One whose process is killed (by hand, or because
    memory ran out) is redone. Ctrl-C ends all processes; the same call later goes on from there.

    Args:
        workers: jobs at a time; default one a core, or a CPU of the cluster.
        ray: ``local`` for a Ray cluster of this machine alone, or the address of one.
        threads: CPU threads a job; default cores // workers.
        timeout_s: seconds until a job is stopped, which then has failed.
        retries: how often a job is redone when its process is killed.
        on_progress: told how many jobs are finished.
        on_result: told each result, those of jobs done before too.

    Returns:
        A result for every job, in the order of ``jobs``.

    Raises:
        RecipeError: numbers out of range, or two jobs with one folder or name.
        ToolError: Ray is not installed, or no cluster answers.
        KeyboardInterrupt: passed on when all processes have ended.
    """
    check_options(workers=workers, threads=threads, timeout_s=timeout_s, retries=retries)
    _check_names(jobs)
    results: dict[str, JobResult] = {}

    def take(result: JobResult) -> None:
        results[result.name] = result
        if on_result is not None:
            on_result(result)
        if on_progress is not None:
            on_progress("running jobs", len(results), len(jobs))

    waiting = []
    for job in jobs:
        old = job.finished()
        if old is None:
            waiting.append(job)
        else:
            take(result_of(job, old, was_done=True, attempts=0))
    _tell_of_others(waiting)
    if waiting and ray is not None:
        from bitwright.jobs.cluster import Wish, run_on_ray

        wish = Wish(workers, threads, timeout_s, retries)
        with closing(run_on_ray(waiting, ray, wish)) as found:
            for result in found:
                take(result)
    elif waiting:
        count = workers or available_threads()
        limits = Limits(threads or max(1, available_threads() // count), timeout_s, retries)
        with closing(_run_here(waiting, min(count, len(waiting)), limits)) as found:
            for result in found:
                take(result)
    return tuple(results[job.name] for job in jobs)


def _tell_of_others(waiting: Sequence[Job]) -> None:
    """Say it if jobs are done again that another function has done, such as that of a version."""
    calls = sorted({call for job in waiting if (call := job.other_call())})
    if calls:
        _log.warning("done again: results by %s, now by %s", ", ".join(calls), waiting[0].call)


def check_options(
    *,
    workers: int | None = None,
    threads: int | None = None,
    timeout_s: float | None = None,
    retries: int = 2,
    ray: str | None = None,
) -> None:
    """Whether `run_jobs` would take these, before anything is done.

    Raises:
        RecipeError: numbers out of range.
        ToolError: Ray is not installed, or no cluster answers.
    """
    for name, value, least in (("workers", workers, 1), ("threads", threads, 1)):
        if value is not None and value < least:
            raise RecipeError(f"at least {least}, found {value}", where=name)
    if retries < 0:
        raise RecipeError(f"at least 0, found {retries}", where="retries")
    if timeout_s is not None and not timeout_s > 0:
        raise RecipeError(f"more than 0 s, found {timeout_s:g}", where="timeout")
    if ray is not None:
        from bitwright.jobs.cluster import check_cluster

        check_cluster(ray)


def _check_names(jobs: Sequence[Job]) -> None:
    for what, values in (
        ("name", [job.name for job in jobs]),
        ("folder", [str(job.folder.resolve()) for job in jobs]),
    ):
        double = sorted({value for value in values if values.count(value) > 1})
        if double:
            raise RecipeError(f"two jobs have one {what}", where=double[0])


def _run_here(jobs: Sequence[Job], workers: int, limits: Limits) -> Generator[JobResult]:
    """Results as they come, from a few threads that each watch one process at a time."""
    todo: queue.SimpleQueue[Job] = queue.SimpleQueue()
    done: queue.SimpleQueue[JobResult | BaseException] = queue.SimpleQueue()
    stop = threading.Event()
    for job in jobs:
        todo.put(job)

    modules = sorted({job.call.partition(":")[0] for job in jobs})
    forks = Forks(modules, environment(limits.threads)) if AVAILABLE else None

    def work() -> None:
        while not stop.is_set():
            try:
                job = todo.get_nowait()
            except queue.Empty:
                return
            done.put(_watched(job, limits, stop, forks))

    watchers = [threading.Thread(target=work, name=f"job-{n}") for n in range(workers)]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in jobs:
            result = _next(done)
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        stop.set()
        for watcher in watchers:
            watcher.join()
        if forks is not None:
            forks.close()


def _watched(
    job: Job, limits: Limits, stop: threading.Event, forks: Forks | None
) -> JobResult | BaseException:
    """A result, or what went wrong with the watching itself, for the calling thread to raise."""
    try:
        return run_job(job, limits, stop.is_set, forks)
    except BitwrightError as error:
        return JobResult(job.name, job.folder, failure=JobFailure.of(error), attempts=1)
    except (Stopped, Exception) as error:  # carried over to the thread that waits
        return error


def _next(done: queue.SimpleQueue[JobResult | BaseException]) -> JobResult | BaseException:
    """Waits in short turns: Ctrl-C is then seen at once on every system."""
    while True:
        try:
            return done.get(timeout=_POLL_S)
        except queue.Empty:
            continue
