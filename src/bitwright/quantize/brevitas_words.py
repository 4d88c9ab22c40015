# SPDX-License-Identifier: Apache-2.0
"""Brevitas' keyword names in a ``quant`` section, written out as formats and rules.

::

    quant: {weight_bit_width: 4, bit_width: 4, input_bit_width: 8}
    quant:
      weight_quant: Int4WeightPerChannelFloat
      bit_width: 4
      rules:
        - {layers: head, weight_bit_width: 8}
        - {layers: pool2, bit_width: 8, signed: true}

As in Brevitas a prefix says which quantizer is meant: ``weight_``, ``bias_``, ``input_``; without
one, or with ``act_`` or ``output_``, it is the activations'. What a name leaves open is as in
Brevitas (weights: symmetric, the largest magnitude of the tensor; activations: learned, unsigned),
not as this package would choose. No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bitwright.base.errors import RecipeError
from bitwright.quantize.spec import Role

_PREFIXES = {
    "weight": Role.WEIGHT,
    "bias": Role.BIAS,
    "input": Role.INPUT,
    "act": Role.ACTIVATION,
    "output": Role.ACTIVATION,
}
#: What Brevitas' layers have where nothing is said; of an input, what QuantIdentity has.
_OF_THE_WEIGHT = {
    "signed": True, "scaling_impl_type": "STATS", "scaling_per_output_channel": False,
}  # fmt: skip
_DEFAULTS: Mapping[Role, Mapping[str, Any]] = {
    Role.WEIGHT: _OF_THE_WEIGHT,
    Role.BIAS: _OF_THE_WEIGHT,
    Role.INPUT: {"signed": True, "scaling_impl_type": "PARAMETER_FROM_STATS"},
    Role.ACTIVATION: {"signed": False, "scaling_impl_type": "PARAMETER_FROM_STATS"},
}
_STATISTICS = {"MAX": "max", "AVE": "mean", "MSE": "mse", "PERCENTILE": "percentile"}
_ROUNDINGS = {"ROUND": "half_even", "FLOOR": "floor", "CEIL": "ceil"}
_QUANTIZER = re.compile(
    r"(?P<sign>Int|Uint)(?P<bits>\d{1,2})(?P<role>Weight|Act|Bias)"
    r"Per(?P<per>Tensor|Channel)(?P<scale>Float|FixedPoint)(?P<rule>MSE|MaxInit|MinMaxInit|)"
)
_MOST_BITS = 32
_MOST = 1e30  # of numbers


def without_brevitas(data: Mapping[str, Any], where: str = "quant") -> Mapping[str, Any]:
    """A ``quant`` section with Brevitas' names written out; one without any comes back as it is.

    Raises:
        RecipeError: a value that there is not, a combination without a meaning here, or an operand
            that is described both ways.
    """
    ours = _operands(data, where)
    for role in ours:
        if data.get(role.value) is not None:
            raise RecipeError(
                f"{role.value} is described both by a format and by Brevitas' names",
                where=f"{where}.{role.value}",
                hint="keep one of them",
            )
    plain = {key: value for key, value in data.items() if _meaning(key) is None}
    plain |= {role.value: _operand(fields, role, where) for role, fields in ours.items()}
    listed = data.get("rules")
    if isinstance(listed, list | tuple):
        places = (f"{where}.rules[{number}]" for number in range(len(listed)))
        plain["rules"] = [each for entry, place in zip(listed, places, strict=True)
                          for each in _rules(entry, ours, place)]  # fmt: skip
    return plain if ours or "rules" in plain else data


_Words = Mapping[str, Any]


def _rules(entry: Any, section: Mapping[Role, _Words], where: str) -> list[Any]:
    """One rule a role of a rule with Brevitas' names; ``section`` is what all layers have."""
    if not isinstance(entry, Mapping):
        return [entry]
    role = entry.get("role")
    known = {member.value for member in _DEFAULTS}
    alone = Role(role) if isinstance(role, str) and role in known else Role.ACTIVATION
    ours = _operands(entry, where, alone)
    if not ours:
        return [entry]
    plain = {key: value for key, value in entry.items() if _meaning(key) is None}
    if isinstance(role, str) and set(ours) != {alone}:
        names = ", ".join(sorted(member.value for member in ours))
        raise RecipeError(
            f"a rule for {role} with words about {names}", where=where, hint="leave role out"
        )
    return [
        {**plain, "role": member.value, **_change(fields, section.get(member, {}), member, where)}
        for member, fields in ours.items()
    ]


