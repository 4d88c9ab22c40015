# SPDX-License-Identifier: Apache-2.0
"""What the sums of a product are kept in, and whether that holds the largest one. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bitwright.base.errors import RecipeError
from bitwright.quantize.spec import Product

EXACT, FLOAT32 = "exact", "float32"
MAX_BITS = 64
_FEWEST_BITS = 2
#: All integers up to this are float32 numbers.
_FLOAT32_CAPACITY = 1 << 24
_KNOWN = f"{EXACT}, {FLOAT32}, or intN with N from {_FEWEST_BITS} to {MAX_BITS}, such as int32"


@dataclass(frozen=True)
class Accumulator:
    """A format of sums.

    Attributes:
        name: as a recipe writes it.
        capacity: the largest magnitude of an integer sum that it is sure to hold; None: any.
    """

    name: str
    capacity: int | None


def parse_accumulator(text: str) -> Accumulator:
    """``exact`` (as wide as it takes), ``intN`` (two's complement), or ``float32`` (24 bits and an
    exponent, where sums of integers are still exact).

    Raises:
        RecipeError: none of these.
    """
    name = text.strip().lower() if isinstance(text, str) else ""
    if name == EXACT:
        return Accumulator(name, None)
    if name == FLOAT32:
        return Accumulator(name, _FLOAT32_CAPACITY)
    match = re.fullmatch(r"int([1-9]\d?)", name)
    if match is None or not _FEWEST_BITS <= int(match[1]) <= MAX_BITS:
        raise RecipeError(f"{text!r} is no accumulator", where="accumulator", hint=_KNOWN)
    return Accumulator(name, (1 << (int(match[1]) - 1)) - 1)


def largest_sum(reduced_length: int, left_bits: int, right_bits: int) -> int:
    """Bound of ``reduced_length`` products of signed integers: all of them the most negative."""
    return reduced_length << (left_bits - 1 + right_bits - 1)


def widest_operands(reduced_length: int, capacity: int) -> int:
    """The largest word length of both operands whose sums stay within ``capacity``; 0 if none."""
    bits = 0
    while largest_sum(reduced_length, bits + 1, bits + 1) <= capacity:
        bits += 1
    return bits


def check_accumulator(
    layer: str,
    product: Product | str,
    reduced_length: int,
    left_bits: int,
    right_bits: int,
    accumulator: str,
) -> None:
    """Refuse a product whose sums an accumulator may not hold.

    Args:
        layer: its path, for the message.
        reduced_length: how many products are added for one result.
        left_bits, right_bits: word lengths of the operands, signs included (9 for ``uint8``); 0 for
            a format that is no integers, whose products are added in float32 whatever is asked for.
        accumulator: see `parse_accumulator`.

    Raises:
        RecipeError: names layer, product, bound, and the widest operands that fit.
    """
    found = parse_accumulator(accumulator)
    if found.capacity is None or not (left_bits and right_bits):
        return
    bound = largest_sum(reduced_length, left_bits, right_bits)
    if bound <= found.capacity:
        return
    fits = widest_operands(reduced_length, found.capacity)
    wider = bound.bit_length() + 1
    ways = [f"operands of up to {fits} bits fit"] if fits >= _FEWEST_BITS else []
    ways += [f"int{wider} holds it"] if wider <= MAX_BITS else []
    raise RecipeError(
        f"the {Product(product).value} product adds {reduced_length} products of {left_bits} and "
        f"{right_bits} bits, up to {bound} in magnitude; the accumulator {found.name} "
        f"holds {found.capacity}",
        where=f"accumulator of {layer}",
        hint=", ".join([*ways, f"{EXACT} is as wide as it takes"]),
    )
