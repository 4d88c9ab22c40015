# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, also where somebody else's code has swallowed it, or does not look up from its work."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, ClassVar

from bitwright.base.tools.process import end_running

EXIT_INTERRUPTED = 130
#: Seconds in which a Ctrl-C is to end the command.
PATIENCE_S = 10.0
_LOOK_S = 0.05
#: Ctrl-C, and what ends a program otherwise: `kill`, a terminal that is closed.
_ENDINGS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_MANY = 1 << 12  # signals that are taken from the pipe at once


class Interrupts:
    """Notes, within, that Ctrl-C was pressed, and raises `KeyboardInterrupt` as Python does.

    While a library is being imported the exception may end inside of it: what is half imported then
    fails in its own way later on ("module 'sympy' has no attribute 'printing'"), and that would be
    told to the user as what went wrong.

    Python raises it between two of its own instructions: in one call of a library in C, which may
    take a day for a file of a few bytes, never. And who notices it may wait for others, such as
    threads at work, that do not. So somebody waits beside it, and ends the process where it has not
    ended in time: results are written so that no moment is a wrong one for that. Whoever waits
    needs Python, too: a call that never lets go of its lock is not ended (``kill`` ends it).

    Args:
        patience_s: seconds from the first one on until the end.

    Attributes:
        seen: whether it was pressed.
        first_at: when it was first pressed in this process, as `time.monotonic`; None: never.
    """

    first_at: ClassVar[float | None] = None

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.seen = False
        self._patience = patience_s
        self._pipe: tuple[int, int] | None = None
        self._before = -1
        self._handlers: dict[signal.Signals, Any] = {}  # that were there before ours

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _ENDINGS:
                # Closing the terminal and `kill` too: as exceptions, which end the programs that
                # run for us. Somebody else's handler, such as that of a program that calls us, is
                # left alone, and who has said that one is to be ignored (nohup) is heard.
                before = signal.getsignal(number)
                if before in (signal.default_int_handler, signal.SIG_DFL):
                    self._handlers[number] = before
                    signal.signal(number, self._note)
        if self._handlers:
            self._pipe = read, write = os.pipe()
            os.set_blocking(write, False)
            # Written to at the signal itself, whatever the main thread is doing.
            self._before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(read,), daemon=True).start()
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        if Interrupts.first_at is None:
            Interrupts.first_at = time.monotonic()
        raise KeyboardInterrupt

    def _watch(self, read: int) -> None:
        with suppress(OSError), os.fdopen(read, "rb", buffering=0) as signals:
            while numbers := signals.read(_MANY):
                if set(_ENDINGS) & set(numbers):
                    self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + self._patience
        while self._pipe is not None:
            if time.monotonic() > end:
                _end()
            time.sleep(_LOOK_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pipe is not None:
            signal.set_wakeup_fd(self._before)
            _, write = self._pipe
            self._pipe = None
            os.close(write)
            for number, before in self._handlers.items():
                if signal.getsignal(number) == self._note:
                    signal.signal(number, before)


def end_in_time() -> None:
    """See to it that an interrupted command, which is about to leave, is gone in time: Python
    waits at its end for every thread that is still at work.
    """
    now = time.monotonic()
    first = now if Interrupts.first_at is None else Interrupts.first_at
    timer = threading.Timer(max(0.0, first + PATIENCE_S - now), _end)
    timer.daemon = True
    timer.start()


def _end() -> None:
    with suppress(OSError, ValueError):  # the terminal was closed
        sys.stderr.write("interrupted in the middle of a computation\n")
        sys.stderr.flush()
    end_running()
    os._exit(EXIT_INTERRUPTED)


def _leave_alone() -> None:
    """A child that was forked shares the pipe: its signals are not ours."""
    with suppress(ValueError):  # forked by another thread than the main one
        signal.set_wakeup_fd(-1)
        for number in _ENDINGS[1:]:
            if getattr(signal.getsignal(number), "__func__", None) is Interrupts._note:
                signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_leave_alone)
