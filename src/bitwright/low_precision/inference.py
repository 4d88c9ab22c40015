# SPDX-License-Identifier: Apache-2.0
"""The formats of inference that a network has been trained in. No torch here."""

from __future__ import annotations

from typing import Any

from bitwright.low_precision.config import LowPrecision
from bitwright.low_precision.ladder import parse_level

AS_TRAINED = "as_trained"


def formats_as_trained(settings: LowPrecision) -> dict[str, Any]:
    """What a recipe's ``quant`` says of the lowest level that a network was trained in.

    Weights have the very scales of training. Activations, which in training have a power of two
    for every batch, have one power of two from calibration.

    Raises:
        ValueError: that level is not dynamic fixed point, or some layers were excepted from it.
    """
    level = parse_level(settings.ladder[0])
    if level.format is None or not level.format.is_integer:
        raise ValueError(
            f"quant: {AS_TRAINED} needs dynamic fixed point, and the lowest level of "
            f"train.float.low_precision is {level.name}: say the formats in quant"
        )
    if settings.rules:
        raise ValueError(
            f"quant: {AS_TRAINED} is one format throughout, and train.float.low_precision.rules "
            "make exceptions: say the formats in quant"
        )
    name = level.format.name
    static = {"format": name, "scale": "max", "power_of_two": True}
    return {
        "input": static,
        "weight": {"format": name, "scale": "dynamic"},
        "activation": static,
    }