def _change(words: _Words, section: _Words, role: Role, where: str) -> dict[str, Any]:
    """What a rule changes. A constant scale follows from a largest value and the steps up to it, so
    that of the section is another one with another width.
    """
    fields = _operand(words, role, where, whole=False)
    merged = {**_quantizer(section.get("quant"), role, where), **section}
    merged |= {**_quantizer(words.get("quant"), role, where), **words}
    constant = str(merged.get("scaling_impl_type", "")).upper() == "CONST"
    return fields | _scale(merged, role, where) if constant else fields


def _meaning(key: Any) -> tuple[Role | None, str] | None:
    """The role that a key names, if it does, and the word behind it; None of other keys."""
    if not isinstance(key, str):
        return None
    prefix, _, rest = key.partition("_")
    if prefix in _PREFIXES and rest in WORDS:
        return _PREFIXES[prefix], rest
    return (None, key) if key in WORDS and key != "quant" else None


def _operands(
    data: _Words, where: str, alone: Role = Role.ACTIVATION
) -> dict[Role, dict[str, Any]]:
    """Of each role that Brevitas' names speak of, its words; those without a prefix are of
    ``alone``.
    """
    found: dict[Role, dict[str, Any]] = {}
    for key, value in data.items():
        meaning = _meaning(key)
        if meaning is None:
            continue
        role = meaning[0] or alone
        words = found.setdefault(role, {})
        if meaning[1] in words:
            raise RecipeError(
                f"{meaning[1]} of the {role.value} is given twice", where=f"{where}.{key}"
            )
        words[meaning[1]] = value
    return found


def _operand(words: _Words, role: Role, where: str, *, whole: bool = True) -> dict[str, Any]:
    """Fields of an operand as `policy_parse` reads them.

    Args:
        whole: what the words leave open is as in Brevitas; else it stays as earlier rules have it.
    """
    given = {**_quantizer(words.get("quant"), role, where), **words}
    given.pop("quant", None)
    for word, value in given.items():
        WORDS[word].check(value, f"{where}, {word} of the {role.value}")
    settings = {**_DEFAULTS[role], **given} if whole else given
    fields: dict[str, Any] = {}
    if whole or {"bit_width", "quant_type", "signed"} & set(given):
        fields |= _format(settings, role, where)
        if fields.get("keep_float"):
            return fields
    fields |= _scale(settings, role, where)
    if "scaling_per_output_channel" in settings:
        per = "per_channel" if settings["scaling_per_output_channel"] else "per_tensor"
        fields["granularity"] = per
    if "restrict_scaling_type" in settings:
        fields["power_of_two"] = settings["restrict_scaling_type"].upper() == "POWER_OF_TWO"
    if "float_to_int_impl_type" in settings:
        fields["rounding"] = _ROUNDINGS[settings["float_to_int_impl_type"].upper()]
    renamed = {"narrow_range": "narrow", "high_percentile_q": "percentile",
               "scaling_stats_momentum": "momentum"}  # fmt: skip
    return fields | {ours: settings[word] for word, ours in renamed.items() if word in settings}


def _format(settings: _Words, role: Role, where: str) -> dict[str, Any]:
    kind = settings.get("quant_type", "INT").upper()
    if kind == "FP":
        return {"keep_float": True}
    if kind != "INT":
        return {"format": {"BINARY": "bipolar", "TERNARY": "ternary"}[kind]}
    if "bit_width" not in settings:
        raise RecipeError(
            f"no bit width of the {role.value}", where=where, hint="bit_width: 4, say"
        )
    signed = settings.get("signed", _DEFAULTS[role]["signed"])
    return {"format": f"{'int' if signed else 'uint'}{settings['bit_width']}"}


def _scale(settings: _Words, role: Role, where: str) -> dict[str, Any]:
    """The scale rule. Where Brevitas collects statistics first and learns then, ours is the learned
    one: it begins at the least squared error. ``max_val`` says a scale where it is constant alone,
    as in Brevitas.
    """
    kind = settings.get("scaling_impl_type", "").upper()
    if kind in ("PARAMETER", "PARAMETER_FROM_STATS"):
        return {"scale": "learned"}
    if kind == "STATS":
        return {"scale": _STATISTICS[settings.get("scaling_stats_op", "MAX").upper()]}
    if kind != "CONST":
        return {}
    reach = settings.get("scaling_init", settings.get("max_val"))
    bits = settings.get("bit_width", 1 if settings.get("quant_type", "").upper() == "BINARY" else 2)
    if reach is None:
        raise RecipeError(
            f"a constant scale of the {role.value} needs a number",
            where=where,
            hint="scaling_init or max_val: the largest value",
        )
    if settings.get("quant_type", "INT").upper() != "INT":
        return {"scale": "const", "value": float(reach)}
    signed = settings.get("signed", _DEFAULTS[role]["signed"])
    narrow = settings.get("narrow_range", role is Role.WEIGHT)
    steps = 2 ** (bits - 1) - bool(narrow) if signed else 2**bits - 1 - bool(narrow)
    if steps == 0:
        raise RecipeError(
            f"the {role.value} has one level, which has no scale",
            where=where,
            hint="bit_width: 2 or more, narrow_range: false, or quant_type: BINARY",
        )
    return {"scale": "const", "value": float(reach) / steps}


