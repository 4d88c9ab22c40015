# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends the command wherever it is."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bitwright.base.errors import ToolError
from bitwright.base.tools.process import Tick, output_of
from bitwright.sim.toolchain import _together

SOURCE = Path(__file__).resolve().parents[2] / "src"
#: One call of a library that lasts for minutes and does not look up.
LONG = """
import hashlib, threading
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
hashlib.pbkdf2_hmac('sha256', b'a', b'b', (1 << 31) - 1)
"""
FORKED = """
if (child := os.fork()) == 0:
    os.kill(os.getpid(), signal.SIGINT)
    os._exit(0)
os.waitpid(child, 0)
import time; time.sleep(1)
print('still here')
"""


def start(
    body: str, patience_s: float = 0.3, ctrl_c: str = "signal.default_int_handler"
) -> subprocess.Popen[str]:
    lines = (
        "import os, signal",
        "from bitwright.cli.interrupts import Interrupts",
        f"signal.signal(signal.SIGINT, {ctrl_c})",
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)",  # whatever nohup has made of it
        f"with Interrupts(patience_s={patience_s}) as found:",
        "    print('begun', flush=True)",
        *(f"    {line}" for line in body.strip().splitlines()),
        "    print('done', found.seen, flush=True)",
    )
    done = subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert done.stdout is not None and done.stdout.readline() == "begun\n"
    return done


def test_in_a_call_that_does_not_look_up() -> None:
    done = start(LONG)
    _, told = done.communicate(timeout=60)
    assert done.returncode == 130
    assert "interrupted" in told and "Traceback" not in told


@pytest.mark.parametrize("body", ["import time; time.sleep(60)", "while True: pass"])
def test_elsewhere_as_python_does(body: str) -> None:
    done = start(body)
    done.send_signal(signal.SIGINT)
    _, told = done.communicate(timeout=60)
    assert "KeyboardInterrupt" in told and done.returncode == -signal.SIGINT


def test_the_second_one_too() -> None:
    """What cleans up behind a first Ctrl-C may be a call that lasts, as well."""
    again = LONG.strip().splitlines()
    body = ["import time", "try:", "    os.kill(os.getpid(), signal.SIGINT)", "    time.sleep(9)"]
    body += ["finally:", *(f"    {line}" for line in again)]
    done = start("\n".join(body))
    _, told = done.communicate(timeout=60)
    assert done.returncode == 130 and "interrupted" in told


def test_who_notices_it_and_waits_for_others() -> None:
    """The end of a pool waits for what its threads have begun."""
    body = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
with ThreadPoolExecutor(2) as pool:
    pool.submit(time.sleep, 60).result()
"""
    began = time.monotonic()
    done = start(body)
    _, told = done.communicate(timeout=60)
    assert done.returncode == 130 and "interrupted" in told and time.monotonic() - began < 30


@pytest.mark.parametrize("worker", ["threading.Thread(target=time.sleep, args=(60,)).start()",
                                    "ThreadPoolExecutor(1).submit(time.sleep, 60)"])  # fmt: skip
def test_what_python_waits_for_at_its_end(worker: str) -> None:
    """The command has ended by then, and its threads have not."""
    lines = (
        "import os, signal, sys, threading, time, types",
        "from concurrent.futures import ThreadPoolExecutor",
        "from bitwright.cli import entry, interrupts",
        "interrupts.PATIENCE_S = 2.0",
        "signal.signal(signal.SIGINT, signal.default_int_handler)",
        "def app(**options):",
        f"    {worker}",
        "    os.kill(os.getpid(), signal.SIGINT)",
        "    time.sleep(60)",
        "sys.modules['bitwright.cli.app'] = types.SimpleNamespace(app=app)",
        "entry.main()",
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=90,
        env={**os.environ, "PYTHONPATH": str(SOURCE)}, check=False,
    )  # fmt: skip
    assert done.returncode == 130 and "interrupted" in done.stderr
    assert time.monotonic() - began < 30


def test_several_at_once_are_one() -> None:
    """Python hears of three signals in one call once, and nobody waits for it to hear again."""
    body = """
def press():
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.02)
import hashlib, threading, time
threading.Timer(0.2, press).start()
try:
    hashlib.pbkdf2_hmac('sha256', b'a', b'b', 1 << 23)
    time.sleep(5)
except KeyboardInterrupt:
    pass
