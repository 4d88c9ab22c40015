# SPDX-License-Identifier: Apache-2.0
"""That something is quick, whatever the processor: its time against that of work of known size.

What these tests look for took minutes or hours. A bound in seconds alone is one of the machine that
it was set on: another processor, or a busy one, is some times slower, and a test fails that has
found nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

#: Processor seconds of :func:`_known_work` on the machine that the tests' bounds are meant for.
REFERENCE_S = 0.25


def _known_work() -> None:
    """Like what is measured: the interpreter's loops and dicts, texts, and sorts of numpy."""
    found = {str(n): n * n for n in range(250_000)}
    assert len(json.loads(json.dumps(found))) == len(found)
    assert int(np.sort(np.arange(1 << 20)[::-1].copy())[0]) == 0


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What is inside takes no more than so many seconds of the reference's processor.

    :raises AssertionError: it takes more, and this machine is not that much slower at known work.
    """
    begin = time.process_time()
    yield
    took = time.process_time() - begin
    if took > seconds:
        begin = time.process_time()
        _known_work()
        slower = (time.process_time() - begin) / REFERENCE_S
        assert took <= seconds * slower, f"{took:.1f} s of a machine {slower:.2f} times slower"
