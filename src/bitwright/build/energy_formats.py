# SPDX-License-Identifier: Apache-2.0
"""A model of the energy of one multiply-accumulate of two formats, in picojoules.

Not measured: published costs of elementary operations at 45 nm (Horowitz, ISSCC 2014), for standard
cells, scaled by the widths of our own element:

- wide floats: the published figures themselves, one multiplication and one addition of fp32 or
  fp16; bfloat16 has a multiplication scaled by the squares of the significands, 8 against 11 bits,
  and an addition of fp16, which has as many bits;
- everything else is exact integer arithmetic: a product of ``a`` by ``b`` bits costs
  ``multiply_pj_per_bit2 * a * b`` (none of a shift, a sign or an XNOR), negating an operand, and a
  shifter of ``n`` bits, each cost like an addition of that width, the addition into the
  accumulator ``add_pj_per_bit`` a bit.

Reading weights from a memory is not part of it.
"""

from __future__ import annotations

from math import ceil, log2

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.base.figures import Figure, Source
from bitwright.build.energy import EnergyCosts, energy_costs
from bitwright.formats import Format, parse_format
from bitwright.hw.operands import Product, stream_operand, weight_operand
from bitwright.ir import TensorType

SOURCE = "model: Horowitz, ISSCC 2014 (45 nm, 0.9 V), scaled by operand widths"
TERMS = 256  # products that the accumulator holds
_FLOAT32 = 3.7 + 0.9  # pJ: one multiplication, one addition
_FLOAT16 = 1.1 + 0.4
_BFLOAT16 = 1.1 * (8 / 11) ** 2 + 0.4
_WIDE = {"e8m23": _FLOAT32, "e5m10": _FLOAT16, "e8m7": _BFLOAT16}


def mac_energy(
    weight_format: Format | str,
    activation_format: Format | str,
    *,
    costs: EnergyCosts | None = None,
) -> Figure | None:
    """Picojoules of one multiply-accumulate; None where the rule above does not reach.

    Two wide floats cost what the wider of them costs.

    Raises:
        FormatError: a name is no format.
    """
    weight, activation = _plain(weight_format), _plain(activation_format)
    wide = [_WIDE[kind.name] for kind in (weight, activation) if kind.name in _WIDE]
    if wide:
        return Figure(max(wide), "pJ", Source.MODEL)
    product = _product(weight, activation)
    if product is None:
        return None
    use = (costs or energy_costs()).arithmetic
    reach = max(-weight.min_level, weight.max_level) * max(
        -activation.min_level, activation.max_level
    )
    added = reach.bit_length() + 1 + ceil(log2(TERMS))
    if product.is_float:
        added += product.operand_bits
        added += product.term_bits if product.shifter else 0
    area = 0 if product.one_bit else product.operand_bits * product.factor
    energy = use.multiply_pj_per_bit2 * area + use.add_pj_per_bit * added
    return Figure(energy, "pJ", Source.MODEL)


def _plain(kind: Format | str) -> Format:
    """The format of a single value: an element of a block, a centroid of a codebook."""
    return parse_format(kind).number


def _product(weight: Format, activation: Format) -> Product | None:
    if not (weight.exact_levels and activation.exact_levels):
        return None
    tensor = TensorType((1,), activation, (1.0,), activation.min_level, activation.max_level)
    ends = np.array([weight.min_level, weight.max_level], dtype=np.int64)
    try:
        return Product(stream_operand(tensor, "activation"), weight_operand(weight, ends, "weight"))
    except ModelError:
        return None
