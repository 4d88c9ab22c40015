# SPDX-License-Identifier: Apache-2.0
"""Every node of an ONNX file that stands in the way of its import, not only the first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bitwright.base.bounded import bounded_reader
from bitwright.base.errors import BitwrightError
from bitwright.interop.onnx.reader.budget import Work
from bitwright.interop.onnx.reader.build import Importer
from bitwright.interop.onnx.reader.importer import (
    HANDLERS,
    advice_on,
    input_of,
    layouts_of,
    needed_nodes,
    start,
    walk,
)
from bitwright.interop.onnx.reader.model import OnnxModel, OnnxNode, read_model


@dataclass(frozen=True)
class Verdict:
    """One node of the file.

    Attributes:
        became: what it becomes, or "".
        problem, advice: why it cannot be converted.
        behind: the first node with a problem that feeds it, which is why it was not looked at.
    """

    node: str
    op: str
    became: str = ""
    problem: str = ""
    advice: str = ""
    behind: str = ""


@bounded_reader
def verdicts(
    path: Path, *, input_type: str | None = None, input_layout: str | None = None
) -> list[Verdict]:
    """What becomes of every node that reaches an output; nodes behind a problem are not judged.

    Where no layout is given, the one with the fewest problems counts.

    Raises:
        DataError: the file is damaged or is no ONNX, or takes more memory or time than its size
            gives reason for.
        ModelError: its input is none that can be read.
    """
    model = read_model(path)
    work = Work.on(model.size)
    tries = [
        _walk_all(model, layout, input_type, work)
        for layout in layouts_of(input_of(model), input_layout)
    ]
    return min(tries, key=lambda found: sum(bool(v.problem or v.behind) for v in found))


def _walk_all(model: OnnxModel, layout: str, input_type: str | None, work: Work) -> list[Verdict]:
    low, _ = start(model, "inspected", layout, input_type, 1.0, work)
    unknown: dict[str, str] = {}  # tensor -> the node with a problem that it depends on
    found = []
    for node in needed_nodes(model):
        verdict = _judge(low, node, unknown)
        found.append(verdict)
        if verdict.problem or verdict.behind:
            unknown |= dict.fromkeys(node.outputs, verdict.behind or node.name)
    return found


def _judge(low: Importer, node: OnnxNode, unknown: dict[str, str]) -> Verdict:
    cause = next((unknown[i] for i in node.inputs if i in unknown), "")
    if cause and (node.op in HANDLERS or node.op == "Constant"):
        return Verdict(node.name, node.op, behind=cause)
    if cause:
        return Verdict(
            node.name, node.op, problem="operator has no integer form", advice=advice_on(node.op)
        )
    try:
        walk(low, node)
    except BitwrightError as error:
        return Verdict(node.name, node.op, problem=error.message, advice=error.hint or "")
    return Verdict(node.name, node.op, became=low.became[-1].became)
