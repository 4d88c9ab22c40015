# SPDX-License-Identifier: Apache-2.0
"""Jobs on a Ray cluster: Ray chooses the machine, there a process is run and watched as here.

Jobs and results travel as JSON. A machine that sees the folders of the jobs (the same one, or by a
shared file system) works in them; any other works in a folder of its own and sends back every file.
Nothing but the name of `ray_task.run_task` is pickled.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bitwright.base.errors import BitwrightError, RecipeError, RunError, ToolError
from bitwright.base.folders import make_folder
from bitwright.base.processors import available_threads
from bitwright.base.tools.process import output_of
from bitwright.base.tools.python import python, safe_children
from bitwright.jobs.job import Job, JobFailure, JobResult
from bitwright.jobs.process import Limits
from bitwright.jobs.ray_task import Place, answer_of, request_of, run_task

LOCAL = "local"
_CONNECT_S = 5.0
_ANSWER_S = 60.0
_POLL_S = 0.3
_STORE_BYTES = 100 * 2**20
#: Bytes of the folder in which Ray's is made: names of sockets have 103 at most (macOS).
_MOST_PLACE = 20
# No figures about use leave the machine; a busy machine may take its time; GPUs stay visible; what
# Ray says about dead workers does not go to standard output, where only our results belong.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_gcs_server_port_wait_time_s": "60",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
# Ray listens on all interfaces and runs what it is sent: a cluster of our own asks for a password,
# and is for this machine alone, as all are where Ray has no clusters of several.
_PRIVATE = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
_FIRST_WITH_PASSWORD = (2, 52)
_PROBE = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
"""


@dataclass(frozen=True)
class Wish:
    """What a caller asks of workers; see `run_jobs`."""

    workers: int | None = None
    threads: int | None = None
    timeout_s: float | None = None
    retries: int = 2


def run_on_ray(jobs: Sequence[Job], address: str, wish: Wish) -> Generator[JobResult]:
    """Results as they come; see `run_jobs`.

    Raises:
        ToolError: Ray is not installed, or no cluster answers there.
    """
    with _connected(address, wish) as ray, _marked(jobs) as place:
        yield from _Dispatch(ray, wish, place).run(jobs)


