# SPDX-License-Identifier: Apache-2.0
"""How large a quantized network is: rates as papers print them, and all its bits honestly counted.

Three figures, for any mixture of formats:

*parameter rate*: 32 bits a parameter over the stored bits of the parameters, tables included.
*network rate*: the arithmetic mean of the factors of parameters, layer inputs and layer outputs.
That is how compression of "the whole network" has been printed; it is not a ratio of sizes.
*memory ratio*: all bits before over all bits after, with the real number of parameters and
features, and with everything that a format needs besides its codes: tables, scales, shared
exponents, zero points and biases.

The upper half of this module is closed form and needs no model; `model_size` looks at one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from bitwright.base.errors import FormatError

if TYPE_CHECKING:
    from torch import nn

    from bitwright.quantize.policy import Policy

FLOAT_BITS = 32


def clustered_bits(
    parameters: int, clusters: int, sets: int = 1, centroid_bits: int = FLOAT_BITS
) -> int:
    """Stored bits of clustered parameters: ``I P + S K Q`` with ``I = ceil(log2 K)``.

    Args:
        parameters: P, all clustered parameters.
        clusters: K, entries of a table.
        sets: S, tables.
        centroid_bits: Q, bits of a table entry.

    Raises:
        FormatError: one of them is no positive number, or there are more clusters than parameters.
    """
    for name, value in (
        ("parameters", parameters),
        ("clusters", clusters),
        ("sets", sets),
        ("centroid bits", centroid_bits),
    ):
        if value < 1:
            raise FormatError(f"{value} {name}", hint="expected 1 or more")
    if clusters * sets > parameters:
        raise FormatError(
            f"{sets} tables of {clusters} entries for {parameters} parameters",
            hint="fewer clusters than values: lower K",
        )
    return index_bits(clusters) * parameters + sets * clusters * centroid_bits


def index_bits(clusters: int) -> int:
    """Bits of an index into a table of this many entries: ``ceil(log2 K)``."""
    return (clusters - 1).bit_length()


def clustered_rate(
    parameters: int, clusters: int, sets: int = 1, centroid_bits: int = FLOAT_BITS
) -> float:
    """Parameter rate of clustered parameters: ``32 P / (I P + S K Q)``; see `clustered_bits`."""
    stored = clustered_bits(parameters, clusters, sets, centroid_bits)
    return FLOAT_BITS * parameters / stored


def rate_of(groups: Iterable[tuple[int, float]]) -> float:
    """Rate of groups of (values, bits a value): 32 bits each before, the given bits after.

    Raises:
        FormatError: nothing is stored.
    """
    pairs = list(groups)
    after = sum((Fraction(count) * Fraction(bits) for count, bits in pairs), Fraction(0))
    if after <= 0:
        raise FormatError("a rate needs something stored", hint="give (values, bits) pairs")
    return float(FLOAT_BITS * sum(count for count, _ in pairs) / after)


def network_rate(parameters: float, inputs: float, outputs: float) -> float:
    """The mean of the three factors, each 32 over its bits; see the module's docstring."""
    return (parameters + inputs + outputs) / 3


def closed_form_ratio(
    parameters: int, parameter_bits: int, features: int, feature_bits: float
) -> float:
    """Memory ratio from totals: float parameters and features over stored ones.

    Args:
        parameters: how many there are.
        parameter_bits: bits in which *all* of them are stored, tables included.
        features: layer inputs and outputs (or outputs alone) of one image.
        feature_bits: bits of one feature.
    """
    after = Fraction(parameter_bits) + Fraction(features) * Fraction(feature_bits)
    return float(FLOAT_BITS * (parameters + features) / after)


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


def model_size(
    model: nn.Module, policy: Policy | None = None, *, sample_shape: tuple[int, ...] | None = None
) -> SizeReport:
    """The size of a model.

    Args:
        model: a float model with a policy, or what `apply` made of it for a policy (converted or
            frozen).
        policy: what becomes of each operand; None: as it was converted, or all float.
        sample_shape: (C, H, W) of one image; without it, that of the example given to `apply`, or
            else features are not counted.

    Raises:
        ModelError: the model cannot be traced, or its shape does not pass.
        RecipeError: the policy does not fit the model.
    """
    from bitwright.quantize.model_sizes import measure

    return measure(model, policy, sample_shape)


def size_table(reports: Mapping[str, SizeReport]) -> list[tuple[str, ...]]:
    """Rows (name, parameter kB, parameter rate, network rate, memory ratio) for a table."""
    return [
        (
            name,
            f"{report.parameter_bits / 8000:.1f}",
            f"{report.parameter_rate:.2f}",
            f"{report.network_rate:.2f}",
            f"{report.memory_ratio:.2f}",
        )
        for name, report in reports.items()
    ]
