# SPDX-License-Identifier: Apache-2.0
"""Which formats a search may choose from. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from bitwright.base.errors import FormatError, RecipeError
from bitwright.formats import Format, load_format

#: Integers of 2 to 8 bits, small floats down to 5 bits, powers of two, and codebooks.
WEIGHTS = "int2..int8,e2m1,e2m3,e3m2,e4m3,e3m4,e2m5,po2_4<zero>,po2_5<zero>,cb4,cb8,cb16,cb32"
FEATURES = "uint2..uint8"
_RANGE = re.compile(r"(?P<kind>u?int)(?P<low>\d+)\s*\.\.\s*(?:u?int)?(?P<high>\d+)")
_CUT = re.compile(r",(?![^<{]*[>}])")


@dataclass(frozen=True)
class Candidates:
    """Formats to choose from, each list without doubles.

    Attributes:
        weights: for the weights of every layer.
        features: for every activation; the sign follows what the layer makes, so ``int4`` and
            ``uint4`` mean the same.
    """

    weights: tuple[Format, ...]
    features: tuple[Format, ...]

    @property
    def widest(self) -> tuple[Format, Format]:
        """The candidates with the most bits: where a search begins."""
        return _widest(self.weights), _widest(self.features)


def _widest(formats: tuple[Format, ...]) -> Format:
    """Of the most bits; of those an integer, if there is one."""
    return max(formats, key=lambda f: (f.bits, f.is_integer))


def parse_candidates(
    weights: str | Iterable[str | Format] | None = None,
    features: str | Iterable[str | Format] | None = None,
) -> Candidates:
    """Candidates from names: ``int2..int8,e4m3,po2_4,cb16`` or a list of them; of the user's
    own, ``package.module:name`` (`load_format`).

    Args:
        weights: None: integers of 2 to 8 bits, small floats, powers of two and codebooks.
        features: None: integers of 2 to 8 bits.

    Raises:
        RecipeError: an unknown format, an empty list, or a format that no layer can take.
    """
    return Candidates(
        _formats(WEIGHTS if weights is None else weights, "--candidates"),
        _formats(FEATURES if features is None else features, "--activations"),
    )


def _formats(given: str | Iterable[str | Format], where: str) -> tuple[Format, ...]:
    parts: list[str | Format] = _CUT.split(given) if isinstance(given, str) else list(given)  # type: ignore[assignment]
    found: dict[Format, None] = {}
    for part in parts:
        if isinstance(part, Format):
            found[part] = None
        elif part.strip():
            found.update(dict.fromkeys(_named(part.strip(), where)))
    if not found:
        raise RecipeError("names no format", where=where, hint="such as int2..int8,e4m3,po2_4")
    return tuple(found)


def _named(text: str, where: str) -> list[Format]:
    match = _RANGE.fullmatch(text)
    names = [text]
    if match is not None:
        low, high = int(match["low"]), int(match["high"])
        if low > high:
            raise RecipeError(
                f"the range {text!r} is empty",
                where=where,
                hint=f"{match['kind']}{high}..{match['kind']}{low}",
            )
        names = [f"{match['kind']}{bits}" for bits in range(low, min(high, 64) + 1)]
    try:
        return [load_format(name) for name in names]
    except (FormatError, RecipeError) as error:
        raise RecipeError(error.message, where=where, hint=error.hint) from error
