# SPDX-License-Identifier: Apache-2.0
"""Time and memory that reading a file may take, by its size.

Readers know what their own formats can hide and refuse it by name; whatever they overlook ends
here. A file that takes far more of the processor or of memory than its bytes give reason for is
refused, wherever in its reader that shows.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bitwright.base.errors import DataError
from bitwright.base.files import held_size
from bitwright.base.folders import entries_below
from bitwright.base.memory import LARGE, is_chosen, ran_out, shown

R = TypeVar("R", bound=Callable[..., Any])
T = TypeVar("T")

#: Seconds of the processor for any file, and bytes that take one more.
SECONDS, BYTES_A_SECOND = 30.0, 50_000
#: Bytes of memory for any file, and for each of its own.
MEMORY, MEMORY_A_BYTE = 3 << 29, 64
#: Of what is made of a model behind its reader, where a bit may be a weight, and that for a while
#: some fifty bytes.
_MADE_A_BYTE = 512
#: Bytes of a stack, where the system has no limit, and at the most; as many threads as processors
#: are started by what computes, twice: OpenMP ends the process if it cannot start its own.
_STACK, _MOST_STACK, _POOLS = 8 << 20, 64 << 20, 2
_ENOUGH = 1 << 30  # bytes of a folder from which on nobody counts them: hours
_LOOKS = 0.2  # seconds between two looks at the clock
_AGAIN = 5.0  # seconds until a thread is stopped again that went on: something caught the first


class _OutOfTime(BaseException):
    """Put into a thread that has read for too long; `bounded` makes a `DataError` of it."""


@dataclass
class _Reading:
    """What a thread reads.

    Attributes:
        began: its seconds of the processor then.
        size: bytes of what it reads; each of the places counts once.
        data: bytes that the process could write to then; None: its memory is not bounded.
        stopped: its seconds of the processor when it was told to end; None: it was not.
        left: whether the limit of memory was taken away.
        made: whether it is what is made of a file behind its reader; see `bounded`.
    """

    thread: int
    began: float
    size: int = 0
    places: set[str] = field(default_factory=set)
    data: int | None = None
    stopped: float | None = None
    left: bool = False
    made: bool = False

    @property
    def seconds(self) -> float:
        if self.made:
            return float("inf")
        return SECONDS + self.size / BYTES_A_SECOND

    @property
    def memory(self) -> int:
        return MEMORY + (_MADE_A_BYTE if self.made else MEMORY_A_BYTE) * self.size

    @property
    def taken(self) -> float:
        return _processor_time(self.thread) - self.began

    def is_late(self) -> bool:
        return self.taken > self.seconds

    def add(self, places: tuple[Path, ...]) -> None:
        for place in places:
            with suppress(OSError, ValueError):  # no name of a file: readers say so
                name = os.path.realpath(place)
                if name not in self.places:
                    self.places.add(name)
                    self.size += _size(place)
        if self.data is not None:
            _limit_data(self.data + self.memory + _stacks())


#: The limit before the one reading whose memory is bounded; of several at a time the first.
_before: list[int] = []


def bounded(read: Callable[[], T], *places: Path, memory: bool = True, made: bool = False) -> T:
    """What a function gives that takes no more of the processor, and of memory, than the bytes of
    the files, or of all files of folders, give reason for. Inside another one the files of this one
    are added to those of that.

    A function, not a context: a stop may arrive at any call of Python's, that of ``__exit__`` as
    well, where no code of ours could tell whose it is.

    Args:
        memory: bound that, too, where the system can: while it lasts, for all threads. Not of what
            has the size that the user asks for.
        made: it is what is made of a model's file behind its reader: its time, which was asked for,
            has no bound, and a byte may become more.

    Raises:
        DataError: it took more.
    """
    if is_chosen():
        return read()
    thread = threading.get_ident()
    outer = _watch.readings.get(thread)
    if outer is not None:
        outer.add(places)
        return read()
    reading = _Reading(thread, _processor_time(thread), made=made)
    try:
        try:
            if memory:
                reading.data = _written()
            reading.add(places)
            _watch.enter(reading)
            result = read()
        finally:
            _watch.leave(reading)
        if not reading.is_late():  # it may have ended before anybody looked
            return result
    except _OutOfTime:
        _watch.leave(reading)  # it may have come while it was left
    except (MemoryError, RuntimeError) as error:
        if reading.data is None or not ran_out(error):
            raise
        raise _too_much(reading, places, f"{shown(reading.memory)} of memory") from error
    # Not from the stop, which would keep all that the reader held: it may have come where a context
    # is left, which then ends with what holds it.
    raise _too_much(reading, places, f"{reading.seconds:.0f} s of the processor")


def _too_much(reading: _Reading, places: tuple[Path, ...], what: str) -> DataError:
    return DataError(
        f"takes more than {what} to read, for its {shown(reading.size)}",
        where=", ".join(map(str, places)) or None,
        hint="if the file is your own and this is what you want, "
        f"{LARGE}=1 lets it take what the machine has",
    )


def bounded_reader(read: R) -> R:
    """A reader with `bounded` around each call, for the files that it is given by their paths."""

    @functools.wraps(read)
    def reader(*args: Any, **kwargs: Any) -> Any:
        places = [value for value in (*args, *kwargs.values()) if isinstance(value, Path)]
        return bounded(lambda: read(*args, **kwargs), *places)

    return reader  # type: ignore[return-value]


def _size(place: Path) -> int:
    total = 0
    with suppress(OSError):
        if not place.is_dir():
            return held_size(place)
        for entry in entries_below(place):
            with suppress(OSError):  # what may not be read brings nothing
                total += held_size(Path(entry.path)) if entry.is_file() else 0
            if total > _ENOUGH:
                break
    return total


def _processor_time(thread: int) -> float:
    """Seconds that a thread has had; where the system cannot say, of the clock on the wall."""
    with suppress(AttributeError, OSError):
        return time.clock_gettime(time.pthread_getcpuclockid(thread))
    return time.monotonic()


class _Watch:
    """What all threads read, and a thread that looks at their clocks while there is any."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.readings: dict[int, _Reading] = {}
        self.running = False

    def enter(self, reading: _Reading) -> None:
        with self.lock:
            self.readings[reading.thread] = reading
            if not self.running:
                threading.Thread(target=self.look, name="bitwright-bounded", daemon=True).start()
                self.running = True

    def leave(self, reading: _Reading) -> None:
        """End a reading; it may have ended already."""
        with self.lock:
            if self.readings.get(reading.thread) is reading:
                del self.readings[reading.thread]
        if reading.data is not None and not reading.left:
            _limit_data(None)
            reading.left = True
        if reading.stopped is not None:
            for _ in range(1000):  # if it has not arrived yet, it does here, not later
                time.sleep(0)

    def look(self) -> None:
        while True:
            time.sleep(_LOOKS)
            with self.lock:
                if not self.readings:
                    self.running = False
                    return
                for reading in self.readings.values():
                    self.stop_if_late(reading)

    @staticmethod
    def stop_if_late(reading: _Reading) -> None:
        last = reading.stopped
        if reading.is_late() if last is None else reading.taken > last + _AGAIN:
            reading.stopped = reading.taken
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(reading.thread), ctypes.py_object(_OutOfTime)
            )


