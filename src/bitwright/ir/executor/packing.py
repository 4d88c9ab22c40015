# SPDX-License-Identifier: Apache-2.0
"""Which kernel multiplies a layer, and its weights in that kernel's order.

Every choice is exact: a kernel is a candidate only where the actual weights and the interval of the
activations prove that no accumulator of it can overflow (or that it counts modulo 2^16 and the
result fits int16). Among the candidates an estimate of cycles decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bitwright.ir.executor.compiler import Library
from bitwright.ir.executor.layout import Feature, Kind, Op, storage
from bitwright.ir.executor.products import INT32_TOP, Product, segment_taps
from bitwright.ir.node import IntArray

Array = NDArray[np.generic]

# Multiply-accumulates per cycle and core, measured (AVX2: Zen 3; the others from instruction
# tables). They only rank the exact candidates.
_RATE_LUT = 50.0  # look-ups, each of 2 or 4 columns
_RATE_NARROW, _RATE_WIDENED, _RATE_DOT16 = 55.0, 40.0, 24.0
_RATE_VNNI512, _RATE_VNNI256, _RATE_GENERIC = 110.0, 55.0, 4.0
_RATE_XNOR_AVX2, _RATE_VPOPCNT, _RATE_XNOR_GENERIC = 70.0, 250.0, 40.0


@dataclass(frozen=True)
class Packed:
    """A layer ready for one kernel.

    Attributes:
        narrow: finished accumulators fit int16, and what follows takes them so.
        wraps: the kernel counts modulo 2^16 (`start` too).
        pack: the step that prepares the activations, or None to read them as they are.
        weight, start, table: arrays as ``plan.h`` describes them.
        lengths, flushes: the pieces, in order through all segments; lengths in units.
        digits, radix: columns per unit of the packed source, and radix of its table indices.
        cost: estimated cycles per pixel, for ranking.
    """

    op: Op
    narrow: bool
    wraps: bool
    pack: Op | None
    panels: int
    panel_bytes: int
    weight: Array
    start: Array
    lengths: tuple[int, ...]
    flushes: tuple[bool, ...]
    cost: float
    table: Array | None = None
    digits: int = 1
    radix: int = 0


def _segments(product: Product, unit: int, *, per_tap: bool) -> IntArray:
    """Weights ``(groups, rows, segments, units, unit)``, zero where a unit passes its segment.

    Args:
        product: the layer.
        unit: columns per unit.
        per_tap: units do not cross taps (the packed source pads every pixel to whole units).
    """
    groups, rows = product.groups, product.rows
    count, taps = segment_taps(product)
    shape = (
        (groups, rows, count, taps, product.columns) if per_tap else (groups, rows, count, 1, -1)
    )
    weight = product.weight.reshape(shape)
    short = -weight.shape[-1] % unit
    weight = np.pad(weight, ((0, 0),) * 4 + ((0, short),))
    return weight.reshape(groups, rows, count, -1, unit)


def _panels(units: Array, lanes: int) -> tuple[int, Array]:
    """Panels per group, and ``(groups, rows, units, ...)`` as ``(panels, units, lanes, ...)``."""
    groups, rows = units.shape[:2]
    panels = -(-rows // lanes)
    padded = np.pad(units, ((0, 0), (0, panels * lanes - rows)) + ((0, 0),) * (units.ndim - 2))
    split = padded.reshape(groups * panels, lanes, *units.shape[2:])
    return panels, np.ascontiguousarray(np.moveaxis(split, 1, 2))


def pad_rows(values: IntArray, panels: int, lanes: int) -> IntArray:
    """Per-row values ``(..., groups, rows)`` -> ``(..., groups * panels * lanes)``, zero filled."""
    short = panels * lanes - values.shape[-1]
    padded = np.pad(values, ((0, 0),) * (values.ndim - 1) + ((0, short),))
    flat: IntArray = padded.reshape(*values.shape[:-2], -1)
    return flat


def _even_pieces(segments: int, units: int, limit: int) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Cut each segment so that the accumulators are flushed at least every ``limit`` units."""
    lengths: list[int] = []
    flushes: list[bool] = []
    since = 0
    for segment in range(segments):
        left = units
        while left:
            take = min(left, limit - since)
            left -= take
            since += take
            last = segment == segments - 1 and left == 0
            lengths.append(take)
            flushes.append(since == limit or last)
            since = 0 if flushes[-1] else since
    return tuple(lengths), tuple(flushes)


def _corrected(product: Product) -> IntArray:
    """Bias of each row on stored codes: ``sum w * level = sum w * code + zero * sum w``."""
    zero = storage(product.source)[1]
    sums: IntArray = product.weight.sum(axis=(2, 3, 4))
    return product.bias + zero * sums


