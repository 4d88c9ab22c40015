# SPDX-License-Identifier: Apache-2.0
"""Integer graph -> QONNX file that QONNX's own executor runs with equal integers.

Levels travel as float32 (QONNX's carrier), exact below 2^24: a graph whose sums could leave that is
refused. Images are NCHW, as QONNX, FINN and ONNX expect; ``flatten`` transposes back to NHWC, so
that the weights of dense layers stay as they are. Thresholds become ``MultiThreshold`` with
``out_scale`` = step and ``out_bias`` = base; a flipped channel is multiplied by -1 before that. A
requant becomes float64 arithmetic, exact below 2^53. Every tensor carries its QONNX data type. The
form of each operation is in `bitwright.interop.onnx.writer.nodes`.

Before the file is put in its place it is read back, executed by QONNX and compared with
`Graph.run` on every edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.errors import MismatchError, ToolError
from bitwright.base.files import atomic_write
from bitwright.base.memory import room_for
from bitwright.interop.onnx.writer.nodes import simple, threshold
from bitwright.interop.onnx.writer.writer import (
    QONNX_DOMAIN,
    Writer,
    check_exact,
    from_nchw,
    need_onnx,
    require_equal,
    to_nchw,
)
from bitwright.ir import Graph, IntArray, random_feeds
from bitwright.ir.footprint import AT_A_TIME, frames_within, held_bytes
from bitwright.lower.ranges import analyse

#: Nodes that QONNX runs as one model; its time grows with the square of them.
_PIECE = 64


@dataclass(frozen=True)
class ExportReport:
    """What was compared before the file was accepted."""

    path: Path
    frames: int
    edges: tuple[str, ...]
    values: int


def qonnx_model(graph: Graph, *, batch: int = 1) -> bytes:
    """The graph as a serialised QONNX model with a fixed batch size.

    Raises:
        GraphError: a number could leave the exact range of QONNX's floats.
        ToolError: ``onnx`` or ``qonnx`` is not installed.
    """
    need_onnx("onnx", "qonnx.core.onnx_exec")
    check_exact(graph)
    from qonnx.core.datatype import DataType
    from qonnx.core.modelwrapper import ModelWrapper

    ranges = analyse(graph)
    out = Writer(graph, batch)
    for edge in graph.inputs:
        out.edge(edge)
    for node in graph:
        out.edge(node.output)
        if node.op == "threshold":
            threshold(out, node, ranges[node.inputs[0]])
        else:
            simple(out, node)
    wrapped = ModelWrapper(out.model(graph.inputs, graph.outputs, [QONNX_DOMAIN]))
    for name, datatype in out.datatypes.items():
        wrapped.set_tensor_datatype(name, DataType[datatype])
    return bytes(wrapped.model.SerializeToString())


def run_qonnx(
    model: bytes, graph: Graph, feeds: Mapping[str, IntArray], *, edges: bool = False
) -> dict[str, IntArray]:
    """Execute a model by QONNX's own executor, in the shapes of `Graph.run`.

    Args:
        model: from `qonnx_model` or read from a file.
        graph: gives the names and shapes of the edges.
        feeds: levels ``(N, *shape)``; N must be a multiple of the model's batch size.
        edges: return every edge of the graph, not only the outputs.

    Raises:
        ToolError: the packages are missing, or QONNX's executor cannot run the model.
        MismatchError: a value that should be an integer is not one.
    """
    need_onnx("qonnx.core.onnx_exec")
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx

    wrapped = ModelWrapper(model)
    batch = wrapped.get_tensor_shape(graph.inputs[0])[0]
    pieces = [(ModelWrapper(piece), made) for piece, made in _pieces(wrapped.model)]
    names = [*graph.types] if edges else [*graph.outputs]
    parts: dict[str, list[IntArray]] = {name: [] for name in names}
    frames = len(feeds[graph.inputs[0]])
    for start in range(0, frames, batch):
        values = {
            edge: to_nchw(feeds[edge][start : start + batch]).astype(np.float32)
            for edge in graph.inputs
        }
        try:
            for piece, made in pieces:
                inputs = {tensor.name: values[tensor.name] for tensor in piece.graph.input}
                found = execute_onnx(piece, inputs, return_full_exec_context=True)
                values |= {name: found[name] for name in made}
        except Exception as error:  # ONNX Runtime's own, which have no base but this
            reason = str(error).strip().partition("\n")[0]
            raise ToolError(f"QONNX cannot run it: {reason}", where=graph.name) from error
        for name in names:
            levels = from_nchw(values[name])
            whole = levels.astype(np.int64)
            if not np.array_equal(whole, levels):
                raise MismatchError("QONNX gives values that are no integers", where=name)
            parts[name].append(whole)
    return {name: np.concatenate(found) for name, found in parts.items()}


def _pieces(model: Any) -> Iterator[tuple[Any, list[str]]]:
    """A model as several, one behind the other, and what each of them makes: QONNX looks through
    all nodes and tensors of a model for each of its nodes.
    """
    from onnx import ModelProto

    whole = model.graph
    kinds = {kind.name: kind for kind in (*whole.value_info, *whole.output, *whole.input)}
    held = {tensor.name: tensor for tensor in whole.initializer}
    notes = {note.tensor_name: note for note in whole.quantization_annotation}
    for start in range(0, len(whole.node), _PIECE):
        nodes = whole.node[start : start + _PIECE]
        made = [name for node in nodes for name in node.output if name]
        here = set(made)
        read = dict.fromkeys(name for node in nodes for name in node.input if name)
        piece = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
        part = piece.graph
        part.name = whole.name
        part.node.extend(nodes)
        part.initializer.extend(held[name] for name in read if name in held)
        before = [name for name in read if name not in held and name not in here]
        part.input.extend(kinds[name] for name in before)
        part.output.extend(kinds[name] for name in made)
        part.quantization_annotation.extend(
            notes[name] for name in dict.fromkeys((*read, *made)) if name in notes
        )
        yield piece, made


def _compare(model: bytes, graph: Graph, feeds: Mapping[str, IntArray]) -> int:
    """Run both, demand equality on every edge; returns the number of values compared."""
    expected = graph.run(feeds, edges=True)
    return require_equal(expected, run_qonnx(model, graph, feeds, edges=True), "QONNX")


def export_qonnx(
    graph: Graph,
    path: Path,
    *,
    feeds: Mapping[str, IntArray] | None = None,
    frames: int = 4,
    seed: int = 0,
    batch: int = 1,
    room: int | None = None,
) -> ExportReport:
    """Write a QONNX file after proving that QONNX's executor agrees with the graph.

    Args:
        path: where to write; appears whole or not at all.
        feeds: levels to compare on, for instance of real images; random frames are always added.
        frames: number of random frames.
        batch: fixed batch size of the file.
        room: bytes of levels that are held at a time, by default what the machine has; so many
            random frames are drawn, and so many of `feeds` run at a time, as fit.

    Raises:
        MismatchError: QONNX computes something else; nothing is written.
        GraphError, ToolError: see `qonnx_model`.
    """
    model = qonnx_model(graph, batch=batch)
    most = room_for(chosen=True) if room is None else room
    frames = frames_within(graph, frames, most, "QONNX export", edges=True)
    count = -(-frames // batch) * batch
    every = [random_feeds(graph, count, np.random.default_rng(seed))]
    if feeds is not None:
        given = len(feeds[graph.inputs[0]]) // batch * batch
        every.append({edge: feeds[edge][:given] for edge in graph.inputs})
        count += given
    some_room = min(most, max(held_bytes(graph, edges=True), AT_A_TIME))
    fit = frames_within(graph, count, some_room, "QONNX export", edges=True)
    size = max(fit // batch, 1) * batch
    values = 0
    for some in every:
        for start in range(0, len(some[graph.inputs[0]]), size):
            part = {edge: some[edge][start : start + size] for edge in graph.inputs}
            values += _compare(model, graph, part)
    atomic_write(path, model)
    return ExportReport(path, count, tuple(graph.types), values)
