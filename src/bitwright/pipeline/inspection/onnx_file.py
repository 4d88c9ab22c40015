# SPDX-License-Identifier: Apache-2.0
"""What becomes of every node of an ONNX or QONNX file, or all that stands in the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bitwright.base.bounded import bounded
from bitwright.base.errors import BitwrightError
from bitwright.pipeline.inspection.results import Inspection, NodeRow, Problem, becomes_by_layer


def inspect_onnx(path: Path, *, input_type: str | None = None) -> Inspection:
    """Judge every node, and where all can be converted, name operations, blocks, bits and shapes.

    Args:
        input_type: format of integers that the network's input is (``uint8`` pixels), if any.
    """
    from bitwright.interop.onnx.reader import load
    from bitwright.interop.onnx.reader.inspection import verdicts

    name, rows = str(path), tuple[NodeRow, ...]()
    try:
        found = verdicts(path, input_type=input_type)
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
        if bad := [v for v in found if v.problem]:
            own = [Problem(f"node {v.node} ({v.op})", v.problem, v.advice) for v in bad]
            return Inspection(name, rows, tuple(own))
        imported = load(path, input_type=input_type)
        made, problems = bounded(lambda: becomes_by_layer(imported.graph), path, made=True)
    except BitwrightError as error:
        return Inspection(name, rows, (Problem.of(error, name),))
    full = tuple(replace(row, **made.get(row.node, {})) for row in rows)
    return Inspection(name, full, problems, imported.notes)
