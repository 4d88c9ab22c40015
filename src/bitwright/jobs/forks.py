# SPDX-License-Identifier: Apache-2.0
"""Processes of jobs that need not import torch again.

To import what it needs takes a process longer than many a job. Here a server does that once and
forks itself for each job; a fork runs what `bitwright.jobs.worker` runs, in a session of its own.
Requests come on standard input, answers go to standard output, a JSON object a line each::

    python -m bitwright.jobs.forks MODULE ...
    -> {"folder": FOLDER}
    <- {"folder": FOLDER, "pid": 17}         it runs
    <- {"folder": FOLDER, "returncode": 0}   it has ended; negative: the signal that ended it

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
        self._answers: dict[str, queue.SimpleQueue[dict[str, Any]]] = {}

    def run(self, folder: Path, tick: Callable[[float], None]) -> Completed:
        """Do the job that lies in a folder, to its end.

        Args:
            tick: called a few times a second with the seconds so far; if it raises, the job is
                ended.

        Raises:
            ToolError: the server cannot be started.
        """
        start, pid, log = time.monotonic(), 0, folder / LOG
        name = str(folder.resolve())
        answers = self._ask(name)
        try:
            while True:
                tick(time.monotonic() - start)
                with suppress(queue.Empty):
                    answer = answers.get(timeout=_POLL_S)
                    pid = answer.get("pid", pid)
                    if "returncode" in answer:
                        seconds = time.monotonic() - start
                        return Completed(answer["returncode"], seconds, 0.0, 0, log)
        except BaseException:
            _end(pid, answers)
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

    def _ask(self, name: str) -> queue.SimpleQueue[dict[str, Any]]:
        answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._lock:
            if self._server is None or self._server.poll() is not None:
                self._server = self._started()
            self._answers[name] = answers
            assert self._server.stdin is not None
            try:
                self._server.stdin.write(json.dumps({"folder": name}) + "\n")
                self._server.stdin.flush()
            except OSError:  # it was killed just now, and so is the job
                answers.put({"returncode": -signal.SIGKILL})
        return answers

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
        self._answers = {}
        listen = threading.Thread(target=_listen, args=(server.stdout, self._answers), daemon=True)
        listen.start()
        return server


def _listen(stream: IO[str], waiting: dict[str, queue.SimpleQueue[dict[str, Any]]]) -> None:
    """Hand each answer to the thread that waits for it; with the server, its jobs are gone."""
    with stream, suppress(ValueError):
        for line in stream:
            answer = json.loads(line)
            waiting[answer["folder"]].put(answer)
    for answers in [*waiting.values()]:
        answers.put({"returncode": -signal.SIGKILL})


def _end(pid: int, answers: queue.SimpleQueue[dict[str, Any]]) -> None:
    """End a job and what it has started: politely, then for good."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            if pid:
                os.killpg(pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + _GRACE_S
        while (left := deadline - time.monotonic()) > 0:
            try:
                answer = answers.get(timeout=left)
            except queue.Empty:
                break
            if "returncode" in answer:
                return
            pid = answer.get("pid", pid)  # it had not begun
            with suppress(ProcessLookupError):
                os.killpg(pid, number)


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
                folder = json.loads(line)["folder"]
                pid = os.fork()
                if not pid:
                    for handle in (answers, ended, wake):
                        os.close(handle)
                    return _job(Path(folder))
                jobs[pid] = folder
                _tell(answers, {"folder": folder, "pid": pid})


def _reap(jobs: dict[int, str], answers: int) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = found
            code = os.waitstatus_to_exitcode(status)
            _tell(answers, {"folder": jobs.pop(pid), "returncode": code})


def _tell(answers: int, answer: Mapping[str, Any]) -> None:
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
