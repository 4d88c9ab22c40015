# SPDX-License-Identifier: Apache-2.0
"""Integers of dynamic fixed point in C: one call for a whole tensor."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from bitwright.formats import Rounding
from bitwright.formats.pytorch.quantize_library import MODES, QUANTIZE, CLevels

#: Elements that are worth a thread of their own.
_WORTH_A_THREAD = 1 << 15


def runs_natively(x: Tensor) -> bool:
    """Whether a tensor lies where the C program can read it, and there is one."""
    # Subclasses of Tensor may have no memory.
    plain = type(x) in (Tensor, torch.nn.Parameter) and x.device.type == "cpu"
    return plain and x.dtype == torch.float32 and QUANTIZE.cdll is not None


def quantize_levels(
    x: Tensor,
    out: Tensor,
    limits: tuple[int, int],
    exponent: int | None,
    rounding: Rounding,
    seed: int,
) -> int | None:
    """Fill ``out`` with levels; the exponent, or None if ``x`` holds NaN or an infinity.

    Args:
        x: float32; with four axes (N, C, H, W).
        out: dense integers; of an image (N, H, W, C).
        limits: the smallest and the largest level.
        exponent: None: that of dynamic fixed point.
    """
    library = QUANTIZE.cdll
    assert library is not None
    pixels, channels = max(x.numel(), 1), 1
    if x.dim() == 4 and not x.is_contiguous(memory_format=torch.channels_last):
        x = x.contiguous()
        pixels, channels = x.shape[2] * x.shape[3], x.shape[1]
    elif x.dim() != 4:
        x = x.contiguous()
    if channels == 1 or pixels == 1:
        pixels, channels = max(x.numel(), 1), 1
    given = CLevels(
        x=x.data_ptr(),
        levels=out.data_ptr(),
        count=x.numel(),
        pixels=pixels,
        channels=channels,
        bytes=out.element_size(),
        mode=MODES[rounding],
        low=limits[0],
        high=limits[1],
        dynamic=exponent is None,
        exponent=exponent or 0,
        threads=max(1, min(torch.get_num_threads(), x.numel() // _WORTH_A_THREAD)),
        seed=seed,
    )
    if library.bw_quantize_levels(ctypes.byref(given)):
        raise MemoryError("not enough memory to quantize a tensor")
    return None if given.bad else int(given.exponent)
