# SPDX-License-Identifier: Apache-2.0
"""A row of products and their sum: what `mac_array` makes of it, in registers, adders and DSPs."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from bitwright.hw.memory import fits_multiplier, multiplier_cost
from bitwright.hw.operands import Product

_MOST_PACKED = 8  # products that one multiplication is asked for


@dataclass(frozen=True)
class Packing:
    """What one multiplication of a DSP block does.

    Attributes:
        products: of a row, which it adds (`mul_packed`).
        shared: one of each of two rows instead, with the same activation (`mul_shared`).
    """

    products: int = 1
    shared: bool = False


def packing_of(product: Product, simd: int, family: str, *, shares: bool) -> Packing:
    """The most that a multiplication of a family does for these operands.

    Args:
        shares: whether two rows have the same activations.
    """
    if product.is_float or product.one_bit:
        return Packing()
    act, weight = product.act.width, product.weight.width
    for count in range(min(simd, _MOST_PACKED), 1, -1):
        place = (act + weight + (count - 1).bit_length()) * (count - 1)
        if fits_multiplier(family, place + act + 1, place + weight + 1):
            return Packing(count)
    can = shares and product.weight.index == 0
    if can and fits_multiplier(family, act + 2 * weight + 1, product.act.extended):
        return Packing(1, True)
    return Packing()


@dataclass(frozen=True)
class Row:
    """SIMD products, in look-up tables or DSP blocks, and the adders up to the accumulator.

    Attributes:
        product: with `dsp` as this row has it.
        step: adders in a line between registers.
    """

    product: Product
    simd: int
    packing: Packing = Packing()
    step: int = 1

    @property
    def packed(self) -> bool:
        return self.product.dsp and self.packing.products > 1

    @property
    def terms(self) -> int:
        """Leaves of one adder tree; there is one tree a digit."""
        if self.product.xnor:
            return (self.simd + 1) // 2
        return ceil(self.simd / self.packing.products) if self.packed else self.simd

    @property
    def term_bits(self) -> int:
        if self.packed:
            more = (self.packing.products - 1).bit_length()
            return self.product.act.width + self.product.weight.width + more
        return self.product.term_bits

    @property
    def digits(self) -> int:
        """Trees."""
        return 1 if self.product.is_float else self.product.digits

    @property
    def levels(self) -> int:
        """Adders in a line between a term and the accumulator."""
        return (self.terms - 1).bit_length() + (self.digits - 1).bit_length()

    @property
    def plain_dsp(self) -> bool:
        product = self.product
        return product.dsp and not product.is_float and not product.one_bit

    @property
    def stages(self) -> int:
        """Registers between the operands and the accumulator, without a table's."""
        if self.product.is_float or self.plain_dsp:
            return self.product.multiply_stages + self.levels // self.step
        return max(1, (self.levels + 1) // self.step)

    def dsps(self, family: str) -> float:
        """Hardware multipliers."""
        if not self.product.dsp:
            return 0.0
        if self.packed:
            return self.terms * multiplier_cost(family)
        if self.packing.shared:
            return self.simd * multiplier_cost(family) / 2
        return self.simd * self.product.dsp_count(family)

    @property
    def pack_bits(self) -> int:
        """Bits of the adders that put weights side by side in front of the multiplications."""
        bits = self.product.weight.width + 1
        if self.packed:
            return self.terms * (self.packing.products - 1) * bits
        return self.simd * bits // 2 if self.packing.shared and self.product.dsp else 0

    def tree(self) -> tuple[int, int, int]:
        """Bits of: the adders of the trees, those where digits meet, the registers in both."""
        adders, registers, count, width = 0, 0, self.terms, self.term_bits
        meets = (self.digits - 1).bit_length()
        after = 1 + meets
        if self.product.is_float or self.plain_dsp or self._keeps:
            registers += self.digits * count * width
        while count > 1:
            adders += self.digits * (count // 2) * (width + 1)
            count, width = (count + 1) // 2, width + 1
            if (after + (count - 1).bit_length()) % self.step == 0:
                registers += self.digits * count * width
        partial, count, shift = 0, self.digits, 2
        exact = self.product.number_bits + self.product.factor + (self.simd - 1).bit_length()
        while count > 1:
            width = min(width + shift + 1, max(exact, width))
            partial += (count // 2) * (width - shift)
            count, shift = (count + 1) // 2, 2 * shift
            if (1 + (count - 1).bit_length()) % self.step == 0:
                registers += count * width
        return adders, partial, registers

    @property
    def _keeps(self) -> bool:
        """Whether a product in LUTs is registered."""
        return (self.levels + 1) % self.step == 0 or self.levels + 1 < self.step
