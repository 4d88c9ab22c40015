# SPDX-License-Identifier: Apache-2.0
"""The parts of a packed model as bytes: codes, tables, scales, exponents, plain numbers.

A part is a bytes object; what it takes to read it back (format, shape) is in the file's header.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bitwright.base.errors import DataError, FormatError
from bitwright.formats import CodebookFormat, Format
from bitwright.formats.base import IntArray
from bitwright.formats.block import MIN_EXPONENT
from bitwright.formats.packing import MAX_BITS, pack, packed_size, unpack
from bitwright.formats.pytorch.fake_quantize import block_exponents
from bitwright.formats.rounding import FloatArray

#: How a scale is stored: an exponent in a byte, float32, or float64 where that is needed.
SCALE_KINDS = {"exponent": 1, "float32": 4, "float64": 8}


def code_bytes(levels: FloatArray, number_format: Format) -> bytes:
    """Codes of exact levels (any shape, float64), highest bit first.

    Formats of more than 16 bits take whole bytes, the highest first.
    """
    codes = number_format.patterns_of(levels)
    if number_format.bits <= MAX_BITS:
        return pack(codes, number_format.bits).tobytes()
    width = -(-number_format.bits // 8)
    wide = np.ascontiguousarray(codes.reshape(-1).astype(">i8")).view(np.uint8)
    return wide.reshape(-1, 8)[:, 8 - width :].tobytes()


def code_size(count: int, number_format: Format) -> int:
    """Bytes of ``count`` codes."""
    if number_format.bits <= MAX_BITS:
        return packed_size(count, number_format.bits)
    return count * -(-number_format.bits // 8)


def levels_of(body: bytes, number_format: Format, count: int, where: str) -> FloatArray:
    """What `code_bytes` wrote: (count,) float64.

    Raises:
        DataError: as many bytes are not there, or a code is none of this format.
    """
    if len(body) != code_size(count, number_format):
        raise DataError(
            f"{len(body)} bytes for {count} codes of {number_format.bits} bits", where=where
        )
    array = np.frombuffer(body, dtype=np.uint8)
    try:
        if number_format.bits <= MAX_BITS:
            codes = unpack(array, number_format.bits, count)
        else:
            width = -(-number_format.bits // 8)
            wide = np.zeros((count, 8), dtype=np.uint8)
            wide[:, 8 - width :] = array.reshape(count, width)
            codes = wide.view(">i8").reshape(count).astype(np.int64)
        levels = number_format.levels_of(codes)
    except FormatError as error:
        raise DataError(f"holds no {_short(number_format)} codes", where=where) from error
    if not np.isfinite(levels).all():
        raise DataError(f"holds {number_format} codes that are no numbers", where=where)
    return levels


def _short(number_format: Format) -> str:
    """A name without a table."""
    unfitted = getattr(number_format, "unfitted", number_format)
    return str(unfitted)


def table_bytes(codebook: CodebookFormat) -> bytes:
    """All ``size`` entries of a table; where k-means found fewer the last is repeated."""
    table = codebook.table or ()
    entries = np.array([float(level) for level in table], dtype=np.float64)
    padded = np.pad(entries, (0, codebook.size - len(entries)), mode="edge")
    return code_bytes(padded, codebook.centroid)


def table_of(body: bytes, codebook: CodebookFormat, where: str) -> CodebookFormat:
    """The codebook with the table that `table_bytes` wrote."""
    entries = levels_of(body, codebook.centroid, codebook.size, where)
    return CodebookFormat(
        codebook.size, codebook.centroid, tuple(sorted({int(entry) for entry in entries}))
    )


def scale_bytes(scale: FloatArray, power_of_two: bool) -> tuple[bytes, str]:
    """Scales in the fewest bytes that hold them exactly, and the kind of storage."""
    mantissa, exponent = np.frexp(scale)
    if power_of_two and bool((mantissa == 0.5).all() and (np.abs(exponent - 1) < 128).all()):
        return (exponent - 1).astype(np.int8).tobytes(), "exponent"
    narrow = scale.astype("<f4")
    if np.array_equal(narrow.astype(np.float64), scale):
        return narrow.tobytes(), "float32"
    return scale.astype("<f8").tobytes(), "float64"


def scales_of(body: bytes, kind: str, where: str) -> FloatArray:
    """What `scale_bytes` wrote, float64."""
    if kind not in SCALE_KINDS or len(body) % SCALE_KINDS[kind]:
        raise DataError(f"{len(body)} bytes of {kind} scales", where=where)
    if kind == "exponent":
        found = np.ldexp(1.0, np.frombuffer(body, dtype=np.int8).astype(np.int64))
    else:
        found = np.frombuffer(body, dtype="<f4" if kind == "float32" else "<f8")
    scales = np.asarray(found, dtype=np.float64)
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise DataError("a scale is not positive and finite", where=where)
    return scales


def split_blocks(
    levels: Tensor, unit: float, number_format: Format, where: str
) -> tuple[FloatArray, IntArray]:
    """Levels of a tensor with one unit -> levels of its elements, and the exponent of each value.

    Raises:
        DataError: they are no elements of blocks.
    """
    real = (levels.to(torch.float64).cpu() * unit).numpy()
    natural = block_exponents(torch.from_numpy(real), number_format).numpy().astype(np.int64)
    exponent, open_ = natural.copy(), np.ones(natural.shape, dtype=bool)
    # Not the natural exponent where the largest value has a mantissa that the top binade lacks, or
    # is two's complement's smallest number, a power of two that counts as a binade higher.
    for step in (0, 1, -1):
        elements = real / (np.ldexp(1.0, natural + step) * number_format.lsb)
        whole = elements == np.rint(elements)
        known = whole & number_format.contains(np.where(whole, elements, 0).astype(np.int64))
        for start in range(0, real.shape[1], number_format.length):
            part = slice(start, start + number_format.length)
            fits = open_[:, part] & known[:, part].all(axis=1, keepdims=True)
            exponent[:, part] = np.where(fits, natural[:, part] + step, exponent[:, part])
            open_[:, part] &= ~fits
    if open_.any():
        raise DataError(f"levels that no {number_format} holds", where=where)
    return real / (np.ldexp(1.0, exponent) * number_format.lsb), exponent


def exponent_bytes(exponent: IntArray, length: int) -> bytes:
    """One byte a block (E8M0): the exponents of every ``length``-th value along axis 1."""
    return (exponent[:, ::length] - MIN_EXPONENT).astype(np.uint8).tobytes()


def exponents_of(body: bytes, shape: tuple[int, ...], length: int, where: str) -> FloatArray:
    """What `exponent_bytes` wrote, one for every value of a weight of this shape, float64."""
    blocks = (shape[0], -(-shape[1] // length), *shape[2:])
    if len(body) != int(np.prod(blocks)):
        raise DataError(f"{len(body)} bytes of exponents for blocks of shape {blocks}", where=where)
    stored = np.frombuffer(body, dtype=np.uint8).reshape(blocks).astype(np.float64) + MIN_EXPONENT
    return np.repeat(stored, length, axis=1)[:, : shape[1]]
