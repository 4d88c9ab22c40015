# SPDX-License-Identifier: Apache-2.0
"""From the fields that rules give to a whole `QuantSpec`: defaults by format, and contradictions.

No torch here, as in `policy`.
"""

from __future__ import annotations

import math

from bitwright.base.errors import FormatError, RecipeError
from bitwright.formats import Format
from bitwright.formats.rounding import Overflow, Rounding
from bitwright.quantize.spec import (
    OPERAND_ROLES,
    RESULT_ROLES,
    Change,
    Granularity,
    QuantSpec,
    Role,
    ScaleRule,
    Scope,
)

_ACTIVATIONS = (Role.ACTIVATION, Role.INPUT)
#: Bits from which on a float's own range is taken to be enough.
_WHOLE_FLOAT = 16


def complete(change: Change, role: Role, where: str, *, training: bool = False) -> QuantSpec:
    """A full specification from the given fields and the defaults of their format and role.

    Args:
        training: of an operand or result of a product of training, found anew for every tensor.

    Raises:
        RecipeError: the fields contradict each other.
    """
    if change.format is None:
        raise RecipeError(f"no format for {role.value}", where=where)
    default = training_scale(change.format) if training else default_scale(change.format, role)
    scale = change.scale or default
    zero_point = not training and _zero_point(change, scale, role, where)
    whole = training or scale is ScaleRule.DYNAMIC
    narrow = bool(change.narrow) if whole and change.format.signed else change.narrow
    number_format = _narrowed(change.format, narrow, role, where, zero_point)
    # The window of a power-of-two format is its scale; block scales are exponents.
    exponents = number_format.is_exponent or number_format.block > 0
    exponents = exponents or scale is ScaleRule.DYNAMIC
    if exponents and change.power_of_two is False:
        raise RecipeError(
            f"the scale of {number_format} is a power of two",
            where=f"{where}.power_of_two",
            hint="leave it out",
        )
    spec = QuantSpec(
        format=number_format,
        granularity=_granularity(
            number_format, change.granularity, role, where, zero_point or whole
        ),
        scale=scale,
        power_of_two=_power_of_two(change, scale, training) or exponents,
        rounding=change.rounding or Rounding.HALF_EVEN,
        overflow=change.overflow or Overflow.SAT,
        percentile=99.9 if change.percentile is None else change.percentile,
        momentum=_momentum(scale) if change.momentum is None else change.momentum,
        value=1.0 if change.value is None else change.value,
        scope=change.scope or Scope.LAYER,
        zero_point=zero_point,
    )
    if training:
        _check_training(spec, role, where, bool(change.zero_point))
    else:
        _check(spec, role, where)
    _check_overflow(spec, where)
    return spec


def _momentum(scale: ScaleRule) -> float:
    """The averaging constant; of ``minmax`` the one of PyTorch's observer."""
    return 0.01 if scale is ScaleRule.MINMAX else 0.1


def _power_of_two(change: Change, scale: ScaleRule, training: bool) -> bool:
    """Scales of training are powers of two unless the recipe says otherwise: they cost a shift."""
    if change.power_of_two is None:
        return training and scale is not ScaleRule.CONST
    return change.power_of_two


def _zero_point(change: Change, scale: ScaleRule, role: Role, where: str) -> bool:
    """Whether the quantizer is affine; ``minmax`` is unless the recipe says otherwise."""

    def refuse(what: str, hint: str) -> RecipeError:
        return RecipeError(what, where=f"{where}.zero_point", hint=hint)

    if change.zero_point is None:
        return scale is ScaleRule.MINMAX
    if not change.zero_point:
        return False
    if change.format is None or not change.format.is_integer:
        raise refuse(
            f"{change.format} has no zero point, integers have",
            "use intN or uintN, or leave it out",
        )
    if role not in (*_ACTIVATIONS, Role.WEIGHT):
        raise refuse(f"a {role.value} has no zero point", "leave it out")
    if not scale.has_range:
        raise refuse(
            f"scale {scale.value!r} knows no range with a minimum and a maximum",
            "use scale: minmax or scale: interval with a zero point",
        )
    if change.narrow:
        raise refuse("a narrow range is symmetric", "leave out narrow or zero_point")
    return True


