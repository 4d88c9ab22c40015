# SPDX-License-Identifier: Apache-2.0
"""In which fields two settings differ, down to the innermost one. No torch here."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

_MOST = 80


def differences(before: BaseModel, now: BaseModel) -> list[tuple[str, Any, Any]]:
    """(path of the field, value before, value now) of all fields that differ.

    Of sections of different kinds those fields are compared that both have; the rest follows from
    the kind.
    """
    found = []
    for name in type(before).model_fields:
        if name not in type(now).model_fields:
            continue
        then, here = getattr(before, name), getattr(now, name)
        if then == here:
            continue
        inner = []
        if isinstance(then, BaseModel) and isinstance(here, BaseModel):
            inner = differences(then, here)
        found += [(f"{name}.{path}", old, new) for path, old, new in inner] or [(name, then, here)]
    return found


def in_words(found: list[tuple[str, Any, Any]]) -> str:
    """``written with A = 1, B = 2, but now A = 3, B = 4``."""
    before = ", ".join(f"{path} = {_short(then)}" for path, then, _ in found)
    now = ", ".join(f"{path} = {_short(here)}" for path, _, here in found)
    return f"written with {before}, but now {now}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."
