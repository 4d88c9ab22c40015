# SPDX-License-Identifier: Apache-2.0
"""What the model families share: activations, checks of options, initial weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _are_whole(values: object) -> bool:
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    return is_list and bool(values) and all(_is_whole(value, 1) for value in values)  # type: ignore[attr-defined]


def _is_real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_SIZES = (_are_whole, "must be positive whole numbers")
_COUNT = (lambda value: _is_whole(value, 1), "must be a whole number from 1 on")
_SHARE = (lambda value: _is_real(value) and 0 < value <= 1, "must lie above 0 and at most at 1")
#: What the options of the families may be, and how to say it.
_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("blocks", "widths", "strides"), _SIZES),
    **dict.fromkeys(
        ("growth", "stem_width", "final_width", "stem_stride", "embedding", "kernel", "stride"),
        _COUNT,
    ),
    **dict.fromkeys(("width", "compression"), _SHARE),
    "bottleneck": (lambda value: _is_whole(value, 0), "must be a whole number from 0 on"),
    "dropout": (lambda value: _is_real(value) and 0 <= value < 1, "must be at least 0 and below 1"),
    "batch_norm": (lambda value: isinstance(value, bool), "must be true or false"),
}


def check_options(model: str, **options: object) -> None:
    """Raise unless options have values that make sense.

    Raises:
        ModelError: names the option, and what it must be.
    """
    for name, value in options.items():
        fits, words = _OPTIONS[name]
        if not fits(value):
            raise ModelError(f"{name} {words}, found {value!r}", where=model)


def scaled(channels: int, width: float, least: int = 1) -> int:
    """A share of a layer's channels, at least ``least``."""
    return max(least, int(channels * width))


def too_small(model: str, shape: Sequence[int], after: str) -> ModelError:
    """The error for images of which nothing is left."""
    return ModelError(
        f"inputs of {tuple(shape)}, channels last, are too small: nothing is left after {after}",
        where=model,
        hint="choose a smaller model, or larger inputs",
    )


def max_pool_up() -> nn.Sequential:
    """A 3 x 3 maximum with stride 2 that begins at the edge and rounds the size up, as Caffe's and
    torchvision's do: behind a ReLU that is a border of zeros below and on the right."""
    return nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.MaxPool2d(3, 2))


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
