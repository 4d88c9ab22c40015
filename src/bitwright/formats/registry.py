# SPDX-License-Identifier: Apache-2.0
"""Names of formats: text to value, and the list of families. A new family adds one row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bitwright.base.errors import FormatError
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


@dataclass(frozen=True)
class FormatFamily:
    """One family of formats: how its names look, what they mean, and a few of them."""

    family: str
    pattern: str
    meaning: str
    examples: tuple[str, ...]
    parse: Callable[[str], Format | None]


_FAMILIES: tuple[FormatFamily, ...] = (
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
)


def list_formats() -> tuple[FormatFamily, ...]:
    """All families, in the order they are documented."""
    return _FAMILIES


def parse_format(text: str | Format) -> Format:
    """The format of a canonical name or a QONNX name (``INT4``, ``BIPOLAR``, ``FIXED<8,3>``).

    A `Format` is returned as it is. Upper and lower case are the same.

    Raises:
        FormatError: unknown name, or parameters out of range.
    """
    if isinstance(text, Format):
        return text
    if not isinstance(text, str):
        raise FormatError(f"a format is named by a string, not {text!r}")
    for family in _FAMILIES:
        value = family.parse(text.strip())
        if value is not None:
            return value
    patterns = "; ".join(family.pattern for family in _FAMILIES)
    raise FormatError(f"unknown format {text!r}", hint=f"formats: {patterns}")
