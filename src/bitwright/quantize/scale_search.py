# SPDX-License-Identifier: Apache-2.0
"""The scale with the smallest squared error, by search: of values, or of a histogram of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bitwright.formats import Format
from bitwright.formats.pytorch.rounding import divided, quantize_ratio
from bitwright.quantize.spec import QuantSpec

#: Smallest scale: keeps a tensor of zeros, and a learned scale gone astray, dividing by something.
TINY = 2.0**-60
_CANDIDATES = 40
_SMALLEST = 0.05
_POWERS = 5


def mse_scale(table: Tensor, spec: QuantSpec) -> Tensor:
    """Scale (R,) of each row of values (R, n) that minimises the squared quantization error.

    Candidates are 0.05 .. 1 of the scale that clips nothing, in geometric steps of 8 %, or for
    ``power_of_two`` the powers from there down.
    """
    unclipped = divided(table.abs().amax(dim=1), spec.format.reach).clamp(min=TINY)
    if spec.power_of_two:
        top = torch.exp2(torch.ceil(torch.log2(unclipped)))
        candidates = [top * 2.0**-k for k in range(_POWERS)]
    else:
        span = torch.logspace(math.log10(_SMALLEST), 0.0, _CANDIDATES).tolist()
        candidates = [unclipped * fraction for fraction in span]
    return least_squares(table, candidates, spec.format, unclipped)


def least_squares(
    table: Tensor,
    candidates: Sequence[Tensor],
    number_format: Format,
    otherwise: Tensor,
    counts: Tensor | None = None,
) -> Tensor:
    """The candidate (R,) of the smallest squared error of each row; the first of equals.

    Args:
        table: (R, n) reals.
        candidates: scales, (R,) each.
        otherwise: (R,), where no error is a number.
        counts: how often each value occurs, (n,).
    """
    best = torch.full_like(otherwise, math.inf)
    chosen = otherwise
    for candidate in candidates:
        unit = (candidate * number_format.lsb)[:, None]
        levels = quantize_ratio(table / unit, number_format)
        squares = (levels * unit - table).square()
        error = (squares if counts is None else squares * counts).sum(dim=1)
        better = error < best
        best = torch.where(better, error, best)
        chosen = torch.where(better, candidate, chosen)
    return chosen