def _quantizer(name: Any, role: Role, where: str) -> dict[str, Any]:
    """What the name of one of Brevitas' integer quantizers says."""
    if name is None:
        return {}
    match = _QUANTIZER.fullmatch(str(name))
    wanted = {Role.WEIGHT: "Weight", Role.BIAS: "Bias"}.get(role, "Act")
    if match is None or match["role"] != wanted:
        raise RecipeError(
            f"{name!r} is no quantizer of Brevitas for the {role.value} that is known here",
            where=where,
            hint=f"such as Int8{wanted}PerTensorFloat or Uint4{wanted}PerTensorFixedPoint",
        )
    rule = {"MSE": "STATS" if wanted == "Weight" else "PARAMETER_FROM_STATS",
            "MaxInit": "PARAMETER", "MinMaxInit": "PARAMETER"}  # fmt: skip
    return {
        "bit_width": int(match["bits"]),
        "signed": match["sign"] == "Int",
        "scaling_per_output_channel": match["per"] == "Channel",
        "restrict_scaling_type": "POWER_OF_TWO" if match["scale"] == "FixedPoint" else "FP",
        **({"scaling_impl_type": rule[match["rule"]]} if match["rule"] else {}),
        **({"scaling_stats_op": "MSE"} if match["rule"] == "MSE" else {}),
    }


@dataclass(frozen=True)
class Word:
    """A name of Brevitas'.

    Attributes:
        check: raises RecipeError for a value (value, where) that there is not.
        allowed, meaning: for pages.
    """

    check: Callable[[Any, str], None]
    allowed: str
    meaning: str


def _one_of(*names: str) -> Callable[[Any, str], None]:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or value.upper() not in names:
            raise RecipeError(
                f"unknown value {value!r:.40}", where=where, hint=f"one of {', '.join(names)}"
            )

    return check


def _choice(meaning: str, *names: str) -> Word:
    return Word(_one_of(*names), ", ".join(names), meaning)


def _flag(meaning: str) -> Word:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, bool):
            raise RecipeError(f"expected true or false, found {value!r:.40}", where=where)

    return Word(check, "true or false", meaning)


def _number(meaning: str) -> Word:
    def check(value: Any, where: str) -> None:
        if type(value) not in (int, float) or not -_MOST < value < _MOST:
            raise RecipeError(f"expected a number, found {value!r:.40}", where=where)

    return Word(check, "a number", meaning)


def _bits(value: Any, where: str) -> None:
    if type(value) is not int or not 1 <= value <= _MOST_BITS:
        raise RecipeError(
            f"expected a whole number 1 .. {_MOST_BITS}, found {value!r:.40}", where=where
        )


def _any(value: Any, where: str) -> None:
    """`_quantizer` looks at it."""


#: By name, without the prefix.
WORDS: Mapping[str, Word] = {
    "quant": Word(
        _any, "Int8WeightPerTensorFloat and the like", "a quantizer of Brevitas by its name."
    ),
    "bit_width": Word(_bits, f"an integer >= 1 and <= {_MOST_BITS}", "of the levels."),
    "signed": _flag("whether there are levels below zero."),
    "narrow_range": _flag("without the lowest level."),
    "quant_type": _choice("the kind of format.", "INT", "BINARY", "TERNARY", "FP"),
    "scaling_impl_type": _choice(
        "the scale: of the tensor at hand, a number, or trained; trained ones begin at the least "
        "squared error.",
        "STATS", "CONST", "PARAMETER", "PARAMETER_FROM_STATS",
    ),
    "scaling_stats_op": _choice("which statistic STATS is.", *_STATISTICS),
    "scaling_per_output_channel": _flag("one scale an output channel."),
    "restrict_scaling_type": _choice(
        "scales as they are, or powers of two.", "FP", "LOG_FP", "POWER_OF_TWO"
    ),
    "float_to_int_impl_type": _choice("the rounding.", *_ROUNDINGS),
    "high_percentile_q": _number("of PERCENTILE, in percent."),
    "scaling_stats_momentum": _number("weight of a new batch in running statistics."),
    "scaling_init": _number("of CONST: the largest value."),
    "min_val": _number("as in Brevitas without an effect where zero is a level."),
    "max_val": _number("of CONST: the largest value, where there is no scaling_init."),
}  # fmt: skip
