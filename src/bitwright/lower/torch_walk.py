# SPDX-License-Identifier: Apache-2.0
"""The state of the walk from a frozen torch model to an integer graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import fx

from bitwright.base.errors import GraphError, ModelError
from bitwright.ir import Attr, GraphBuilder, IntArray, TensorType

INPUT, SCORES, LABEL = "x", "scores", "label"
_ENDS = (INPUT, SCORES, LABEL)


@dataclass(frozen=True)
class Value:
    """What a frozen node gives: an edge, and the order of its elements if it is not torch's.

    ``order[i]`` is the index on torch's axis 1 (channels, or elements of a vector) of element i of
    our last axis. A flattened image differs, as ours is (H, W, C) and torch's (C, H, W); and so
    does an image whose channels have been reordered: consumers' weights are permuted instead.
    """

    edge: str
    order: IntArray | None = None


@dataclass
class Lowering:
    """The walk's state.

    Attributes:
        scores: the node whose integers are the scores.
        named: whether its edge is called so; not if its order must be restored behind it.
        scaled: the layer or activation that sets their scale: upstream of pools and flattens.
    """

    frozen: fx.GraphModule
    builder: GraphBuilder
    input_type: tuple[int, ...]
    scores: fx.Node
    scaled: fx.Node
    named: bool = True
    values: dict[fx.Node, Value] = field(default_factory=dict)

    def add(
        self,
        op: str,
        node: fx.Node,
        value: Value | tuple[Value, ...],
        source: str,
        attrs: Mapping[str, Attr],
        params: Mapping[str, IntArray],
    ) -> str:
        """Append a node; the dialect's complaints become errors about the user's layer."""
        name = node_name(node)
        try:
            return self.builder.add(
                op,
                tuple(v.edge for v in (value if isinstance(value, tuple) else (value,))),
                name=name,
                outputs=(SCORES,) if node is self.scores and self.named else (name,),
                attrs=attrs,
                params=params,
                source=source,
            )
        except GraphError as error:
            raise ModelError(
                f"cannot be lowered: {error.message}",
                where=f"{source or name} ({op})",
                hint=error.hint or "change the layer or its formats in the policy",
            ) from error

    def kind(self, value: Value) -> TensorType:
        return self.builder.types[value.edge]

    def shape(self, value: Value) -> tuple[int, ...]:
        """Of one sample, as torch has it: (C, H, W) or (C,)."""
        *size, channels = self.kind(value).shape
        return (channels, *size)

    def restored(self, value: Value, name: str, source: str) -> Value:
        """The same elements in torch's order: a product with a permutation matrix."""
        if value.order is None:
            return value
        count = len(value.order)
        matrix = np.zeros((count, count), np.int64)
        matrix[value.order, np.arange(count)] = 1
        image = len(self.kind(value).shape) > 1
        weight = matrix.reshape(count, 1, 1, count) if image else matrix
        try:
            edge = self.builder.add(
                "conv" if image else "dense",
                (value.edge,),
                name=f"{name}_order",
                outputs=(name,),
                attrs={"weight_format": "uint1", "weight_scale": (1.0,)},
                params={"weight": weight},
                source=source,
            )
        except GraphError as error:
            raise ModelError(
                f"its channels cannot be brought into order: {error.message}",
                where=source or name,
                hint="put a convolution between the rearrangement and this layer",
            ) from error
        return Value(edge)


def node_name(node: fx.Node) -> str:
    """Name of a frozen node's graph node and edge; the names of the ends are kept free."""
    return f"{node.name}_layer" if node.name in _ENDS else node.name


def exact_levels(tensor: torch.Tensor, where: str) -> IntArray:
    array = tensor.detach().cpu().to(torch.float64).numpy()
    levels: IntArray = array.astype(np.int64)
    if not np.array_equal(levels, array):
        raise ModelError("holds numbers that are no integers", where=where, hint="freeze it again")
    return levels


def ordered(array: IntArray, value: Value) -> IntArray:
    """Rows that follow torch's flat order, put into ours; one row for all stays one."""
    return array if value.order is None or len(array) == 1 else array[value.order]
