# SPDX-License-Identifier: Apache-2.0
"""Running external programs: argument lists, a time limit, a log file, and nothing left behind.

Every program runs in its own process group, so that a time limit or Ctrl-C ends it with all its
children. One that is written in Python, or starts such a one, imports nothing from the folder where
it works (`base.tools.python`).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bitwright.base.errors import ToolError
from bitwright.base.folders import make_folder
from bitwright.base.memory import LARGE, limit_of
from bitwright.base.tools.python import SAFE_PATH

Tick = Callable[[float], None]
"""Called a few times a second with the seconds a program has been running."""

#: Process groups of programs that run, by their number.
_running: set[int] = set()
#: What programs say where memory ends; Verilator and the compilers do.
_NO_ROOM = re.compile(r"bad_alloc|out of memory|memory exhausted|cannot allocate", re.IGNORECASE)
_SET_PARENT_DEATH_SIGNAL = 1  # of prctl(2)
_GRACE_S = 2.0
_POLL_S = 0.02
_TAIL_LINES = 12
_HEAD_LINES = 20


@dataclass(frozen=True)
class Completed:
    """How a program ended.

    Attributes:
        returncode: its exit status; negative: the signal that ended it.
        seconds: wall-clock time.
        cpu_seconds: processor time of it and its children.
        peak_memory: its largest resident set, bytes; children do not count.
        log: the file with its standard output and error.
    """

    returncode: int
    seconds: float
    cpu_seconds: float
    peak_memory: int
    log: Path

    def figures(self) -> dict[str, float]:
        """Times and memory, to be kept with a cached result."""
        return {
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "peak_memory": float(self.peak_memory),
        }

    def text(self) -> str:
        """The whole log, if there is one; undecodable bytes are replaced."""
        return self.log.read_text(errors="replace") if self.log.is_file() else ""

    def tail(self, lines: int = _TAIL_LINES) -> str:
        """The last lines of the log that are not empty."""
        kept = [line for line in self.text().splitlines() if line.strip()]
        return "\n".join(kept[-lines:])


def run_process(
    argv: Sequence[str],
    *,
    cwd: Path,
    log: Path,
    timeout: float,
    env: Mapping[str, str] | None = None,
    name: str | None = None,
    tick: Tick | None = None,
    memory: float | None = None,
) -> Completed:
    """Run a program to its end with its output in a file.

    Args:
        argv: program and arguments; no shell is involved.
        cwd: its working folder.
        log: file for standard output and error together; overwritten.
        timeout: seconds until its process group is killed.
        env: variables added to the environment.
        name: what to call it in errors; default: the program's file name.
        tick: called now and then while it runs.
        memory: share of the machine's that it may take, if that is not what all processes may.

    Raises:
        ToolError: it cannot be started, or ran out of time. A failing exit status is returned,
            not raised.
        KeyboardInterrupt: passed on after the process group has been ended.
    """
    shown = name or Path(argv[0]).name
    make_folder(log.parent)
    start = time.monotonic()
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env={**os.environ, **SAFE_PATH, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ToolError(
                f"cannot be started: {error.strerror or error}",
                where=shown,
                hint="`bitwright doctor` shows every tool and how to install it",
            ) from error
        try:
            _running.add(process.pid)
            if memory is not None:
                limit_of(process.pid, memory)
            returncode, cpu, peak = _wait(process.pid, start, timeout, tick)
            if returncode is None:
                _kill_group(process)
        except BaseException:
            _kill_group(process)
            raise
        finally:
            _running.discard(process.pid)
    if returncode is None:
        raise ToolError(
            f"did not finish within {timeout:g} s and was stopped",
            where=f"{shown} (log: {log})",
            hint="allow more time, or make the design smaller (fewer PE and SIMD)",
        )
    process.returncode = returncode  # reaped by us: Popen must not wait for it again
    return Completed(returncode, time.monotonic() - start, cpu, peak, log)


def end_running() -> None:
    """End every program that this process runs, and every process of Python that it has started, at
    once: for who is about to end himself.
    """
    for pid in tuple(_running):
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    for child in multiprocessing.active_children():
        with suppress(OSError, ValueError):  # it has ended
            child.kill()


def die_with_parent() -> None:
    """End this process with the one that has started it, however that ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _wait(
    pid: int, start: float, timeout: float, tick: Tick | None
) -> tuple[int | None, float, int]:
    """Exit status, processor time and peak memory of a child; status None at the end of time."""
    pause, peak = _POLL_S / 4, 0
    with _end_of(pid) as wait:
        while True:
            peak = _peak_memory(pid) or peak
            done, status, usage = os.wait4(pid, os.WNOHANG)
            if done:
                cpu = usage.ru_utime + usage.ru_stime
                return os.waitstatus_to_exitcode(status), cpu, peak or usage.ru_maxrss * 1024
            elapsed = time.monotonic() - start
            if elapsed > timeout:
                return None, 0.0, 0
            if tick is not None:
                tick(elapsed)
            wait(pause)
            pause = min(pause * 1.5, _POLL_S * 5)


