# SPDX-License-Identifier: Apache-2.0
"""``levels.npz``: levels of real inputs and what the integer graph gives for them.

The step `lower` of a run writes it, and a design folder has one where there is real data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.arrays import read_npz
from bitwright.base.errors import DataError, GraphError, MismatchError
from bitwright.ir import Graph, IntArray
from bitwright.ir.levels import check_levels

LEVELS = "levels.npz"
INPUTS = "inputs"
LABEL = "label"  # the edge, if there is one; as `quantize` calls it, which is not loaded for it
#: What an edge is called in the file, if it has another name there: one that numpy or the file
#: needs for something else gets a sign that no edge's name has.
_KEPT = {LABEL: "labels"} | {taken: f"{taken}:" for taken in ("labels", "file", "allow_pickle")}


def require_defined(
    graph: Graph, inputs: Mapping[str, IntArray], outputs: Mapping[str, IntArray]
) -> None:
    """The interpreter is the definition; the executor, which gave ``outputs``, only serves it.

    Args:
        inputs: the first frames of each input: so many are compared.

    Raises:
        MismatchError: the two disagree: a bug.
    """
    defined = graph.run(dict(inputs))
    for edge, found in outputs.items():
        if not np.array_equal(defined[edge], found[: len(defined[edge])]):
            raise MismatchError("interpreter and executor disagree", where=f"edge {edge}")


def save_levels(folder: Path, inputs: IntArray, outputs: Mapping[str, IntArray]) -> None:
    """Write levels of the inputs (N, H, W, C) or (N, F), and of every output of the graph.

    Raises:
        GraphError: an output is called as the inputs are in the file.
    """
    if INPUTS in outputs:
        raise GraphError(
            "an output is called as the inputs are in " + LEVELS,
            where=INPUTS,
            hint="give it another name",
        )
    kept: dict[str, Any] = {_KEPT.get(edge, edge): levels for edge, levels in outputs.items()}
    kept[INPUTS] = inputs
    np.savez_compressed(folder / LEVELS, **kept)


def read_levels(folder: Path, hint: str = "run the step lower again") -> dict[str, IntArray]:
    """``inputs`` (N, H, W, C) and every output of the graph, for every test image: ``scores``
    (N, K) or (N, H, W, C), and, where a task ranks them, ``label`` (N, 1).

    Raises:
        DataError: the file is broken; ``hint`` says what to do.
    """
    path = folder / LEVELS
    try:
        found = read_npz(path)
    except DataError as error:
        raise DataError(error.message, where=error.where, hint=hint) from error
    counts = {array.shape[:1] for array in found.values()}
    if (
        INPUTS not in found or len(found) == 1 or len(counts) != 1 or (0,) in counts
        or any(array.dtype != np.int64 for array in found.values())
    ):  # fmt: skip
        raise DataError("does not hold what the step wrote", where=str(path), hint=hint)
    edges = {kept: edge for edge, kept in _KEPT.items()}
    named = {edges.get(name, name): array for name, array in found.items()}
    if len(named) != len(found):
        raise DataError("names an output twice", where=str(path), hint=hint)
    return named


def read_inputs(folder: Path, graph: Graph, **more: str) -> dict[str, IntArray]:
    """Levels of real inputs by the edge of the graph that takes them.

    Raises:
        DataError: the file is broken, as `read_levels`.
        GraphError: they are no levels of that edge, or the graph has several inputs.
    """
    edge = graph.only_input
    levels = read_levels(folder, **more)[INPUTS]
    return {edge: check_levels(edge, graph.types[edge], levels)}
