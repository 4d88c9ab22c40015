# SPDX-License-Identifier: Apache-2.0
"""Running tools: time limits that end all children, results that did not come, cache, doctor."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitwright.base.errors import ToolError
from bitwright.base.memory import LARGE
from bitwright.base.tools import finder as tools
from bitwright.base.tools.process import check_finished, output_of, require_result, run_process

PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("pids.new", "w").write(f"{os.getpid()} {child.pid}")
os.rename("pids.new", "pids")
time.sleep(600)
"""


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _assert_all_ended(pids: Path) -> None:
    deadline = time.monotonic() + 10
    numbers = [int(word) for word in pids.read_text().split()]
    while any(_alive(pid) for pid in numbers):
        assert time.monotonic() < deadline, "a process was left behind"
        time.sleep(0.02)


def test_time_limit_ends_the_program_and_its_children(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"did not finish within 3 s"):
        run_process([sys.executable, "-c", PARENT], cwd=tmp_path, log=tmp_path / "log", timeout=3)
    _assert_all_ended(tmp_path / "pids")


def test_ctrl_c_ends_the_program_and_its_children(tmp_path: Path) -> None:
    def interrupt() -> None:
        _wait_for(tmp_path / "pids")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_process([sys.executable, "-c", PARENT], cwd=tmp_path, log=tmp_path / "log", timeout=60)
    thread.join()
    _assert_all_ended(tmp_path / "pids")


def test_output_status_and_figures(tmp_path: Path) -> None:
    code = "import sys; print('hello'); print('bad', file=sys.stderr); sys.exit(3)"
    log = tmp_path / "deep" / "log"
    done = run_process([sys.executable, "-c", code], cwd=tmp_path, log=log, timeout=60)
    assert done.returncode == 3
    assert sorted(done.text().split()) == ["bad", "hello"]
    assert done.peak_memory > 1 << 20
    assert 0 < done.cpu_seconds
    with pytest.raises(ToolError, match=r"exit status 3") as caught:
        check_finished(done, "snake")
    assert "hello" in str(caught.value)


def test_peak_memory_is_the_childs_own(tmp_path: Path) -> None:
    ballast = bytearray(b"x" * (200 << 20))
    code = "import time; data = bytearray(b'x' * (60 << 20)); time.sleep(0.5)"
    done = run_process([sys.executable, "-c", code], cwd=tmp_path, log=tmp_path / "l", timeout=60)
    assert len(ballast) == 200 << 20
    assert 60 << 20 < done.peak_memory < 180 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts what may be written to")
def test_a_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of 128 kB, wholly unfolded for a target without end, took Verilator 9 GB."""
    code = "try: bytearray(64 << 30)\nexcept MemoryError: raise SystemExit('Out of memory')"
    argv = [sys.executable, "-c", code]
    with pytest.raises(ToolError, match="Out of memory") as error:
        output_of(argv, name="a", timeout=50, memory=0.01)
    assert error.value.hint is not None and LARGE in error.value.hint
    limit = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[0])"
    asked = [sys.executable, "-c", limit]
    most = int(output_of(asked, name="a", timeout=50, memory=0.01))
    assert 0 < most < int(output_of(asked, name="a", timeout=50, memory=0.9))
    monkeypatch.setenv(LARGE, "1")
    assert int(output_of(asked, name="a", timeout=50, memory=0.01)) != most


def test_the_first_run_of_a_tool_that_compiles_itself_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two wrote the compiled file at once, by its name: one of them ended with SIGBUS."""
    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path / "cache"))
    code = (
        "import os, sys, time\n"
        "here = sys.argv[1] + '/running'\n"
        "os.close(os.open(here, os.O_CREAT | os.O_EXCL))\n"
        "time.sleep(0.5)\n"
        "os.remove(here)\n"
    )
    command = (sys.executable, "-c", code, str(tmp_path))
    tool = tools.Tool("t", "package t (WebAssembly)", "1", command)
    ended: list[int] = []

    def run(number: int) -> None:
        log = tmp_path / f"log{number}"
        done = tools.run_tool(tool, [], cwd=tmp_path, log=log, timeout=60)
        ended.append(done.returncode)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads[:2]:
        thread.start()
    for thread in threads[:2]:
        thread.join()
    assert ended == [0, 0]
    (mark,) = (tmp_path / "cache" / "wasm").iterdir()
    begun = mark.stat().st_mtime_ns
    threads[2].run()
    assert ended == [0, 0, 0] and mark.stat().st_mtime_ns == begun


def test_missing_program(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="cannot be started: No such file"):
        run_process(["/nowhere/yosys"], cwd=tmp_path, log=tmp_path / "log", timeout=5)


def test_status_0_without_a_result_is_a_failure(tmp_path: Path) -> None:
    done = run_process(
        [sys.executable, "-c", "print('fine')"], cwd=tmp_path, log=tmp_path / "log", timeout=60
    )
    check_finished(done, "snake")
    with pytest.raises(ToolError, match=r"exit status 0 but wrote no out.json"):
        require_result(tmp_path / "out.json", done, "snake")
    (tmp_path / "out.json").touch()
    with pytest.raises(ToolError, match=r"wrote no out.json"):
        require_result(tmp_path / "out.json", done, "snake")


def test_a_missing_tool_is_named_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch, fresh_search: None
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolError) as caught:
        tools.require("git")
    text = str(caught.value)
    assert "git: was not found; it is needed for" in text
    assert "install it with: sudo apt-get install git" in text
    status = {s.name: s for s in tools.doctor()}["git"]
    assert not status.works
    assert status.to_json()["detail"] == "not found"


def test_a_broken_tool_is_told_from_a_missing_one(
    monkeypatch: pytest.MonkeyPatch, fresh_search: None, tmp_path: Path
) -> None:
    fake = tmp_path / "cc"
    fake.write_text("#!/bin/sh\necho GNU Make 4.3\nexit 0\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match=r"does not work: .*wrote no trial"):
        tools.require("cc")


def test_unknown_tool() -> None:
    with pytest.raises(ToolError, match="unknown tool 'hammer'"):
        tools.find("hammer")


@pytest.fixture
def fresh_search() -> Iterator[None]:
    tools.forget()
    yield
    tools.forget()


def test_a_tool_runs_where_nobody_can_note_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place for it was another user's, who had called sudo once."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tools, "exclusive", refused)
    tool = tools.Tool("of-a-test", f"package{tools._WASM}", "1", (sys.executable,))
    done = tools.run_tool(
        tool, ["-c", "print('ran')"], cwd=tmp_path, log=tmp_path / "log", timeout=60
    )
    assert done.text() == "ran\n"
