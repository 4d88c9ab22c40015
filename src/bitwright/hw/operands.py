# SPDX-License-Identifier: Apache-2.0
"""How the operands of a product lie on wires and in memories: integers, bits, floats, indices.

A product with a float is a product of magnitudes, moved to its place (module `mul_float`); a power
of two is a float without mantissa, so its product is a shift. A codebook's weights are indices
into one table, in front of the product; its entries are integers or floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.formats import Format
from bitwright.formats.minifloat import MinifloatFormat
from bitwright.hw.memory import Memory, dsp_count, pack_lanes, rom_luts
from bitwright.ir import IntArray, TensorType, bits_for_interval

DENORMAL, ZERO, POWER = 0, 1, 2  # parameter Low of `float_split`


@dataclass(frozen=True)
class Operand:
    """One side of a product.

    Attributes:
        width: bits of a value: of a number in two's complement (or unsigned), of one bit, or of a
            code.
        signed: a number in two's complement.
        bipolar: one bit, 1 = +1 and 0 = -1.
        exponent: exponent bits of a float; 0 for a number and a bit.
        low: what exponent field 0 of a float is; see `float_split`.
        index: bits of an index into `table`; 0: there is none.
        table: the values that indices stand for, as numbers or codes of `width` bits.
        format: of the codes (the element's, in a table); None for numbers.
    """

    width: int
    signed: bool = True
    bipolar: bool = False
    exponent: int = 0
    low: int = DENORMAL
    index: int = 0
    table: tuple[int, ...] = ()
    format: Format | None = None

    @property
    def is_float(self) -> bool:
        return self.exponent > 0

    @property
    def word(self) -> int:
        """Bits of one value in a memory or on a stream."""
        return self.index or self.width

    @property
    def magnitude(self) -> int:
        """Bits of a float's magnitude: mantissa and leading one."""
        return self.width - self.exponent

    @property
    def reach(self) -> int:
        """Places that a float's magnitude can be moved by."""
        if not self.is_float:
            return 0
        return (1 << self.exponent) - (2 if self.low == DENORMAL else 1)

    @property
    def extended(self) -> int:
        """Bits of a number once it has a sign."""
        return self.width + (not self.signed and not self.bipolar and not self.is_float)

    def words(self, levels: IntArray) -> IntArray:
        """What a memory holds for levels: numbers, bits, codes or indices.

        Raises:
            FormatError: a level is none of the format.
        """
        if self.table:
            entries = self._levels_of(np.array(self.table, dtype=np.int64))
            order = np.argsort(entries, kind="stable")
            place = np.searchsorted(entries[order], levels)
            return np.asarray(order[np.minimum(place, len(order) - 1)])
        if self.bipolar:
            return (levels + 1) // 2
        if self.is_float and self.format is not None:
            return self.format.codes(levels)
        return levels

    def levels(self, words: IntArray) -> IntArray:
        """Inverse of `words`."""
        if self.table:
            return self._levels_of(np.array(self.table, dtype=np.int64)[words])
        return self._levels_of(words)

    def _levels_of(self, values: IntArray) -> IntArray:
        if self.bipolar:
            return 2 * values - 1
        if self.is_float and self.format is not None:
            return self.format.levels(values)
        return values

    @property
    def words_signed(self) -> bool:
        """Whether words are numbers in two's complement."""
        return not (self.bipolar or self.is_float or self.index)

    def table_memory(self, name: str) -> Memory:
        """The table: word i is what index i stands for; those that no index uses are zero."""
        full = np.zeros((1 << self.index, 1), dtype=np.int64)
        full[: len(self.table), 0] = self.table
        kind = "two's complement" if self.format is None else f"codes of {self.format.name}"
        layout = f"{name}: word i is the weight of index i, {self.width} bits, {kind}"
        return pack_lanes(full, self.width, layout)

    def memories(self, name: str) -> dict[str, Memory]:
        """Memory images beside those of the weights, by parameter."""
        return {"TableFile": self.table_memory(name)} if self.index else {}

    def describe(self) -> str:
        """In words, for the header of a memory image."""
        if self.bipolar:
            return "1 = +1, 0 = -1"
        if self.index:
            return f"index into a table of {len(self.table)}"
        return "two's complement" if self.format is None else f"codes of {self.format.name}"


def weight_operand(kind: Format, levels: IntArray, where: str) -> Operand:
    """How weights of a format are kept; numbers take the bits that these weights need.

    A codebook is kept as indices where an index is shorter than what it stands for.

    Raises:
        ModelError: the format has no multiplier, or its codebook no table.
    """
    if kind.name == "bipolar":
        return Operand(1, signed=False, bipolar=True)
    if kind.block:
        return weight_operand(kind.stored, levels, where)
    if kind.is_codebook:
        return _codebook_operand(kind, levels, where)
    if kind.uniform:
        return _integer_operand(levels)
    if kind.is_exponent or kind.is_float or not kind.exact_levels:
        return float_operand(kind, where)
    return _index_operand(kind, _integer_operand(kind.grid()), _integer_operand(levels))


def _integer_operand(levels: IntArray) -> Operand:
    return Operand(bits_for_interval(min(-1, int(levels.min())), int(levels.max())))


def _index_operand(kind: Format, value: Operand, alone: Operand) -> Operand:
    """Indices into the list of all levels, where an index is shorter than what it stands for.

    Args:
        value: how an entry is kept.
        alone: how the levels are kept without a table.
    """
    if kind.bits >= value.width:
        return alone
    table = tuple(int(word) for word in value.words(kind.grid()))
    return Operand(
        value.width, value.signed, False, value.exponent, value.low, kind.bits, table, value.format
    )


def float_operand(kind: Format, where: str) -> Operand:
    """A minifloat or a power of two.

    Raises:
        ModelError: the format is neither, or its levels are too large for exact integers.
    """
    if kind.is_exponent:
        low = DENORMAL if kind.zero_is_representable else POWER
        return Operand(kind.bits, False, exponent=kind.bits - 1, low=low, format=kind)
    if isinstance(kind, MinifloatFormat) and kind.exact_levels:
        low = DENORMAL if kind.denormals else ZERO
        return Operand(kind.bits, False, exponent=kind.exponent, low=low, format=kind)
    raise ModelError(
        f"products of {kind.name} have no hardware",
        where=where,
        hint="formats with exact integer levels have: integers, fixed point, powers of two, "
        "fitted codebooks, minifloats of up to 62 bits such as e4m3 and e5m2",
    )


def _codebook_operand(kind: Format, levels: IntArray, where: str) -> Operand:
    if kind.needs_table or not kind.exact_levels:
        raise ModelError(
            f"a codebook of format {kind.name} has no table of integers to put into hardware",
            where=where,
            hint="fit it to the weights (the format is then named with its table), with integer "
            "or minifloat centroids",
        )
    value = weight_operand(kind.number, kind.grid(), where)
    return _index_operand(kind, value, weight_operand(kind.number, levels, where))


def stream_operand(tensor: TensorType, where: str) -> Operand:
    """How the values of a stream come.

    Raises:
        ModelError: codes of this format have no multiplier.
    """
    if tensor.is_bipolar:
        return Operand(1, signed=False, bipolar=True)
    if tensor.code_format is None:
        return Operand(tensor.wire_bits, tensor.is_signed)
    return float_operand(tensor.code_format, where)


def wire_words(tensor: TensorType, levels: IntArray) -> IntArray:
    """The patterns, unsigned, that a stream carries for levels.

    Raises:
        FormatError: a level is none of the stream's format.
    """
    if tensor.format is not None and tensor.is_coded:
        return tensor.format.to_bits(tensor.format.codes(levels))
    return np.asarray(levels & ((1 << tensor.wire_bits) - 1))


@dataclass(frozen=True)
class Product:
    """A product of two operands: what `mac_array` makes of it."""

    act: Operand
    weight: Operand
    dsp: bool = False
    rounds: bool = False  # its sums, step by step: no step may be another's

    @property
    def is_float(self) -> bool:
        return self.act.is_float or self.weight.is_float

    @property
    def one_bit(self) -> bool:
        """Nothing to multiply: one factor is a bit, or a power of two."""
        if self.is_float:
            return self.factor == 1
        return self.act.bipolar or self.weight.bipolar

    @property
    def counts(self) -> bool:
        """Activations that are bits 0 and 1, times weights +1 and -1: equal bits, less one for
        every weight of -1, which is a number of the row and starts its sum.
        """
        bit = self.act.width == 1 and not (self.act.signed or self.act.is_float)
        return self.weight.bipolar and bit and not (self.act.bipolar or self.rounds)

    @property
    def xnor(self) -> bool:
        """Whether products are comparisons of bits, and sums are counts."""
        return self.counts or (self.act.bipolar and self.weight.bipolar)

    @property
    def factor(self) -> int:
        """Bits of the factor that is taken apart into digits."""
        if not self.is_float:
            return 1 if self.act.bipolar or self.weight.bipolar else self.weight.width
        act, weight = self.act.magnitude, self.weight.magnitude
        if not self.weight.is_float or (self.act.is_float and act < weight):
            return 1 if self.weight.bipolar else act
        return 1 if self.act.bipolar else weight

    @property
    def digits(self) -> int:
        """Partial products: two bits of the factor each, unless it is one piece."""
        return 1 if self.dsp else ceil(self.factor / 2)

    @property
    def multiply_stages(self) -> int:
        """Registers of a multiplication whose place no adder decides: of a float, or in a DSP,
        which has registers at its operands and behind it.
        """
        if not self.is_float:
            return 2
        return 2 if self.factor == 1 else 3 + (self.digits - 1).bit_length()

    @property
    def operand_bits(self) -> int:
        """Bits of the other factor, with a sign."""
        if not self.is_float:
            return self.weight.width if self.act.bipolar else self.act.extended
        act_factor = not self.weight.is_float or (
            self.act.is_float and self.act.magnitude < self.weight.magnitude
        )
        if act_factor:
            own = self.act.magnitude if self.weight.bipolar else self.weight.magnitude
        else:
            own = self.weight.magnitude if self.act.bipolar else self.act.magnitude
        return own + 1

    @property
    def product_bits(self) -> int:
        """Bits of a float product before it is moved to its place."""
        return self.operand_bits + (0 if self.factor == 1 else self.factor)

    @property
    def term_bits(self) -> int:
        """Bits of one leaf of the adder tree, where a multiplication makes one product."""
        if self.xnor:
            return 2
        if self.is_float:
            return self.product_bits + self.act.reach + self.weight.reach
        if self.one_bit:
            return self.number_bits + 1
        return self.number_bits + (self.weight.width if self.dsp else 2)

    @property
    def number_bits(self) -> int:
        """Bits of the factor of integers that is not taken apart, without a sign of its own."""
        return self.weight.width if self.act.bipolar else self.act.width

    @property
    def cells(self) -> int:
        """Bits of adders of one multiplication in LUTs; the signs' adder, too, with a float."""
        if self.xnor:
            return 1
        if self.is_float:
            plain = self.dsp or self.factor == 1
            return self.operand_bits + (0 if plain else self.factor * (self.operand_bits + 1))
        if self.one_bit:
            return self.operand_bits + 1
        return 0 if self.dsp else self.digits * self.term_bits

    @property
    def small(self) -> bool:
        """Whether each bit of a digit's product is a function of four bits: one LUT, no adder."""
        plain = not (self.is_float or self.one_bit or self.dsp)
        return plain and self.act.width + min(2, self.factor) <= 4

    @property
    def shifter(self) -> int:
        """Bits of the multiplexers, of two inputs each, that move a product to its place."""
        return self.term_bits * (self.act.reach + self.weight.reach).bit_length()

    def dsp_count(self, family: str) -> float:
        """Hardware multipliers of one product."""
        return dsp_count(family, self.operand_bits, self.factor) if self.dsp else 0

    def table_luts(self, family: str) -> float:
        """LUTs of one copy of a codebook's table."""
        weight = self.weight
        return rom_luts(family, 1 << weight.index, weight.width) if weight.index else 0.0

    def cost_kind(self, op: str) -> str:
        """The line of the cost model: units whose operands are codes, and those that compare bits,
        have one of their own.
        """
        if self.is_float or self.weight.index:
            return "matvec_codes"
        return f"{op}_xnor" if self.xnor and op == "matvec" else op

    def parameters(self) -> Mapping[str, int | str]:
        """Parameters of `matvec` and `depthwise` that say what the operands are."""
        act, weight = self.act, self.weight
        own: dict[str, int | str] = {
            "WeightWidth": weight.width,
            "ActWidth": act.width,
            "ActSigned": int(act.signed),
            "WeightBipolar": int(weight.bipolar),
            "ActBipolar": int(act.bipolar),
        }
        if weight.is_float:
            own |= {"WeightExp": weight.exponent, "WeightLow": weight.low}
        if act.is_float:
            own |= {"ActExp": act.exponent, "ActLow": act.low}
        if weight.index:
            own["IndexWidth"] = weight.index
        return own
