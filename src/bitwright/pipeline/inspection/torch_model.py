# SPDX-License-Identifier: Apache-2.0
"""What becomes of every node of a torch model, or all that stands in the way, with its line."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bitwright.base.errors import BitwrightError
from bitwright.ir import Graph
from bitwright.pipeline.inspection.results import Inspection, NodeRow, Problem, becomes_by_layer
from bitwright.quantize import apply
from bitwright.quantize.decisions import Plan
from bitwright.quantize.op_match import LAYERS, Kind, OpMatch
from bitwright.quantize.plan import make_plan, match_problems, traced_plan
from bitwright.quantize.policy import Policy
from bitwright.quantize.trace import user_line

_LISTED = re.compile(r"^  - ", re.MULTILINE)
_WORDS = {
    Kind.OUTPUT: "scores as integers, and their scale",
    Kind.BATCH_NORM: "folded into the activation behind",
    Kind.FLATTEN: "a renaming, free",
    Kind.DROPOUT: "nothing",
    Kind.IDENTITY: "nothing",
    Kind.COPY: "a fork",
    Kind.SIZE: "a constant",
    Kind.PAD: "the border of the layer behind",
    Kind.INPUT: "input levels",
}
_IMAGES = 4


def inspect_torch(
    model: nn.Module, policy: Policy, sample_shape: tuple[int, ...], name: str
) -> Inspection:
    """Trace, check, and take the untrained model through to hardware blocks; nothing is kept.

    Args:
        sample_shape: (C, H, W).
        name: what the model is called.
    """
    example, rows = torch.zeros((1, *sample_shape)), dict[Any, NodeRow]()
    try:
        plan = traced_plan(model, example)
        rows = {node: _row(match) for node, match in plan.matches.items()}
        if problems := _match_problems(plan) or _policy_problems(model, policy, example):
            return Inspection(name, tuple(rows.values()), tuple(problems))
        graph = _lowered(model, policy, sample_shape)
    except BitwrightError as error:
        return Inspection(name, tuple(rows.values()), (Problem.of(error),))
    made, unmade = becomes_by_layer(graph)
    full = [_with(row, plan.matches[node], made, graph) for node, row in rows.items()]
    # Integer nodes that no node of the user stands for: quantizers in front of joins, labels.
    known = {_name(row.node, made) for row in full}
    full += [
        NodeRow(layer, "inserted", **fields) for layer, fields in made.items() if layer not in known
    ]
    return Inspection(name, tuple(full), unmade)


def _row(match: OpMatch) -> NodeRow:
    line = user_line(match.node)
    kind = match.kind
    return NodeRow(
        node=match.path,
        type=match.type,
        line="" if line is None else ":".join(line.split(":")[:2]),
        becomes="" if kind is None else _WORDS.get(kind, kind.value.replace("_", " ")),
        problem=match.problem,
        advice=match.advice,
    )


def _match_problems(plan: Plan) -> list[Problem]:
    """Nodes that have no few-bit form, then what is wrong with the structure."""
    refused = [match for match in plan.matches.values() if match.kind is None]
    own = [Problem(match.place, match.problem, match.advice) for match in refused]
    return own + [Problem("", text) for text in match_problems(plan)[len(refused) :]]


def _policy_problems(model: nn.Module, policy: Policy, example: torch.Tensor) -> list[Problem]:
    try:
        plan = make_plan(model, policy, example)
    except BitwrightError as error:
        listed = _LISTED.split(error.message)[1:]
        if not listed:
            raise
        return [Problem("", text.strip(), error.hint or "") for text in listed]
    operands = {**plan.weights, **plan.activations}
    return [
        Problem(plan.matches[node].place, f"its {o.role.value} is kept float", "give it a format")
        for node, o in operands.items()
        if o.spec is None
    ]


def _lowered(model: nn.Module, policy: Policy, sample_shape: tuple[int, ...]) -> Graph:
    """The integer graph with scales from random images."""
    from bitwright.lower import optimise
    from bitwright.quantize import integerize

    images = torch.rand((_IMAGES, *sample_shape), generator=torch.Generator().manual_seed(0))
    converted = apply(model.eval(), policy, "calibrate", sample_shape=sample_shape).eval()
    with torch.no_grad():
        converted(images)
    trained = apply(converted, policy, "train").eval()
    graph: Graph = optimise(integerize(trained, policy, sample_shape).graph)
    return graph


def _name(path: str, made: dict[str, Any]) -> str:
    """What the converter calls a layer: joins are layers of their own, quantizers inserted."""
    names = (path, f"{path}_layer", f"{path}_quantizer", f"{path.replace('.', '_')}_quantizer")
    return next((name for name in names if name in made), path)


def _with(row: NodeRow, match: OpMatch, made: dict[str, dict[str, Any]], graph: Graph) -> NodeRow:
    """The row with operations, blocks, bits and shape."""
    if match.kind is Kind.INPUT:
        kind = graph.types[graph.inputs[0]]
        words = f"input levels, {kind.format.name}" if kind.format is not None else row.becomes
        return replace(row, becomes=words, bits=kind.wire_bits, shape=kind.shape)
    found = made.get(_name(match.path, made))
    if found is not None:
        return replace(row, **found)
    if match.kind is Kind.ACTIVATION:
        return replace(row, becomes="clipped by the thresholds behind")
    if match.kind not in _WORDS and match.kind not in LAYERS:
        return replace(row, becomes=f"{row.becomes}, moved or merged by the passes")
    return row
