# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and `kill` end a training on several devices, with every process of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

#: Of the command, and of what it started; a process group outlives who made it.
PROC = Path("/proc")


def _group(number: int) -> list[int]:
    """Processes of a session that have not ended."""
    found = []
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                state = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if int(state[3]) == number and state[0] != "Z":
                found.append(int(folder.name))
    return found


def _open_to_others(processes: list[int]) -> list[str]:
    """Addresses beside those of the loopback interface on which processes listen: torch's store
    asks nobody for a password, and takes what it is sent until the memory is full.
    """
    mine = set()
    for process in processes:
        for entry in (PROC / str(process) / "fd").iterdir():
            with suppress(OSError):
                mine.add(str(entry.readlink()))
    found = []
    for table in ("tcp", "tcp6"):
        for line in (PROC / "net" / table).read_text().splitlines()[1:]:
            words = line.split()
            local = words[1].startswith(("0100007F:", "0" * 24 + "01000000:"))
            if words[3] == "0A" and f"socket:[{words[9]}]" in mine and not local:
                found.append(words[1])
    return found


@pytest.mark.long
@pytest.mark.skipif(not PROC.is_dir(), reason="no /proc")
@pytest.mark.parametrize(
    ("number", "whole"),
    [(signal.SIGTERM, False), pytest.param(signal.SIGINT, True, marks=pytest.mark.slow)],
)
def test_a_training_on_two_devices_is_ended(
    tmp_path: Path, number: signal.Signals, whole: bool
) -> None:
    settings = ("pretrained=false", "float.devices=2", "float.device=cpu", "float.epochs=100000")
    options = [part for setting in settings for part in ("--set", f"train.{setting}")]
    code = "from bitwright.cli.entry import main; main()"
    with (tmp_path / "log").open("w") as log:
        command = subprocess.Popen(
            [sys.executable, "-c", code, "train", "digits", *options],
            cwd=tmp_path,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        while not [p for p in tmp_path.glob("runs/digits/.work-*/logs/**/*") if p.is_file()]:
            assert command.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        assert len(_group(command.pid)) > 2
        assert not _open_to_others(_group(command.pid))
        (os.killpg if whole else os.kill)(command.pid, number)
        assert command.wait(timeout=30) == 130
        deadline = time.monotonic() + 10
        while _group(command.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not _group(command.pid)
    finally:
        for process in _group(command.pid):
            os.kill(process, signal.SIGKILL)
        command.wait()
