# SPDX-License-Identifier: Apache-2.0
"""What the passes behind `front` work on: layers, and how values come and go."""

from __future__ import annotations

from dataclasses import dataclass, field

from bitwright.base.errors import ModelError
from bitwright.engine.compiler.values import Layer, Value
from bitwright.engine.image import Columns
from bitwright.ir import Graph, Node

#: What has several readers that take more than 8 bits of it is made again for each of them. Layers
#: of a network, and bytes of their weights: so many, or so many times those of the graph.
_MOST_LAYERS, _FREE_BYTES, _MOST_TIMES = 20_000, 1 << 26, 16


@dataclass
class Network:
    """What the engine has to do.

    Attributes:
        layers: in topological order.
        inputs: edge -> value; outputs: edge -> value, of what the engine gives.
        columns: of the inputs of which a word holds several pixels.
        host: nodes that the host does on outputs, in order.
        room: bytes of weights that more layers may have.
    """

    layers: list[Layer] = field(default_factory=list)
    inputs: dict[str, Value] = field(default_factory=dict)
    outputs: dict[str, Value] = field(default_factory=dict)
    columns: dict[str, Columns] = field(default_factory=dict)
    host: list[Node] = field(default_factory=list)
    room: int = _FREE_BYTES

    @classmethod
    def of(cls, graph: Graph) -> Network:
        """Nothing yet, with room for a graph's layers."""
        weights = sum(node.params["weight"].size for node in graph if "weight" in node.params)
        return cls(room=max(_FREE_BYTES, _MOST_TIMES * weights))

    def append(self, layer: Layer) -> None:
        """One more layer.

        Raises:
            ModelError: there are far more of them, or of their weights, than a graph needs.
        """
        self.layers.append(layer)
        self.room -= sum(part.weights.size for part in layer.parts)
        if len(self.layers) > _MOST_LAYERS or self.room < 0:
            raise ModelError(
                f"takes {len(self.layers)} layers or more of the engine, or more weights "
                f"than {_MOST_TIMES} times those of the graph",
                where=f"engine, {layer.name}",
                hint="put one activation behind a sum that many nodes read, or use fewer nodes",
            )
