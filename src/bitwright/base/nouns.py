# SPDX-License-Identifier: Apache-2.0
"""What one input of a network is called: an image, a signal, a row of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Noun:
    """A word for one thing and for many of them."""

    one: str
    many: str

    @property
    def each(self) -> str:
        """With its article, as in "cycles an image"."""
        return f"{'an' if self.one[0] in 'aeiou' else 'a'} {self.one}"


IMAGES, SIGNALS, ROWS = Noun("image", "images"), Noun("signal", "signals"), Noun("row", "rows")
#: By how many axes one input has, channels last: (F,), (L, C), (H, W, C).
OF_AXES = {1: ROWS, 2: SIGNALS, 3: IMAGES}


def noun_of(many: str) -> Noun:
    """The noun with this plural; images where it is none of them."""
    return next((noun for noun in OF_AXES.values() if noun.many == many), IMAGES)
