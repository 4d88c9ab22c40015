# SPDX-License-Identifier: Apache-2.0
"""What the compiler works on: values in planes of words, and layers that are one loop nest each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bitwright.engine.isa import Bits, Reduce, Result, Rounding, WeightOrder
from bitwright.ir import IntArray

#: What the sign of a plane can be: two's complement, plain, or small enough for both.
SIGNED, UNSIGNED, EITHER = 1, 0, -1


@dataclass(eq=False)
class Value:
    """A tensor as the engine stores it: ``planes`` x ``height`` x ``width`` words.

    Attributes:
        places: channel -> lane, counted through all planes; lanes that no channel has hold
            anything, and nothing reads them but with weights of 0.
        signs: of each plane, SIGNED, UNSIGNED or EITHER.
        result: bits of an element.
        parent: the value of whose planes these are some, and the first of them: a part of a
            concatenation.
    """

    name: str
    height: int
    width: int
    planes: int
    places: IntArray
    signs: tuple[int, ...]
    result: Result = Result.EIGHT
    parent: tuple[Value, int] | None = None

    @property
    def root(self) -> tuple[Value, int]:
        """The value that has memory of its own, and this one's first plane in it."""
        value, first = self, 0
        while value.parent is not None:
            first += value.parent[1]
            value = value.parent[0]
        return value, first

    @property
    def words(self) -> int:
        return self.planes * self.height * self.width

    def lanes(self, word: int) -> int:
        """Lanes of a plane's word of so many bytes."""
        return 2 * word if self.result == Result.FOUR else word


@dataclass(frozen=True, eq=False)
class Post:
    """What follows a sum, for every lane of the output.

    Attributes:
        multiplier, offset: of each lane; of a requantization.
        thresholds: (lanes, T <= 15), or None for a requantization; flip: of each lane.
        tables: (1 or lanes, 256) bytes behind the requantization, or None.
    """

    result: Result
    multiplier: IntArray | None = None
    offset: IntArray | None = None
    shift: int = 0
    rounding: Rounding = Rounding.HALF_EVEN
    low: int = 0
    high: int = 0
    thresholds: IntArray | None = None
    flip: IntArray | None = None
    base: int = 0
    step: int = 0
    tables: NDArray[np.uint8] | None = None


@dataclass(frozen=True, eq=False)
class Part:
    """Some output groups of a layer that are one loop nest.

    Attributes:
        group, groups: the first output group and how many.
        plane: input plane of the first group's first step; step: planes further a group.
        planes: input planes that are summed (kc).
        weights: (groups or 1, rows, O, lanes) levels; one of them is for all groups; K rows, or
            one where the order is SINGLE.
        order: how the rows are read.
        signs: INPUT's `first`, `signed_first` and `signed_rest`.
        origin: added to the coordinate of the first pixel, (y, x).
    """

    group: int
    groups: int
    plane: int
    step: int
    planes: int
    weights: NDArray[np.int8]
    order: WeightOrder
    signs: tuple[int, int, int]
    origin: tuple[int, int] = (0, 0)

    @property
    def rows(self) -> int:
        """Rows of weights that the part needs."""
        return int(self.weights.shape[0] * self.weights.shape[1])

    def cut(self, first: int, count: int) -> Part:
        """The part's groups ``first .. first + count - 1``."""
        weights = self.weights[first : first + count] if len(self.weights) > 1 else self.weights
        return Part(
            self.group + first, count, self.plane + first * self.step, self.step, self.planes,
            weights, self.order, self.signs, self.origin,
        )  # fmt: skip


@dataclass(eq=False)
class Layer:
    """A product with what follows it.

    Attributes:
        nodes: names of the graph's nodes that it does.
        sources: the operand; two of an addition, whose steps are the operands' planes (kc).
        kernel, stride, dilation: (vertical, horizontal); padding: (top, left).
            Of an addition the kernel is (n, 1): n steps at one place, the parts of its multipliers.
        macs: multiply-accumulates of the graph's nodes, for the utilisation.
        upsample: factors (vertical, horizontal); the layer moves words and does nothing else.
    """

    name: str
    nodes: tuple[str, ...]
    sources: tuple[Value, ...]
    out: Value
    parts: tuple[Part, ...] = ()
    post: Post | None = None
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    reduce: Reduce = Reduce.ADD
    bits: Bits = Bits.EIGHT
    macs: int = 0
    upsample: tuple[int, int] | None = None

    @property
    def taps(self) -> int:
        """Steps of the kernel: K but for the planes."""
        return self.kernel[0] * self.kernel[1]

    @property
    def joins(self) -> bool:
        """It joins two operands: the first one's planes are followed by the second one's."""
        return len(self.sources) > 1

    @property
    def lanewise(self) -> bool:
        """Every output group reads the plane of its own number alone (of each operand), and makes
        one.
        """
        alike = self.upsample is None and self.out.result != Result.FOUR
        return alike and all(
            part.group == part.plane
            and (part.step == 1 or part.groups == 1)
            and part.planes == len(self.sources)
            for part in self.parts
        )

    def input_rows(self, first: int, last: int) -> tuple[int, int]:
        """Rows of the input that output rows ``first .. last - 1`` read: first and end."""
        height = self.sources[0].height
        if self.upsample is not None:
            return first // self.upsample[0], (last - 1) // self.upsample[0] + 1
        origins = [part.origin[0] for part in self.parts]
        top = first * self.stride[0] - self.padding[0] + min(origins)
        span = (self.kernel[0] - 1) * self.dilation[0] if not self.joins else 0
        end = (last - 1) * self.stride[0] - self.padding[0] + max(origins) + span + 1
        return max(0, min(top, height - 1)), max(1, min(end, height))


def is_diagonal(weights: NDArray[np.int8], outputs: int) -> bool:
    """Whether output j of every row uses only lanes l with ``l mod O = j``."""
    lanes = np.arange(weights.shape[-1]) % outputs
    others = lanes != np.arange(outputs)[:, np.newaxis]
    return not bool((weights * others).any())
