# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, also where somebody else's code has swallowed it, or does not look up."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType, TracebackType

#: Seconds in which Python notices Ctrl-C, unless something in C is at work.
_NOTICED_S = 1.0
_ENDED = 130
_STILL = "one computation must end first; Ctrl-C once more ends the program at once\n"


class Interrupts:
    """Notes, within, that Ctrl-C was pressed, and raises `KeyboardInterrupt` as Python does.

    While a library is being imported the exception may end inside of it: what is half imported then
    fails in its own way later on ("module 'sympy' has no attribute 'printing'"), and that would be
    told to the user as what went wrong.

    A call of C, such as a layer in torch or a solver, sees nothing of it, however long it takes;
    what is read may be a stranger's, and ask for years. Then the second Ctrl-C ends the process.

    Attributes:
        seen: whether it was.
    """

    def __init__(self) -> None:
        self.seen = False
        self._noticed = threading.Event()
        self._set = False
        self._write: int | None = None  # end of the pipe that the system writes to

    def __enter__(self) -> Interrupts:
        # Somebody else's handler, such as that of a program that calls us, is left alone.
        default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if default and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._note)
            self._set = True
            self._watch()
        return self

    def _watch(self) -> None:
        """Have a thread told of signals when they come, not when Python comes to them."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._write = write
        threading.Thread(target=self._listen, args=(read,), daemon=True).start()

    def _listen(self, read: int) -> None:
        pressed = 0
        while told := os.read(read, 1):
            pressed += told[0] == signal.SIGINT
            if not pressed or self._is_noticed():
                continue
            if pressed > 1:
                os._exit(_ENDED)
            with suppress(OSError, ValueError):
                sys.stderr.write(f"\n{_STILL}")
                sys.stderr.flush()
        os.close(read)

    def _is_noticed(self) -> bool:
        """Whether Python comes to notice it in time."""
        return self._noticed.wait(_NOTICED_S)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        self._noticed.set()
        signal.default_int_handler(number, frame)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._set:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._write is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._write)  # which ends the thread
