# SPDX-License-Identifier: Apache-2.0
"""What was found out about a parameter, kept as long as the parameter is.

Graphs are rebuilt many times while a folding is sought, and their nodes share their read-only
parameters: what takes a look at every weight of a large layer is asked again and again.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

T = TypeVar("T")
#: Questions about one array; the oldest is forgotten.
_MOST = 64


class Known(Generic[T]):
    """Answers to one kind of question about arrays that nobody writes to."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # an array may go while its own thread has it
        self._found: dict[int, tuple[weakref.ref[NDArray[Any]], dict[Hashable, T]]] = {}

    def of(self, array: NDArray[Any], question: Hashable, answer: Callable[[], T]) -> T:
        """The answer, found at the first time; always anew for what can be written to.

        Args:
            question: all that the answer depends on besides the array.
        """
        if array.flags.writeable or not array.flags.owndata:
            return answer()
        with self._lock:
            answers = self._answers(array)
            if question in answers:
                return answers[question]
        found = answer()  # maybe twice, where threads ask at once
        with self._lock:
            answers = self._answers(array)
            if len(answers) >= _MOST:
                del answers[next(iter(answers))]
            answers[question] = found
        return found

    def _answers(self, array: NDArray[Any]) -> dict[Hashable, T]:
        number = id(array)
        kept = self._found.get(number)
        if kept is None or kept[0]() is not array:
            kept = (weakref.ref(array, lambda _: self._forget(number)), {})
            self._found[number] = kept
        return kept[1]

    def _forget(self, number: int) -> None:
        with self._lock:
            kept = self._found.get(number)
            if kept is not None and kept[0]() is None:
                del self._found[number]