def _in_int16(product: Product) -> bool:
    """Results fit int16, and so does a threshold one above them."""
    return -(1 << 15) <= product.result.lo and product.result.hi < (1 << 15) - 1


def pack_dot8(product: Product, library: Library, allow_narrow: bool) -> Packed | None:
    """Unsigned bytes by signed bytes."""
    weight = product.weight
    if storage(product.source)[0] is not Kind.U8 or weight.min() < -128 or weight.max() > 127:
        return None
    zero = -storage(product.source)[1]
    if product.magnitude(product.top_code + zero) >= INT32_TOP:
        return None
    units = _segments(product, 4, per_tap=False)
    segments, length = units.shape[2:4]
    flat = units.reshape(product.groups, product.rows, segments * length, 4)
    saturating = library.has(Feature.AVX2) and not library.has(Feature.VNNI)
    narrow = allow_narrow and _in_int16(product)
    wraps = saturating and narrow
    lengths, flushes = (length,) * segments, (False,) * segments
    rate = _RATE_GENERIC
    if library.has(Feature.VNNI):
        rate = _RATE_VNNI512 if library.has(Feature.VNNI512) else _RATE_VNNI256
    if saturating:
        pairs = flat.reshape(*flat.shape[:3], 2, 2) * product.top_code
        low = np.minimum(pairs, 0).sum(axis=-1).min(axis=(0, 1, 3))
        high = np.maximum(pairs, 0).sum(axis=-1).max(axis=(0, 1, 3))
        if low.min() < -(1 << 15) or high.max() >= 1 << 15:
            return None  # maddubs would saturate
        rate = _RATE_NARROW
        if not wraps:
            rate = _RATE_WIDENED
            step = max(1, int(high.max()), -int(low.min()))
            lengths, flushes = _even_pieces(segments, length, ((1 << 15) - 1) // step)
    lanes = library.lanes[Op.DOT8]
    panels, packed = _panels(flat.astype(np.int8), lanes)
    start = pad_rows(_corrected(product), panels, lanes)
    macs = panels * lanes * product.groups * flat.shape[2] * 4
    return Packed(
        op=Op.DOT8,
        narrow=narrow,
        wraps=wraps,
        pack=Op.PACK_U8 if any(product.padding) else None,
        panels=panels,
        panel_bytes=flat.shape[2] * 4 * lanes,
        weight=packed,
        start=_wrapped(start) if wraps else start.astype(np.int32),
        lengths=lengths,
        flushes=flushes,
        cost=macs / rate,
    )


def _wrapped(start: IntArray) -> Array:
    """Values modulo 2^16, as the 16-bit accumulators hold them."""
    return (start & 0xFFFF).astype(np.uint16)


def pack_dot16(product: Product, library: Library, allow_narrow: bool) -> Packed | None:
    """16-bit levels by 16-bit weights, in pairs, into int32."""
    weight, source = product.weight, product.source
    half = 1 << 15
    if min(weight.min(), source.lo) < -half or max(weight.max(), source.hi) >= half:
        return None
    if product.magnitude(max(abs(source.lo), abs(source.hi))) >= INT32_TOP:
        return None
    units = _segments(product, 2, per_tap=False)
    segments, length = units.shape[2:4]
    lanes = library.lanes[Op.DOT16]
    panels, packed = _panels(
        units.reshape(product.groups, product.rows, segments * length, 2).astype(np.int16), lanes
    )
    macs = panels * lanes * product.groups * segments * length * 2
    rate = _RATE_DOT16 if library.has(Feature.AVX2) else _RATE_GENERIC
    return Packed(
        op=Op.DOT16,
        narrow=allow_narrow and _in_int16(product),
        wraps=False,
        pack=Op.PACK_I16,
        panels=panels,
        panel_bytes=segments * length * 4 * lanes,
        weight=packed,
        start=pad_rows(product.bias, panels, lanes).astype(np.int32),
        lengths=(length,) * segments,
        flushes=(False,) * segments,
        cost=macs / rate,
    )


def pack_xnor(product: Product, library: Library, allow_narrow: bool) -> Packed | None:
    """One-bit weights and activations: exclusive or, and count."""
    if not product.source.is_bipolar or any(product.padding) or np.any(np.abs(product.weight) != 1):
        return None
    if product.groups > 1 and product.columns % 64:
        return None
    if product.magnitude(1) >= INT32_TOP:
        return None
    # Padded columns are 0, that is, the bit 0 on both sides.
    units = _segments(product, 64, per_tap=True) > 0
    octets = np.ascontiguousarray(np.packbits(units, axis=-1, bitorder="little"))
    words = octets.view(np.uint64)[..., 0]
    segments, length = words.shape[2:4]
    lanes = library.lanes[Op.XNOR]
    panels, packed = _panels(words.reshape(product.groups, product.rows, -1), lanes)
    columns = int(np.prod(product.weight.shape[2:]))
    lengths, flushes = _even_pieces(segments, length, 31)
    rate = _RATE_XNOR_AVX2 if library.has(Feature.AVX2) else _RATE_XNOR_GENERIC
    macs = panels * lanes * product.groups * segments * length * 64
    return Packed(
        op=Op.XNOR,
        narrow=allow_narrow and _in_int16(product),
        wraps=False,
        pack=Op.PACK_BITS,
        panels=panels,
        panel_bytes=segments * length * 8 * lanes,
        weight=packed,
        start=pad_rows(product.bias + columns, panels, lanes).astype(np.int32),
        lengths=lengths,
        flushes=flushes,
        cost=macs / (_RATE_VPOPCNT if library.has(Feature.VPOPCNT) else rate),
        digits=64,
    )


def _lut_rows(lanes: int) -> IntArray:
    """Row held by each byte of a panel: even bytes the first half, odd bytes the second."""
    byte = np.arange(lanes)
    return byte // 2 + (byte % 2) * (lanes // 2)


def pack_lut(product: Product, library: Library, allow_narrow: bool) -> Packed | None:
    """At most 4 different weights and few-bit activations: table look-up."""
    if not allow_narrow or storage(product.source)[0] is not Kind.U8 or not _in_int16(product):
        return None
    radix = product.top_code + 1
    values = np.unique(product.weight)
    digits = 4 if values.size <= 2 and radix**4 <= 256 else 2
    if values.size > 4 or radix**digits > 256 or radix < 2:
        return None
    # A look-up may not cross convolution groups; in the border, missing columns have no code.
    whole = product.groups == 1 and not (any(product.padding) and storage(product.source)[1])
    if product.columns % digits and not whole:
        return None
    values = np.pad(values, (0, (1 << 4 // digits) - values.size), mode="edge")
    table, bias = _lut_table(values, digits, radix)
    if table.max() > 255:
        return None
    codes = np.searchsorted(np.unique(product.weight), product.weight)
    units = _segments(replace(product, weight=codes), digits, per_tap=True)
    nibbles = (units << (np.arange(digits) * (4 // digits))).sum(axis=-1)
    segments, length = nibbles.shape[2:4]
    lanes = library.lanes[Op.LUT]
    panels, packed = _panels(nibbles.reshape(product.groups, product.rows, -1), lanes)
    lengths, flushes = _even_pieces(segments, length, 255 // max(1, int(table.max())))
    start = _corrected(product) - bias * segments * length
    look_ups = panels * lanes * product.groups * segments * length
    rate = _RATE_LUT if library.has(Feature.AVX2) else _RATE_GENERIC / 4
    widening = 1 + 5 * sum(flushes) / (segments * length)
    return Packed(
        op=Op.LUT,
        narrow=True,
        wraps=True,
        pack=Op.PACK_INDEX,
        panels=panels,
        panel_bytes=segments * length * lanes,
        weight=packed[..., _lut_rows(lanes)].astype(np.uint8),
        start=_wrapped(pad_rows(start, panels, lanes)),
        lengths=lengths,
        flushes=flushes,
        cost=look_ups / rate * widening,
        table=table.astype(np.uint8),
        digits=digits,
        radix=radix,
    )


def _lut_table(values: IntArray, digits: int, radix: int) -> tuple[IntArray, int]:
    """Non-negative partial sums ``(radix ** digits, 16)`` and the bias that each look-up adds."""
    index = np.arange(radix**digits)[:, None]
    nibble = np.arange(16)[None, :]
    bits = 4 // digits
    total = np.zeros((radix**digits, 16), dtype=np.int64)
    for digit in range(digits):
        weight = values[(nibble >> (bits * digit)) & ((1 << bits) - 1)]
        total += weight * (index // radix**digit % radix)
    bias = max(0, -int(total.min()))
    return total + bias, bias


Packer = Callable[[Product, Library, bool], Packed | None]
PACKERS: dict[Op, Packer] = {
    Op.DOT8: pack_dot8,
    Op.DOT16: pack_dot16,
    Op.XNOR: pack_xnor,
    Op.LUT: pack_lut,
}


def choose_kernel(
    product: Product, library: Library, allow_narrow: bool, only: frozenset[Op] | None = None
) -> Packed | None:
    """The exact kernel of least estimated cost; None where only the int64 fallback is exact.

    Args:
        product: the layer.
        library: the kernels at hand.
        allow_narrow: what follows can take int16 accumulators.
        only: consider these kernels only (tests and benchmarks).
    """
    found = [
        packed
        for op, packer in PACKERS.items()
        if only is None or op in only
        if (packed := packer(product, library, allow_narrow)) is not None
    ]
    return min(found, key=lambda packed: packed.cost, default=None)