def default_scale(number_format: Format, role: Role) -> ScaleRule:
    """The scale rule where none is given.

    Weights: max for integers (nothing is clipped, so the gradient passes whole), but learned where
    the largest level is 1 (max would then round most weights to zero); mean for bipolar (XNOR-Net)
    and ternary (TWN). Activations: learned (LSQ); the input: max over calibration. Fixed point and
    floats as wide as float32's exponent carry their own scale, so it is 1; so is that of bipolar
    activations. Exponent windows, blocks and biases follow the largest magnitude.
    """
    if number_format.has_own_scale:
        return ScaleRule.CONST
    if number_format.is_exponent or number_format.block:
        return ScaleRule.MAX
    if role in (Role.WEIGHT, Role.BIAS):
        if number_format.mean_scaled:
            return ScaleRule.MEAN
        return ScaleRule.MAX if number_format.max_level > 1 else ScaleRule.LEARNED
    if number_format.sign_only:
        return ScaleRule.CONST
    return ScaleRule.MAX if role is Role.INPUT else ScaleRule.LEARNED


def training_scale(number_format: Format) -> ScaleRule:
    """The scale rule of a tensor in training where none is given.

    Integers are dynamic fixed point. Floats of few bits follow the largest magnitude; those of 16
    bits and more, and fixed point, carry their own scale.
    """
    if number_format.is_integer:
        return ScaleRule.DYNAMIC
    if number_format.is_float and number_format.bits >= _WHOLE_FLOAT:
        return ScaleRule.CONST
    return default_scale(number_format, Role.INPUT)


def simulated_only(number_format: Format, role: Role) -> str | None:
    """Why a format trains and is evaluated, but has no integer arithmetic; None if it has."""
    role_name = "input" if role is Role.INPUT else "activation"
    if role is Role.WEIGHT:
        if number_format.exact_levels:
            return None
        return (
            f"{number_format} weights are simulated only: their levels do not fit 62 bits; use "
            "fewer exponent bits, or centroids such as int16n or e4m3"
        )
    if number_format.block:
        why = "their exponents depend on the data"
    elif not number_format.exact_levels:
        why = "their levels do not fit 62 bits"
    elif not number_format.uniform and not number_format.is_float:
        why = "use integers, fixed point or a small float such as e4m3"
    else:
        return None
    return f"{number_format} {role_name}s are simulated only: {why}"


def _granularity(
    number_format: Format,
    given: Granularity | None,
    role: Role,
    where: str,
    whole: bool = False,
) -> Granularity:
    if number_format.block:
        if given is Granularity.PER_CHANNEL:
            raise RecipeError(
                f"{number_format} has a scale a block, which holds no channel together",
                where=f"{where}.granularity",
                hint="leave granularity out",
            )
        return Granularity.PER_BLOCK
    if given is Granularity.PER_BLOCK:
        raise RecipeError(
            f"{number_format} is no block format",
            where=f"{where}.granularity",
            hint=f"name the block in the format: mx<{number_format},32>",
        )
    if given is not None:
        return given
    # One window, table, zero point or dynamic scale a layer is what its users know; a rule can ask
    # for one a channel.
    whole = whole or number_format.is_exponent or number_format.is_codebook
    return Granularity.PER_CHANNEL if role is Role.WEIGHT and not whole else Granularity.PER_TENSOR


def _narrowed(
    number_format: Format, narrow: bool | None, role: Role, where: str, zero_point: bool
) -> Format:
    """Signed integer weights are narrow unless they have a zero point, or the recipe says
    ``narrow: false``.
    """
    if not number_format.is_integer or not number_format.signed:
        if narrow:
            raise RecipeError(f"{number_format} has no narrow variant", where=f"{where}.narrow")
        return number_format
    kept = -number_format.min_code == number_format.max_code
    wanted = (role is Role.WEIGHT or kept) if narrow is None else narrow
    return number_format.with_narrow(wanted and number_format.bits > 1 and not zero_point)