@contextmanager
def _end_of(pid: int) -> Iterator[Callable[[float], object]]:
    """A function that waits for the end of a process, but so many seconds at most: where the system
    tells of it, not a moment longer.
    """
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or an old one
        yield time.sleep
        return
    try:
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        yield lambda seconds: ended.poll(1000 * seconds)
    finally:
        os.close(handle)


def _peak_memory(pid: int) -> int:
    """Peak memory of a running process so far, bytes; 0 where the system does not say.

    The figure of ``wait4`` is no use: it starts at the size of the process that made the child.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    words = next((line.split() for line in lines if line.startswith("VmHWM:")), ["", "0"])
    return int(words[1]) * 1024


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a program and its children: politely, then for good; the latter at once where somebody
    does not wait for it (a second Ctrl-C).
    """
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(process.pid, number)
            deadline = time.monotonic() + _GRACE_S
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(_POLL_S)
    except ProcessLookupError:
        return
    except BaseException:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    process.wait()


def check_finished(completed: Completed, name: str) -> None:
    """Turn a failing exit status into an error with the end of the log.

    Raises:
        ToolError: the exit status is not zero.
    """
    if completed.returncode != 0:
        raise ToolError(
            f"failed with exit status {completed.returncode}; its last words:\n{completed.tail()}",
            where=f"{name} (log: {completed.log})",
        )


def output_of(
    argv: Sequence[str],
    *,
    name: str,
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    hint: str | None = None,
    tick: Tick | None = None,
    memory: float | None = None,
) -> str:
    """Run a short program to its end; everything it said.

    Args:
        name: what to call it in errors.
        hint: what to do when it fails.
        tick: called now and then while it runs.
        memory: share of the machine's that it may take.

    Raises:
        ToolError: it cannot be started, fails (the message has the first lines it said) or runs
            out of time.
    """
    with tempfile.TemporaryDirectory(prefix="bitwright-") as folder:
        done = run_process(
            argv, cwd=cwd or Path(folder), log=Path(folder, "log"), timeout=timeout, env=env,
            name=name, tick=tick, memory=memory,
        )  # fmt: skip
        text = done.text()
    if done.returncode != 0:
        lines = [line for line in text.splitlines() if line.strip()][:_HEAD_LINES]
        said = "\n".join(lines)
        if memory is not None and re.search(_NO_ROOM, text):
            hint = f"make the design smaller (fewer PE and SIMD), or let it take more: {LARGE}=1"
        raise ToolError(
            f"failed with exit status {done.returncode}:\n{said}", where=name, hint=hint
        )
    return text


def require_result(path: Path, completed: Completed, name: str) -> Path:
    """Make sure that a program really wrote its result: some end with status 0 and write nothing.

    Raises:
        ToolError: the file is missing or empty.
    """
    if not path.is_file() or path.stat().st_size == 0:
        raise ToolError(
            f"ended with exit status {completed.returncode} but wrote no {path.name}; "
            f"its last words:\n{completed.tail()}",
            where=f"{name} (log: {completed.log})",
            hint="try another build of this tool: `bitwright doctor` lists those found",
        )
    return path
