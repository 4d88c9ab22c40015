# SPDX-License-Identifier: Apache-2.0
"""What this user has done himself, noted in his cache: nobody else can write there.

Where the cache cannot be written it is known until the process ends.
"""

from __future__ import annotations

from bitwright.base.store import Store

_HERE: set[tuple[str, str]] = set()


def note(kind: str, key: str) -> None:
    """Note a key."""
    _HERE.add((kind, key))
    Store().offer(kind, key, {})


def is_noted(kind: str, key: str) -> bool:
    """Whether this user has noted a key."""
    return (kind, key) in _HERE or Store().find(kind, key) is not None


def forgets(kind: str) -> str:
    """Why notes of a kind end with the process: the cache cannot be written; empty if it can."""
    return Store().unwritable(kind)
