# SPDX-License-Identifier: Apache-2.0
"""`Snapshot`: whether a module still is what it was when something was derived from it."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from bitwright.quantize.spec import QuantSpec

_PLAIN = frozenset((bool, int, float, str, type(None)))
#: Compute something else in training mode.
MODAL = (nn.Dropout, nn.Dropout2d, nn.BatchNorm1d, nn.BatchNorm2d)
#: Change with every forward pass and no result depends on them.
_PASSING = frozenset(("training", "sample_shape", "reuse_input", "why_simulated"))


class Snapshot:
    """Parameters, buffers and settings of a module and of all modules in it.

    Contents are compared, not addresses and versions of tensors: these miss what is written through
    ``tensor.data`` or in inference mode, and memory is used again.
    """

    def __init__(self, module: nn.Module) -> None:
        self._settings, tensors = _read(module)
        self._tensors = [tensor.detach().clone() for tensor in tensors]

    def matches(self, module: nn.Module) -> bool:
        """Whether nothing has changed; NaN never matches."""
        settings, tensors = _read(module)
        if settings != self._settings or len(tensors) != len(self._tensors):
            return False
        pairs = list(zip(tensors, self._tensors, strict=True))
        if not all(_alike(a, b) for a, b in pairs):
            return False
        if not all(torch.equal(a, b) for a, b in pairs if a.device.type == "cpu"):
            return False
        flags = [(a != b).any() for a, b in pairs if a.device.type != "cpu"]  # one wait for all
        return not flags or not bool(torch.stack(flags).any())


def same_content(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are alike in all."""
    return _alike(a, b) and torch.equal(a, b)


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device


def _read(module: nn.Module) -> tuple[list[Any], list[Tensor]]:
    settings: list[Any] = []
    tensors: list[Tensor] = []
    for part in module.modules():
        settings.append(type(part))
        if isinstance(part, MODAL):
            settings.append(part.training)
        for name, value in vars(part).items():
            if name[0] != "_" and name not in _PASSING and _plain(value):
                settings.append((name, value))
        for named in (part._parameters, part._buffers):
            for name, tensor in named.items():
                if tensor is not None:
                    settings.append(name)
                    tensors.append(tensor)
    return settings, tensors


def _plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(_plain(entry) for entry in value)
    return type(value) in _PLAIN or isinstance(value, QuantSpec | Enum)
