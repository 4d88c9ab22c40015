# SPDX-License-Identifier: Apache-2.0
"""What docstrings say, taken apart: the summary, and what they say of each name."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Any

#: The headings that our docstrings use, as Google's style has them.
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")
_NAMELESS = ("Returns", "Yields")
_HEADING = re.compile(rf"({'|'.join(SECTIONS)}):")
_ENTRY = re.compile(r"(\*{0,2}\w[\w.]*(?:, \*{0,2}\w[\w.]*)*): (.*)")


@dataclass(frozen=True)
class Docstring:
    """A docstring, taken apart.

    Attributes:
        summary: the first paragraph, on one line.
        body: what follows it, up to the first heading, as written.
        entries: of each heading, what stands below: a text for every name; where no names stand
            (``Returns``), one text under the empty name.
    """

    summary: str = ""
    body: str = ""
    entries: dict[str, dict[str, str]] = field(default_factory=dict)


def parse_docstring(text: str | None) -> Docstring:
    """Take a docstring apart; names with one meaning (``a, b: ..``) become an entry each."""
    lines = inspect.cleandoc(text or "").split("\n")
    parts: dict[str, list[str]] = {"": []}
    heading = ""
    for line in lines:
        found = _HEADING.fullmatch(line.rstrip())
        if found:
            heading = found[1]
        elif heading and line and not line.startswith(" "):
            heading = ""
        if not found:
            parts.setdefault(heading, []).append(line)
    summary, _, body = "\n".join(parts.pop("")).strip().partition("\n\n")
    entries = {
        name: {"": " ".join(" ".join(block).split())} if name in _NAMELESS else _entries(block)
        for name, block in parts.items()
    }
    return Docstring(" ".join(summary.split()), body.strip("\n"), entries)


def meanings(kind: type) -> dict[str, str]:
    """What a class and those it is made from say of their public attributes, by name."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= parse_docstring(base.__dict__.get("__doc__")).entries.get("Attributes", {})
    return {name: text for name, text in found.items() if not name.startswith("_")}


def own_docstring(value: Any) -> str | None:
    """The docstring that was written for it: not the one that a class inherits, nor the signature
    that a dataclass or an enumeration without one is given.
    """
    text = value.__dict__.get("__doc__") if isinstance(value, type) else inspect.getdoc(value)
    made = isinstance(value, type) and str(text).startswith(f"{value.__name__}(")
    return None if made else text


def _entries(lines: list[str]) -> dict[str, str]:
    """The texts below a heading, by name."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in inspect.cleandoc("\n" + "\n".join(lines)).split("\n"):
        entry = _ENTRY.fullmatch(line)
        words = line.strip()
        if entry:
            names, words = entry[1].split(", "), entry[2]
        for name in names if words else ():
            found.setdefault(name, []).append(words)
    return {name: " ".join(texts) for name, texts in found.items()}
