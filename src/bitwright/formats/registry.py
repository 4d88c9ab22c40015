# SPDX-License-Identifier: Apache-2.0
"""Names of formats: text to value, and the list of families.

A family of the package adds one row here; one of a user's own is given to `register_family`, and
recipes name it: ``format: package.module:name`` (see `load_format`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bitwright.base.errors import FormatError
from bitwright.base.plugins import load_value
from bitwright.base.trust import is_plugin
from bitwright.formats import (
    bipolar,
    block,
    codebook,
    fixed,
    integer,
    minifloat,
    power_of_two,
    ternary,
)
from bitwright.formats.base import Format

#: Formats of up to this many bits are checked code by code when they are registered.
_CHECKED_BITS = 12
#: Signs of a name, besides the tables of codebooks in it.
_MOST, _TABLE = 100, re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True)
class FormatFamily:
    """One family of formats: how its names look, what they mean, and a few of them."""

    family: str
    pattern: str
    meaning: str
    examples: tuple[str, ...]
    parse: Callable[[str], Format | None]


_FAMILIES: list[FormatFamily] = [
    FormatFamily(
        "integer",
        "intN, intNn, uintN, uintNzZ",
        "two's complement or unsigned, 1 to 16 bits; n = narrow (symmetric), zZ = zero point Z",
        ("int4", "int4n", "uint4", "int8", "uint8", "uint4z5"),
        integer.parse,
    ),
    FormatFamily("bipolar", "bipolar", "-1 or +1 in one bit", ("bipolar",), bipolar.parse),
    FormatFamily("ternary", "ternary", "-1, 0 or +1 in two bits", ("ternary",), ternary.parse),
    FormatFamily(
        "fixed",
        "fixed<W,I>, ufixed<W,I>",
        "W bits, I of them (sign included) left of the binary point, W - I fractional",
        ("fixed<8,3>", "ufixed<8,0>"),
        fixed.parse,
    ),
    FormatFamily(
        "minifloat",
        "eEmM, eEmM<bias=N,flush,finite|nan|ieee>",
        "sign, E exponent bits, M mantissa bits; OCP and IEEE formats by their plain name",
        ("e4m3", "e5m2", "e2m1", "e4m3<finite,flush>", "e5m10"),
        minifloat.parse,
    ),
    FormatFamily(
        "power of two",
        "po2_N, po2_N<zero,linear>",
        "sign and N - 1 exponent bits, 2 to 6 bits: a product is a shift",
        ("po2_4", "po2_4<zero>", "po2_6"),
        power_of_two.parse,
    ),
    FormatFamily(
        "codebook",
        "cbK, cbK:FORMAT, cbK{TABLE}",
        "indices into K centroids, which have a format of their own (int16n)",
        ("cb16", "cb16:int8", "cb16:e4m3", "cb4{-7,-2,1,6}"),
        lambda text: codebook.parse(text, parse_format),
    ),
    FormatFamily(
        "block",
        "mx<FORMAT,LENGTH>, mxfp8, mxfp6, mxfp4, mxint8",
        "LENGTH neighbours share a power-of-two scale of 8 bits, as in OCP MX",
        ("mxfp8", "mxfp6", "mxfp4", "mxint8"),
        lambda text: block.parse(text, parse_format),
    ),
]


def list_formats() -> tuple[FormatFamily, ...]:
    """All families, in the order they are documented."""
    return tuple(_FAMILIES)


def register_family(family: FormatFamily) -> None:
    """Make a family of the user's own known by name, in recipes, policies and files.

    Its examples must mean what they say: each is parsed to a `Format` that has this very name, and
    whose levels and codes agree.

    Raises:
        FormatError: the family is there already, a name means something else, or a format is not
            consistent.
    """
    if any(known.family == family.family for known in _FAMILIES):
        raise FormatError(
            f"there is a family {family.family!r} already",
            where="register_family",
            hint="choose another name; if its module was edited meanwhile, start Python anew",
        )
    if not family.examples:
        raise FormatError(f"the family {family.family!r} has no example", where="register_family")
    for name in family.examples:
        if _parsed(name) is not None:
            raise FormatError(f"{name!r} is a format already", where="register_family")
        value = family.parse(name)
        if value is None or value.name != name:
            raise FormatError(f"{name!r} is not parsed to itself", where="register_family")
        if value.bits <= _CHECKED_BITS and value.exact_levels:
            levels = value.grid()
            if not np.array_equal(value.levels(value.codes(levels)), levels):
                raise FormatError(
                    f"{name}: codes(levels) and levels(codes) disagree", where="register_family"
                )
    _FAMILIES.append(family)


def load_format(text: str | Format) -> Format:
    """`parse_format`, and ``package.module:name`` of the user's own: a `Format`, or a function or
    class that gives one when called without arguments, in a module that registers its family.

    Only what a user writes comes here: a file that is read never imports anything.

    Raises:
        FormatError: as `parse_format`, or what was imported is no format that its name leads to.
        RecipeError: it gives no `Format`, or needs arguments.
        ModelError: the module cannot be imported.
    """
    if not isinstance(text, str) or not is_plugin(text) or _parsed(text) is not None:
        return parse_format(text)
    value: Format = load_value(text, "format", Format)
    if _parsed(value.name) != value:
        raise FormatError(
            f"{text} gives {value!r}, which is no format of a registered family",
            hint="call bitwright.formats.register_family in its module",
        )
    return value


def parse_format(text: str | Format) -> Format:
    """The format of a canonical name or a QONNX name (``INT4``, ``BIPOLAR``, ``FIXED<8,3>``).

    A `Format` is returned as it is. Upper and lower case are the same.

    Raises:
        FormatError: unknown name, one of more than 100 signs (tables of codebooks do not count), or
            parameters out of range.
    """
    if isinstance(text, Format):
        return text
    if not isinstance(text, str):
        raise FormatError(f"a format is named by a string, not by a value of {type(text)}")
    value = _parsed(text)
    if value is not None:
        return value
    patterns = "; ".join(family.pattern for family in _FAMILIES)
    raise FormatError(f"unknown format {text!r}", hint=f"formats: {patterns}")


def _parsed(text: str) -> Format | None:
    """The format of a name; None if no family knows it, or if it is longer than any name: formats
    inside of formats are read by functions inside of functions; or has digits of another alphabet.
    """
    if not text.isascii():
        return None
    if len(text) > _MOST and len(_TABLE.sub("", text)) > _MOST:
        return None
    found = (family.parse(text.strip()) for family in _FAMILIES)
    return next((value for value in found if value is not None), None)
