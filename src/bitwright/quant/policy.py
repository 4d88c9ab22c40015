# SPDX-License-Identifier: Apache-2.0
"""`QuantSpec` and `Policy`: which operand of which layer gets which format, as plain values.

No torch here: a recipe is checked without loading it. A policy is an ordered list of rules; a rule
selects layers and one operand role and changes some fields of its specification. The rules that
match are merged in order, so a later rule overrides an earlier one field by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from bitwright.errors import FormatError, RecipeError
from bitwright.formats import BipolarFormat, FixedFormat, Format, IntegerFormat, TernaryFormat
from bitwright.formats.rounding import Overflow, Rounding


class Role(StrEnum):
    """What an operand is to its layer. The last four belong to low-precision training."""

    INPUT = "input"
    WEIGHT = "weight"
    ACTIVATION = "activation"
    BIAS = "bias"
    GRAD_OUTPUT = "grad_output"
    GRAD_WEIGHT = "grad_weight"
    ACCUMULATOR = "accumulator"
    OPTIMIZER_STATE = "optimizer_state"


class Granularity(StrEnum):
    """How many scales a tensor has."""

    PER_TENSOR = "per_tensor"
    PER_CHANNEL = "per_channel"


class ScaleRule(StrEnum):
    """Where a scale comes from.

    max: the largest magnitude; percentile: that percentile of the magnitudes; mse: the clipping
    that minimises the squared error; mean: the mean magnitude (XNOR-Net, TWN); learned: a parameter
    trained with the network (LSQ); const: a given number. For activations the statistics are
    exponential averages over training batches.
    """

    MAX = "max"
    PERCENTILE = "percentile"
    MSE = "mse"
    MEAN = "mean"
    LEARNED = "learned"
    CONST = "const"


@dataclass(frozen=True)
class QuantSpec:
    """How one tensor is quantized: format x granularity x scale rule x rounding x overflow.

    Attributes:
        format: the number format.
        granularity: one scale a tensor, or one an output channel.
        scale: the scale rule.
        power_of_two: the scale is rounded to a power of two.
        rounding, overflow: the rule at the grid and beyond its ends.
        percentile: for ``percentile``, in percent.
        momentum: weight of a new batch in the running statistics of an activation.
        value: for ``const``, the scale.
    """

    format: Format
    granularity: Granularity
    scale: ScaleRule
    power_of_two: bool = False
    rounding: Rounding = Rounding.HALF_EVEN
    overflow: Overflow = Overflow.SAT
    percentile: float = 99.9
    momentum: float = 0.1
    value: float = 1.0

    @property
    def scale_text(self) -> str:
        """The scale rule in words, as `explain` prints it."""
        text = self.scale.value
        if self.scale is ScaleRule.PERCENTILE:
            text = f"percentile {self.percentile:g}"
        elif self.scale is ScaleRule.CONST:
            text = f"const {self.value:g}"
        return f"{text}, power of two" if self.power_of_two else text


@dataclass(frozen=True)
class Layer:
    """What a policy may know about a layer: its path, type name, and place in the network."""

    path: str
    type: str
    first: bool = False
    last: bool = False


@dataclass(frozen=True)
class Selector:
    """Chooses layers: a glob on the path, a type name, and a position; all given must hold."""

    layers: str = "*"
    type: str | None = None
    position: str | None = None

    def matches(self, layer: Layer) -> bool:
        if not fnmatchcase(layer.path, self.layers):
            return False
        if self.type is not None and self.type.lower() != layer.type.lower():
            return False
        if self.position == "first":
            return layer.first
        return self.position != "last" or layer.last

    def __str__(self) -> str:
        parts = [] if self.layers == "*" else [self.layers]
        parts += [] if self.type is None else [f"type {self.type}"]
        parts += [] if self.position is None else [f"the {self.position} layer"]
        return ", ".join(parts) or "every layer"


@dataclass(frozen=True)
class Change:
    """The fields of a specification that a rule sets; None leaves a field as it was."""

    keep_float: bool | None = None
    format: Format | None = None
    granularity: Granularity | None = None
    scale: ScaleRule | None = None
    power_of_two: bool | None = None
    rounding: Rounding | None = None
    overflow: Overflow | None = None
    percentile: float | None = None
    momentum: float | None = None
    value: float | None = None
    narrow: bool | None = None

    def over(self, earlier: Change) -> Change:
        """This change on top of an earlier one."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.format is not None and self.keep_float is None:
            given["keep_float"] = False
        return replace(earlier, **{k: v for k, v in given.items() if v is not None})


@dataclass(frozen=True)
class Rule:
    """Selector x role -> change, with the place in the recipe it came from."""

    selector: Selector
    role: Role
    change: Change
    where: str = "policy"


@dataclass(frozen=True)
class Resolved:
    """The outcome for one operand: a specification, or None to keep it float, and the reason."""

    spec: QuantSpec | None
    reason: str


