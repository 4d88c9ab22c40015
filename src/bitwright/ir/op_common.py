# SPDX-License-Identifier: Apache-2.0
"""What the rules of the integer dialect share: complaints, windows, per-channel rows."""

from __future__ import annotations

from bitwright.base.errors import GraphError
from bitwright.ir.node import IntArray, Node
from bitwright.ir.types import MAX_FRAME, TensorType

Types = tuple[TensorType, ...]
Arrays = tuple[IntArray, ...]


def need(condition: bool, message: str) -> None:
    if not condition:
        raise GraphError(message)


def image_shape(tensor: TensorType) -> tuple[int, int, int]:
    need(len(tensor.shape) == 3, f"expected an image (H, W, C), got shape {tensor.shape}")
    height, width, channels = tensor.shape
    return height, width, channels


def check_padding(padding: tuple[int, ...]) -> None:
    need(len(padding) == 4 and min(padding) >= 0, "padding is (top, left, bottom, right), >= 0")


def per_channel(node: Node, name: str, channels: int) -> IntArray:
    value = node.params[name]
    need(
        value.shape[0] in (1, channels),
        f"{name} must have 1 or {channels} rows (channels), got {value.shape[0]}",
    )
    return value


def window_shape(
    size: tuple[int, int],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...] = (1, 1),
) -> tuple[int, int]:
    """Output height and width of a sliding window; padding is (top, left, bottom, right).

    Raises:
        GraphError: the window does not fit into the padded image, or a number of it is larger than
            any image.
    """
    out: list[int] = []
    # Strides of a single window, and dilations of a kernel of one, have no other bound.
    need(
        max(*stride, *dilation) <= MAX_FRAME,
        f"{stride=} and {dilation=} are at most {MAX_FRAME}",
    )
    for axis in range(2):
        span = dilation[axis] * (kernel[axis] - 1) + 1
        room = size[axis] + padding[axis] + padding[axis + 2] - span
        need(min(kernel[axis], stride[axis], dilation[axis]) >= 1, "kernel and stride must be >= 1")
        need(room >= 0, f"a window of {span} does not fit into {size[axis]} with {padding=}")
        out.append(room // stride[axis] + 1)
    rows, columns = (size[axis] + padding[axis] + padding[axis + 2] for axis in range(2))
    need(
        rows * columns <= MAX_FRAME,
        f"an image of {rows} x {columns} with its padding; at most {MAX_FRAME} pixels are allowed",
    )
    return out[0], out[1]
