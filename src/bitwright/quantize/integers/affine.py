# SPDX-License-Identifier: Apache-2.0
"""Symbolic affine values: what each tensor of a converted model is in integers.

Between two quantizers every tensor is an edge of the integer graph times a gain plus an offset, one
for all channels or one a channel. Gains and offsets (scales, biases, batch norms) are gathered in
float64 and spent in the next quantizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor, fx, nn

from bitwright.base.errors import GraphError, ModelError
from bitwright.formats.rounding import FloatArray
from bitwright.ir import Attr, GraphBuilder, IntArray, TensorType
from bitwright.quantize.integers.order import Order
from bitwright.quantize.policy import Policy

INPUT, SCORES, LABEL = "x", "scores", "label"
#: (top, left, bottom, right)
Border = tuple[int, int, int, int]
NO_BORDER: Border = (0, 0, 0, 0)
_EXACT_BITS = 53
_MOST_MOVED = 1 << 26  # entries of all matrices that put elements into another order: 512 MiB


@dataclass(frozen=True)
class Pending:
    """An operation on images that waits for the quantizer behind it."""

    op: str
    path: str
    attrs: Mapping[str, Attr]


@dataclass(frozen=True)
class AffineValue:
    """``real = gain[c] * level + offset[c]``.

    Attributes:
        edge: of the integer graph, which gives the levels.
        gain, offset: (C,) or (1,) float64, in torch's order of channels.
        source: path of the user's layer that the levels come from.
        shape: of one sample as torch has it, (C, H, W) or (C,); () where it is not known.
        order: where the graph's elements are on torch's axis 1, see `order`.
        pending: max pools and the like that are written behind a batch norm and not done yet: they
            follow the activation, with which they commute because it is monotone; with a negative
            gain they would not.
        function: an activation function whose quantizer follows.
        border: zeros around the image, made by the layer behind.
    """

    edge: str
    gain: FloatArray
    offset: FloatArray
    source: str
    shape: tuple[int, ...] = ()
    order: Order = None
    pending: tuple[Pending, ...] = ()
    function: nn.Module | None = None
    border: Border = NO_BORDER

    @property
    def settled(self) -> bool:
        """Whether the edge holds all that has been computed so far."""
        return not self.pending and self.function is None and not any(self.border)

    @property
    def has_levels(self) -> bool:
        """Positive scales, no offset and nothing left to do: levels, of several scales perhaps."""
        done = not self.pending and self.function is None
        return done and bool((self.gain > 0).all()) and not self.offset.any()

    @property
    def is_common(self) -> bool:
        """Levels of one scale: what a product can take."""
        return self.gain.size == 1 and self.has_levels

    def ordered(self, rows: IntArray) -> IntArray:
        """Rows in torch's order of channels, put into the graph's; one row for all stays one."""
        return rows if self.order is None or len(rows) == 1 else rows[self.order]


@dataclass
class Context:
    """The state of `integerize`: the converted model, and the graph that grows from it.

    Attributes:
        model: the converted model.
        policy: by which it was converted.
        shapes: of one sample of every tensor, batch axis left out.
        builder: of the integer graph.
        values: what each node of the model is.
        constants: tensors of the model that are no layers'.
        moved: entries of the matrices that `restored` has made.
    """

    model: fx.GraphModule
    policy: Policy
    shapes: Mapping[fx.Node, tuple[int, ...]]
    builder: GraphBuilder
    values: dict[fx.Node, AffineValue] = field(default_factory=dict)
    constants: dict[fx.Node, Tensor] = field(default_factory=dict)
    moved: int = 0

    def type_of(self, value: AffineValue) -> TensorType:
        """The type of the edge of a value."""
        return self.builder.types[value.edge]

    def add(
        self,
        op: str,
        path: str,
        inputs: AffineValue | tuple[AffineValue, ...] | str,
        attrs: Mapping[str, Attr],
        params: Mapping[str, IntArray] | None = None,
    ) -> str:
        """Append a node; what the dialect complains about becomes an error about the user's layer.

        Args:
            path: the user's path of the layer, which names node and edge.
        """
        values = inputs if isinstance(inputs, tuple) else (inputs,)
        edges = tuple(v if isinstance(v, str) else v.edge for v in values)
        name = self.builder.unique(edge_name(path))
        try:
            edge = self.builder.add(
                op, edges, name=name, attrs=attrs, params=params or {}, source=path
            )
        except GraphError as error:
            raise ModelError(
                f"has no integer form: {error.message}",
                where=f"{path} ({op})",
                hint=error.hint or "change the layer or its formats in the policy",
            ) from error
        kind = self.builder.types[edge]
        if max(abs(kind.lo), abs(kind.hi)) >> _EXACT_BITS:
            raise ModelError(
                f"the accumulator interval {kind.lo} .. {kind.hi} exceeds {_EXACT_BITS} bits",
                where=path,
                hint="use fewer bits; of small floats fewer exponent bits, or integers on one side",
            )
        return edge

    def restored(self, value: AffineValue, path: str) -> AffineValue:
        """The same elements in torch's order: a product with a permutation matrix.

        Raises:
            ModelError: the matrices of this network would take too much.
        """
        if value.order is None:
            return value
        count = len(value.order)
        self.moved += count * count
        if self.moved > _MOST_MOVED:
            raise ModelError(
                f"{count} elements have another order than torch's, and a matrix that restores it "
                f"is too large: at most {_MOST_MOVED} entries are made for a network",
                where=path,
                hint="put a layer or a global pool in front of it, or no flatten at the end",
            )
        matrix = np.zeros((count, count), np.int64)
        matrix[value.order, np.arange(count)] = 1
        image = len(self.type_of(value).shape) > 1
        attrs: dict[str, Attr] = {"weight_format": "uint1", "weight_scale": (1.0,)}
        weight = matrix.reshape(count, 1, 1, count) if image else matrix
        edge = self.add("conv" if image else "dense", path, value, attrs, {"weight": weight})
        return replace(value, edge=edge, order=None)

    def image(self, value: AffineValue, path: str) -> tuple[int, int, int]:
        """Channels, height and width of a value.

        Raises:
            ModelError: the input's shape was never seen, or it is no image.
        """
        if not value.shape:
            raise ModelError(
                "the size of its input is not known",
                where=path,
                hint="pass example_input to apply, or run the model once before",
            )
        if len(value.shape) != 3:
            raise ModelError(
                f"it takes an image, its input has shape {value.shape}",
                where=path,
                hint="put the flatten behind it",
            )
        channels, height, width = value.shape
        return channels, height, width

    def shape_behind(self, node: fx.Node) -> tuple[int, ...]:
        """Shape of one sample of what a node gives."""
        return tuple(self.shapes.get(node, ()))


def edge_name(path: str) -> str:
    """A layer's path as the name of an edge; the names of the ends are kept free."""
    name = path.replace(".", "_").lower()
    name = f"_{name}" if name[:1].isdigit() else name
    return f"{name}_layer" if name in (INPUT, SCORES, LABEL) else name


def unquantized(
    path: str, message: str, hint: str = "give activations and input a format"
) -> ModelError:
    """The error of an operand that is not what a layer can take."""
    return ModelError(message, where=path, hint=hint)


def each(values: FloatArray, channels: int) -> FloatArray:
    """One value a channel."""
    return np.broadcast_to(values, (channels,)).astype(np.float64)


def pair(value: int | float | tuple[int, ...]) -> tuple[int, int]:
    """(vertical, horizontal) of a number for both, or of two."""
    if isinstance(value, int | float):
        return int(value), int(value)
    return int(value[0]), int(value[1])


def even_border(padding: int | tuple[int, ...]) -> Border:
    """The border of a padding that is the same on opposite sides."""
    vertical, horizontal = pair(padding)
    return vertical, horizontal, vertical, horizontal


def added(first: Border, second: Border) -> Border:
    """The border that two borders make together."""
    top, left, bottom, right = (a + b for a, b in zip(first, second, strict=True))
    return top, left, bottom, right