class _Dispatch:
    """Keeps as many jobs in flight as there are workers; redoes those whose worker has died."""

    def __init__(self, ray: Any, wish: Wish, place: Place) -> None:
        total = ray.cluster_resources()
        cpus = max(1, int(total.get("CPU", 1)))
        largest = max(int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])
        self.workers = wish.workers or max(1, cpus // (wish.threads or 1))
        threads = wish.threads or max(1, min(largest, cpus // self.workers))
        if threads > largest:
            raise RecipeError(f"no machine of the cluster has {threads} CPUs", where="threads")
        share = min(1.0, int(1000 * total.get("GPU", 0.0) / self.workers) / 1000)
        self.limits = Limits(threads, wish.timeout_s, wish.retries)
        self.ray, self.place = ray, place
        # Redoing is ours, so that it is counted.
        self.task = ray.remote(num_cpus=threads, num_gpus=share, max_retries=0)(run_task)

    def run(self, jobs: Sequence[Job]) -> Generator[JobResult]:
        todo, flying, crashes = deque(jobs), dict[Any, Job](), Counter[str]()
        try:
            while todo or flying:
                while todo and len(flying) < self.workers:
                    job = todo.popleft()
                    flying[self._start(job, crashes[job.name])] = job
                ready, _ = self.ray.wait(list(flying), num_returns=1, timeout=_POLL_S)
                for reference in ready:
                    job = flying.pop(reference)
                    result = self._collect(job, reference, crashes)
                    if result is None:
                        todo.appendleft(job)
                    else:
                        yield result
        finally:
            for reference in flying:
                self.ray.cancel(reference, force=True)

    def _start(self, job: Job, crashed: int) -> Any:
        left = replace(self.limits, retries=self.limits.retries - crashed)
        return self.task.remote(request_of(job, left, self.place))

    def _collect(self, job: Job, reference: Any, crashes: Counter[str]) -> JobResult | None:
        """The result of a finished task; None if its worker died and it is to be redone."""
        errors = self.ray.exceptions
        try:
            result = answer_of(job, self.ray.get(reference))
        except errors.RayTaskError as error:  # our own code failed there
            return self._failed(job, JobFailure("Bug", str(error).strip()[-2000:]), crashes)
        except errors.RayError as error:  # worker or machine died
            crashes[job.name] += 1
            if crashes[job.name] <= self.limits.retries:
                return None
            times = crashes[job.name]
            why = f"its worker died {times} times, last: {_first_line(error)}"
            return self._failed(job, JobFailure("Killed", why), crashes)
        except BitwrightError as error:
            return self._failed(job, JobFailure.of(error), crashes)
        except OSError as error:
            why = f"its files cannot be written: {error}"
            return self._failed(job, JobFailure("RunError", why, str(job.folder)), crashes)
        return replace(result, attempts=result.attempts + crashes[job.name])

    def _failed(self, job: Job, failure: JobFailure, crashes: Counter[str]) -> JobResult:
        attempts = max(1, crashes[job.name])
        threads = self.limits.threads
        return JobResult(job.name, job.folder, failure=failure, attempts=attempts, threads=threads)


@contextmanager
def _marked(jobs: Sequence[Job]) -> Iterator[Place]:
    """The folder above all jobs, with a mark that shows which machines see it.

    Raises:
        RunError: it cannot be written.
    """
    root = Path(os.path.commonpath([job.folder.absolute().parent for job in jobs]))
    place = Place(str(root), secrets.token_hex(8))
    try:
        make_folder(root)
        place.mark.touch()
    except OSError as error:
        raise RunError(f"cannot be written: {error.strerror}", where=str(root)) from error
    try:
        yield place
    finally:
        place.mark.unlink(missing_ok=True)


@contextmanager
def _connected(address: str, wish: Wish) -> Iterator[Any]:
    """Ray, connected; a cluster that was started here ends here."""
    _check_installed()
    settings = dict(_SETTINGS)
    if address == LOCAL and "ray" not in sys.modules:  # it reads this once, when it is imported
        settings |= _PRIVATE
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():  # this process has its cluster
        _check_same(ray, address)
        yield ray
        return
    if address != LOCAL:
        _check_answers(address)
    else:
        _check_private(ray.__version__)
    # Ray lets workers import from the caller's current folder first, but not those of its client.
    config = ray.job_config.JobConfig(_client_job=True)
    options: dict[str, Any] = {
        "log_to_driver": False, "logging_level": "error", "job_config": config
    }  # fmt: skip
    with ExitStack() as stack:
        if address == LOCAL:
            cpus = max(available_threads(), (wish.workers or 1) * (wish.threads or 1))
            options |= {
                "num_cpus": cpus,
                "include_dashboard": False,
                "object_store_memory": _STORE_BYTES,
                "_temp_dir": stack.enter_context(_private_folder()),
            }
        try:
            with safe_children():
                ray.init(address=address, **options)
        except Exception as error:  # Ray raises plain exceptions
            raise _no_answer(address, _first_line(error)) from error
        stack.callback(ray.shutdown)
        yield ray


def _check_private(version: str) -> None:
    """Whether a cluster that is started here will ask for the password: Ray listens on all
    interfaces, and whoever reaches it without one runs code as this user.

    Raises:
        ToolError: it will not: it is older than that, was imported before it could be told, or told
            otherwise.
    """
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < _FIRST_WITH_PASSWORD:
        raise ToolError(
            f"version {version} asks nobody for a password",
            where=f"--ray {LOCAL}",
            hint="pip install -U 'bitwright[ray]', or leave out --ray: processes do the same here",
        )
    if os.environ.get("RAY_AUTH_MODE") != "token":
        raise ToolError(
            "was imported before it could be given a password, or RAY_AUTH_MODE forbids one",
            where=f"--ray {LOCAL}",
            hint="set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN before Ray is imported",
        )


@contextmanager
def _private_folder() -> Iterator[str]:
    """A folder for Ray's sockets and logs, removed at the end, in one that only this user enters:
    Ray lets everybody write into what it makes, and into the folder that it is given.

    Raises:
        ToolError: it cannot be made.
    """
    wanted = (os.environ.get("RAY_TMPDIR"), os.environ.get("TMPDIR"), "/tmp")  # as Ray has them
    places = (each for each in wanted if each and len(os.fsencode(each)) <= _MOST_PLACE)
    place = next((each for each in places if Path(each).is_dir()), None)
    try:
        outer = TemporaryDirectory(prefix="bw-", dir=place, ignore_cleanup_errors=True)
    except OSError as error:
        raise _no_answer(LOCAL, f"{place}: {error.strerror}") from error
    with outer as name:
        yield str(Path(name) / "ray")


def check_cluster(address: str) -> None:
    """Whether jobs can be sent there; a cluster of this machine is not started for that.

    Raises:
        RecipeError: no address.
        ToolError: Ray is not installed, or no cluster answers.
    """
    _check_installed()
    connected = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    if address != LOCAL and not connected:
        _check_answers(address)


def _check_installed() -> None:
    if find_spec("ray") is None:
        raise ToolError(
            "is not installed", where="Ray", hint="pip install 'bitwright[ray]', or leave out --ray"
        )


def _check_same(ray: Any, address: str) -> None:
    have = ray.get_runtime_context().gcs_address
    if address not in (LOCAL, "auto", have):
        raise ToolError(f"this process is connected to {have}", where=f"--ray {address}")


@cache  # an answer; errors are not kept
def _check_answers(address: str) -> None:
    """Ray itself waits for minutes, or ends the process, where no cluster answers: first ask.

    Raises:
        ToolError: nothing listens there, or what listens is no Ray cluster of this version.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto":
        if not colon or not port.isdecimal():
            raise RecipeError(
                f"is no address: {address!r}",
                where="--ray",
                hint="'local', 'auto', or HOST:PORT as `ray start --head` prints it",
            )
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise _no_answer(address, f"{getattr(error, 'strerror', None) or error}") from error
    try:
        output_of(python("-c", _PROBE, address), name="Ray", timeout=_ANSWER_S, env=_SETTINGS)
    except ToolError as error:
        raise _no_answer(address, _last_line(error.message)) from error


def _no_answer(address: str, reason: str) -> ToolError:
    if address == LOCAL:
        return ToolError(
            f"no cluster can be started here: {reason}",
            where="--ray local",
            hint="use --workers without --ray, or try again when the machine is less busy",
        )
    return ToolError(
        f"no Ray cluster answers: {reason}",
        where=f"--ray {address}",
        hint="start one there with `ray start --head`, with the same versions of Python and Ray; "
        "--ray local starts one here",
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else text
