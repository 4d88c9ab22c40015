# SPDX-License-Identifier: Apache-2.0
"""How large a network may be that is compiled: its file may be a stranger's."""

from __future__ import annotations

from bitwright.base.errors import ModelError
from bitwright.engine.compiler.values import Layer
from bitwright.ir import Graph

#: Of an image: each row may become a strip of its own, and each strip is planned; columns have the
#: 16 bits of INPUT.
_MOST_ROWS, _MOST_COLUMNS = 4096, (1 << 16) - 1
#: What has several readers that take more than 8 bits of it is made again for each of them. Layers
#: of a network, and bytes of their weights: so many, or so many times those of the graph.
_MOST_LAYERS, _FREE_BYTES, _MOST_TIMES = 20_000, 1 << 26, 16


def check_images(graph: Graph) -> None:
    """Refuse images that are too large.

    Raises:
        ModelError: an edge is; says which.
    """
    for edge, kind in graph.types.items():
        if len(kind.shape) == 3 and (kind.shape[0] > _MOST_ROWS or kind.shape[1] > _MOST_COLUMNS):
            raise ModelError(
                f"an image of {kind.shape[0]} x {kind.shape[1]}; the engine's have at most "
                f"{_MOST_ROWS} x {_MOST_COLUMNS}",
                where=f"engine, {edge}",
                hint="use smaller images; those of one row may be signals",
            )


class Room:
    """What the layers of a graph may still take."""

    def __init__(self, graph: Graph) -> None:
        weights = sum(node.params["weight"].size for node in graph if "weight" in node.params)
        self._bytes = max(_FREE_BYTES, _MOST_TIMES * weights)
        self._layers = _MOST_LAYERS

    def take(self, layer: Layer) -> None:
        """One more layer.

        Raises:
            ModelError: there is no room for it.
        """
        self._layers -= 1
        self._bytes -= sum(part.weights.size for part in layer.parts)
        if min(self._layers, self._bytes) < 0:
            raise ModelError(
                f"takes more than {_MOST_LAYERS} layers of the engine, or more weights than "
                f"{_MOST_TIMES} times those of the graph",
                where=f"engine, {layer.name}",
                hint="put one activation behind a sum that many nodes read, or use fewer nodes",
            )
