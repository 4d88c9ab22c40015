# SPDX-License-Identifier: Apache-2.0
"""What the model families share: activations, checks of options, initial weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from bitwright.base.errors import ModelError

Shape = tuple[int, int, int]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh,
}


def device_of(model: nn.Module) -> torch.device:
    """Where a model's first parameter or buffer is; the CPU when it has none."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def choice(model: str, option: str, value: object, allowed: Sequence[str]) -> None:
    """Raise unless an option is one of the words allowed.

    Raises:
        ModelError: it is not.
    """
    if value not in allowed:
        raise ModelError(
            f"unknown {option} {value!r}", where=model, hint=f"known: {', '.join(allowed)}"
        )


def activation_layer(model: str, name: str) -> type[nn.Module]:
    """The layer class of an activation.

    Raises:
        ModelError: there is none of this name.
    """
    choice(model, "activation", name, tuple(ACTIVATIONS))
    return ACTIVATIONS[name]


def positive(model: str, option: str, values: Sequence[int]) -> None:
    """Raise unless an option is a list of whole numbers from 1 on.

    Raises:
        ModelError: it is something else.
    """
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    if not is_list or not values or not all(_whole(value) and value >= 1 for value in values):
        found = list(values) if is_list else values
        raise ModelError(f"{option} must be positive whole numbers, found {found}", where=model)


def whole(model: str, option: str, value: int, least: int) -> None:
    """Raise unless an option is a whole number of at least ``least``.

    Raises:
        ModelError: it is something else.
    """
    if not _whole(value) or value < least:
        raise ModelError(
            f"{option} must be a whole number from {least} on, found {value!r}", where=model
        )


def share(model: str, option: str, value: float) -> None:
    """Raise unless an option is a number above 0 and at most 1.

    Raises:
        ModelError: it is something else.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= 1:
        raise ModelError(
            f"{option} must lie above 0 and at most at 1, found {value!r}", where=model
        )


def dropped(model: str, value: float) -> None:
    """Raise unless the option ``dropout`` is a number from 0 on and below 1.

    Raises:
        ModelError: it is something else.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1:
        raise ModelError(f"dropout must be at least 0 and below 1, found {value!r}", where=model)


def scaled(channels: int, width: float, least: int = 1) -> int:
    """A share of a layer's channels, at least ``least``."""
    return max(least, int(channels * width))


def flag(model: str, option: str, value: bool) -> None:
    """Raise unless an option is true or false.

    Raises:
        ModelError: it is something else.
    """
    if not isinstance(value, bool):
        raise ModelError(f"{option} must be true or false, found {value!r}", where=model)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def too_small(model: str, shape: Shape, after: str) -> ModelError:
    """The error for images of which nothing is left."""
    return ModelError(
        f"images of {shape} (H, W, C) are too small: nothing is left after {after}",
        where=model,
        hint="choose a smaller model, or larger images",
    )


def initialise(model: nn.Module, *, per_group: bool = True) -> None:
    """Kaiming normal weights (fan out) for convolutions, batch norm at (1, 0), zero biases.

    He et al. 2015, equation 14. ``per_group`` counts as fan of a grouped convolution what an input
    really reaches; without, all output channels, as ``nn.init.kaiming_normal_`` does: depthwise
    weights are then far too small for a network without trained batch norm.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if per_group:
                with torch.no_grad():
                    module.weight.mul_(module.groups**0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
