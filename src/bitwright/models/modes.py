# SPDX-License-Identifier: Apache-2.0
"""Running a model in evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def modes_kept(*models: nn.Module) -> Iterator[None]:
    """Afterwards every module is in the mode, training or evaluation, that it was in before."""
    before = {module: module.training for model in models for module in model.modules()}
    try:
        yield
    finally:
        for module, mode in before.items():
            module.training = mode


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients; see `modes_kept`."""
    with modes_kept(*models), torch.no_grad():
        for model in models:
            model.eval()
        yield
