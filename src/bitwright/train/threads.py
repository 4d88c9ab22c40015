# SPDX-License-Identifier: Apache-2.0
"""How many threads torch computes with: sums of floats depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """So many threads inside; None leaves it to torch. Afterwards as many as before."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
