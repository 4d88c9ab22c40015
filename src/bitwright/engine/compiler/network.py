# SPDX-License-Identifier: Apache-2.0
"""What the passes behind `front` work on: layers, and how values come and go."""

from __future__ import annotations

from dataclasses import dataclass, field

from bitwright.engine.compiler.values import Layer, Value
from bitwright.engine.image import Columns
from bitwright.ir import Node


@dataclass
class Network:
    """What the engine has to do.

    Attributes:
        layers: in topological order.
        inputs: edge -> value; outputs: edge -> value, of what the engine gives.
        columns: of the inputs of which a word holds several pixels.
        host: nodes that the host does on outputs, in order.
    """

    layers: list[Layer] = field(default_factory=list)
    inputs: dict[str, Value] = field(default_factory=dict)
    outputs: dict[str, Value] = field(default_factory=dict)
    columns: dict[str, Columns] = field(default_factory=dict)
    host: list[Node] = field(default_factory=list)