_watch = _Watch()


def _start_anew() -> None:
    """In a forked process: the thread stayed behind, and so did what others read."""
    _watch.__init__()  # type: ignore[misc]
    _limit_data(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def _written() -> int | None:
    """Bytes that this process can write to; None: another reading is bounded, or the system does
    not say, or has no such limit.
    """
    if _before or sys.platform != "linux":
        return None
    with suppress(OSError, ValueError, StopIteration):
        status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        line = next(line for line in status if line.startswith("VmData:"))
        return int(line.split()[1]) << 10
    return None


def _as_number(limit: int) -> float:
    return limit if limit >= 0 else float("inf")  # RLIM_INFINITY


def _stacks() -> int:
    """Bytes of the stacks of the threads that are started to compute."""
    import resource

    size, _ = resource.getrlimit(resource.RLIMIT_STACK)
    size = _STACK if size == resource.RLIM_INFINITY else min(size, _MOST_STACK)
    return _POOLS * size * (os.cpu_count() or 1)


def _limit_data(wanted: int | None) -> None:
    """Limit what this process can write to; None: as it was before."""
    if wanted is None and not _before:
        return
    import resource

    with _watch.lock:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if wanted is not None and not _before:
            _before.append(soft)
        if not _before:
            return
        most = _before[0] if wanted is None else wanted
        for limit in (_before[0], hard):  # never more than before
            most = min(most, limit, key=_as_number)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
        if wanted is None:
            _before.clear()
