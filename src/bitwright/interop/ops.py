# SPDX-License-Identifier: Apache-2.0
"""The kinds of layers that a `Network` has, as plain values.

Images are (C, H, W), vectors (C,), both without the batch; weights are laid out as in torch: (O,
I, H, W) and (O, I).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: What a `Pool` and a `GlobalPool` do, and the functions of an `Activation`.
MODES = ("max", "mean")
FUNCTIONS = ("relu", "relu6", "sigmoid", "tanh", "softmax")
FloatArray = NDArray[np.floating[Any]]
Pair = tuple[int, int]
Size = tuple[int, ...]
Four = tuple[int, int, int, int]


@dataclass(frozen=True)
class Input:
    """The image or vector that the network takes: (C, H, W) or (C,)."""

    shape: Size


@dataclass(frozen=True)
class Conv:
    """Arrays ``weight`` (O, I / groups, H, W) and maybe ``bias`` (O,)."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1


@dataclass(frozen=True)
class Dense:
    """Arrays ``weight`` (O, I) and maybe ``bias`` (O,); takes a vector."""


@dataclass(frozen=True)
class Norm:
    """Batch norm in evaluation: arrays ``mean``, ``variance`` and maybe ``gamma``, ``beta``."""

    eps: float


@dataclass(frozen=True)
class Scale:
    """A factor and maybe an offset a channel: arrays ``gamma`` and maybe ``beta``, (C,)."""


@dataclass(frozen=True)
class Activation:
    """``relu`` (with a slope below 0), ``relu6``, ``sigmoid``, ``tanh``, ``softmax`` (channels)."""

    function: str
    slope: float = 0.0


@dataclass(frozen=True)
class Clip:
    """Values below ``low`` become ``low``, above ``high`` ``high``: where a quantizer saturates."""

    low: float
    high: float


@dataclass(frozen=True)
class Pool:
    """``max`` or ``mean`` over windows.

    Attributes:
        round_up: the last window may reach over the edge (torch's ``ceil_mode``).
        count_padding: a mean divides by the window's size within the padded image, as Caffe does;
            else by the pixels of the image that it sees.
    """

    mode: str
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    round_up: bool = False
    count_padding: bool = True


@dataclass(frozen=True)
class GlobalPool:
    """``max`` or ``mean`` of all pixels; an image of one pixel comes out."""

    mode: str


@dataclass(frozen=True)
class Pad:
    """Zeros around an image: top, left, bottom, right."""

    amounts: Four


@dataclass(frozen=True)
class Concat:
    """Channels of all inputs, in order."""


@dataclass(frozen=True)
class Add:
    """The sum of two or more inputs of one shape."""


@dataclass(frozen=True)
class Flatten:
    """(C, H, W) -> (C * H * W,), the channel slowest."""


@dataclass(frozen=True)
class Dropout:
    """Nothing, in evaluation; in training a share of 0 to 1 of the values is left out."""

    share: float = 0.5


Op = (
    Input | Conv | Dense | Norm | Scale | Activation | Clip | Pool | GlobalPool | Pad | Concat | Add
    | Flatten | Dropout
)  # fmt: skip

#: Which arrays an operation has, and which of them must be there.
ARRAYS: Mapping[type[Any], tuple[tuple[str, ...], int]] = {
    Conv: (("weight", "bias"), 1),
    Dense: (("weight", "bias"), 1),
    Norm: (("mean", "variance", "gamma", "beta"), 2),
    Scale: (("gamma", "beta"), 1),
}


def windows(size: int, kernel: int, stride: int, padding: int, *, round_up: bool) -> int:
    """How many windows of a pool fit, torch's rule: none starts behind the image and its front pad.

    Caffe's rule is the same with ``round_up``, if there is padding or the stride is at most the
    kernel.
    """
    span = size + 2 * padding - kernel
    count = (ceil(span / stride) if round_up else span // stride) + 1
    if round_up and (count - 1) * stride >= size + padding:
        count -= 1
    return count
