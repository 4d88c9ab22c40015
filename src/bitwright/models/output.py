# SPDX-License-Identifier: Apache-2.0
"""What a network must give for one image. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Output:
    """The output that somebody needs of a network.

    Attributes:
        shape: of one image in torch's order, (K,) or (C, H, W); None for a length that is free.
        what: it is, in words: ``scores``.
        unit: what there are so many of along its first axis, in the plural.
        hint: what to do about a network that gives another one.
    """

    shape: tuple[int | None, ...]
    what: str
    hint: str
    unit: str = "values"

    @property
    def size(self) -> int | None:
        """Values or channels: what a factory gets as ``num_outputs``."""
        return self.shape[0]

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an output of one image has this shape."""
        if len(shape) != len(self.shape):
            return False
        return all(want in (None, have) for want, have in zip(self.shape, shape, strict=True))

    def said(self, shape: tuple[int | None, ...] | str) -> str:
        """A shape in words: ``10 classes``."""
        if isinstance(shape, tuple) and len(shape) == 1 and shape[0] is not None:
            return f"{shape[0]} {self.unit}"
        return f"an output of {shape}"

    def __str__(self) -> str:
        names = ("K",) if len(self.shape) == 1 else ("C", "H", "W")
        sides = (n if s is None else str(s) for n, s in zip(names, self.shape, strict=False))
        return f"{self.what} of shape (1, {', '.join(sides)})"


def scores(classes: int) -> Output:
    """A score for each of some classes."""
    hint = f"the data set has {classes} classes; take num_classes as an argument"
    return Output((classes,), "scores", hint, "classes")
