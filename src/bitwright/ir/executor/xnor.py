# SPDX-License-Identifier: Apache-2.0
"""Products of two matrices of +1 and -1: the fastest way of this machine, found by measuring it.

``popcount`` is the register block of the executor (exclusive or, count the bits), ``amx`` the unit
for tiles of 8-bit integers of some processors, ``float32`` numpy's product, which is exact up to
2^24 columns: the reference. Each engine is compared with it on the shape that it is chosen for.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.base.native import INT, INT64, POINTER, Program
from bitwright.ir.executor.alignment import aligned, empty_aligned

_log = logging.getLogger(__name__)

XNOR = Program(
    name="xnor",
    package="bitwright.ir.executor",
    sources=("xnor_product.c", "amx_product.c", "pool.c"),
    headers=("plan.h", "xnor.h"),
    functions={
        "bw_xnor_product": (None, POINTER, INT64, POINTER, INT64, INT64, INT64, POINTER, INT),
        "bw_pack_bytes": (None, POINTER, INT64, INT64, POINTER),
        "bw_pack_floats": (None, POINTER, INT64, INT64, POINTER),
        "bw_amx_product": (None, POINTER, INT64, POINTER, INT64, INT64, POINTER, INT),
        "bw_amx_bytes": (None, POINTER, INT64, INT64, POINTER),
        "bw_amx_floats": (None, POINTER, INT64, INT64, POINTER),
        "bw_xnor_limit": (INT64, INT64, POINTER),
        "bw_xnor_lanes": (INT64,),
        "bw_xnor_most_words": (INT64,),
        "bw_amx_ready": (INT64,),
    },
    hint="numpy is used instead; `bitwright doctor` says how to install a C compiler",
)
POPCOUNT, AMX, FLOAT32 = "popcount", "amx", "float32"
_WORD, _TILE_ROWS = 64, 32
_MOST_COLUMNS = 1 << 24  # sums of so many are exact in float32
_RUNS = 3
#: (rows, outputs, columns, threads, engines compared) -> the engine: measured once a process.
_CHOSEN: dict[tuple[int, int, int, int, tuple[str, ...]], str] = {}

Levels = NDArray[Any]
Words = NDArray[np.uint64]
Sums = NDArray[np.int32]


def pack_signs(levels: Levels, library: ctypes.CDLL | None = None) -> Words:
    """One bit for each level: 1 where it is >= 0.

    Args:
        levels: (rows, columns), of int8 or float32 without a copy, of other types with one.

    Returns:
        (rows, ceil(columns / 64)); bit j of word k is column 64 k + j, unused bits are 0.
    """
    levels = _levels(levels)
    rows, columns = levels.shape
    library = library if library is not None else XNOR.cdll
    words = np.empty((rows, -(-columns // _WORD)), dtype=np.uint64)
    if library is None:
        padded = np.zeros((rows, words.shape[1] * _WORD), dtype=bool)
        padded[:, :columns] = levels >= 0
        octets = np.packbits(padded, axis=1, bitorder="little")
        return np.ascontiguousarray(octets).view("<u8").astype(np.uint64)
    pack = library.bw_pack_bytes if levels.dtype == np.int8 else library.bw_pack_floats
    pack(levels.ctypes.data, rows, columns, words.ctypes.data)
    return words


def unpack_signs(words: NDArray[np.unsignedinteger[Any]], columns: int) -> NDArray[np.int8]:
    """The levels +1 and -1 that `pack_signs` packed, or that lie like that in shorter words.

    Raises:
        DataError: the words of a row are not as many as the columns need.
    """
    size = words.dtype.itemsize
    wanted = -(-columns // (8 * size))
    if words.ndim != 2 or words.shape[1] != wanted:
        raise DataError(
            f"{columns} columns take rows of {wanted} words, got shape {words.shape}",
            where="packed matrix",
            hint="the file is damaged, or its sizes are those of another network",
        )
    octets = np.ascontiguousarray(words.astype(f"<u{size}")).view(np.uint8)
    bits = np.unpackbits(octets, axis=1, bitorder="little", count=columns)
    return (2 * bits.astype(np.int8) - 1).astype(np.int8)


def _levels(levels: Levels) -> Levels:
    if levels.ndim != 2 or not levels.size:
        raise DataError(f"expected a matrix, got shape {levels.shape}", where="levels")
    if levels.dtype not in (np.int8, np.float32):
        levels = np.where(levels >= 0, 1, -1).astype(np.int8)
    return np.ascontiguousarray(levels)


class BinaryMatrix:
    """Weights of +1 and -1 that stay, to be multiplied by activations of +1 and -1.

    Args:
        weight: (outputs, columns); only signs count, 0 is +1.
        library: of `XNOR`, by default this machine's; see `Program.build`.

    Raises:
        DataError: no matrix, or more than 2^24 columns.
    """

    def __init__(self, weight: Levels, library: ctypes.CDLL | None = None) -> None:
        weight = _levels(weight)
        self.outputs, self.columns = weight.shape
        if self.columns > _MOST_COLUMNS:
            raise DataError(
                f"expected at most {_MOST_COLUMNS} columns, got {self.columns}", where="weight"
            )
        self._library = library if library is not None else XNOR.cdll
        self._words = pack_signs(weight, self._library)
        self._forms: dict[str, Levels] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights: one bit a weight, rows of whole words."""
        return int(self._words.nbytes)

    def engines(self) -> tuple[str, ...]:
        """What can multiply here, the reference last."""
        found = []
        if self._library is not None:
            if self._words.shape[1] <= int(self._library.bw_xnor_most_words()):
                found.append(POPCOUNT)
            if self._library.bw_amx_ready():
                found.append(AMX)
        return (*found, FLOAT32)

    def product(
        self,
        activations: Levels,
        *,
        engine: str | None = None,
        threads: int = 1,
        out: Sums | None = None,
    ) -> Sums:
        """``activations @ weight.T``, exactly.

        Args:
            activations: (rows, columns), of which the signs count; int8 and float32 are fastest.
            engine: one of `engines`; by default the one that was fastest on this shape, measured
                when it is met for the first time.
            threads: at most so many.
            out: where the sums go, (rows, outputs) of int32; large results are faster in memory
                that has been used before, and that starts at a multiple of 64 bytes, as what this
                gives without ``out`` does.

        Raises:
            DataError: another number of columns, an engine that is not there, or an ``out`` of
                another shape or type.
        """
        activations = _levels(activations)
        if activations.shape[1] != self.columns:
            raise DataError(
                f"expected {self.columns} columns, got {activations.shape[1]}", where="activations"
            )
        if engine is None:
            engine = self._chosen(activations, threads)
        if engine not in self.engines():
            known = ", ".join(self.engines())
            raise DataError(f"no engine {engine!r} here", where="engine", hint=f"one of {known}")
        return self._run(engine)(activations, threads, out)

    def _target(self, rows: int, out: Sums | None) -> Sums:
        """Where sums go."""
        if out is None:
            return empty_aligned((rows, self.outputs), np.int32)
        right = out.shape == (rows, self.outputs) and out.dtype == np.int32
        if not right or not out.flags.c_contiguous or not out.flags.writeable:
            raise DataError(
                f"expected ({rows}, {self.outputs}) of int32 in one piece, got {out.shape} of "
                f"{out.dtype}",
                where="out",
            )
        return out

    def _run(self, engine: str) -> Callable[[Levels, int, Sums | None], Sums]:
        return {POPCOUNT: self._popcount, AMX: self._amx, FLOAT32: self._float32}[engine]

    def _popcount(self, activations: Levels, threads: int, out: Sums | None = None) -> Sums:
        words = pack_signs(activations, self._library)
        return self.packed_product(words, threads=threads, out=out)

    def packed_product(self, words: Words, *, threads: int = 1, out: Sums | None = None) -> Sums:
        """The same of activations that `pack_signs` has packed; needs the C library.

        Raises:
            DataError: the words are not those of a matrix with as many columns.
        """
        assert self._library is not None
        if words.ndim != 2 or words.shape[1] != self._words.shape[1] or words.dtype != np.uint64:
            raise DataError(
                f"expected rows of {self._words.shape[1]} 64-bit words, got {words.shape} of "
                f"{words.dtype}",
                where="packed activations",
            )
        words = np.ascontiguousarray(words)
        out = self._target(len(words), out)
        self._library.bw_xnor_product(
            words.ctypes.data, len(words), self._form(POPCOUNT).ctypes.data, self.outputs,
            words.shape[1], self.columns, out.ctypes.data, threads,
        )  # fmt: skip
        return out

    def _amx(self, activations: Levels, threads: int, out: Sums | None = None) -> Sums:
        library, rows = self._library, len(activations)
        assert library is not None
        depth = -(-self.columns // _WORD)
        size = -(-rows // _TILE_ROWS) * _TILE_ROWS * depth * _WORD
        tiles = empty_aligned((size,), np.int8)
        lay = library.bw_amx_bytes if activations.dtype == np.int8 else library.bw_amx_floats
        lay(activations.ctypes.data, rows, self.columns, tiles.ctypes.data)
        out = self._target(rows, out)
        library.bw_amx_product(
            tiles.ctypes.data, rows, self._form(AMX).ctypes.data, self.outputs, depth,
            out.ctypes.data, threads,
        )  # fmt: skip
        return out

    def _float32(self, activations: Levels, threads: int, out: Sums | None = None) -> Sums:
        del threads  # numpy's own
        signs = np.where(activations >= 0, np.float32(1), np.float32(-1))
        target = self._target(len(activations), out)
        target[:] = signs @ self._form(FLOAT32).T
        return target

    def _form(self, engine: str) -> Levels:
        """The weights in the order of an engine, made when it is used for the first time."""
        if engine not in self._forms:
            make = {POPCOUNT: self._panels, AMX: self._tiles, FLOAT32: self._floats}[engine]
            self._forms[engine] = make()
        return self._forms[engine]

    def _panels(self) -> Levels:
        """[panel][word][lane]; see ``xnor_product.c``."""
        assert self._library is not None
        lanes = int(self._library.bw_xnor_lanes())
        short = -self.outputs % lanes
        padded = np.pad(self._words, ((0, short), (0, 0)))
        split = padded.reshape(-1, lanes, self._words.shape[1])
        return aligned(split.transpose(0, 2, 1))

    def _tiles(self) -> Levels:
        """[pair of tiles][64 columns][tile][4 columns][row][column]; see ``amx_product.c``."""
        signs = unpack_signs(self._words, self.columns)
        depth = self._words.shape[1]
        short = (-self.outputs % _TILE_ROWS, depth * _WORD - self.columns)
        padded = np.pad(signs, ((0, short[0]), (0, short[1])))
        split = padded.reshape(-1, 2, 16, depth, 16, 4)
        return aligned(split.transpose(0, 3, 1, 4, 2, 5))

    def _floats(self) -> Levels:
        return unpack_signs(self._words, self.columns).astype(np.float32)

    def _chosen(self, activations: Levels, threads: int) -> str:
        able = self.engines()
        if len(able) == 1:
            return able[0]
        shape = (len(activations), self.outputs, self.columns, threads, able)
        if shape not in _CHOSEN:
            _CHOSEN[shape] = self._fastest(activations, threads, able)
        return _CHOSEN[shape]

    def _fastest(self, activations: Levels, threads: int, able: tuple[str, ...]) -> str:
        """The engine of the shortest run among those whose result is the reference's."""
        expected = self._float32(activations, threads)
        best, chosen = float("inf"), FLOAT32
        for engine in able:
            run = self._run(engine)
            if not np.array_equal(run(activations, threads, None), expected):
                _log.warning("engine %s gave wrong sums and is not used", engine)
                continue
            for _ in range(_RUNS):
                start = time.perf_counter()
                run(activations, threads, None)
                spent = time.perf_counter() - start
                if spent < best:
                    best, chosen = spent, engine
        return chosen
