# SPDX-License-Identifier: Apache-2.0
"""The C kernels of `fake_quantize`: built once per machine, called on stretches of a tensor.

They work on float32 in a CPU's memory, one thread for each that torch would use. Where there is no
compiler, and for the few rules they lack (wrapping, rounding of codebooks away from or towards
zero), the caller computes the same with torch.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import lru_cache, singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitwright.base.errors import FormatError
from bitwright.formats import (
    BipolarFormat,
    Format,
    GridFormat,
    MinifloatFormat,
    Overflow,
    PowerOfTwoFormat,
    Rounding,
)
from bitwright.formats.pytorch.grid import grid_of
from bitwright.formats.pytorch.quantize_library import MODES, QUANTIZE, CSpec

_EVEN, _SIGN, _MINIFLOAT, _POWERS, _TABLE = range(5)
_SAW_NAN, _SAW_INFINITY = 1, 2
_GROUP = 256
_WORTH_A_THREAD = 1 << 16


@dataclass(frozen=True)
class _Spec:
    """A structure and the arrays that it points to."""

    c: CSpec
    arrays: tuple[np.ndarray[Any, Any], ...]


def quantize_natively(
    x: Tensor,
    number_format: Format,
    scale: Tensor | float | None,
    zero_point: int,
    rules: tuple[Rounding, Overflow, int],
) -> Tensor | None:
    """`fake_quantize` in C, or None if torch has to do it.

    Args:
        x: any tensor.
        number_format: the format; a block format with ``scale`` None has its blocks along the last
            axis.
        scale: a number, or a tensor that varies along one axis of ``x`` at most.
        zero_point: the code of level 0.
        rules: rounding, overflow and the seed of stochastic rounding.

    Raises:
        FormatError: as `fake_quantize`.
    """
    found = _quantized(x, number_format, scale, zero_point, rules)
    if found is None:
        return None
    target, flags = found
    if flags & _SAW_INFINITY:
        raise FormatError("cannot encode NaN or infinity in blocks", where=number_format.name)
    if flags & _SAW_NAN:
        raise FormatError("cannot encode NaN", where=number_format.name)
    return target


def levels_natively(ratio: Tensor, number_format: Format, rounding: Rounding) -> Tensor | None:
    """Levels, float32, of reals in units of one level; None if torch has to do it (also for NaN).

    Args:
        ratio: any tensor.
        number_format: the format.
        rounding: any rule but stochastic.
    """
    unit = 1.0 / number_format.lsb  # a power of two: the kernel's unit is 1
    found = _quantized(ratio, number_format, unit, 0, (rounding, Overflow.SAT, 0))
    return None if found is None or found[1] else found[0]


def encode_natively(
    x: Tensor,
    number_format: Format,
    scale: Tensor | float,
    zero_point: int,
    rules: tuple[Rounding, Overflow],
) -> Tensor | None:
    """Levels, float32, of reals, as `encode_levels`; None if torch has to do it.

    Raises:
        FormatError: as `encode_levels`.
    """
    if rules[0] is Rounding.STOCHASTIC or number_format.max_level > torch.finfo(torch.float32).max:
        return None
    found = _quantized(x, number_format, scale, zero_point, (*rules, 0), plain=True)
    if found is not None and found[1]:
        raise FormatError("cannot encode NaN", where=number_format.name)
    return None if found is None else found[0]


def _quantized(
    x: Tensor,
    number_format: Format,
    scale: Tensor | float | None,
    zero_point: int,
    rules: tuple[Rounding, Overflow, int],
    plain: bool = False,
) -> tuple[Tensor, int] | None:
    """The result, reals or (``plain``) levels, and what the kernel saw."""
    rounding, overflow, seed = rules
    library = QUANTIZE.cdll
    # Subclasses of Tensor may have no memory.
    in_memory = type(x) in (Tensor, torch.nn.Parameter) and x.device.type == "cpu"
    if library is None or not in_memory or x.dtype != torch.float32:
        return None
    if scale is None and x.dim() == 0:
        return None
    spec = _spec(number_format, rounding, overflow, zero_point, scale is None, plain)
    if spec is None:
        return None
    units = np.ones(1) if scale is None else _units(scale, number_format)
    inner = _inner(x, scale)
    if inner is None:
        return None
    same_everywhere = len(units) == 1 and scale is not None
    if same_everywhere and rounding is not Rounding.STOCHASTIC and _is_dense(x):
        source, target = x, torch.empty_like(x, requires_grad=False)
    else:
        source = x.contiguous()
        target = torch.empty(x.shape, dtype=x.dtype)
    return target, _in_threads(library, spec, (source, target), (units, inner), seed)


def _is_dense(x: Tensor) -> bool:
    """Whether its elements fill a stretch of memory, in whatever order."""
    return bool(torch.ops.aten.is_non_overlapping_and_dense(x))


def _units(scale: Tensor | float, number_format: Format) -> np.ndarray[Any, Any]:
    given = scale.detach().cpu() if isinstance(scale, Tensor) else scale
    unit = np.atleast_1d(np.asarray(given, dtype=np.float64)).reshape(-1) * number_format.lsb
    if not (np.isfinite(unit).all() and (unit > 0).all()):
        raise FormatError("scale must be positive and finite", where=number_format.name)
    return unit


def _inner(x: Tensor, scale: Tensor | float | None) -> int | None:
    """How many neighbours share a unit, 1 for an empty tensor; None if no stretches do."""
    if scale is None:
        return max(int(x.shape[-1]), 1)
    if not isinstance(scale, Tensor) or scale.numel() == 1:
        fits = not isinstance(scale, Tensor) or scale.dim() <= x.dim()
        return max(x.numel(), 1) if fits else None
    axes = [axis for axis in range(scale.dim()) if scale.shape[axis] != 1]
    axis = axes[0] - scale.dim() + x.dim()
    if len(axes) != 1 or axis < 0 or scale.dim() > x.dim() or scale.numel() != x.shape[axis]:
        return None
    return max(math.prod(x.shape[axis + 1 :]), 1)


def _in_threads(
    library: ctypes.CDLL,
    spec: _Spec,
    tensors: tuple[Tensor, Tensor],
    scales: tuple[np.ndarray[Any, Any], int],
    seed: int,
) -> int:
    """Runs the kernel over stretches of equal length, a thread each; the flags of what it saw."""
    (source, target), (units, inner) = tensors, scales
    count = source.numel()
    # A stretch ends with a group of draws; where blocks are, with one of them if all are whole.
    block = spec.c.block
    whole = inner >= count or (block and inner % block == 0)
    step = (block if whole else inner) if block else _GROUP
    threads = max(1, min(torch.get_num_threads(), count // _WORTH_A_THREAD))
    length = max(-(-count // (threads * step)) * step, 1)
    return int(
        library.bw_quantize(
            ctypes.byref(spec.c), source.data_ptr(), target.data_ptr(), count, length,
            units.ctypes.data, len(units), inner, seed, threads,
        )
    )  # fmt: skip


@lru_cache(maxsize=256)
def _spec(
    number_format: Format,
    rounding: Rounding,
    overflow: Overflow,
    zero_point: int,
    blocks: bool = False,
    plain: bool = False,
) -> _Spec | None:
    """What the kernel needs to know; None if it does not have these rules."""
    spec = CSpec(mode=MODES[rounding], lsb=number_format.lsb, plain=int(plain))
    element = number_format.stored
    if blocks and number_format.block:
        spec.block, spec.top_exponent = number_format.block, number_format.top_exponent
    element.check(overflow)
    without = element.sign_only or not element.uniform
    if overflow is Overflow.WRAP or (zero_point != 0 and without):
        return None
    spec.low, spec.high = float(element.min_level), float(element.max_level)
    arrays = _describe(element, spec, rounding, overflow, zero_point)
    return None if arrays is None else _Spec(spec, arrays)


#: What a structure points to; None where the kernel has no such rule.
_Arrays = tuple[np.ndarray[Any, Any], ...]


@singledispatch
def _describe(
    element: Format, spec: CSpec, rounding: Rounding, overflow: Overflow, zero_point: int
) -> _Arrays | None:
    """Fill in what the kernel needs of a family: here of evenly spaced levels."""
    spec.kind = _EVEN
    symmetric = overflow is Overflow.SAT_SYM and element.min_level < 0
    low = -element.max_level if symmetric else element.min_level
    spec.low, spec.high = float(low - zero_point), float(element.max_level - zero_point)
    return ()


@_describe.register(BipolarFormat)
def _(element: BipolarFormat, spec: CSpec, *_rules: Any) -> _Arrays | None:
    spec.kind = _SIGN
    return ()


@_describe.register(MinifloatFormat)
def _(element: MinifloatFormat, spec: CSpec, *_rules: Any) -> _Arrays | None:
    spec.kind = _MINIFLOAT
    spec.mantissa, spec.flush = element.mantissa, int(not element.denormals)
    return ()


@_describe.register(GridFormat)
def _by_table(element: GridFormat, spec: CSpec, rounding: Rounding, *_rules: Any) -> _Arrays | None:
    levels = grid_of(element)
    limits = _limits(levels, rounding)
    if limits is None:
        return None
    spec.kind, spec.count = _TABLE, len(levels)
    spec.room = 1 << (len(levels) - 1).bit_length()
    missing = spec.room - len(levels)
    arrays = (np.pad(levels, (0, missing), "edge"), np.append(limits, [np.inf] * (missing + 1)))
    spec.levels, spec.limits = (array.ctypes.data for array in arrays)
    return arrays


@_describe.register(PowerOfTwoFormat)
def _(element: PowerOfTwoFormat, spec: CSpec, rounding: Rounding, *_rules: Any) -> _Arrays | None:
    if element.linear:
        return _by_table(element, spec, rounding)
    spec.kind, spec.zero = _POWERS, int(element.zero)
    return ()


def _limits(levels: np.ndarray[Any, Any], rounding: Rounding) -> np.ndarray[Any, Any] | None:
    """The smallest ratio that is rounded to each level but the first; None if that is no rule.

    Rounding away from or towards zero is none between a negative level and a positive one.
    """
    below, above = levels[:-1], levels[1:]
    if rounding is Rounding.FLOOR or rounding is Rounding.STOCHASTIC:
        return above.copy()
    if rounding is Rounding.CEIL:
        return np.nextafter(below, np.inf)
    if rounding is Rounding.UP or rounding is Rounding.DOWN:
        return None
    middle = (below + above) / 2
    upper_half = np.where((below < 0) & (above > 0), middle >= 0, above > 0)
    ties_up = {
        Rounding.HALF_EVEN: np.arange(len(below)) % 2 == 1,
        Rounding.HALF_AWAY: upper_half,
        Rounding.HALF_ZERO: ~upper_half,
        Rounding.HALF_UP: np.full(len(below), True),
        Rounding.HALF_DOWN: np.full(len(below), False),
    }[rounding]
    return np.where(ties_up, middle, np.nextafter(middle, np.inf))
