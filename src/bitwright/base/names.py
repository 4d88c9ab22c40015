# SPDX-License-Identifier: Apache-2.0
"""Names of strangers as words of programs: what generated sources and files are called."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container

#: Letters of a name; the instances and files called after it add some, and file systems take 255.
_MOST = 60
_DIGITS = 8


def plain_word(name: str, *, joined: bool = False) -> str:
    """Letters, digits and underscores of ASCII that read like the name; "" for none.

    What else there is becomes an underscore. A long name is cut, and ends in a hash of the whole,
    so that long names that begin alike stay apart.

    Args:
        joined: several such signs become one underscore, and those at the ends go.
    """
    text = re.sub(r"[^A-Za-z0-9_]+" if joined else r"[^A-Za-z0-9_]", "_", name)
    text = text.strip("_") if joined else text
    if len(text) <= _MOST:
        return text
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{text[: _MOST - _DIGITS - 1]}_{digest}"


class NameCounter:
    """Finds free names; remembers how far each stem has been counted, so that thousands of one stem
    take no more time than thousands of different ones.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def free(self, stem: str, *taken: Container[str]) -> str:
        """The stem, with a number from 2 on if it is taken.

        Args:
            taken: the same in every call; they may grow in between.
        """
        number = self._counts.get(stem, 1)
        name = stem if number == 1 else f"{stem}_{number}"
        while any(name in names for names in taken):
            number += 1
            name = f"{stem}_{number}"
        self._counts[stem] = number
        return name


def visible(name: str) -> str:
    """The name as it may stand in reports and comments: printed it moves no cursor."""
    return "".join(sign if sign.isprintable() else "_" for sign in name)


def c_text(text: str) -> str:
    """A text as the inside of a C string: anything but plain signs as octal bytes."""
    return "".join(
        chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}"
        for b in text.encode("utf-8", "replace")
    )
