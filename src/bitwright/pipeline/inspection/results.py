# SPDX-License-Identifier: Apache-2.0
"""What an inspection has found: plain values, for people and as JSON."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from bitwright.base.errors import BitwrightError
from bitwright.hw.template import template
from bitwright.ir import Graph, Node


@dataclass(frozen=True)
class NodeRow:
    """One node of the user's model, in execution order.

    Attributes:
        node: the layer's path, or the node's name for a function or a node of a file.
        type: the layer's, function's or operator's type.
        line: ``file:line`` of the user's model that made it, or "".
        becomes: in words: integer operations, or what it is taken up by.
        operations: names of integer operations.
        blocks: hardware blocks, with what is in front of them (padding, windows).
        bits: of the result on the wire; None where nothing of its own is left.
        shape: of the result, channels last.
        problem, advice: why it cannot be converted, and what to change; "" where it can.
    """

    node: str
    type: str
    line: str = ""
    becomes: str = ""
    operations: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    bits: int | None = None
    shape: tuple[int, ...] | None = None
    problem: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Problem:
    """What stands in the way: where, why, and what to change."""

    where: str
    problem: str
    advice: str = ""

    @classmethod
    def of(cls, error: BitwrightError, where: str = "") -> Problem:
        """An error as a problem; ``where`` if it names no place."""
        return cls(error.where or where, error.message, error.hint or "")

    def __str__(self) -> str:
        text = f"{self.where}: {self.problem}" if self.where else self.problem
        return f"{text}; {self.advice}" if self.advice else text


@dataclass(frozen=True)
class Inspection:
    """A model and what becomes of each of its nodes.

    Attributes:
        model: what was inspected.
        rows: every node.
        problems: everything that stands in the way, those of the rows included.
        notes: what is left to the host, and other things to know.
    """

    model: str
    rows: tuple[NodeRow, ...]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_convertible(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "convertible": self.is_convertible,
            "nodes": [asdict(row) for row in self.rows],
            "problems": [asdict(problem) for problem in self.problems],
            "notes": list(self.notes),
        }


def becomes_by_layer(graph: Graph) -> tuple[dict[str, dict[str, Any]], tuple[Problem, ...]]:
    """Path of each layer of the user -> the fields of its `NodeRow` that say what it has become in
    the integer graph and in hardware; and what has no hardware.
    """
    nodes: dict[str, list[Node]] = defaultdict(list)
    blocks: dict[str, list[str]] = defaultdict(list)
    problems: tuple[Problem, ...] = ()
    for node in graph:
        nodes[node.source or node.name].append(node)
    try:
        for node in template(graph):
            blocks[node.source or node.name].append(node.op)
    except BitwrightError as error:
        problems = (Problem.of(error, graph.name),)
    made = {}
    for layer, found in nodes.items():
        operations, result = tuple(node.op for node in found), graph.types[found[-1].output]
        made[layer] = {
            "becomes": " + ".join(operations),
            "operations": operations,
            "blocks": tuple(blocks[layer]),
            "bits": result.wire_bits,
            "shape": result.shape,
        }
    return made, problems
