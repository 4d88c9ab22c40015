# SPDX-License-Identifier: Apache-2.0
"""Codebooks: ``cb16`` stores indices into a table of 16 centroids that k-means finds.

The centroids have a format of their own, 16-bit integers unless another is named: ``cb16:int8``,
``cb16:e4m3`` (a codebook of small floats), ``cb16:e8m23`` (32-bit floats, which no integer
arithmetic executes). A fitted codebook carries its table, as levels of that format:
``cb4{-7,-2,1,6}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import FormatError
from bitwright.formats.base import Format, IntArray
from bitwright.formats.grid import GridFormat, nearest_index
from bitwright.formats.integer import IntegerFormat
from bitwright.formats.rounding import FloatArray, Rules

MAX_SIZE = 1 << 16
_TINY = 2.0**-1000
_DEFAULT_CENTROID = IntegerFormat(16, True, True)


@dataclass(frozen=True, slots=True)
class CodebookFormat(GridFormat):
    """Indices into a table of at most ``size`` centroids.

    Args:
        size: 2 to 65536 entries.
        centroid: format of an entry.
        table: its levels, distinct and ascending; None until it is fitted.
    """

    family: ClassVar[str] = "codebook"
    is_codebook: ClassVar[bool] = True

    size: int
    centroid: Format = _DEFAULT_CENTROID
    table: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.size <= MAX_SIZE:
            raise FormatError(
                f"a codebook of {self.size} entries is impossible", hint=f"2 to {MAX_SIZE}"
            )
        if self.centroid.is_codebook or self.centroid.block:
            raise FormatError(f"centroids cannot be {self.centroid.name}", hint="e.g. int8, e4m3")
        if self.table is None:
            return
        if not 1 <= len(self.table) <= self.size:
            raise FormatError(f"cb{self.size} cannot have {len(self.table)} centroids")
        if any(low >= high for low, high in zip(self.table, self.table[1:], strict=False)):
            raise FormatError("centroids must be distinct and ascending")
        known = self.centroid.exact_levels
        if known and max(map(abs, self.table)) >= 1 << 63:  # of floats, larger ones are levels
            raise FormatError(f"a centroid of cb{self.size} has more than 64 bits")
        if known and not self.centroid.contains(np.array(self.table)).all():
            raise FormatError(f"a centroid of {self.name!r} is no {self.centroid.name}")

    @property
    def name(self) -> str:
        kind = "" if self.centroid == _DEFAULT_CENTROID else f":{self.centroid.name}"
        table = "" if self.table is None else f"{{{','.join(map(str, self.table))}}}"
        return f"cb{self.size}{kind}{table}"

    @property
    def bits(self) -> int:
        return (self.size - 1).bit_length()

    @property
    def table_bits(self) -> int:
        """Bits of the table itself."""
        return self.size * self.centroid.bits

    @property
    def entries(self) -> int:
        return self.size

    @property
    def needs_table(self) -> bool:
        return self.table is None

    @property
    def number(self) -> Format:
        return self.centroid.number

    @property
    def lsb(self) -> float:
        return self.centroid.lsb

    @property
    def min_level(self) -> int:
        return self.centroid.min_level if self.table is None else self.table[0]

    @property
    def max_level(self) -> int:
        return self.centroid.max_level if self.table is None else self.table[-1]

    @property
    def qonnx_name(self) -> str:
        return self.centroid.qonnx_name

    @property
    def unfitted(self) -> CodebookFormat:
        """The same codebook without its table."""
        return replace(self, table=None)

    def fitted(self, centroids: npt.ArrayLike, scale: float | None = None) -> CodebookFormat:
        """This codebook with a table for real centroids, each rounded to the centroid format.

        Args:
            centroids: reals; at most ``size`` of them.
            scale: of the format; None: `scale_for` these centroids.

        Raises:
            FormatError: too many centroids, or none that is finite.
        """
        reals = np.asarray(centroids, dtype=np.float64).reshape(-1)
        if not reals.size or not np.isfinite(reals).all():
            raise FormatError("centroids must be finite numbers", where=self.name)
        chosen = self.scale_for(reals) if scale is None else scale
        rounded = self.centroid.quantized(reals, chosen) / (chosen * self.lsb)
        levels = sorted({int(level) for level in np.rint(rounded)})
        return replace(self, table=tuple(levels))

    def scale_for(self, centroids: npt.ArrayLike) -> float:
        """The scale that maps the largest magnitude to the largest level; 1 for wide floats."""
        largest = float(np.abs(np.asarray(centroids, dtype=np.float64)).max())
        scale = largest / (self.centroid.max_level * self.centroid.lsb)
        # Denormal scales would not divide well; such centroids are zero to any arithmetic.
        return scale if self.centroid.exact_levels and scale >= _TINY else 1.0

    def float_grid(self) -> FloatArray:
        if self.table is None:
            raise FormatError(
                f"{self.name} has no table yet", hint="fit it to values: fitted(centroids)"
            )
        return np.array([float(level) for level in self.table])

    def quantize(self, ratio: FloatArray, zero_point: IntArray, rules: Rules) -> IntArray:
        self._offset(zero_point)
        return nearest_index(ratio, self.float_grid(), rules.rounding, rules.rng)

    def canonical_codes(self, levels: FloatArray) -> IntArray:
        return np.asarray(np.searchsorted(self.float_grid(), levels), dtype=np.int64)

    def float_levels(self, codes: IntArray) -> FloatArray:
        table = self.float_grid()
        if codes.size and int(codes.max()) >= len(table):
            raise FormatError(f"code {int(codes.max())} is beyond the {len(table)} centroids")
        return np.asarray(table[codes])

    def grid(self) -> IntArray:
        if not self.exact_levels:
            return GridFormat.grid(self)  # a class with slots has no super()
        return self.float_grid().astype(np.int64)

    def contains(self, levels: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        if self.table is None:
            return self.centroid.contains(levels)
        return np.isin(np.asarray(levels, dtype=np.int64), self.grid())


def parse(text: str, parse_format: Callable[[str], Format]) -> CodebookFormat | None:
    """`CodebookFormat` of ``cb16``, ``cb16:e4m3``, ``cb4{-7,-2,1,6}``; None if it is none.

    Args:
        parse_format: reads the format of the centroids.
    """
    word = text.lower().replace(" ", "")
    match = re.fullmatch(r"cb(\d{1,6})(?::([^{}]+))?(?:\{(-?\d{1,100}(?:,-?\d{1,100})*)\})?", word)
    if match is None:
        return None
    centroid = _DEFAULT_CENTROID if match[2] is None else parse_format(match[2])
    table = None if match[3] is None else tuple(int(level) for level in match[3].split(","))
    return CodebookFormat(int(match[1]), centroid, table)
