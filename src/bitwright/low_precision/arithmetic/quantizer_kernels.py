# SPDX-License-Identifier: Apache-2.0
"""The C program of `quantise`: built once per machine, called on a whole tensor."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from bitwright.base.errors import ToolError
from bitwright.base.native import Program
from bitwright.base.native.thread_pool import POOL_HEADER, POOL_SOURCE, share_threads
from bitwright.formats import Rounding

_PROGRAM = Program(
    name="quantise",
    package="bitwright.low_precision.arithmetic",
    sources=("quantise.c", "formats/pytorch/native/noise.c", POOL_SOURCE),
    headers=("formats/pytorch/native/noise.h", POOL_HEADER),
    libraries=("-lm",),
)
#: No contraction: a fused multiply-add rounds once where the definition rounds twice.
FLAGS = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
_MODES = {mode: number for number, mode in enumerate(Rounding)}
#: Elements that are worth a thread of their own.
_WORTH_A_THREAD = 1 << 15


class CQuantise(ctypes.Structure):
    """`Quantise` of ``native/quantise.c``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "levels")),
        *((name, ctypes.c_int64) for name in "count pixels channels bytes mode low high".split()),
        *((name, ctypes.c_int64) for name in ("dynamic", "exponent", "threads")),
        ("seed", ctypes.c_uint64),
        ("bad", ctypes.c_int64),
    ]


@lru_cache(maxsize=1)
def native_quantiser() -> ctypes.CDLL | None:
    """The C program, or None where it cannot be built; tried once per process."""
    try:
        return _PROGRAM.first(load_quantiser, FLAGS)
    except ToolError:
        return None


def load_quantiser(path: Path) -> ctypes.CDLL:
    """Open a library and check that it is ours; `ToolError` if not."""
    handle = _PROGRAM.open(path)
    try:
        handle.bw_quantise_size.restype = ctypes.c_int64
        size = int(handle.bw_quantise_size())
        handle.bw_quantise.argtypes = [ctypes.POINTER(CQuantise)]
        handle.bw_quantise.restype = ctypes.c_int64
        handle.bw_most_squares.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 4]
        handle.bw_most_squares.restype = ctypes.c_int64
        share_threads(handle)
    except AttributeError as error:
        raise ToolError(f"cannot load {path.name}: {error}", where="quantise") from error
    if size != ctypes.sizeof(CQuantise):
        raise ToolError(f"{path.name} has other structures: {size}", where="quantise")
    return handle


def runs_natively(x: Tensor) -> bool:
    """Whether a tensor lies where the C program can read it, and there is one."""
    # Subclasses of Tensor may have no memory.
    plain = type(x) in (Tensor, torch.nn.Parameter) and x.device.type == "cpu"
    return plain and x.dtype == torch.float32 and native_quantiser() is not None


def quantise_natively(
    x: Tensor,
    out: Tensor,
    ends: tuple[int, int],
    exponent: int | None,
    rounding: Rounding,
    seed: int,
) -> int | None:
    """Fill ``out`` with levels; the exponent, or None if ``x`` holds NaN or an infinity.

    Args:
        x: float32; with four axes (N, C, H, W).
        out: dense integers; of an image (N, H, W, C).
        ends: the smallest and the largest level.
        exponent: None: that of dynamic fixed point.
    """
    library = native_quantiser()
    assert library is not None
    pixels, channels = max(x.numel(), 1), 1
    if x.dim() == 4 and not x.is_contiguous(memory_format=torch.channels_last):
        x = x.contiguous()
        pixels, channels = x.shape[2] * x.shape[3], x.shape[1]
    elif x.dim() != 4:
        x = x.contiguous()
    if channels == 1 or pixels == 1:
        pixels, channels = max(x.numel(), 1), 1
    given = CQuantise(
        x=x.data_ptr(),
        levels=out.data_ptr(),
        count=x.numel(),
        pixels=pixels,
        channels=channels,
        bytes=out.element_size(),
        mode=_MODES[rounding],
        low=ends[0],
        high=ends[1],
        dynamic=exponent is None,
        exponent=exponent or 0,
        threads=max(1, min(torch.get_num_threads(), x.numel() // _WORTH_A_THREAD)),
        seed=seed,
    )
    if library.bw_quantise(ctypes.byref(given)):
        raise MemoryError("no room to quantise a tensor")
    return None if given.bad else int(given.exponent)


def most_squares(levels: Tensor) -> int:
    """The largest sum of squares that a channel of (N, C, H, W) has, of up to 16 bits, exactly."""
    images, channels, height, width = levels.shape
    library = native_quantiser() if levels.device.type == "cpu" else None
    dense = levels.is_contiguous(memory_format=torch.channels_last)
    if library is None or not dense or levels.dtype not in (torch.int8, torch.int16):
        return int(levels.double().square().sum((0, 2, 3)).amax())
    pixels = images * height * width
    threads = max(1, min(torch.get_num_threads(), levels.numel() // _WORTH_A_THREAD))
    place, size = levels.data_ptr(), levels.element_size()
    found = int(library.bw_most_squares(place, size, pixels, channels, threads))
    if found < 0:
        raise MemoryError("no room for sums of squares")
    return found
