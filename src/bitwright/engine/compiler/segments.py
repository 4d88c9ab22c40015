# SPDX-License-Identifier: Apache-2.0
"""What a plan is: layers chained over strips of rows, and where values lie."""

from __future__ import annotations

from dataclasses import dataclass, field

from bitwright.engine.compiler.values import Layer, Value

#: Strips of which both buffers are in use at a time: one is computed while one is moved.
BUFFERS = 2


@dataclass
class Buffers:
    """Addresses in the features, used in turn, and what each can hold: rows of planes."""

    addresses: list[int]
    rows: int
    planes: int


@dataclass(eq=False)
class Segment:
    """Layers chained over strips of rows.

    Attributes:
        ends: what it makes for others, all of one height; its other results live in strips alone.
        rows: of a strip of the ends.
        depth: buffers of what is loaded plane by plane: those of the next strip are loaded while
            this one is still computed.
        most: rows that a strip may have.
        buffers: of the values that it holds in strips.
    """

    layers: list[Layer]
    ends: list[Value]
    most: int
    rows: int = 0
    depth: int = BUFFERS
    buffers: dict[Value, Buffers] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.layers[-1].name

    @property
    def made(self) -> list[Value]:
        return [layer.out for layer in self.layers]

    @property
    def height(self) -> int:
        """Rows of the ends."""
        return self.ends[0].height

    @property
    def strips(self) -> list[tuple[int, int]]:
        height = self.height
        return [(a, min(a + self.rows, height)) for a in range(0, height, self.rows)]

    def needs(self, first: int, last: int) -> dict[Value, tuple[int, int]]:
        """Rows of every value that a strip makes or reads: first and end."""
        found: dict[Value, tuple[int, int]] = {end: (first, last) for end in self.ends}
        for layer in reversed(self.layers):
            below, end = layer.input_rows(*found[layer.out])
            for value in layer.sources:
                old = found.get(value, (below, end))
                found[value] = (min(old[0], below), max(old[1], end))
        return found


@dataclass(eq=False)
class Plan:
    """Where values lie.

    Attributes:
        segments: in order.
        resident: root -> address in the features, of the values that lie there as a whole.
        hidden: values that live in strips alone.
        live: of each segment, the values that lie in the features as a whole meanwhile.
    """

    segments: list[Segment]
    resident: dict[Value, int]
    hidden: set[Value]
    live: tuple[tuple[Value, ...], ...] = ()

    @property
    def signature(self) -> tuple[object, ...]:
        """What tells two plans of one network apart."""
        each = tuple(
            (tuple(layer.name for layer in s.layers), s.rows, s.depth) for s in self.segments
        )
        return each, tuple(sorted((v.name, at) for v, at in self.resident.items()))


@dataclass(frozen=True)
class Wish:
    """What a plan is made by.

    Attributes:
        waited: part of a move's time that X is thought to wait for: what moves may be hidden
            behind work, so rows that two strips both compute must cost less than that.
        outside: names of roots that do not stay in the features.
    """

    waited: float = 0.4
    outside: frozenset[str] = frozenset()
