# SPDX-License-Identifier: Apache-2.0
"""The keys of a recipe's ``quant`` section for its reference: from what the parser knows."""

from __future__ import annotations

from bitwright.base.described import Key, KeySection
from bitwright.base.docstrings import meanings, parse_docstring
from bitwright.quantize.brevitas_words import WORDS
from bitwright.quantize.method_words import ORDER, RECIPE_DEFAULT
from bitwright.quantize.policy import Policy
from bitwright.quantize.policy_parse import (
    BASE_ROLES,
    CONCAT_SCALES,
    DEFAULTS,
    POSITIONS,
    READERS,
    SELECTOR_FIELDS,
    THRESHOLD_BITS,
    THRESHOLD_RANGE,
)
from bitwright.quantize.presets import KEY as PRESET
from bitwright.quantize.spec import Change, Product, Role, Selector


def quant_keys(place: str = "quant") -> tuple[KeySection, ...]:
    """The sections of a policy: it itself, its operands, its rules; the same in Brevitas' names."""
    return _policy(place), _operand(place), _rule(place), _brevitas(place)


def _policy(place: str) -> KeySection:
    roles, policy = meanings(Role), meanings(Policy)
    low, high = THRESHOLD_RANGE
    operands = [
        Key(
            f"{place}.{role.value}",
            "a number format, a section, or float",
            DEFAULTS.get(role, "null"),
            roles[role.name],
        )
        for role in BASE_ROLES
    ]
    words = ", ".join(ORDER)
    others = {
        "threshold_bits": (f"an integer >= {low} and <= {high}", str(THRESHOLD_BITS)),
        "methods": (
            f"a list of {words}, or package.module:name",
            f"[{', '.join(RECIPE_DEFAULT)}]",
        ),
        "rules": ("a list of sections", "[]"),
        "concat_scales": (", ".join(CONCAT_SCALES), CONCAT_SCALES[0]),
    }
    keys = [Key(f"{place}.{name}", *said, policy[name]) for name, said in others.items()]
    preset = "whole section under a name; what else is given changes it (`list presets`)."
    keys.insert(0, Key(f"{place}.{PRESET}", "a name", "null", preset))
    summary = parse_docstring(Policy.__doc__).summary
    return KeySection((place,), summary, (*operands, *keys))


def _operand(place: str) -> KeySection:
    told = meanings(Change)
    paths = (*(f"{place}.{role.value}" for role in BASE_ROLES), f"{place}.rules[]")
    keys = [
        Key(f"{paths[0]}.{name}", reader.allowed, "", told[name])
        for name, reader in READERS.items()
    ]
    return KeySection(paths, parse_docstring(Change.__doc__).summary, tuple(keys))


def _rule(place: str) -> KeySection:
    told = meanings(Selector) | {"role": "which operand of them."}
    allowed = {
        "layers": ("text", "'*'"),
        "type": ("text", "null"),
        "position": (", ".join(POSITIONS), "null"),
        "role": (", ".join(BASE_ROLES), "required"),
        "product": (f"null; in low_precision {', '.join(Product)}", "null"),
    }
    keys = [Key(f"{place}.rules[].{name}", *allowed[name], told[name]) for name in SELECTOR_FIELDS]
    return KeySection((f"{place}.rules[]",), parse_docstring(Selector.__doc__).summary, tuple(keys))


_PREFIX = {"quant": "prefix_"}  # a name that has one always


def _brevitas(place: str) -> KeySection:
    summary = (
        "Brevitas' keyword names instead of formats, here and in rules: weight_bit_width, say, of "
        "weights; with the prefixes bias_ and input_ of these, with act_ or none of activations. "
        "What they leave open is as in Brevitas."
    )
    keys = [
        Key(f"{place}.{_PREFIX.get(name, '[prefix_]')}{name}", word.allowed, "", word.meaning)
        for name, word in WORDS.items()
    ]
    return KeySection((place,), summary, tuple(keys))