def _check(spec: QuantSpec, role: Role, where: str) -> None:
    if role is not Role.WEIGHT and spec.granularity is Granularity.PER_CHANNEL:
        raise RecipeError(
            f"{role.value} cannot have a scale per channel",
            where=f"{where}.granularity",
            hint="an exact accumulator needs one scale for the whole input: use per_tensor",
        )
    if spec.zero_point and spec.overflow is not Overflow.SAT:
        raise RecipeError(
            f"an operand with a zero point saturates, it has no {spec.overflow.value!r}",
            where=f"{where}.overflow",
            hint="leave overflow out, or zero_point: false",
        )
    if spec.zero_point and spec.granularity is Granularity.PER_CHANNEL and spec.format.bits > 15:
        raise RecipeError(
            "levels of several zero points would have more than 16 bits",
            where=f"{where}.granularity",
            hint="use per_tensor, or up to 15 bits",
        )
    _check_family(spec, role, where)
    _check_scale(spec, role, where)
    if spec.overflow is not Overflow.SAT and role in _ACTIVATIONS:
        raise RecipeError(
            f"{role.value} can only saturate: {spec.overflow.value!r} has no threshold form",
            where=f"{where}.overflow",
            hint="use sat; for a symmetric range use a narrow format such as int4n",
        )
    if spec.rounding is Rounding.STOCHASTIC and role in _ACTIVATIONS:
        raise RecipeError(
            f"stochastic rounding of {role.value} cannot be frozen into hardware",
            where=f"{where}.rounding",
        )


def _check_overflow(spec: QuantSpec, where: str) -> None:
    if spec.scale is ScaleRule.DYNAMIC and spec.overflow is not Overflow.SAT:
        raise RecipeError(
            "a dynamic scale leaves half a level beyond the ends, which saturates: it has no "
            f"{spec.overflow.value!r}",
            where=f"{where}.overflow",
            hint="leave overflow out",
        )
    try:
        spec.format.check(spec.overflow)
    except FormatError as error:
        raise RecipeError(str(error), where=f"{where}.overflow") from error


def _check_training(spec: QuantSpec, role: Role, where: str, zero_point: bool) -> None:
    """What an operand or a result of a product of training cannot be."""
    if zero_point:
        raise RecipeError(
            "operands of products in training have no zero point",
            where=f"{where}.zero_point",
            hint="leave it out; uintN has levels from zero on",
        )
    if role not in (*OPERAND_ROLES, *RESULT_ROLES):
        names = ", ".join(known.value for known in (*OPERAND_ROLES, *RESULT_ROLES))
        raise RecipeError(
            f"no product of training takes or gives a {role.value}",
            where=where,
            hint=f"roles are {names}",
        )
    if not spec.format.in_training:
        raise RecipeError(
            f"products of training do not run in {spec.format}",
            where=f"{where}.format",
            hint="use intN, uintN, fixed<W,I>, a float such as e4m3, or blocks such as mxfp8",
        )
    gradient = role in (Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.GRAD_WEIGHT)
    if not spec.format.signed and (gradient or role is Role.WEIGHT):
        raise RecipeError(
            f"a {role.value} has both signs, {spec.format} has one",
            where=f"{where}.format",
            hint="use a signed format",
        )
    if spec.granularity is Granularity.PER_CHANNEL:
        raise RecipeError(
            "products of training have one scale a tensor",
            where=f"{where}.granularity",
            hint="leave granularity out; blocks with scales of their own are mx<FORMAT,LENGTH>",
        )
    if spec.scope is not Scope.LAYER:
        raise RecipeError("scope is for the table of a codebook", where=f"{where}.scope")
    allowed: list[ScaleRule] = [
        rule for rule in ScaleRule.all() if rule.stateless and rule is not ScaleRule.DYNAMIC
    ]
    for _, fewer in _allowed_scales(spec, role):
        allowed = [rule for rule in allowed if rule in fewer]
    if spec.format.is_integer:
        allowed.append(ScaleRule.DYNAMIC)
    if spec.scale not in allowed:
        names = ", ".join(rule.value for rule in allowed)
        raise RecipeError(
            f"{spec.format} in training cannot have scale {spec.scale.value!r}",
            where=f"{where}.scale",
            hint=f"one of {names}: the others need statistics of many tensors",
        )
    _check_levels(spec, where)


def _check_levels(spec: QuantSpec, where: str) -> None:
    """A dynamic scale needs a level above zero to bring the largest element to."""
    if spec.scale is ScaleRule.DYNAMIC and spec.format.max_level < 1:
        raise RecipeError(
            f"{spec.format} has no level above zero for a dynamic scale",
            where=f"{where}.format",
            hint="use 2 bits or more",
        )


