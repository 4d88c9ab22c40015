# SPDX-License-Identifier: Apache-2.0
"""Inputs of few channels: neighbours in a row share a word, so one step does several taps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bitwright.engine.compiler.draft import pair_of
from bitwright.engine.config import EngineConfig
from bitwright.engine.image import Columns
from bitwright.ir import Graph, Node


def columns_of(graph: Graph, edge: str, config: EngineConfig) -> Columns | None:
    """How the host lays out an input that one convolution alone reads; None: pixel by pixel."""
    readers, shape = graph.consumers(edge), graph.types[edge].shape
    if len(readers) != 1 or readers[0].op != "conv" or edge in graph.outputs or len(shape) != 3:
        return None
    node = readers[0]
    kernel, most = node.params["weight"].shape[2], config.lanes // shape[2]
    if node.integer("groups") != 1 or min(kernel, most) < 2:
        return None
    steps = -(-kernel // min(kernel, most))
    taps = -(-kernel // steps)
    step, stride = pair_of(node, "dilation")[1], pair_of(node, "stride")[1]
    across = graph.types[node.output].shape[1]
    width = (across - 1) * stride + (steps - 1) * taps * step + 1
    return Columns(shape[1], width, taps, step, pair_of(node, "padding")[1])


def widened(node: Node, columns: Columns) -> Node:
    """The convolution of an input that is laid out so: of ``taps`` times as many channels."""
    weight = node.params["weight"]
    rows, height, kernel, channels = weight.shape
    steps = -(-kernel // columns.taps)
    table = np.zeros((rows, height, steps * columns.taps, channels), weight.dtype)
    table[:, :, :kernel] = weight
    down, across = pair_of(node, "dilation")
    top, _, bottom, _ = node.ints("padding")
    attrs = {
        **node.attrs, "dilation": (down, across * columns.taps), "padding": (top, 0, bottom, 0),
    }  # fmt: skip
    params = {**node.params, "weight": table.reshape(rows, height, steps, -1)}
    return replace(node, attrs=attrs, params=params)