@dataclass(frozen=True)
class Policy:
    """Ordered rules, later over earlier, and what freezing needs to know.

    Attributes:
        rules: see `Rule`; the three base rules of `uniform` come first.
        threshold_bits: activations of at most this many bits become integer thresholds, wider ones
            multiply-shift-round.
    """

    rules: tuple[Rule, ...]
    threshold_bits: int = 6

    @classmethod
    def uniform(
        cls,
        weight: str | Format | None = "int4",
        activation: str | Format | None = "uint4",
        input: str | Format | None = "uint8",
    ) -> Policy:
        """One format for all weights, one for all activations, one for the input (None: float)."""
        return cls.from_dict({"weight": weight, "activation": activation, "input": input})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "quant") -> Policy:
        """A policy from plain data (a recipe's ``quant`` section); see `policy_parse`.

        Raises:
            RecipeError: names the field, what is wrong with it and what is allowed.
        """
        from bitwright.quant.policy_parse import policy_from_dict

        return policy_from_dict(data, where)

    def resolve(self, layer: Layer, role: Role) -> Resolved:
        """The specification of one operand of one layer, with the reason for it.

        Raises:
            RecipeError: the merged fields contradict each other.
        """
        change, reasons, where = Change(), [], "policy"
        for rule in self.rules:
            if rule.role is role and rule.selector.matches(layer):
                change, where = rule.change.over(change), rule.where
                reasons.append(f"{rule.where} ({rule.selector})")
        if change.format is None:
            return Resolved(None, f"no rule gives {role.value} a format")
        if change.keep_float:
            return Resolved(None, f"kept float by {reasons[-1]}")
        return Resolved(complete(change, role, where), "; ".join(reasons))


def complete(change: Change, role: Role, where: str) -> QuantSpec:
    """A full specification from the given fields and the defaults of their format and role."""
    if change.format is None:
        raise RecipeError(f"no format for {role.value}", where=where)
    number_format = _narrowed(change.format, change.narrow, role, where)
    spec = QuantSpec(
        format=number_format,
        granularity=change.granularity or _default_granularity(role),
        scale=change.scale or default_scale(number_format, role),
        power_of_two=bool(change.power_of_two),
        rounding=change.rounding or Rounding.HALF_EVEN,
        overflow=change.overflow or Overflow.SAT,
        percentile=99.9 if change.percentile is None else change.percentile,
        momentum=0.1 if change.momentum is None else change.momentum,
        value=1.0 if change.value is None else change.value,
    )
    _check(spec, role, where)
    return spec


def default_scale(number_format: Format, role: Role) -> ScaleRule:
    """The scale rule where none is given.

    Weights: max for integers (nothing is clipped, so the gradient passes whole), but learned where
    the largest level is 1 (max would then round most weights to zero); mean for bipolar (XNOR-Net)
    and ternary (TWN). Activations: learned (LSQ); the input: max over calibration. Fixed point
    carries its own scale, so it is 1; so is that of bipolar activations.
    """
    if isinstance(number_format, FixedFormat):
        return ScaleRule.CONST
    if role is Role.WEIGHT:
        if isinstance(number_format, BipolarFormat | TernaryFormat):
            return ScaleRule.MEAN
        return ScaleRule.MAX if number_format.max_level > 1 else ScaleRule.LEARNED
    if isinstance(number_format, BipolarFormat):
        return ScaleRule.CONST
    return ScaleRule.MAX if role is Role.INPUT else ScaleRule.LEARNED


def _default_granularity(role: Role) -> Granularity:
    return Granularity.PER_CHANNEL if role is Role.WEIGHT else Granularity.PER_TENSOR


def _narrowed(number_format: Format, narrow: bool | None, role: Role, where: str) -> Format:
    """Signed integer weights are narrow unless the recipe says ``narrow: false``."""
    if not isinstance(number_format, IntegerFormat) or not number_format.signed:
        if narrow:
            raise RecipeError(f"{number_format} has no narrow variant", where=f"{where}.narrow")
        return number_format
    wanted = (role is Role.WEIGHT or number_format.narrow) if narrow is None else narrow
    return replace(number_format, narrow=wanted and number_format.bits > 1)


def _check(spec: QuantSpec, role: Role, where: str) -> None:
    if role is not Role.WEIGHT and spec.granularity is Granularity.PER_CHANNEL:
        raise RecipeError(
            f"{role.value} cannot have a scale per channel",
            where=f"{where}.granularity",
            hint="an exact accumulator needs one scale for the whole input: use per_tensor",
        )
    bipolar_or_ternary = isinstance(spec.format, BipolarFormat | TernaryFormat)
    if spec.scale is ScaleRule.MEAN and not (role is Role.WEIGHT and bipolar_or_ternary):
        raise RecipeError(
            "scale 'mean' is for bipolar and ternary weights",
            where=f"{where}.scale",
            hint="use max, percentile, mse, learned or const",
        )
    if role is not Role.WEIGHT and isinstance(spec.format, BipolarFormat):
        if spec.scale is not ScaleRule.CONST:
            raise RecipeError(
                f"a bipolar {role.value} is the sign alone and has a constant scale",
                where=f"{where}.scale",
                hint="leave scale out, or use const",
            )
    try:
        spec.format.check(spec.overflow)
    except FormatError as error:
        raise RecipeError(str(error), where=f"{where}.overflow") from error
    if spec.overflow is not Overflow.SAT and role in (Role.ACTIVATION, Role.INPUT):
        raise RecipeError(
            f"{role.value} can only saturate: {spec.overflow.value!r} has no threshold form",
            where=f"{where}.overflow",
            hint="use sat; for a symmetric range use a narrow format such as int4n",
        )
    if spec.rounding is Rounding.STOCHASTIC and role in (Role.ACTIVATION, Role.INPUT):
        raise RecipeError(
            f"stochastic rounding of {role.value} cannot be frozen into hardware",
            where=f"{where}.rounding",
        )