def _check_scale(spec: QuantSpec, role: Role, where: str) -> None:
    """Scale rules that the role or the format cannot have."""

    def refuse(what: str, hint: str) -> None:
        raise RecipeError(what, where=f"{where}.scale", hint=hint)

    if spec.scale is ScaleRule.MEAN and not (role is Role.WEIGHT and spec.format.mean_scaled):
        refuse(
            "scale 'mean' is for bipolar and ternary weights",
            "use max, percentile, mse, learned or const",
        )
    if spec.scale is ScaleRule.INTERVAL and spec.format.max_level < 1 and not spec.zero_point:
        refuse(f"{spec.format} has no level above zero", "add zero_point: true, or use bipolar")
    if role is not Role.WEIGHT and spec.format.sign_only:
        if spec.scale is not ScaleRule.CONST:
            refuse(
                f"a bipolar {role.value} is the sign alone and has a constant scale",
                "leave scale out, or use const",
            )
    if spec.scale is ScaleRule.ENTROPY and role not in _ACTIVATIONS:
        refuse(
            f"scale 'entropy' needs a distribution over many inputs, which a {role.value} has not",
            "use max, percentile or mse",
        )
    if spec.scale is ScaleRule.DYNAMIC and role in _ACTIVATIONS:
        refuse(
            f"scale 'dynamic' is found anew for every tensor; that of {role.value} is fixed when "
            "the network is frozen",
            "use scale: max with power_of_two: true",
        )
    _check_levels(spec, where)
    for family, allowed in _allowed_scales(spec, role):
        if spec.scale not in allowed:
            names = ", ".join(rule.value for rule in allowed)
            refuse(f"{family} cannot have scale {spec.scale.value!r}", f"one of {names}")
    if spec.format.is_exponent and spec.scale is ScaleRule.CONST:
        if not math.log2(spec.value).is_integer():
            refuse(
                f"{spec.value:g} is no power of two, and the scale of {spec.format} is 2^exp_min",
                "for instance value: 0.0078125",
            )


def _allowed_scales(spec: QuantSpec, role: Role) -> list[tuple[str, tuple[ScaleRule, ...]]]:
    """Who restricts the scale rule, and to what."""
    rule = ScaleRule
    found: list[tuple[str, tuple[ScaleRule, ...]]] = []
    if role is Role.BIAS:
        # A bias is one number a channel: nothing of it may be clipped.
        found.append(("a bias", (rule.MAX, rule.CONST)))
    if not spec.format.exact_levels:
        found.append((f"{spec.format}, which covers the range of float32,", (rule.CONST,)))
    if spec.format.is_exponent:
        window = (rule.MAX, rule.MSE, rule.PERCENTILE, rule.CONST)
        found.append((f"the exponent window of {spec.format}", window))
    if spec.format.block:
        found.append((f"the blocks of {spec.format}", (rule.MAX,)))
    if spec.format.needs_table:
        found.append((f"the table of {spec.format}", (rule.MAX, rule.CONST)))
    if spec.scale is ScaleRule.DYNAMIC and not spec.format.is_integer:
        others = tuple(other for other in rule.all() if other is not rule.DYNAMIC)
        found.append((f"{spec.format}, which is no integer,", others))
    if spec.has_range and not spec.format.is_integer:
        others = tuple(
            other for other in rule.all() if not (other.has_range or other is rule.ENTROPY)
        )
        found.append((f"{spec.format}, which is no integer,", others))
    return found


def _check_family(spec: QuantSpec, role: Role, where: str) -> None:
    codebook = spec.format.needs_table
    if codebook and role is not Role.WEIGHT:
        raise RecipeError(
            f"{spec.format} is fitted to weights; a {role.value} has none to fit",
            where=f"{where}.format",
            hint="give the table of the codebook, as in cb4{-7,-2,1,6}, or use another format",
        )
    if spec.format.block and role is Role.BIAS:
        raise RecipeError(
            "a bias has no input channels to make blocks of",
            where=f"{where}.format",
            hint=f"use the element's format: {spec.format.stored}",
        )
    if spec.scope is not Scope.LAYER and not codebook:
        raise RecipeError(
            f"scope {spec.scope.value!r} is for the table of a codebook, not for {spec.format}",
            where=f"{where}.scope",
            hint="remove it, or use a codebook such as cb16",
        )
    if codebook and spec.scope is not Scope.LAYER:
        if spec.granularity is Granularity.PER_CHANNEL:
            raise RecipeError(
                "layers that share a table share its scale",
                where=f"{where}.granularity",
                hint="use per_tensor, or scope: layer",
            )
