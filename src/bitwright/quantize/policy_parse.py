# SPDX-License-Identifier: Apache-2.0
"""A recipe's ``quant`` section -> the rules of a `Policy`. Errors name the field and its choices.

::

    quant:
      input: uint8                      # a format, or a mapping with the fields below
      weight: int4                      # or e4m3, po2_4<zero>, cb16, mxfp4, dfp8, ...
      bias: dfp16                       # left out: an integer of the accumulator's scale
      activation: {format: uint4, scale: percentile, percentile: 99.5}
      threshold_bits: 6
      methods: [fold, calibrate, gptq, bias]   # after training; left out: calibrate
    concat_scales: shared             # left out: own
      rules:                            # later rules win, field by field
        - {layers: 'head', role: weight, format: int8, granularity: per_tensor}
        - {position: first, role: weight, format: int8}
        - {layers: 'stem.*', role: weight, scale: minmax}     # affine: zero_point: true
        - {type: Linear, role: activation, keep_float: true}

``scale: dynamic`` is the rule of dynamic fixed point: a power of two that covers the tensor, with
half a level to spare at either end (MuPPET, Rajagopal et al. 2020). Weights may have it; of
activations ``max`` with ``power_of_two`` is the static counterpart.

``dfpN`` is dynamic fixed point: two's complement of N bits, ``intN``, with one power-of-two scale a
tensor (``power_of_two: true, granularity: per_tensor, narrow: false``).

``zero_point: true`` is affine quantization (the default of ``scale: minmax``, an option of
``scale: interval``), ``zero_point: false`` symmetric.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bitwright.base.errors import FormatError, ModelError, RecipeError
from bitwright.formats import Format, load_format, parse_format, parse_overflow, parse_rounding
from bitwright.formats.integer import MAX_BITS
from bitwright.formats.rounding import Overflow, Rounding
from bitwright.quantize.brevitas_words import without_brevitas
from bitwright.quantize.method_words import RECIPE_DEFAULT, check_words
from bitwright.quantize.policy_defaults import complete
from bitwright.quantize.presets import KEY, without_preset
from bitwright.quantize.spec import (
    OPERAND_ROLES,
    RESULT_ROLES,
    Change,
    Granularity,
    Product,
    Role,
    Rule,
    ScaleRule,
    Scope,
    Selector,
)

BASE_ROLES = (Role.INPUT, Role.WEIGHT, Role.ACTIVATION, Role.BIAS)
_TRAINING_ROLES = (*OPERAND_ROLES, *RESULT_ROLES)
OTHERS = ("rules", "threshold_bits", "methods", "concat_scales")
POSITIONS = ("first", "last")
CONCAT_SCALES = ("own", "shared")
THRESHOLD_BITS = 6  # where a recipe says nothing
THRESHOLD_RANGE = (1, 12)
SELECTOR_FIELDS = ("layers", "type", "position", "role", "product")

E = TypeVar("E", bound=str)


@dataclass(frozen=True)
class Parsed:
    """What a ``quant`` section says; the words of `policy.Policy`."""

    rules: tuple[Rule, ...]
    threshold_bits: int
    methods: tuple[str, ...]
    concat_scales: str


def parse_quant(data: Mapping[str, Any], where: str) -> Parsed:
    """Rules, ``threshold_bits``, ``methods`` and ``concat_scales``; see the module's docstring. A
    ``preset`` is written out first (`presets`), and so are Brevitas' names (`brevitas_words`).

    Scores need one common scale, so the last layer's weights are per tensor unless a rule of the
    user says otherwise (and then `inspect_model` objects).
    """
    data = without_preset(data, where)
    if not isinstance(data, Mapping):
        raise RecipeError(f"expected a mapping, found {data!r}", where=where)
    data = without_brevitas(data, where)
    _known(data, (*(role.value for role in BASE_ROLES), *OTHERS, KEY), where)
    rules = []
    for role in BASE_ROLES:
        given = data.get(role.value, DEFAULTS.get(role))
        if role is Role.BIAS and given is None:
            continue
        rules.append(_base_rule(role, given, f"{where}.{role.value}"))
    last = Change(granularity=Granularity.PER_TENSOR)
    rules.append(Rule(Selector(position="last"), Role.WEIGHT, last, "default for the last layer"))
    rules += [_rule(entry, place) for entry, place in _listed(data, where)]
    place = f"{where}.threshold_bits"
    bits = _integer(data.get("threshold_bits", THRESHOLD_BITS), place, *THRESHOLD_RANGE)
    methods = _methods(data.get("methods"), f"{where}.methods")
    given = data.get("concat_scales", CONCAT_SCALES[0])
    if given not in CONCAT_SCALES:
        words = " or ".join(CONCAT_SCALES)
        raise RecipeError(f"expected {words}, found {given!r}", where=f"{where}.concat_scales")
    return Parsed(tuple(rules), bits, methods, given)


def _listed(data: Mapping[str, Any], where: str) -> list[tuple[Any, str]]:
    """The entries of ``rules``, each with its place."""
    listed = data.get("rules") or []
    if not isinstance(listed, list | tuple):
        raise RecipeError(f"expected a list of rules, found {listed!r}", where=f"{where}.rules")
    return [(entry, f"{where}.rules[{index}]") for index, entry in enumerate(listed)]


def _methods(given: Any, where: str) -> tuple[str, ...]:
    """Words of post-training quantization; left out, activation scales alone are found."""
    if given is None:
        return RECIPE_DEFAULT
    words = [given] if isinstance(given, str) else given
    if not isinstance(words, list | tuple):
        raise RecipeError(f"expected a list of methods, found {given!r}", where=where)
    check_words(words, where)
    return tuple(words)


DEFAULTS: dict[Role, str] = {
    Role.INPUT: "uint8",
    Role.WEIGHT: "int4",
    Role.ACTIVATION: "uint4",
}


def _base_rule(role: Role, given: Any, where: str, training: bool = False) -> Rule:
    if given is None or given == "float":
        return Rule(Selector(), role, Change(keep_float=True, format=parse_format("int8")), where)
    fields = given if isinstance(given, Mapping) else {"format": given}
    named = "format" in fields or fields.get("keep_float") or training
    if not named and role in DEFAULTS:
        fields = {"format": DEFAULTS[role], **fields}
    change = _change(fields, where)
    if not change.keep_float:
        # Contradictions are reported where they were written.
        complete(change, role, where, training=training)
    return Rule(Selector(), role, change, where)


def parse_training(data: Mapping[str, Any], where: str) -> tuple[Rule, ...]:
    """Rules for the formats of what the products of training take and give::

        input: int8                     # operands; left out or `float`: float32
        weight: int8
        grad_output: {format: int8, rounding: stochastic}
        grad_weight: int8               # results, each left out: as it comes out of the product
        activation: int8
        grad_input: int8
        rules:                          # later rules win, field by field
          - {position: first, keep_float: true}
          - {layers: 'conv1', product: grad_weight, role: input, format: int16}

    A rule without a role is for every operand, and for every result that has a format; one without
    a product for all products. Integers are dynamic fixed point unless a scale rule is given.

    Raises:
        RecipeError: names the field, what is wrong with it and what is allowed.
    """
    if not isinstance(data, Mapping):
        raise RecipeError(f"expected a mapping, found {data!r}", where=where)
    _known(data, (*(role.value for role in _TRAINING_ROLES), "rules"), where)
    rules, given = [], []
    for role in _TRAINING_ROLES:
        fields = data.get(role.value)
        if fields is None or fields == "float":
            continue
        place = f"{where}.{role.value}"
        rule = _base_rule(role, fields, place, training=True)
        if rule.change.format is None:
            raise RecipeError("no format", where=place, hint="for instance format: int8")
        rules.append(rule)
        given.append(role)
    roles = tuple(role for role in _TRAINING_ROLES if role in (*OPERAND_ROLES, *given))
    for entry, place in _listed(data, where):
        rules += _training_rules(entry, roles, place)
    return tuple(rules)


def _training_rules(entry: Any, roles: tuple[Role, ...], where: str) -> list[Rule]:
    if not isinstance(entry, Mapping):
        raise RecipeError(f"a rule is a mapping, found {entry!r}", where=where)
    role = None
    if entry.get("role") is not None:
        role = _choice(Role, Role, entry["role"], f"{where}.role")
        if role not in _TRAINING_ROLES:
            names = ", ".join(known.value for known in _TRAINING_ROLES)
            raise RecipeError(
                f"no product of training takes or gives a {role.value}",
                where=f"{where}.role",
                hint=f"one of {names}",
            )
    selector, change = _selector(entry, where), _rule_change(entry, where)
    return [Rule(selector, found, change, where) for found in ([role] if role else roles)]


def _rule(entry: Any, where: str) -> Rule:
    if not isinstance(entry, Mapping):
        raise RecipeError(f"a rule is a mapping, found {entry!r}", where=where)
    names = ", ".join(role.value for role in BASE_ROLES)
    if "role" not in entry:
        raise RecipeError("a rule needs a role", where=f"{where}.role", hint=f"one of {names}")
    role = _choice(Role, Role, entry["role"], f"{where}.role")
    if role not in BASE_ROLES:
        raise RecipeError(
            f"role {role.value!r} is no operand of a network that is frozen",
            where=f"{where}.role",
            hint=f"one of {names}; gradients have formats in low-precision training",
        )
    if entry.get("product") is not None:
        raise RecipeError(
            "products are told apart in training only",
            where=f"{where}.product",
            hint="remove product; low-precision training has it",
        )
    return Rule(_selector(entry, where), role, _rule_change(entry, where), where)


def _selector(entry: Mapping[str, Any], where: str) -> Selector:
    product = entry.get("product")
    return Selector(
        layers=_text(entry.get("layers", "*"), f"{where}.layers"),
        type=None if entry.get("type") is None else _text(entry["type"], f"{where}.type"),
        position=_position(entry.get("position"), f"{where}.position"),
        product=None if product is None else _choice(Product, Product, product, f"{where}.product"),
    )


def _rule_change(entry: Mapping[str, Any], where: str) -> Change:
    change = _change({k: v for k, v in entry.items() if k not in SELECTOR_FIELDS}, where)
    if change == Change():
        raise RecipeError("the rule changes nothing", where=where, hint="give a format, say")
    return change


def _change(fields: Mapping[str, Any], where: str) -> Change:
    _known(fields, tuple(READERS), where)
    fields = _dynamic_fixed_point(fields, where)
    read = {k: READERS[k].read(v, f"{where}.{k}") for k, v in fields.items() if v is not None}
    return Change(**read)


def _dynamic_fixed_point(fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """``dfpN`` written out."""
    name = fields.get("format")
    match = re.fullmatch(r"dfp(\d{1,3})", name.strip().lower()) if isinstance(name, str) else None
    if match is None:
        return fields
    meant = {"power_of_two": True, "granularity": "per_tensor", "narrow": False}
    for key, value in meant.items():
        if fields.get(key, value) != value:
            raise RecipeError(
                f"{name} means {key}: {value}",
                where=f"{where}.{key}",
                hint=f"remove {key}, or write int{match[1]}",
            )
    bits = int(match[1])
    if not 1 <= bits <= MAX_BITS:
        raise RecipeError(
            f"{name!r} has {bits} bits", where=f"{where}.format", hint=f"1 to {MAX_BITS} bits"
        )
    return {**fields, **meant, "format": f"int{bits}"}


def _format(value: Any, where: str) -> Format:
    found: Format = _mode(load_format)(value, where)
    plain = found.with_zero(0) if found.is_integer else found
    if plain != found:
        raise RecipeError(
            f"{found} names a zero point, which is found from the data",
            where=where,
            hint=f"write format: {plain}, scale: minmax, zero_point: true",
        )
    return found


def _known(data: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    for key in data:
        if key not in allowed:
            raise RecipeError(
                f"unknown key {key!r}", where=where, hint=f"known: {', '.join(allowed)}"
            )


def _choice(kind: Callable[[str], E], names: Iterable[str], value: Any, where: str) -> E:
    try:
        return kind(str(value).lower())
    except ValueError:
        hint = f"one of {', '.join(names)}"
        raise RecipeError(f"unknown value {value!r}", where=where, hint=hint) from None


def _mode(parse: Callable[[str], Any]) -> Callable[[Any, str], Any]:
    def read(value: Any, where: str) -> Any:
        try:
            return parse(value)
        except (FormatError, ModelError, RecipeError) as error:
            raise RecipeError(error.message, where=where, hint=error.hint) from error

    return read


def _position(value: Any, where: str) -> str | None:
    if value is None or value in POSITIONS:
        return None if value is None else str(value)
    raise RecipeError(f"unknown value {value!r}", where=where, hint="one of first, last")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise RecipeError(f"expected text, found {value!r}", where=where)
    return value


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise RecipeError(f"expected true or false, found {value!r}", where=where)
    return value


def _integer(value: Any, where: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RecipeError(f"expected a whole number {low} .. {high}, found {value!r}", where=where)
    return value


@dataclass(frozen=True)
class Reader:
    """How a field of an operand is read, and which values there are, in words."""

    read: Callable[[Any, str], Any]
    allowed: str


def _number(low: float, high: float) -> Reader:
    allowed = f"a number above {low:g} and up to {high:g}"

    def read(value: Any, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low < value <= high:
            raise RecipeError(f"expected {allowed}, found {value!r}", where=where)
        return float(value)

    return Reader(read, allowed)


def _one_of(kind: Callable[[str], E], names: Iterable[str]) -> Reader:
    words = tuple(names)
    return Reader(lambda value, where: _choice(kind, words, value, where), ", ".join(words))


_SWITCH = Reader(_flag, "true or false")
READERS: Mapping[str, Reader] = {
    "format": Reader(_format, "a number format"),
    "keep_float": _SWITCH,
    "granularity": _one_of(Granularity, Granularity),
    "scale": Reader(
        lambda value, where: _choice(ScaleRule, ScaleRule.all(), value, where),
        ", ".join(ScaleRule.all()) + ", or a rule of your own",
    ),
    "power_of_two": _SWITCH,
    "rounding": Reader(_mode(parse_rounding), ", ".join(Rounding)),
    "overflow": Reader(_mode(parse_overflow), ", ".join(Overflow)),
    "percentile": _number(50.0, 100.0),
    "momentum": _number(0.0, 1.0),
    "value": _number(0.0, 1e30),
    "narrow": _SWITCH,
    "scope": _one_of(Scope, Scope),
    "zero_point": _SWITCH,
}
