# SPDX-License-Identifier: Apache-2.0
"""Numbers of the world to levels, as `input.json` says: by the arithmetic that training uses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.data.preparation import check_finite
from bitwright.data.preprocessing import HostInput
from bitwright.formats import parse_format, parse_rounding


def levels_of_numbers(
    values: NDArray[Any], given: HostInput, where: str = "numbers"
) -> NDArray[np.int64]:
    """Levels of what a network takes, equal to training's to the bit.

    Args:
        values: (N, ..., C), channels last, or (N, elements): what the function of a data set of
            one's own returns, where its numbers were prepared; else reals, as the model takes them.
        given: of `read_input`.
        where: named in errors.

    Raises:
        DataError: another shape, NaN or infinity.
    """
    each = tuple(values.shape[1:])
    if not each or (each != given.shape and each != (int(np.prod(given.shape)),)):
        said = ", ".join(map(str, given.shape))
        raise DataError(
            f"expected numbers (N, {said}), found {values.shape}",
            where=where,
            hint="channels are the last axis: numpy.moveaxis(array, 1, -1)"
            if len(each) > 1
            else None,
        )
    check_finite(values, given.inputs, where)
    found = values.reshape(-1, *given.shape)
    if given.preparation is None:
        reals = found.astype(np.float32)
    else:
        prepared = given.preparation.preparation().levels(found)
        reals = prepared.astype(np.float32) * np.float32(given.data.scale)
    kind = parse_format(given.format)
    codes = kind.encode(reals, given.scale / kind.lsb, rounding=parse_rounding(given.rounding))
    return kind.levels(codes)
