# SPDX-License-Identifier: Apache-2.0
"""A softmax of scores: no hardware, and no change of their order, so it is left to the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bitwright.interop.onnx.reader.model import OnnxNode
from bitwright.interop.onnx.reader.values import Array
from bitwright.ir import IntArray

OPS = ("Softmax", "LogSoftmax")
_ONE_AXIS = 13  # the operator set from which a softmax is taken along one axis


@dataclass(frozen=True, eq=False)
class Softmax:
    """What the host does with scores.

    Attributes:
        groups: (groups, K), flat places in a frame; a row adds up to 1 afterwards.
        logarithm: the logarithm of that.
    """

    groups: IntArray
    logarithm: bool

    def __call__(self, frames: Array) -> Array:
        """Frames ``(N, ...)`` of scores -> of the same shape, in float64."""
        flat = np.asarray(frames, np.float64).reshape(len(frames), -1)
        scores = flat[:, self.groups]
        scores = scores - scores.max(axis=-1, keepdims=True)
        total = np.exp(scores).sum(axis=-1, keepdims=True)
        made = scores - np.log(total) if self.logarithm else np.exp(scores) / total
        result = np.empty_like(flat)
        result[:, self.groups] = made
        return result.reshape(np.shape(frames))


def softmax_of(node: OnnxNode, places: IntArray) -> Softmax:
    """What a node means for the frames of an edge.

    Before operator set 13 the axes from ``axis`` on are one.

    Args:
        places: of the elements of the node's input (1, ...) in a frame.

    Raises:
        ModelError: it goes along the batch, or along a part of the elements of a vector.
    """
    rank = places.ndim
    if node.opset < _ONE_AXIS:
        axis = node.integer("axis", 1) % max(rank, 1)
        together = places.reshape(int(np.prod(places.shape[:axis])), -1)
    else:
        axis = node.integer("axis", -1) % max(rank, 1)
        together = np.moveaxis(places, axis, -1).reshape(-1, places.shape[axis])
    vector = max(places.shape) == places.size
    if axis == 0 or (vector and together.shape[1] != places.size):
        raise node.error(
            f"goes along axis {axis} of {places.shape}", "use the axis of the classes: axis=1"
        )
    return Softmax(together, logarithm=node.op == "LogSoftmax")
