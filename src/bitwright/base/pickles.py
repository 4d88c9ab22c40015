# SPDX-License-Identifier: Apache-2.0
"""Pickles of strangers, read as lists of opcodes: nothing in them is imported, called or made.

Python's own reader makes what a pickle says, and even a pickle of harmless names may say
``bytearray(6_000_000_000)``. A byte may be an opcode, so their number is bounded.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from typing import IO, Any

MOST_OPCODES = 1 << 20
"""A batch of CIFAR-100 has 300 000; a state dict some forty a tensor."""


def opcodes(stream: IO[bytes]) -> Iterator[tuple[str, Any]]:
    """Name and argument of each opcode of the pickle that begins here; the stream is left behind
    its last one.

    Raises:
        ValueError: it is none, is cut short, or has more than `MOST_OPCODES`.
    """
    for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if count >= MOST_OPCODES:
            raise ValueError(f"it has more than {MOST_OPCODES} opcodes of pickle")
        yield opcode.name, argument
