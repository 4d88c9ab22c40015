# SPDX-License-Identifier: Apache-2.0
"""What becomes of every node of an ONNX or QONNX file, or all that stands in the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bitwright.base.errors import BitwrightError
from bitwright.ir import Graph
from bitwright.pipeline.inspection.graph import Become, becomes_by_layer, hardware_of
from bitwright.pipeline.inspection.results import Inspection, NodeRow, Problem


def inspect_onnx(path: Path, *, input_type: str | None = None) -> Inspection:
    """Judge every node, and where all can be converted, name operations, blocks, bits and shapes.

    Args:
        input_type: format of integers that the network's input is (``uint8`` pixels), if any.
    """
    from bitwright.interop.onnx.reader import load
    from bitwright.interop.onnx.reader.inspection import verdicts

    try:
        found = verdicts(path, input_type=input_type)
    except BitwrightError as error:
        problem = Problem(error.where or str(path), error.message, error.hint or "")
        return Inspection(str(path), (), (problem,))
    rows = tuple(
        NodeRow(
            v.node,
            v.op,
            becomes=v.became or (f"not judged: behind {v.behind}" if v.behind else ""),
            problem=v.problem,
            advice=v.advice,
        )
        for v in found
    )
    problems = [Problem(f"node {v.node} ({v.op})", v.problem, v.advice) for v in found if v.problem]
    if problems:
        return Inspection(str(path), rows, tuple(problems))
    try:
        imported = load(path, input_type=input_type)
    except BitwrightError as error:
        problem = Problem(error.where or str(path), error.message, error.hint or "")
        return Inspection(str(path), rows, (problem,))
    hardware, problems = hardware_of(imported.graph)
    made = becomes_by_layer(imported.graph, hardware)
    full = tuple(_with(row, made, imported.graph) for row in rows)
    return Inspection(str(path), full, tuple(problems), imported.notes)


def _with(row: NodeRow, made: dict[str, Become], graph: Graph) -> NodeRow:
    become = made.get(row.node)
    if become is None:
        return row
    return replace(
        row,
        becomes=" + ".join(become.operations),
        operations=become.operations,
        blocks=become.blocks,
        bits=become.bits(graph),
        shape=become.shape(graph),
    )
