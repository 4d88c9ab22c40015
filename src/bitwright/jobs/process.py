# SPDX-License-Identifier: Apache-2.0
"""One job in a process of its own, redone if that process is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import bitwright
from bitwright.base.tools.process import Completed, run_process
from bitwright.base.tools.python import python
from bitwright.jobs.forks import Forks
from bitwright.jobs.job import LOG, TERMINATED, Job, JobFailure, JobResult, result_of

WORKER = "bitwright.jobs.worker"
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Limits:
    """What a job may use.

    Attributes:
        threads: CPU threads of its process.
        timeout_s: seconds until an attempt is stopped; None: no limit.
        retries: how often it is redone when its process is killed.
    """

    threads: int
    timeout_s: float | None = None
    retries: int = 2


class Stopped(BaseException):
    """The caller wants no more; no error, and not to be caught as one."""


class _TimeUp(Exception):
    """A job's time is up; never leaves this module."""


def run_job(
    job: Job,
    limits: Limits,
    stop: Callable[[], bool] = lambda: False,
    forks: Forks | None = None,
) -> JobResult:
    """Do one job; what it left when an earlier process died is there for it to go on from.

    Args:
        stop: asked several times a second; the process is ended as soon as it says so.
        forks: where the process comes from; None: it is a new one.

    Raises:
        Stopped: the job was ended because ``stop`` said so.
        RunError: the job's folder cannot be written.
        ToolError: no process can be started.
    """
    start, number = time.monotonic(), 0
    for number in range(1, limits.retries + 2):
        asked = job.prepare(limits.threads)
        try:
            ended = _ended(job, asked, limits, _tick(limits, stop), forks)
        except _TimeUp as error:
            return _failed(job, limits, JobFailure("TimeUp", str(error)), number, start)
        found = job.finished()
        if found is not None:
            return replace(
                result_of(job, found, was_done=False, attempts=number),
                seconds=round(ended.seconds, 3),
            )
        if not _killed(ended):
            return _failed(job, limits, job.failure() or _silent(ended), number, start)
    return _failed(job, limits, _given_up(ended, number), number, start)


def _ended(
    job: Job, asked: str, limits: Limits, tick: Callable[[float], None], forks: Forks | None
) -> Completed:
    if forks is not None:
        return forks.run(job.folder, asked, tick)
    return run_process(
        python("-m", WORKER, str(job.folder.resolve()), str(os.getpid()), asked),
        cwd=Path.cwd(),
        log=job.folder / LOG,
        timeout=inf,
        env=environment(limits.threads),
        name=job.name,
        tick=tick,
    )


def _tick(limits: Limits, stop: Callable[[], bool]) -> Callable[[float], None]:
    def tick(elapsed: float) -> None:
        if stop():
            raise Stopped
        if limits.timeout_s is not None and elapsed > limits.timeout_s:
            raise _TimeUp(f"did not finish within {limits.timeout_s:g} s and was stopped")

    return tick


def environment(threads: int) -> dict[str, str]:
    """Threads, and the very package that runs here."""
    package = str(Path(bitwright.__file__).resolve().parents[1])
    others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != package]
    return {
        **dict.fromkeys(_THREAD_VARIABLES, str(threads)),
        "PYTHONPATH": os.pathsep.join([package, *others]),
        "PYTHONUNBUFFERED": "1",
    }


def _killed(ended: Completed) -> bool:
    return ended.returncode < 0 or ended.returncode == TERMINATED


def _silent(ended: Completed) -> JobFailure:
    """The process ended by itself without a result or a reason."""
    said = ended.tail() or "it said nothing"
    return JobFailure("Bug", f"ended with exit status {ended.returncode}; {said}")


def _given_up(ended: Completed, attempts: int) -> JobFailure:
    number = -ended.returncode if ended.returncode < 0 else ended.returncode - 128
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    memory = "; the system does so when memory runs out" if name == "SIGKILL" else ""
    times = "once" if attempts == 1 else f"{attempts} times"
    return JobFailure(
        "Killed",
        f"its process was killed {times} (last by {name}{memory})",
        hint="use fewer workers, then give the same command again",
    )


def _failed(
    job: Job, limits: Limits, failure: JobFailure, attempts: int, start: float
) -> JobResult:
    return JobResult(
        job.name,
        job.folder,
        failure=failure,
        attempts=attempts,
        seconds=round(time.monotonic() - start, 3),
        threads=limits.threads,
        host=os.uname().nodename,
    )
