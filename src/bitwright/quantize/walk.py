# SPDX-License-Identifier: Apache-2.0
"""What the walk from a trained model to a frozen one carries along."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError
from bitwright.formats.rounding import FloatArray
from bitwright.quantize.frozen_joins import NO_BORDER, Border
from bitwright.quantize.policy import Policy


@dataclass(frozen=True)
class Edge:
    """A tensor while freezing: ``real = gain[c] * level + offset[c]``.

    Attributes:
        node: the new graph's node that gives the integers.
        gain, offset: (C,) or (1,) float64.
        lo, hi: interval of the integers.
        source: path of the user's layer they come from.
        shape: of one sample; () where it is not known.
        pending: max pools and the like written behind a batch norm and not done yet: they follow
            the activation, with which they commute because it is monotone; with a negative gain
            they would not.
        function: an activation function whose quantizer follows.
        border: zeros around the image, (top, left, bottom, right), made by the layer behind.
    """

    node: fx.Node
    gain: FloatArray
    offset: FloatArray
    lo: int
    hi: int
    source: str
    shape: tuple[int, ...] = ()
    pending: tuple[tuple[str, nn.Module], ...] = ()
    function: nn.Module | None = None
    border: Border = NO_BORDER

    @property
    def has_levels(self) -> bool:
        """Positive scales, no offset and nothing left to do: levels, of several scales perhaps."""
        settled = not self.pending and self.function is None
        return settled and bool((self.gain > 0).all()) and not self.offset.any()

    @property
    def is_common(self) -> bool:
        """Levels of one scale: what a product can take."""
        return self.gain.size == 1 and self.has_levels

    @property
    def interval(self) -> tuple[int, int]:
        return self.lo, self.hi


@dataclass
class Walk:
    """The state: the trained model, and the graph and modules growing from it."""

    model: fx.GraphModule
    policy: Policy
    shapes: dict[fx.Node, tuple[int, ...]]
    graph: fx.Graph = field(default_factory=fx.Graph)
    root: nn.Module = field(default_factory=nn.Module)
    edges: dict[fx.Node, Edge] = field(default_factory=dict)
    constants: dict[fx.Node, Tensor] = field(default_factory=dict)

    def emit(self, path: str, module: nn.Module, *arguments: fx.Node) -> fx.Node:
        """Add a module and a call of it."""
        parent, _, name = path.rpartition(".")
        owner = self.root
        for part in parent.split(".") if parent else ():
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        number, unique = 1, name
        while unique in owner._modules:
            number, unique = number + 1, f"{name}_{number}"
        owner.add_module(unique, module)
        return self.graph.call_module(f"{parent}.{unique}" if parent else unique, arguments)

    def image(self, edge: Edge, path: str) -> tuple[int, int, int]:
        """Channels, height and width of an edge.

        Raises:
            ModelError: the input's shape was never seen, or it is no image.
        """
        if not edge.shape:
            raise ModelError(
                "the size of its input is not known",
                where=path,
                hint="pass example_input to apply, or run the model once before freezing",
            )
        if len(edge.shape) != 3:
            raise ModelError(
                f"it takes an image, its input has shape {edge.shape}",
                where=path,
                hint="put the flatten behind it",
            )
        channels, height, width = edge.shape
        return channels, height, width


def broken(
    path: str, message: str, hint: str = "give activations and input a format"
) -> ModelError:
    """The error of an operand that is not what a layer can take."""
    return ModelError(message, where=path, hint=hint)


def each(values: FloatArray, channels: int) -> FloatArray:
    """One value a channel."""
    return np.broadcast_to(values, (channels,)).astype(np.float64)
