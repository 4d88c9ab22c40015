# SPDX-License-Identifier: Apache-2.0
"""Ristretto's ``quantization_param`` of one layer as a value (Gysel et al. 2016, Caffe fork)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from bitwright.errors import DataError

#: Layer types with reduced arithmetic, and the plain ones that they replace.
QUANTIZED_TYPES = {"ConvolutionRistretto": "Convolution", "FcRistretto": "InnerProduct"}
_WIDEST = 32


class Precision(StrEnum):
    """Which arithmetic a layer simulates."""

    DYNAMIC_FIXED_POINT = "DYNAMIC_FIXED_POINT"
    MINIFLOAT = "MINIFLOAT"
    INTEGER_POWER_OF_2_WEIGHTS = "INTEGER_POWER_OF_2_WEIGHTS"


class RoundingScheme(StrEnum):
    """How it rounds."""

    NEAREST = "NEAREST"
    STOCHASTIC = "STOCHASTIC"


@dataclass(frozen=True)
class QuantizationParam:
    """The twelve fields with Ristretto's defaults.

    Attributes:
        bw_layer_in, bw_layer_out, bw_params: bits of inputs, outputs, and weights with biases.
        fl_layer_in, fl_layer_out, fl_params: how many of them are fractional; may be negative or
            exceed the bits.
        mant_bits, exp_bits: of a minifloat.
        exp_min, exp_max: the window of powers of two.
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
        for name in ("bw_layer_in", "bw_layer_out", "bw_params"):
            self._require(name, 1, _WIDEST)
        self._require("mant_bits", 0, 52)
        self._require("exp_bits", 1, 11)
        for name in ("fl_layer_in", "fl_layer_out", "fl_params", "exp_min", "exp_max"):
            self._require(name, -1074, 1074)
        if self.exp_min > self.exp_max:
            raise DataError(
                f"exp_min {self.exp_min} is above exp_max {self.exp_max}",
                where="quantization_param",
            )

    def _require(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or not low <= value <= high:
            raise DataError(
                f"{name} is {value!r}; expected {low} .. {high}", where="quantization_param"
            )

    @classmethod
    def from_message(cls, message: Any) -> QuantizationParam:
        """From the protobuf message; fields that are not set have their defaults.

        Raises:
            DataError: a field is out of range.
        """
        kind = message.DESCRIPTOR
        values: dict[str, Any] = {f.name: getattr(message, f.name) for f in fields(cls)}
        for name, enum in (("precision", Precision), ("rounding_scheme", RoundingScheme)):
            descriptor = kind.fields_by_name[name].enum_type
            values[name] = enum(descriptor.values_by_number[values[name]].name)
        return cls(**values)

    def fill(self, message: Any) -> None:
        """Write the fields that matter for this precision, and any other that is not default."""
        default = QuantizationParam()
        for name, value in asdict(self).items():
            if name in _USED[self.precision] or value != getattr(default, name):
                setattr(message, name, value if isinstance(value, int) else str(value))


_BITS = ("bw_layer_in", "bw_layer_out", "fl_layer_in", "fl_layer_out")
_USED = {
    Precision.DYNAMIC_FIXED_POINT: (*_BITS, "bw_params", "fl_params"),
    Precision.MINIFLOAT: ("precision", "mant_bits", "exp_bits"),
    Precision.INTEGER_POWER_OF_2_WEIGHTS: ("precision", *_BITS, "exp_min", "exp_max"),
}
