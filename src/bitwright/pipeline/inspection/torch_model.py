# SPDX-License-Identifier: Apache-2.0
"""What becomes of every node of a torch model, or all that stands in the way, with its line."""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from torch import nn

from bitwright.base.errors import BitwrightError
from bitwright.ir import Graph
from bitwright.pipeline.inspection.graph import Become, becomes_by_layer, hardware_of
from bitwright.pipeline.inspection.results import Inspection, NodeRow, Problem
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
    example = torch.zeros((1, *sample_shape))
    try:
        plan = traced_plan(model, example)
    except BitwrightError as error:
        return Inspection(name, (), (_problem(error),))
    rows = {node: _row(match) for node, match in plan.matches.items()}
    problems = _match_problems(plan)
    if not problems:
        problems = _policy_problems(model, policy, example)
    if problems:
        return Inspection(name, tuple(rows.values()), tuple(problems))
    graph, problems = _lowered(model, policy, sample_shape)
    if graph is None:
        return Inspection(name, tuple(rows.values()), tuple(problems))
    hardware, problems = hardware_of(graph)
    made = becomes_by_layer(graph, hardware)
    full = tuple(_with(row, plan.matches[node], made, graph) for node, row in rows.items())
    return Inspection(name, (*full, *_inserted(full, made, graph)), tuple(problems))


def _problem(error: BitwrightError) -> Problem:
    return Problem(error.where or "", error.message, error.hint or "")


def _line(match: OpMatch) -> str:
    """``file:line`` of the user's code."""
    found = user_line(match.node)
    return "" if found is None else ":".join(found.split(":")[:2])


def _row(match: OpMatch) -> NodeRow:
    becomes = (
        "" if match.kind is None else _WORDS.get(match.kind, match.kind.value.replace("_", " "))
    )
    return NodeRow(
        node=match.path,
        type=match.type,
        line=_line(match),
        becomes=becomes,
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
            return [_problem(error)]
        return [Problem("", text.strip(), error.hint or "") for text in listed]
    operands = {**plan.weights, **plan.activations}
    return [
        Problem(plan.matches[node].place, f"its {o.role.value} is kept float", "give it a format")
        for node, o in operands.items()
        if o.spec is None
    ]


def _lowered(
    model: nn.Module, policy: Policy, sample_shape: tuple[int, ...]
) -> tuple[Graph | None, list[Problem]]:
    """The integer graph with scales from random images, or why there is none."""
    from bitwright.lower import optimise
    from bitwright.quantize import integerize

    images = torch.rand((_IMAGES, *sample_shape), generator=torch.Generator().manual_seed(0))
    try:
        converted = apply(model.eval(), policy, "calibrate", sample_shape=sample_shape).eval()
        with torch.no_grad():
            converted(images)
        trained = apply(converted, policy, "train").eval()
        return optimise(integerize(trained, policy, sample_shape).graph), []
    except BitwrightError as error:
        return None, [_problem(error)]


def _found(match: OpMatch, made: dict[str, Become]) -> Become | None:
    """What a match has become."""
    return made.get(_name(match.path, made))


def _name(path: str, made: dict[str, Become]) -> str:
    """What the converter calls a layer, of the names that it may have."""
    return next((name for name in _names(path) if name in made), path)


def _names(path: str) -> tuple[str, ...]:
    """What the converter calls a layer: joins are layers of their own, quantizers inserted."""
    return path, f"{path}_layer", f"{path}_quantizer", f"{path.replace('.', '_')}_quantizer"


def _with(row: NodeRow, match: OpMatch, made: dict[str, Become], graph: Graph) -> NodeRow:
    """The row with operations, blocks, bits and shape."""
    if match.kind is Kind.INPUT:
        kind = graph.types[graph.inputs[0]]
        words = f"input levels, {kind.format.name}" if kind.format is not None else row.becomes
        return replace(row, becomes=words, bits=kind.wire_bits, shape=kind.shape)
    become = _found(match, made)
    if become is None:
        words = row.becomes
        if match.kind is Kind.ACTIVATION:
            words = "clipped by the thresholds behind"
        elif match.kind not in _WORDS and match.kind not in LAYERS:
            words = f"{words}, moved or merged by the passes"
        return replace(row, becomes=words)
    return replace(
        row,
        becomes=" + ".join(become.operations),
        operations=become.operations,
        blocks=become.blocks,
        bits=become.bits(graph),
        shape=become.shape(graph),
    )


def _inserted(rows: tuple[NodeRow, ...], made: dict[str, Become], graph: Graph) -> list[NodeRow]:
    """Integer nodes that no node of the user stands for: quantizers in front of joins, labels."""
    known = {_name(row.node, made) for row in rows}
    return [
        NodeRow(
            node=layer,
            type="inserted",
            becomes=" + ".join(become.operations),
            operations=become.operations,
            blocks=become.blocks,
            bits=become.bits(graph),
            shape=become.shape(graph),
        )
        for layer, become in made.items()
        if layer not in known
    ]
