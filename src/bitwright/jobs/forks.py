# SPDX-License-Identifier: Apache-2.0
"""Processes of jobs that need not import torch again.

To import what it needs takes a process longer than many a job. Here a server does that once and
forks itself for each job; a fork runs what `bitwright.jobs.worker` runs, in a session of its own.
Requests come on standard input, answers go to standard output, a JSON object a line each::

    python -m bitwright.jobs.forks MODULE ...
    -> {"folder": FOLDER}                    do this job
    -> {"folder": FOLDER, "signal": 15}      to it and what it has started, if it still runs
    <- {"folder": FOLDER, "returncode": 0}   it has ended; negative: the signal that ended it

What is asked is done in order, so that a job which is given up while the server still imports is
ended as soon as it begins.

The server ends when its standard input does, so with the process that has started it; the jobs see
that and end, too.
"""

from __future__ import annotations

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
from typing import IO, Any

from bitwright.base.errors import ToolError
from bitwright.base.tools.process import Completed
from bitwright.jobs import worker
from bitwright.jobs.job import LOG

#: What a module with functions of jobs may have: names of modules that those will import.
PRELOAD = "PRELOAD"
#: Where torch and what it loads survive a fork.
AVAILABLE = sys.platform == "linux"
_POLL_S, _GRACE_S = 0.1, 2.0


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
        self._ended: dict[str, queue.SimpleQueue[int]] = {}

    def run(self, folder: Path, tick: Callable[[float], None]) -> Completed:
        """Do the job that lies in a folder, to its end.

        Args:
            tick: called a few times a second with the seconds so far; if it raises, the job is
                ended.

        Raises:
            ToolError: the server cannot be started.
        """
        start, name = time.monotonic(), str(folder.resolve())
        ended = self._begin(name)
        try:
            while True:
                tick(time.monotonic() - start)
                with suppress(queue.Empty):
                    code = ended.get(timeout=_POLL_S)
                    return Completed(code, time.monotonic() - start, 0.0, 0, folder / LOG)
        except BaseException:
            for number in (signal.SIGTERM, signal.SIGKILL):  # politely, then for good
                with self._lock, suppress(OSError):
                    self._ask({"folder": name, "signal": number})
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

    def _begin(self, name: str) -> queue.SimpleQueue[int]:
        """Ask for a job; its return code comes."""
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        with self._lock:
            if self._server is None or self._server.poll() is not None:
                self._server = self._started()
            self._ended[name] = ended
            try:
                self._ask({"folder": name})
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
                [sys.executable, "-m", __name__, *self._modules],
                env={**os.environ, **self._env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            message = f"cannot be started: {error.strerror or error}"
            raise ToolError(message, where=__name__) from error
        assert server.stdout is not None
        self._ended = {}
        listen = threading.Thread(target=_listen, args=(server.stdout, self._ended), daemon=True)
        listen.start()
        return server


def _listen(stream: IO[str], ended: dict[str, queue.SimpleQueue[int]]) -> None:
    """Hand each answer to the thread that waits for it; with the server, its jobs are gone."""
    with stream, suppress(ValueError):
        for line in stream:
            answer = json.loads(line)
            ended[answer["folder"]].put(answer["returncode"])
    for waiting in [*ended.values()]:
        waiting.put(-signal.SIGKILL)


def main(modules: Sequence[str]) -> int:
    """Import, then fork for each request until there are no more; gives the exit code."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what an import prints is no answer
    for name in modules:
        with suppress(Exception):  # then the job itself says what is wrong
            for other in getattr(import_module(name), PRELOAD, ()):
                import_module(other)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    jobs: dict[int, str] = {}
    rest = b""
    while True:
        ready, _, _ = select.select([0, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _reap(jobs, answers)
        if 0 in ready:
            said = os.read(0, 1 << 16)
            if not said:
                return 0
            *lines, rest = (rest + said).split(b"\n")
            for line in lines:
                asked = json.loads(line)
                if "signal" in asked:
                    _send(jobs, asked["folder"], asked["signal"])
                    continue
                pid = os.fork()
                if not pid:
                    for handle in (answers, ended, wake):
                        os.close(handle)
                    return _job(Path(asked["folder"]))
                jobs[pid] = asked["folder"]


def _send(jobs: Mapping[int, str], folder: str, number: int) -> None:
    for pid in [pid for pid, name in jobs.items() if name == folder]:
        for send in (os.kill, os.killpg):  # a fork that has just begun leads no group yet
            with suppress(ProcessLookupError):
                send(pid, number)


def _reap(jobs: dict[int, str], answers: int) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = found
            code = os.waitstatus_to_exitcode(status)
            answer = {"folder": jobs.pop(pid), "returncode": code}
            os.write(answers, json.dumps(answer).encode() + b"\n")


def _job(folder: Path) -> int:
    """The fork: a process as if it had been started for this job alone."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    for handle, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(handle, number)
    return worker.main([str(folder), str(os.getppid())])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
