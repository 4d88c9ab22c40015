# SPDX-License-Identifier: Apache-2.0
"""The type of an edge: shape, number format, scale and the exact interval of its levels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite, prod

from bitwright.base.errors import GraphError
from bitwright.formats import Format, parse_format

_INT63 = 1 << 62
#: Elements of one frame: an image of 4096 x 4096 with 4 channels.
MAX_FRAME = 1 << 26
#: Nodes of a graph that a file holds.
MAX_NODES = 100_000

_TYPE = re.compile(
    r"^(?P<format>[^\[\]]+)\[(?P<shape>[\d,]*)\] \* (?P<scale>[^ ]+) in "
    r"\[(?P<lo>-?\d+),(?P<hi>-?\d+)\]$"
)


def bits_for_interval(lo: int, hi: int) -> int:
    """Smallest width that holds every integer of ``[lo, hi]``: two's complement if lo < 0."""
    if lo < 0:
        return max(hi.bit_length() if hi >= 0 else 0, (-lo - 1).bit_length()) + 1
    return max(1, hi.bit_length())


def check_frame_shape(shape: tuple[int, ...]) -> None:
    """Raises GraphError unless there are elements, and at most `MAX_FRAME`."""
    if not shape or any(d < 1 for d in shape):
        raise GraphError(f"a tensor needs positive dimensions, got shape {shape}")
    if prod(shape) > MAX_FRAME:
        raise GraphError(
            f"a frame of shape {shape}; at most {MAX_FRAME} elements are supported",
            hint="use smaller images or fewer channels",
        )


@dataclass(frozen=True)
class TensorType:
    """Shape, format, scale and exact interval of one tensor of a graph.

    Attributes:
        shape: ``(H, W, C)`` or ``(C,)``; the batch axis is not part of the type.
        format: the number format of the levels, or None for raw integers (accumulators, labels),
            whose width is given by the interval alone.
        scale: real value of level 1: one number, or one per channel. Empty for a tensor
            without a real meaning (a label).
        lo, hi: smallest and largest level that can occur.
    """

    shape: tuple[int, ...]
    format: Format | None
    scale: tuple[float, ...]
    lo: int
    hi: int

    def __post_init__(self) -> None:
        check_frame_shape(self.shape)
        if self.lo > self.hi:
            raise GraphError(f"empty interval [{self.lo}, {self.hi}]")
        if max(abs(self.lo), abs(self.hi)) >= _INT63:
            raise GraphError(
                f"interval [{self.lo}, {self.hi}] needs more than 63 bits",
                hint="use fewer bits or a smaller layer",
            )
        if not all(map(isfinite, self.scale)):
            raise GraphError("a scale must be a finite number")
        if len(self.scale) not in (0, 1, self.channels):
            raise GraphError(
                f"scale has {len(self.scale)} entries; expected 1 or {self.channels} (channels)"
            )

    @property
    def channels(self) -> int:
        return self.shape[-1]

    @property
    def size(self) -> int:
        """Number of elements of one frame."""
        return prod(self.shape)

    @property
    def is_bipolar(self) -> bool:
        """Levels are -1 and +1, carried as one bit."""
        return self.format is not None and self.format.name == "bipolar"

    @property
    def is_coded(self) -> bool:
        """Streams carry codes of the format instead of the levels as numbers: bipolar, and every
        format of unevenly spaced levels.
        """
        return self.is_bipolar or self.code_format is not None

    @property
    def code_format(self) -> Format | None:
        """The format of a stream's codes; None where it carries numbers or single bits."""
        return None if self.format is None or self.format.uniform else self.format

    @property
    def is_signed(self) -> bool:
        """The wire is two's complement."""
        return self.lo < 0 and not self.is_coded

    @property
    def wire_bits(self) -> int:
        """Bits of one lane on a stream: those of a code, else derived from the interval."""
        if self.code_format is not None:
            return self.code_format.bits
        return 1 if self.is_bipolar else bits_for_interval(self.lo, self.hi)

    def __str__(self) -> str:
        name = "int" if self.format is None else self.format.name
        shape = ",".join(map(str, self.shape))
        scale = ",".join(float(s).hex() for s in self.scale) or "-"
        return f"{name}[{shape}] * {scale} in [{self.lo},{self.hi}]"


def parse_type(text: str) -> TensorType:
    """Inverse of ``str(TensorType)``.

    Raises:
        GraphError: the text is not a type.
    """
    match = _TYPE.match(text.strip())
    if match is None:
        raise GraphError(f"expected a type such as 'uint4[8,8,1] * 0x1p-4 in [0,15]', got {text!r}")
    scale = match["scale"]
    try:
        scales = () if scale == "-" else tuple(float.fromhex(s) for s in scale.split(","))
    except (ValueError, OverflowError) as error:
        raise GraphError(f"no scale: {error}, in {text!r}") from error
    try:
        shape = tuple(int(d) for d in match["shape"].split(",") if d)
        lo, hi = int(match["lo"]), int(match["hi"])
    except ValueError as error:  # Python reads no integers of thousands of digits
        raise GraphError(f"no integer: {error}, in {text[:80]!r} ..") from error
    kind = None if match["format"] == "int" else parse_format(match["format"])
    return TensorType(shape=shape, format=kind, scale=scales, lo=lo, hi=hi)