time.sleep(3)
print('still here')
"""
    done = start(body, patience_s=30)
    said, told = done.communicate(timeout=60)
    assert "still here" in said, told


def test_a_signal_of_a_forked_child_is_none() -> None:
    done = start(FORKED)
    said, _ = done.communicate(timeout=60)
    assert said.splitlines() == ["still here", "done False"] and done.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_the_command_ends_the_programs_that_it_runs(
    tmp_path: Path, number: signal.Signals
) -> None:
    body = f"""
from pathlib import Path
from bitwright.base.tools.process import run_process
argv = ['sh', '-c', 'echo $$ > pid; sleep 300']
run_process(argv, cwd=Path({str(tmp_path)!r}), log=Path({str(tmp_path / "log")!r}), timeout=300)
"""
    done, pid = start(body, patience_s=10), tmp_path / "pid"
    while not (pid.is_file() and pid.read_text().strip()):
        assert done.poll() is None
        time.sleep(0.05)
    done.send_signal(number)
    _, told = done.communicate(timeout=60)
    assert "KeyboardInterrupt" in told
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_what_is_compiled_in_threads_ends_at_once(tmp_path: Path) -> None:
    """A thread does not hear of Ctrl-C, and its compiler may work for minutes."""
    body = """
import threading
from pathlib import Path
from bitwright.base.tools.process import output_of
from bitwright.sim.toolchain import _together
def one(name, tick):
    output_of(['sleep', '300'], name=name, timeout=300, tick=tick)
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
_together(one, ['a', 'b', 'c', 'd'])
"""
    done = start(body, patience_s=30)
    _, told = done.communicate(timeout=30)
    assert "KeyboardInterrupt" in told


STUBBORN = """
from pathlib import Path
from bitwright.base.tools.process import run_process
argv = ['sh', '-c', 'trap "" TERM; echo $$ > pid; while :; do sleep 1; done']
here = Path({folder!r})
run_process(argv, cwd=here, log=here / 'log', timeout=300)
"""


def started(pid: Path, command: subprocess.Popen[str]) -> None:
    while not (pid.is_file() and pid.read_text().strip()):
        assert command.poll() is None
        time.sleep(0.05)


def test_a_second_signal_leaves_nothing_behind(tmp_path: Path) -> None:
    """A terminal that is closed often gives two; a program that does not listen has its time."""
    done = start(STUBBORN.format(folder=str(tmp_path)), patience_s=10)
    started(tmp_path / "pid", done)
    for _ in range(2):
        done.send_signal(signal.SIGHUP)
        time.sleep(0.4)
    done.communicate(timeout=60)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_kill_is_heard_where_ctrl_c_is_ignored(tmp_path: Path) -> None:
    """As in what a shell has put into the background."""
    body = STUBBORN.format(folder=str(tmp_path))
    done = start(body, patience_s=10, ctrl_c="signal.SIG_IGN")
    started(tmp_path / "pid", done)
    done.send_signal(signal.SIGTERM)
    _, told = done.communicate(timeout=60)
    assert "KeyboardInterrupt" in told
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_closed_terminal_is_no_error(tmp_path: Path) -> None:
    """There is nobody left to tell that the command was interrupted."""
    body = "\n".join(
        (
            "import signal, sys, time",
            "signal.signal(signal.SIGHUP, signal.SIG_DFL)",
            "from pathlib import Path",
            "from bitwright.cli import app, entry",
            "@app.app.command()",
            "def slow() -> None:",
            f"    Path({str(tmp_path / 'pid')!r}).write_text('begun')",
            "    time.sleep(300)",
            "sys.exit(entry.run(['slow']))",
        )
    )
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-c", body], stdin=theirs, stdout=theirs, stderr=theirs, text=True,
        start_new_session=True, env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    os.close(theirs)
    started(tmp_path / "pid", done)
    os.close(ours)
    done.send_signal(signal.SIGHUP)
    assert done.wait(timeout=60) == 130


def test_the_first_failure_ends_what_is_compiled_beside_it() -> None:
    def one(argv: list[str], tick: Tick) -> None:
        output_of(argv, name=argv[0], timeout=300, tick=tick)

    begin = time.monotonic()
    with pytest.raises(ToolError, match="false"):
        _together(one, [["sleep", "60"], ["false"]])
    assert time.monotonic() - begin < 30
