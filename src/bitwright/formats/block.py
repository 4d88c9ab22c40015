# SPDX-License-Identifier: Apache-2.0
"""Block formats: elements of a small format that share a power-of-two scale, as in OCP MX.

``mx<e4m3,32>``: along the input channels every 32 neighbours have one scale, an exponent of 8 bits
(E8M0). The format itself is that of an element; whoever quantizes a tensor gives `encode` one scale
an element, which is that of its block (`block_scales`).

===============  ==========================  ===============
short name       the same                    bits a value
===============  ==========================  ===============
``mxfp8``        ``mx<e4m3,32>``             8.25
``mxfp8_e5m2``   ``mx<e5m2,32>``             8.25
``mxfp6``        ``mx<e2m3,32>``             6.25
``mxfp6_e3m2``   ``mx<e3m2,32>``             6.25
``mxfp4``        ``mx<e2m1,32>``             4.25
``mxint8``       ``mx<fixed<8,2>,32>``       8.25
===============  ==========================  ===============
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import FormatError
from bitwright.formats.base import Format, IntArray
from bitwright.formats.rounding import FloatArray

MIN_EXPONENT, MAX_EXPONENT = -127, 127
_MAX_BLOCK = 1024
_SHORT = {
    "mxfp8": ("e4m3", 32),
    "mxfp8_e4m3": ("e4m3", 32),
    "mxfp8_e5m2": ("e5m2", 32),
    "mxfp6": ("e2m3", 32),
    "mxfp6_e2m3": ("e2m3", 32),
    "mxfp6_e3m2": ("e3m2", 32),
    "mxfp4": ("e2m1", 32),
    "mxint8": ("fixed<8,2>", 32),
}


def _of_element(name: str) -> Any:
    """What a block takes over from the format of its elements."""
    return property(attrgetter(f"element.{name}"))


@dataclass(frozen=True, slots=True)
class BlockFormat(Format):
    """``element`` values of which ``length`` neighbours share a power-of-two scale."""

    family: ClassVar[str] = "block"
    in_training: ClassVar[bool] = True

    element: Format
    length: int = 32

    def __post_init__(self) -> None:
        if not 2 <= self.length <= _MAX_BLOCK:
            raise FormatError(f"a block of {self.length} values", hint=f"2 to {_MAX_BLOCK}")
        if self.element.block or not self.element.zero_is_representable:
            raise FormatError(
                f"{self.element.name} cannot be an element of a block", hint="e.g. e4m3, int8"
            )

    @property
    def name(self) -> str:
        given = (self.element.name, self.length)
        short = next((word for word, meant in _SHORT.items() if meant == given), None)
        return short or f"mx<{given[0]},{given[1]}>"

    @property
    def stored(self) -> Format:
        return self.element

    @property
    def number(self) -> Format:
        return self.element.number

    @property
    def block(self) -> int:
        return self.length

    bits = _of_element("bits")
    uniform = _of_element("uniform")
    signed = _of_element("signed")
    min_code = _of_element("min_code")
    max_code = _of_element("max_code")
    min_level = _of_element("min_level")
    max_level = _of_element("max_level")
    level_step = _of_element("level_step")
    lsb = _of_element("lsb")
    qonnx_name = _of_element("qonnx_name")
    zero_is_representable = _of_element("zero_is_representable")
    codes = _of_element("codes")
    levels = _of_element("levels")
    decode = _of_element("decode")
    grid = _of_element("grid")
    contains = _of_element("contains")
    check = _of_element("check")
    quantize = _of_element("quantize")
    patterns_of = _of_element("patterns_of")
    levels_of = _of_element("levels_of")

    def block_exponents(self, x: npt.ArrayLike, axis: int = -1) -> IntArray:
        """The shared exponent of every block: ``floor(log2(largest)) - top_exponent``, clipped to
        E8M0 (OCP MX specification 1.0, section 6.3); a block of zeros has the smallest.

        Args:
            x: finite reals; the last block along ``axis`` may be shorter.

        Returns:
            int64, the shape of ``x`` with ``ceil(n / length)`` along ``axis``.
        """
        values = np.moveaxis(np.abs(np.asarray(x, dtype=np.float64)), axis, -1)
        if not np.isfinite(values).all():
            raise FormatError("cannot encode NaN or infinity in blocks", where=self.name)
        missing = -values.shape[-1] % self.length
        padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])
        largest = padded.reshape(*padded.shape[:-1], -1, self.length).max(axis=-1)
        exponent = np.frexp(largest)[1].astype(np.int64) - 1 - self.top_exponent
        exponent = np.where(largest == 0, MIN_EXPONENT, exponent)
        return np.moveaxis(np.clip(exponent, MIN_EXPONENT, MAX_EXPONENT), -1, axis)

    def block_scales(self, x: npt.ArrayLike, axis: int = -1) -> FloatArray:
        """One scale for every value, that of its block; for `encode` and `decode`."""
        shape = np.asarray(x).shape
        spread = np.repeat(self.block_exponents(x, axis), self.length, axis=axis)
        return np.ldexp(1.0, np.take(spread, np.arange(shape[axis]), axis=axis))


def parse(text: str, parse_format: Callable[[str], Format]) -> BlockFormat | None:
    """`BlockFormat` of ``mx<e4m3,32>``, ``mxfp4`` and the other short names; None if it is none.

    Args:
        parse_format: reads the format of the elements.
    """
    word = text.lower().replace(" ", "")
    if word in _SHORT:
        element, length = _SHORT[word]
        return BlockFormat(parse_format(element), length)
    match = re.fullmatch(r"mx<(.+),(\d{1,6})>", word)
    return None if match is None else BlockFormat(parse_format(match[1]), int(match[2]))
