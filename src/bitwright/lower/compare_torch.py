# SPDX-License-Identifier: Apache-2.0
"""Integer network against a graph that passes have changed, by the names that this had before."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bitwright.ir import Graph, IntArray
from bitwright.lower.compare import Comparison, compare_edges
from bitwright.quantize import IntegerModel


def frozen_levels(frozen: IntegerModel, images: Tensor) -> dict[str, IntArray]:
    """The levels of every edge for real images, in the graph's names and layout."""
    return frozen.edges(images)


def compare_torch_graph(
    frozen: IntegerModel, graph: Graph, images: Tensor, **options: Any
) -> Comparison:
    """`compare_edges` of a graph with the integer network that it was lowered from."""
    return compare_edges(graph, frozen.edges(images), **options)
