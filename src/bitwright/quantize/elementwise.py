# SPDX-License-Identifier: Apache-2.0
"""Activations beyond clipping: any function of one number, by thresholds or by a table.

A function that never falls is a staircase behind its quantizer, so few bits of it are thresholds on
the accumulator, found by bisection. Everything else is a table over the levels of a quantized
input. Thresholds and tables are computed once, in float64, when the model is frozen; from then on
they are the definition.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from bitwright.formats.rounding import FloatArray


@dataclass(frozen=True)
class Elementwise:
    """What conversion must know about a function.

    Attributes:
        monotone: it never falls.
        low: a lower bound of its values.
    """

    monotone: bool
    low: float = -math.inf

    @property
    def positive(self) -> bool:
        return self.low >= 0


_BENT = Elementwise(False)
_RISING = (
    *(nn.LeakyReLU, nn.PReLU, nn.ELU, nn.CELU, nn.SELU, nn.LogSigmoid, nn.Tanh, nn.Softsign),
    *(nn.Tanhshrink, nn.Softshrink, nn.Hardshrink),
)
#: Activation modules without a form of their own.
MODULES: dict[type[nn.Module], Elementwise] = {
    **dict.fromkeys(_RISING, Elementwise(True)),
    **dict.fromkeys((nn.Sigmoid, nn.Hardsigmoid, nn.Softplus), Elementwise(True, 0.0)),
    **dict.fromkeys((nn.SiLU, nn.GELU, nn.Mish, nn.Hardswish), _BENT),
}

#: Functions and tensor methods -> (module that does the same, its arguments after the tensor).
CALLS: dict[Any, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    F.leaky_relu: (nn.LeakyReLU, ("negative_slope",)),
    F.elu: (nn.ELU, ("alpha",)),
    F.celu: (nn.CELU, ("alpha",)),
    F.selu: (nn.SELU, ()),
    **dict.fromkeys((F.sigmoid, torch.sigmoid, "sigmoid"), (nn.Sigmoid, ())),
    F.hardsigmoid: (nn.Hardsigmoid, ()),
    F.softplus: (nn.Softplus, ("beta", "threshold")),
    F.logsigmoid: (nn.LogSigmoid, ()),
    **dict.fromkeys((F.tanh, torch.tanh, "tanh"), (nn.Tanh, ())),
    F.softsign: (nn.Softsign, ()),
    F.tanhshrink: (nn.Tanhshrink, ()),
    F.softshrink: (nn.Softshrink, ("lambd",)),
    F.hardshrink: (nn.Hardshrink, ("lambd",)),
    F.silu: (nn.SiLU, ()),
    F.gelu: (nn.GELU, ("approximate",)),
    F.mish: (nn.Mish, ()),
    F.hardswish: (nn.Hardswish, ()),
}


def of_module(module: nn.Module) -> Elementwise | None:
    """The traits of an activation module, or None if it is none of these."""
    found = MODULES.get(type(module))
    if found is None:
        return None
    slope = module.alpha if isinstance(module, nn.ELU) else getattr(module, "negative_slope", 0.0)
    return found if slope >= 0 else _BENT


Function = Callable[[FloatArray], FloatArray]


def exact(module: nn.Module) -> Function:
    """The module's function in float64 on arrays (channels, values)."""
    double = copy.deepcopy(module).cpu().double().eval()

    def function(x: FloatArray) -> FloatArray:
        with torch.no_grad():
            # (1, C, V): axis 1 is the channel, for a PReLU with a slope each.
            result = double(torch.from_numpy(np.ascontiguousarray(x))[None])[0]
        return np.asarray(result.numpy())

    return function


def falls(module: nn.Module) -> bool:
    """Whether a learned slope has made the function fall somewhere."""
    return isinstance(module, nn.PReLU) and bool((module.weight < 0).any())
