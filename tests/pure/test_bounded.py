# SPDX-License-Identifier: Apache-2.0
"""What no reader has foreseen: a file that takes far more time or memory than its bytes."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
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

    def read() -> None:
        bounded(lambda: bounded(lambda: busy(1.0), second), second)
        time.sleep(1.0)

    bounded(read, first)
    with pytest.raises(DataError, match="more than 1 s"):
        bounded(lambda: bounded(lambda: busy(20), first), first)
    bounded(lambda: busy(1.0), tmp_path)  # all that is in it


def test_a_stop_that_comes_while_the_reader_ends_is_told_as_well(tmp_path: Path) -> None:
    """Nothing looks for it inside an operator; it arrived in the end of a ``with``."""

    def read() -> int:
        number = 7
        return number**3_500_000  # a second or more, all in C

    with pytest.raises(DataError, match="more than 1 s"):
        bounded(read, file_of(tmp_path, 100))
    assert not module._watch.readings and not module._before


def test_who_ends_late_before_anybody_looks_is_told_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOKS", 3.0)
    with pytest.raises(DataError, match="more than 1 s"):
        bounded(lambda: busy(0.8), file_of(tmp_path, 100))


def test_contexts_that_the_stop_leaves_open_are_closed(tmp_path: Path) -> None:
    """It may come before the first line of their end: then they end with what holds them."""
    closed = []

    @contextmanager
    def context() -> Iterator[None]:
        try:
            yield
        finally:
            closed.append(1)

    def read() -> None:
        with context():
            number = 7
            number = number**8_000_000

    with pytest.raises(DataError) as error:
        bounded(read, file_of(tmp_path, 100))
    assert closed and error.value.__context__ is None


def test_who_catches_the_stop_is_stopped_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AGAIN", 0.5)
    caught = []

    def read() -> None:
        try:
            busy(20)
        except BaseException as error:  # as libraries do that are called from C
            caught.append(error)
        busy(20)

    with pytest.raises(DataError, match="more than 1 s"):
        bounded(read, file_of(tmp_path, 100))
    assert len(caught) == 1


def test_other_threads_have_their_own_time(tmp_path: Path) -> None:
    path, done = file_of(tmp_path, 100), []

    def read() -> None:
        bounded(lambda: busy(0.2), path)
        done.append(1)

    threads = [threading.Thread(target=read) for _ in range(4)]

    def start() -> None:
        for each in threads:
            each.start()
        busy(20)

    with pytest.raises(DataError):
        bounded(start, path)
    for each in threads:
        each.join()
    assert len(done) == 4


@LINUX
def test_a_reader_that_takes_too_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, more = file_of(tmp_path, 1 << 20), file_of(tmp_path, 4 << 20, "more.bin")
    monkeypatch.setattr(module, "MEMORY", 256 << 20)
    monkeypatch.setattr(module, "_stacks", lambda: 0)

    def large() -> int:
        return len(bytearray(400 << 20))

    # 256 MiB, and 64 for the file's one
    assert bounded(lambda: len(bytearray(300 << 20)), path) == 300 << 20
    with pytest.raises(DataError, match=r"more than 320.0 MiB of memory to read, for its 1.0 MiB"):
        bounded(large, path)
    bounded(lambda: bounded(large, more), path)
    bounded(large, path, memory=False)  # of what has the size that the user asks for


@LINUX
def test_threads_that_compute_have_their_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenMP ends the process where it cannot start as many as there are processors."""
    monkeypatch.setattr("os.cpu_count", lambda: 256)
    before = resource.getrlimit(resource.RLIMIT_STACK)[0]
    size = 8 << 20 if before == resource.RLIM_INFINITY else min(before, 64 << 20)
    found = bounded(lambda: resource.getrlimit(resource.RLIMIT_DATA)[0], file_of(tmp_path, 1))
    assert found > module.MEMORY + 256 * size


@LINUX
def test_a_process_that_is_forked_meanwhile_has_no_limit(tmp_path: Path) -> None:
    def forked() -> int:
        child = os.fork()
        if child == 0:
            limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
            os._exit(limit in (resource.RLIM_INFINITY, before))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    before = resource.getrlimit(resource.RLIMIT_DATA)[0]
    assert bounded(forked, file_of(tmp_path, 1)) == 1


def test_whose_files_are_the_users_own_has_no_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BITWRIGHT_LARGE_FRAMES", "1")
    bounded(lambda: busy(1.0), file_of(tmp_path, 1))


@pytest.mark.parametrize("name", ["a\0b", "missing", "a" * 5000])
def test_of_what_is_no_file_the_reader_tells(name: str, tmp_path: Path) -> None:
    assert bounded(lambda: "told", tmp_path / name) == "told"


@pytest.mark.parametrize("error", [ValueError("no model"), RuntimeError("shape")])
def test_mistakes_are_the_readers_own(error: Exception, tmp_path: Path) -> None:
    def read() -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        bounded(read, file_of(tmp_path, 1))
