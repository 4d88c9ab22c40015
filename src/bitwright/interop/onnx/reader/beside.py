# SPDX-License-Identifier: Apache-2.0
"""The numbers of a model that lie in files beside its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from bitwright.base.memory import check_room
from bitwright.interop.onnx.reader.model import Data, bytes_beside, inner_tensors, read_model

_CHUNK = 1 << 20


def digest_beside(path: Path) -> str:
    """Hash of the numbers that lie beside a model's file, each byte once; of what else these files
    hold, which may be without end, the model knows nothing. Empty where there are none.

    Raises:
        DataError, ModelError, ToolError: as `read_model`; more than there is memory.
    """
    model = read_model(path)
    stored = [*model.constants.values(), *inner_tensors(model.nodes)]
    pieces = [*_joined(tensor.data for tensor in stored if tensor.data is not None)]
    if not pieces:
        return ""
    size = sum(piece.length for piece in pieces)
    check_room(size, "the numbers beside it", str(path), "use a machine with more memory")
    found = hashlib.sha256()
    for file, offset, length in pieces:
        for begin in range(0, length, _CHUNK):
            part = Data(file, offset + begin, min(_CHUNK, length - begin))
            found.update(bytes_beside(part, str(path)))
    return found.hexdigest()


def _joined(pieces: Iterable[Data]) -> Iterator[Data]:
    """The same bytes in pieces that do not overlap, in order."""
    for file, those in groupby(sorted(pieces), lambda piece: piece.path):
        begin = end = 0
        for _, offset, length in those:
            if offset > end:
                yield from _piece(file, begin, end)
                begin = offset
            end = max(end, offset + length)
        yield from _piece(file, begin, end)


def _piece(file: Path, begin: int, end: int) -> Iterator[Data]:
    if end > begin:
        yield Data(file, begin, end - begin)
