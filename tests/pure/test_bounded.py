# SPDX-License-Identifier: Apache-2.0
"""What no reader has foreseen: a file that takes far more time or memory than its bytes."""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitwright.base import bounded as module
from bitwright.base.bounded import bounded, bounded_reader
from bitwright.base.errors import DataError

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is Linux's")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Half a second, and one more for each thousand bytes."""
    monkeypatch.setattr(module, "SECONDS", 0.5)
    monkeypatch.setattr(module, "BYTES_A_SECOND", 1000)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    yield
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def file_of(folder: Path, size: int, name: str = "model.bin") -> Path:
    path = folder / name
    path.write_bytes(bytes(size))
    return path


def test_a_reader_that_works_for_too_long_is_stopped(tmp_path: Path) -> None:
    path = file_of(tmp_path, 100)

    @bounded_reader
    def read(path: Path) -> None:
        try:
            busy(60)
        except Exception:  # as readers do, which take whatever a library raises
            pytest.fail("taken for a mistake of the file")

    began = time.monotonic()
    with pytest.raises(DataError, match=r"more than 1 s of the processor to read, for its 0.0 MiB"):
        read(path)
    assert time.monotonic() - began < 30
    busy(0.8)  # nothing arrives later


def test_time_is_that_of_all_files_once_and_waiting_is_free(tmp_path: Path) -> None:
    first, second = file_of(tmp_path, 100), file_of(tmp_path, 2000, "more.bin")
    with bounded(first):
        with bounded(second), bounded(second):
            busy(1.0)
        time.sleep(1.0)
    with pytest.raises(DataError, match="more than 1 s"), bounded(first), bounded(first):
        busy(20)
    with bounded(tmp_path):  # all that is in it
        busy(1.0)


def test_other_threads_have_their_own_time(tmp_path: Path) -> None:
    path, done = file_of(tmp_path, 100), []

    def read() -> None:
        with bounded(path):
            busy(0.2)
        done.append(1)

    threads = [threading.Thread(target=read) for _ in range(4)]
    with pytest.raises(DataError), bounded(path):
        for each in threads:
            each.start()
        busy(20)
    for each in threads:
        each.join()
    assert len(done) == 4


@LINUX
def test_a_reader_that_takes_too_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(tmp_path, 1 << 20)
    monkeypatch.setattr(module, "MEMORY", 256 << 20)
    with bounded(path):
        assert len(bytearray(300 << 20)) == 300 << 20  # 256 MiB, and 64 for the file's one
    with pytest.raises(DataError, match=r"more than 320.0 MiB of memory to read, for its 1.0 MiB"):
        with bounded(path):
            bytearray(400 << 20)
    with bounded(path), bounded(file_of(tmp_path, 4 << 20, "more.bin")):
        bytearray(400 << 20)
    with bounded(path, memory=False):  # of what has the size that the user asks for
        bytearray(400 << 20)


def test_whose_files_are_the_users_own_has_no_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BITWRIGHT_LARGE_FRAMES", "1")
    with bounded(file_of(tmp_path, 1)):
        busy(1.0)


def test_mistakes_are_the_readers_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no model"), bounded(file_of(tmp_path, 1)):
        raise ValueError("no model")
    with pytest.raises(RuntimeError, match="shape"), bounded(file_of(tmp_path, 1)):
        raise RuntimeError("shape")
