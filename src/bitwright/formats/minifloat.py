# SPDX-License-Identifier: Apache-2.0
"""Small floating point: sign, E exponent bits, M mantissa bits, as ``eEmM``.

A code is ``sign, exponent field e, mantissa field m`` from the top bit down. With denormals, as in
IEEE 754 and the OCP standard, ``e = 0`` means ``m * 2^(1 - bias - M)``, else
``(1 + m / 2^M) * 2^(e - bias)``. With ``flush`` there are no denormals: every exponent field
is a normal one, except that ``e = 0, m = 0`` is zero.

=====================  ====================================  =====================================
name                   what it is                            magnitudes
=====================  ====================================  =====================================
``e4m3``               OCP FP8 E4M3: one NaN code a sign     2^-9 .. 448
``e5m2``               OCP FP8 E5M2: infinity and NaN codes  2^-16 .. 57344
``e2m1``               OCP FP4: all codes are numbers        0.5 .. 6
``e2m3``, ``e3m2``     OCP FP6                               0.125 .. 7.5; 0.0625 .. 28
``e5m10``, ``e8m7``    IEEE half, bfloat16
``e8m23``              IEEE single; its levels exceed 62 bits: simulated only
``e4m3<finite,flush>`` no special codes, no denormals        1.125 * 2^-7 .. 480
``e4m3<bias=11>``      another bias
=====================  ====================================  =====================================

Without options, formats of 5 and more exponent bits have IEEE's special codes, ``e4m3`` the one NaN
of the OCP standard, and all others none. Too large a real saturates, an infinity too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import FormatError
from bitwright.formats.base import IntArray
from bitwright.formats.grid import GridFormat
from bitwright.formats.rounding import FloatArray, Rounding, Rules, round_to_int

MAX_EXPONENT, MAX_MANTISSA = 8, 23
_MAX_BIAS = 512
_IEEE_EXPONENT = 5


class Specials(StrEnum):
    """Which codes are no numbers.

    finite: none; nan: all exponent and mantissa bits set; ieee: all exponent bits set (infinity if
    the mantissa is 0, else NaN).
    """

    FINITE = "finite"
    NAN = "nan"
    IEEE = "ieee"


def _default_specials(exponent: int, mantissa: int) -> Specials:
    if exponent >= _IEEE_EXPONENT and mantissa > 0:
        return Specials.IEEE
    return Specials.NAN if (exponent, mantissa) == (4, 3) else Specials.FINITE


@dataclass(frozen=True, slots=True)
class MinifloatFormat(GridFormat):
    """Sign, ``exponent`` bits and ``mantissa`` bits; see the module.

    Args:
        exponent: 1 to 8 bits.
        mantissa: 0 to 23 bits.
        bias: of the exponent; None is IEEE's ``2^(exponent - 1) - 1``.
        denormals: whether exponent field 0 counts evenly down to zero.
        specials: which codes are no numbers; None is the default of the module's text.

    Raises:
        FormatError: impossible widths, or special codes that leave no number.
    """

    family: ClassVar[str] = "minifloat"
    is_float: ClassVar[bool] = True
    in_training: ClassVar[bool] = True

    exponent: int
    mantissa: int
    bias: int | None = None
    denormals: bool = True
    specials: Specials | None = None

    def __post_init__(self) -> None:
        widths = f"{self.exponent} exponent and {self.mantissa} mantissa bits"
        if not 1 <= self.exponent <= MAX_EXPONENT or not 0 <= self.mantissa <= MAX_MANTISSA:
            raise FormatError(
                f"no float has {widths}",
                hint=f"1 to {MAX_EXPONENT} exponent bits, 0 to {MAX_MANTISSA} mantissa bits; "
                "without exponent bits use fixed<W,I>",
            )
        if self.bias is None:
            object.__setattr__(self, "bias", (1 << (self.exponent - 1)) - 1)
        if self.specials is None:
            specials = _default_specials(self.exponent, self.mantissa)
            object.__setattr__(self, "specials", specials)
        if abs(self.point) > _MAX_BIAS:
            raise FormatError(
                f"{self.name!r}: bias {self.bias} is out of range",
                hint=f"the largest magnitude is {_MAX_BIAS}",
            )
        if self._largest_code == 0:
            raise FormatError(f"{self.name!r} has no number but zero", hint="more bits, or finite")

    @property
    def point(self) -> int:
        """The bias."""
        return self.bias if self.bias is not None else 0

    @property
    def name(self) -> str:
        options = []
        if self.point != (1 << (self.exponent - 1)) - 1:
            options.append(f"bias={self.point}")
        if self.specials is not _default_specials(self.exponent, self.mantissa):
            options.append(str(self.specials))
        if not self.denormals:
            options.append("flush")
        return f"e{self.exponent}m{self.mantissa}" + (f"<{','.join(options)}>" if options else "")

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def lsb(self) -> float:
        return float(2.0 ** (int(self.denormals) - self.point - self.mantissa))

    @property
    def _largest_code(self) -> int:
        """Code of the largest number; codes without sign ascend with their values."""
        top = (1 << (self.exponent + self.mantissa)) - 1
        if self.specials is Specials.FINITE:
            return top
        return top - 1 if self.specials is Specials.NAN else top - (1 << self.mantissa)

    @property
    def max_level(self) -> int:
        field, rest = divmod(self._largest_code, 1 << self.mantissa)
        if field == 0 and self.denormals:
            return rest
        return (rest + (1 << self.mantissa)) << (field - int(self.denormals))

    @property
    def min_level(self) -> int:
        return -self.max_level

    @property
    def exponent_bits(self) -> int:
        return self.exponent

    @property
    def significand_bits(self) -> int:
        return self.mantissa + 1

    @property
    def top_step(self) -> int:
        return 1 << max(0, self.max_level.bit_length() - 1 - self.mantissa)

    def special(self, pattern: int) -> str:
        negative = pattern >> (self.bits - 1)
        if self.specials is Specials.IEEE and pattern & ((1 << self.mantissa) - 1) == 0:
            return "-infinity" if negative else "infinity"
        return "NaN"

    @property
    def qonnx_name(self) -> str:
        return f"FLOAT<{self.exponent},{self.mantissa},{self.point}>"

    @property
    def zero_is_representable(self) -> bool:
        return True

    def contains(self, levels: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        array = np.asarray(levels, dtype=np.int64)
        exact = array.astype(np.float64)
        # A level has at most M + 1 significant bits; float64 would round others away.
        return np.asarray((exact.astype(np.int64) == array) & (self._rounded(exact) == exact))

    def _rounded(
        self,
        ratio: FloatArray,
        rounding: Rounding = Rounding.HALF_EVEN,
        rng: np.random.Generator | None = None,
    ) -> FloatArray:
        """Levels (float64, exact) of reals in units of a level."""
        top = float(self.max_level)
        x = np.clip(ratio, -top, top)
        binade = np.frexp(x)[1] - 1  # floor(log2 |x|)
        quantum = np.ldexp(1.0, np.maximum(binade - self.mantissa, 0))
        level = np.clip(round_to_int(x / quantum, rounding, rng) * quantum, -top, top)
        if not self.denormals:
            level = np.where(np.abs(level) <= 1 << self.mantissa, 0.0, level)
        return np.asarray(level + 0.0)  # no negative zero

    def quantize(self, ratio: FloatArray, zero_point: IntArray, rules: Rules) -> IntArray:
        self._offset(zero_point)
        return self.canonical_codes(self._rounded(ratio, rules.rounding, rules.rng))

    def canonical_codes(self, levels: FloatArray) -> IntArray:
        magnitude = np.abs(levels)
        shift = np.maximum(np.frexp(magnitude)[1] - 1 - self.mantissa, 0)
        whole = np.ldexp(magnitude, -shift).astype(np.int64)  # below 2^(M + 1)
        # With denormals a whole number of 2^M and more carries itself into the exponent field.
        field = shift if self.denormals else np.where(whole > 0, shift - 1, 0)
        code = (field.astype(np.int64) << self.mantissa) + whole
        if not self.denormals:
            code = np.where(whole > 0, code, 0)
        sign = (levels < 0).astype(np.int64) << (self.bits - 1)
        return np.asarray(code | sign)

    def float_levels(self, codes: IntArray) -> FloatArray:
        unsigned = codes & ((1 << (self.bits - 1)) - 1)
        field, rest = unsigned >> self.mantissa, unsigned & ((1 << self.mantissa) - 1)
        hidden = (
            np.where(field > 0, 1 << self.mantissa, 0)
            if self.denormals
            else np.where(unsigned > 0, 1 << self.mantissa, 0)
        )
        shift = np.maximum(field - int(self.denormals), 0)
        level = np.ldexp((rest + hidden).astype(np.float64), shift)
        beyond = unsigned > self._largest_code
        if self.specials is not Specials.FINITE and beyond.any():
            infinite = (self.specials is Specials.IEEE) & (rest == 0)
            level = np.where(beyond, np.where(infinite, np.inf, np.nan), level)
        return np.asarray(np.where(codes >> (self.bits - 1) == 1, -level, level))


def ristretto_minifloat(
    x: npt.ArrayLike,
    exponent: int,
    mantissa: int,
    rounding: Rounding = Rounding.HALF_AWAY,
    rng: np.random.Generator | None = None,
) -> FloatArray:
    """Ristretto's simulation of a float (Gysel 2016), which is a code too wide for its width.

    Every exponent field is a normal one, and zero is a number beside them: ``2^(E+M+1) + 1`` values
    in ``E + M + 1`` bits. Reals below ``2^-bias`` become zero. The format of the same width is
    ``eEmM<finite,flush>``, in which the smallest magnitude of Ristretto's means zero.
    """
    bias = (1 << (exponent - 1)) - 1
    values = np.asarray(x, dtype=np.float64)
    top_exponent = (1 << exponent) - 1 - bias
    largest = (2 - 2.0**-mantissa) * 2.0**top_exponent
    clipped = np.clip(values, -largest, largest)
    binade = np.frexp(clipped)[1] - 1
    quantum = np.ldexp(1.0, binade - mantissa)
    rounded = np.clip(round_to_int(clipped / quantum, rounding, rng) * quantum, -largest, largest)
    return np.asarray(np.where(np.abs(clipped) < 2.0**-bias, 0.0, rounded))


def parse(text: str) -> MinifloatFormat | None:
    """`MinifloatFormat` of ``e4m3``, ``e4m3<flush,bias=11>`` or ``FLOAT<4,3,7>``; else None."""
    word = text.lower().replace(" ", "")
    qonnx = re.fullmatch(r"float<(\d{1,3}),(\d{1,3}),(-?\d{1,4})>", word)
    if qonnx is not None:
        exponent, mantissa, point = (int(number) for number in qonnx.groups())
        return MinifloatFormat(exponent, mantissa, point)
    match = re.fullmatch(r"e(\d{1,3})m(\d{1,3})(?:<(.*)>)?", word)
    if match is None:
        return None
    bias: int | None = None
    denormals, specials = True, None
    for option in (match[3] or "").split(",") if match[3] is not None else ():
        shift = re.fullmatch(r"bias=(-?\d{1,4})", option)
        if shift is not None:
            bias = int(shift[1])
        elif option in ("flush", "denormals"):
            denormals = option == "denormals"
        elif option in list(Specials):
            specials = Specials(option)
        else:
            raise FormatError(
                f"{text!r}: unknown option {option!r}",
                hint="bias=N, flush, denormals, finite, nan, ieee",
            )
    return MinifloatFormat(int(match[1]), int(match[2]), bias, denormals, specials)
