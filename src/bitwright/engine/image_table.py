# SPDX-License-Identifier: Apache-2.0
"""The table at the beginning of an image's file, as it must be before anything is made of it."""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, Literal

from pydantic import Field

from bitwright.base.described import Strict
from bitwright.base.memory import room_for, shown
from bitwright.ir import TensorType, parse_type

#: Bytes that `Columns.spread` and `Region.pack` hold of each pixel that a word of a row takes, and
#: of each byte that is made.
_AN_INDEX, _A_LANE = 32, 4
_Count = Annotated[int, Field(ge=0, lt=1 << 48, strict=True)]
_Positive = Annotated[int, Field(gt=0, lt=1 << 48, strict=True)]


class ColumnsTable(Strict):
    """See `bitwright.engine.image.Columns`."""

    image: _Positive
    width: _Positive
    taps: _Positive
    step: _Positive
    left: _Count


class RegionTable(Strict):
    """See `bitwright.engine.image.Region`."""

    edge: str
    type: str
    word: _Count
    planes: _Positive
    pixels: _Positive
    bits: Literal[8, 32]
    places: list[_Count]
    signs: list[Annotated[int, Field(ge=-1, le=1, strict=True)]]
    columns: ColumnsTable | None = None

    def kind(self, lanes: int, words: int) -> TensorType:
        """The type of its edge.

        Args:
            lanes, words: of the memory outside.

        Raises:
            ValueError: it does not lie in the memory, or is not as large as the type says.
            GraphError, FormatError: the type is none.
        """
        kind = parse_type(self.type)
        if self.word + self.planes * self.pixels > words:
            raise ValueError(f"{self.edge!r:.80} does not lie within {words} words")
        pixels, taps, channels = prod(kind.shape[:-1]), 1, kind.channels
        if len(kind.shape) == 1 and self.pixels > 1 and channels % self.pixels == 0:
            pixels, channels = self.pixels, channels // self.pixels  # an image that is flattened
        if self.columns is not None:
            if len(kind.shape) != 3 or self.columns.image != kind.shape[1]:
                raise ValueError(f"{self.edge!r:.80} has other columns than {kind}")
            pixels, taps = kind.shape[0] * self.columns.width, self.columns.taps
        if pixels != self.pixels:
            raise ValueError(f"{self.edge!r:.80} has {self.pixels} pixels, and is {kind}")
        if len(self.places) != taps * channels or len(self.signs) != self.planes:
            raise ValueError(f"{self.edge!r:.80} has other channels or planes than {kind}")
        if max(self.places) >= self.planes * lanes * 8 // self.bits:
            raise ValueError(f"{self.edge!r:.80} has a channel behind its last plane")
        if len(set(self.places)) != len(self.places):  # nothing would bound what it is made into
            raise ValueError(f"{self.edge!r:.80} has two channels at one place")
        self._check_columns(taps)
        return kind

    def _check_columns(self, taps: int) -> None:
        """Refuse a row of words that takes more to be made than a stranger may ask for: an image of
        one pixel may have millions.
        """
        width = 0 if self.columns is None else self.columns.width
        needed = _AN_INDEX * width * taps + _A_LANE * bool(width) * self.pixels * len(self.places)
        if needed > room_for(chosen=False):
            raise ValueError(f"{self.edge!r:.80} takes {shown(needed)} to be laid out")


class HostTable(Strict):
    """See `bitwright.engine.image.HostStep`."""

    edge: str
    source: str
    k: _Positive


class ImageTable(Strict):
    """All of it; the fields are those of `bitwright.engine.image.EngineImage`.

    Attributes:
        instructions: of the program.
    """

    name: str
    config: dict[str, Any]
    graph: str
    instructions: _Positive
    layers: list[str]
    words: _Positive
    inputs: list[RegionTable] = Field(min_length=1)
    outputs: list[RegionTable] = Field(min_length=1)
    host: list[HostTable]
    edges: list[str]
    macs: dict[str, _Count]

    def check(self, instructions: int, words: int, channels: dict[str, int]) -> None:
        """Refuse what contradicts the rest of the file.

        Args:
            instructions: of the program that is there; words: of program and constants.
            channels: of each output.

        Raises:
            ValueError: it does.
        """
        if not instructions == self.instructions == len(self.layers):
            raise ValueError(
                f"{self.instructions} instructions for {len(self.layers)} layers, and there are "
                f"{instructions}"
            )
        if any(region.columns is not None for region in self.outputs):
            raise ValueError("an output has columns, which inputs alone have")
        for regions in (self.inputs, self.outputs):
            if len({region.edge for region in regions}) < len(regions):
                raise ValueError("two inputs or outputs have one name")
        if words > self.words:
            raise ValueError(f"{words} words of data in a memory of {self.words}")
        found = set(channels)
        for step in self.host:
            if step.k > channels.get(step.source, 0):
                raise ValueError(f"the {step.k} largest of {step.source!r:.80} are asked for")
            found.add(step.edge)
        if not self.edges or not found.issuperset(self.edges):
            raise ValueError("it names outputs that nothing gives")
