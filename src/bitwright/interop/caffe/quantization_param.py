# SPDX-License-Identifier: Apache-2.0
"""``quantization_param``: how Ristretto writes the formats of a layer into a Caffe prototxt.

The twelve fields and their defaults are those of Ristretto's fork of Caffe (P. Gysel et al.). As
plain data a parameter is a mapping from field names to numbers and words, which is what a reader of
prototxt gives and a writer takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from bitwright.base.errors import DataError


class Precision(StrEnum):
    """The kind of arithmetic of a layer."""

    DYNAMIC_FIXED_POINT = "DYNAMIC_FIXED_POINT"
    MINIFLOAT = "MINIFLOAT"
    INTEGER_POWER_OF_2_WEIGHTS = "INTEGER_POWER_OF_2_WEIGHTS"


class RoundingScheme(StrEnum):
    """How a value meets the grid."""

    NEAREST = "NEAREST"
    STOCHASTIC = "STOCHASTIC"


_FEATURES = ("bw_layer_in", "bw_layer_out", "fl_layer_in", "fl_layer_out")
#: The fields that a layer of each kind is written with.
_USED = {
    Precision.DYNAMIC_FIXED_POINT: (*_FEATURES, "bw_params", "fl_params"),
    Precision.MINIFLOAT: ("mant_bits", "exp_bits"),
    Precision.INTEGER_POWER_OF_2_WEIGHTS: (*_FEATURES, "exp_min", "exp_max"),
}
_WORDS: Mapping[str, Any] = {"precision": Precision, "rounding_scheme": RoundingScheme}
_LIMITS = {
    "bw_layer_in": (1, 64),
    "bw_layer_out": (1, 64),
    "bw_params": (1, 64),
    "mant_bits": (1, 52),
    "exp_bits": (2, 11),
    # Steps and powers of two that float32 has.
    **dict.fromkeys(("fl_layer_in", "fl_layer_out", "fl_params"), (-126, 126)),
    **dict.fromkeys(("exp_min", "exp_max"), (-126, 126)),
}


@dataclass(frozen=True)
class QuantizationParam:
    """The formats of one convolution or dense layer.

    Attributes:
        precision: dynamic fixed point, minifloat, or power-of-two weights.
        rounding_scheme: to the nearest, or stochastic.
        bw_layer_in, bw_layer_out, bw_params: bits of input, output, and weights and biases.
        fl_layer_in, fl_layer_out, fl_params: their fraction lengths.
        mant_bits, exp_bits: of a minifloat, for all three.
        exp_min, exp_max: the smallest and largest power of two of a weight.

    Raises:
        DataError: a width or length is impossible, or the exponent window is empty.
    """

    precision: Precision = Precision.DYNAMIC_FIXED_POINT
    rounding_scheme: RoundingScheme = RoundingScheme.NEAREST
    bw_layer_in: int = 32
    bw_layer_out: int = 32
    bw_params: int = 32
    fl_layer_in: int = 16
    fl_layer_out: int = 16
    fl_params: int = 16
    mant_bits: int = 23
    exp_bits: int = 8
    exp_min: int = -8
    exp_max: int = -1

    def __post_init__(self) -> None:
        for name, (low, high) in _LIMITS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise DataError(
                    f"{name} is {value}, expected {low} to {high}", where="quantization_param"
                )
        if self.exp_min > self.exp_max:
            raise DataError(
                f"exp_min {self.exp_min} lies above exp_max {self.exp_max}",
                where="quantization_param",
            )

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], where: str = "quantization_param"
    ) -> QuantizationParam:
        """From plain data, numbers maybe as text; fields that are not there have their defaults.

        Raises:
            DataError: an unknown field, or a value of another kind.
        """
        known = [f.name for f in fields(cls)]
        if not isinstance(data, Mapping):
            raise DataError(f"expected fields, found {data!r}"[:200], where=where)
        given: dict[str, Any] = {}
        for name, value in data.items():
            if name not in known:
                hint = f"fields: {', '.join(known)}"
                raise DataError(f"unknown field {name!r}", where=where, hint=hint)
            kind = _WORDS.get(name, int)
            try:
                given[name] = kind(str(value))
            except ValueError:
                raise DataError(
                    f"{name} is {value!r}",
                    where=where,
                    hint="expected a whole number" if kind is int else f"one of {', '.join(kind)}",
                ) from None
        try:
            return cls(**given)
        except DataError as error:
            raise DataError(error.message, where=where, hint=error.hint) from error

    def to_dict(self, *, everything: bool = False) -> dict[str, int | str]:
        """Plain data: the fields that this kind of arithmetic reads, defaults of kind and rounding
        left out; or all twelve.
        """
        values = {k: v.value if isinstance(v, StrEnum) else v for k, v in asdict(self).items()}
        if everything:
            return values
        plain = QuantizationParam()
        kept = {name: values[name] for name in _WORDS if values[name] != getattr(plain, name)}
        return kept | {name: values[name] for name in _USED[self.precision]}
