# SPDX-License-Identifier: Apache-2.0
"""How large a quantized network is: rates as they are published, and all its bits counted.

Three figures, for any mixture of formats:

*parameter rate*: 32 bits a parameter over the stored bits of the parameters, tables included.
*network rate*: the arithmetic mean of the factors of parameters, layer inputs and layer outputs.
That is how compression of "the whole network" has been printed; it is not a ratio of sizes.
*memory ratio*: all bits before over all bits after, with the real number of parameters and
features, and with everything that a format needs besides its codes: tables, scales, shared
exponents, zero points and biases.

`explore.model_sizes` makes the report of a model. No torch here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bitwright.base.errors import FormatError

FLOAT_BITS = 32


def network_rate(parameters: float, inputs: float, outputs: float) -> float:
    """The mean of the three factors, each 32 over its bits; see the module's docstring."""
    return (parameters + inputs + outputs) / 3


def parameter_mb(parameters: int, bits: int) -> float:
    """Memory of all parameters at one width, in MB of 2^20 bytes: ``parameters * bits / 8 / 2^20``.

    Raises:
        FormatError: a count is negative, or there are no bits.
    """
    if parameters < 0 or bits < 1:
        raise FormatError(f"{parameters} parameters of {bits} bits", hint="expected 1 bit or more")
    return parameters * bits / 8 / 2**20


@dataclass(frozen=True)
class Stored:
    """What of one operand is stored.

    Attributes:
        layer: path of its layer.
        role: ``weight``, ``bias``, ``batch_norm``, ``activation`` or ``input``.
        format: name of the format; ``float32`` where nothing was chosen.
        count: values.
        bits: bits of one code.
        table: bits of codebooks.
        scales: bits of scales and zero points.
        exponents: bits of exponents shared by blocks.
    """

    layer: str
    role: str
    format: str
    count: int
    bits: int
    table: int = 0
    scales: int = 0
    exponents: int = 0

    @property
    def total(self) -> int:
        """Bits of codes and of all that decoding them takes."""
        return self.count * self.bits + self.table + self.scales + self.exponents

    @property
    def is_feature(self) -> bool:
        return self.role in FEATURES

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "total": self.total}


FEATURES = ("activation", "input")


@dataclass(frozen=True)
class SizeReport:
    """All that is stored of a network, and the features of one image.

    Attributes:
        entries: one an operand, in execution order. Features are counted once each, where they are
            quantized.
        float_parameters: parameters of the float model (batch norm with its statistics included,
            4 numbers a channel), the numerator of the rates.
        layer_inputs, layer_outputs: (values, bits) totals over convolutions and dense layers, the
            basis of the network rate: an image read by two layers counts twice.
    """

    entries: tuple[Stored, ...]
    float_parameters: int
    layer_inputs: tuple[int, int]
    layer_outputs: tuple[int, int]

    @property
    def parameter_bits(self) -> int:
        """Weights, biases, tables, scales, shared exponents."""
        return sum(entry.total for entry in self.entries if not entry.is_feature)

    @property
    def feature_bits(self) -> int:
        """Features of one image, each tensor once."""
        return sum(entry.total for entry in self.entries if entry.is_feature)

    @property
    def feature_count(self) -> int:
        return sum(entry.count for entry in self.entries if entry.is_feature)

    @property
    def total_bits(self) -> int:
        return self.parameter_bits + self.feature_bits

    @property
    def parameter_rate(self) -> float:
        """Float parameters over stored ones."""
        return FLOAT_BITS * self.float_parameters / self.parameter_bits

    @property
    def network_rate(self) -> float:
        """Mean of the three factors; a layer that has no inputs or outputs counts as factor 1."""
        factors = [_factor(*self.layer_inputs), _factor(*self.layer_outputs)]
        return network_rate(self.parameter_rate, factors[0], factors[1])

    @property
    def memory_ratio(self) -> float:
        """All bits before over all bits after."""
        return FLOAT_BITS * (self.float_parameters + self.feature_count) / self.total_bits

    def part(self, role: str) -> int:
        """Bits of one role: ``weight``, ``bias``, .. or ``table``, ``scales``, ``exponents``."""
        if role in ("table", "scales", "exponents"):
            return sum(getattr(e, role) for e in self.entries if not e.is_feature)
        return sum(e.count * e.bits for e in self.entries if e.role == role)

    def to_json(self) -> dict[str, Any]:
        return {
            "parameter_rate": self.parameter_rate,
            "network_rate": self.network_rate,
            "memory_ratio": self.memory_ratio,
            "parameter_bits": self.parameter_bits,
            "parameter_bytes": -(-self.parameter_bits // 8),
            "feature_bits": self.feature_bits,
            "total_bits": self.total_bits,
            "float_parameters": self.float_parameters,
            "features": self.feature_count,
            "entries": [entry.to_json() for entry in self.entries],
        }


def _factor(count: int, bits: int) -> float:
    return FLOAT_BITS * count / bits if bits else 1.0
