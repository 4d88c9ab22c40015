# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, also where somebody else's code has swallowed it."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupts:
    """Notes, within, that Ctrl-C was pressed, and raises `KeyboardInterrupt` as Python does.

    While a library is being imported the exception may end inside of it: what is half imported then
    fails in its own way later on ("module 'sympy' has no attribute 'printing'"), and that would be
    told to the user as what went wrong.

    Attributes:
        seen: whether it was.
    """

    def __init__(self) -> None:
        self.seen = False
        self._set = False

    def __enter__(self) -> Interrupts:
        # Somebody else's handler, such as that of a program that calls us, is left alone.
        default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if default and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._note)
            self._set = True
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        signal.default_int_handler(number, frame)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._set:
            signal.signal(signal.SIGINT, signal.default_int_handler)
