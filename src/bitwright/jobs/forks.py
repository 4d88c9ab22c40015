# SPDX-License-Identifier: Apache-2.0
"""Processes of jobs that need not import torch again.

To import what it needs takes a process longer than many a job. Here a server does that once and
forks itself for each job; a fork runs what `bitwright.jobs.worker` runs, in a session of its own.
Requests come on standard input, answers go to standard output, a JSON object a line each::

    python -m bitwright.jobs.forks MODULE ...
    -> {"id": 1, "folder": FOLDER, "asked": HASH}      do this job
    -> {"id": 1, "signal": 15}          to it and what it has started, if it still runs
    <- {"id": 1, "returncode": 0}       it has ended; negative: the signal that ended it

What is asked is done in order, so that a job which is given up while the server still imports is
ended as soon as it begins.

The server ends with its standard input or with the process that has started it; the jobs see that
and end, too.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from bitwright.base.errors import ToolError
from bitwright.base.tools.process import Completed
from bitwright.base.tools.python import SAFE_PATH, python
from bitwright.jobs import worker
from bitwright.jobs.job import LOG

#: What a module with functions of jobs may have: names of modules that those will import. They must
#: compute nothing then: threads that torch has started do not survive a fork.
PRELOAD = "PRELOAD"
#: Where torch and what it loads survive a fork.
AVAILABLE = sys.platform == "linux"
_POLL_S, _GRACE_S = 0.1, 2.0
_LOOK_S = 0.5  # after which the server looks whether its caller still lives
_START = "import sys; from bitwright.jobs.forks import main; sys.exit(main(sys.argv[1:]))"


class Forks:
    """The server, as its caller has it; it starts with the first job. Threads may share it.

    Args:
        modules: whose functions the jobs call.
        env: variables added to the environment.
    """

    def __init__(self, modules: Sequence[str], env: Mapping[str, str]) -> None:
        self._modules, self._env = tuple(modules), dict(env)
        self._lock = threading.Lock()
        self._server: subprocess.Popen[str] | None = None
        self._ended: dict[int, queue.SimpleQueue[int]] = {}
        self._numbers = itertools.count()

    def run(self, folder: Path, asked: str, tick: Callable[[float], None]) -> Completed:
        """Do the job that lies in a folder, to its end.

        Args:
            asked: hash of what lies there, from `Job.prepare`.
            tick: called a few times a second with the seconds so far; if it raises, the job is
                ended.

        Raises:
            ToolError: the server cannot be started.
        """
        start, number = time.monotonic(), next(self._numbers)
        ended = self._begin(number, str(folder.resolve()), asked)
        try:
            while True:
                tick(time.monotonic() - start)
                with suppress(queue.Empty):
                    code = ended.get(timeout=_POLL_S)
                    return Completed(code, time.monotonic() - start, 0.0, 0, folder / LOG)
        except BaseException:
            for what in (signal.SIGTERM, signal.SIGKILL):  # politely, then for good
                with self._lock, suppress(OSError):
                    self._ask({"id": number, "signal": what})
                with suppress(queue.Empty):
                    ended.get(timeout=_GRACE_S)
                    break
            raise

    def close(self) -> None:
        """End the server; jobs that still run end as well."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            assert server.stdin is not None
            with suppress(OSError):
                server.stdin.close()
            try:
                server.wait(_GRACE_S)
            except subprocess.TimeoutExpired:  # it imports still
                server.kill()
                server.wait()

    def _begin(self, number: int, folder: str, asked: str) -> queue.SimpleQueue[int]:
        """Ask for a job; its return code comes."""
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        with self._lock:
            if self._server is None or self._server.poll() is not None:
                self._server = self._started()
            self._ended[number] = ended
            try:
                self._ask({"id": number, "folder": folder, "asked": asked})
            except OSError:  # the server was killed just now, and so is the job
                ended.put(-signal.SIGKILL)
        return ended

    def _ask(self, request: Mapping[str, Any]) -> None:
        if self._server is not None and self._server.stdin is not None:
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()

    def _started(self) -> subprocess.Popen[str]:
        try:
            server = subprocess.Popen(
                python("-c", _START, *self._modules),
                env={**os.environ, **SAFE_PATH, **self._env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if _is_open(2) else subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            message = f"cannot be started: {error.strerror or error}"
            raise ToolError(message, where=__name__) from error
        assert server.stdout is not None
        self._ended = {}
        listen = threading.Thread(target=_listen, args=(server, self._ended), daemon=True)
        listen.start()
        return server


def _is_open(handle: int) -> bool:
    try:
        os.fstat(handle)
    except OSError:
        return False
    return True


def _listen(server: subprocess.Popen[str], ended: dict[int, queue.SimpleQueue[int]]) -> None:
    """Hand each answer to the thread that waits for it; with the server, its jobs are gone."""
    assert server.stdout is not None
    with server.stdout, suppress(ValueError):
        for line in server.stdout:
            answer = json.loads(line)
            ended[answer["id"]].put(answer["returncode"])
    server.kill()  # what it says is understood no more
    for waiting in [*ended.values()]:
        waiting.put(-signal.SIGKILL)


def main(modules: Sequence[str]) -> int:
    """Import, then fork for each request until there are no more; gives the exit code."""
    caller = os.getppid()
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # an import that reads gets nothing,
    os.dup2(2, 1)  # and what it prints is no answer
    os.close(nothing)
    for name in modules:
        with suppress(Exception, SystemExit):  # then the job itself says what is wrong
            for other in getattr(import_module(name), PRELOAD, ()):
                import_module(other)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    jobs: dict[int, int] = {}
    rest, server = b"", os.getpid()
    while os.getppid() == caller:
        ready, _, _ = select.select([requests, ended], [], [], _LOOK_S)
        if ended in ready:
            os.read(ended, 4096)
            _reap(jobs, answers)
        if requests in ready:
            said = os.read(requests, 1 << 16)
            if not said:
                return 0
            *lines, rest = (rest + said).split(b"\n")
            for line in lines:
                asked = json.loads(line)
                if "signal" in asked:
                    _send(jobs, asked["id"], asked["signal"])
                    continue
                pid = os.fork()
                if not pid:
                    for handle in (requests, answers, ended, wake):
                        os.close(handle)
                    return _job(Path(asked["folder"]), asked["asked"], server)
                jobs[pid] = asked["id"]
    return 0


def _send(jobs: Mapping[int, int], number: int, what: int) -> None:
    for pid in [pid for pid, job in jobs.items() if job == number]:
        for send in (os.kill, os.killpg):  # a fork that has just begun leads no group yet
            with suppress(ProcessLookupError):
                send(pid, what)


def _reap(jobs: dict[int, int], answers: int) -> None:
    for pid in [*jobs]:  # what an import has started is none of ours
        with suppress(ChildProcessError):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                answer = {"id": jobs.pop(pid), "returncode": os.waitstatus_to_exitcode(status)}
                os.write(answers, json.dumps(answer).encode() + b"\n")


def _job(folder: Path, asked: str, server: int) -> int:
    """The fork: a process as if it had been started for this job alone."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    for number in (1, 2):
        os.dup2(log, number)
    if log > 2:
        os.close(log)
    return worker.main([str(folder), str(server), asked])
