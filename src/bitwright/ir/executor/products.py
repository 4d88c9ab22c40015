# SPDX-License-Identifier: Apache-2.0
"""A conv or dense layer in one form, with the exact bounds that kernels are chosen by."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bitwright.ir.executor.layout import Kind, storage
from bitwright.ir.node import IntArray, Node
from bitwright.ir.types import TensorType

INT32_TOP = (1 << 31) - 1  # sums stay below, so that a threshold one above them fits too


@dataclass(frozen=True)
class Product:
    """A conv or dense node in one form.

    Attributes:
        weight: ``(groups, rows, KH, KW, columns)`` levels.
        bias: ``(groups, rows)``.
        source, result: types of the activations and of the accumulators.
        stride, padding, dilation: as in the node; (1, 1), zeros and (1, 1) for dense.
    """

    weight: IntArray
    bias: IntArray
    source: TensorType
    result: TensorType
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def groups(self) -> int:
        return int(self.weight.shape[0])

    @property
    def rows(self) -> int:
        return int(self.weight.shape[1])

    @property
    def columns(self) -> int:
        return int(self.weight.shape[4])

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one image."""
        pixels = self.result.size // self.result.channels
        return pixels * int(self.weight.size)

    @property
    def top_code(self) -> int:
        """Largest stored code of the activations, when they are stored as bytes."""
        return max(self.source.hi, 0) - storage(self.source)[1]

    def magnitude(self, peak: int) -> int:
        """Largest possible sum of absolute terms of a row, for activations up to ``peak``."""
        sums = np.abs(self.weight.astype(object)).sum(axis=(2, 3, 4)) * peak
        return int((sums + np.abs(self.bias.astype(object))).max())


def product_of(node: Node, source: TensorType, result: TensorType) -> Product:
    """The common form of a conv or dense node."""
    weight = node.params["weight"]
    if node.op == "dense":
        weight = weight[:, None, None, :]
        window: tuple[tuple[int, ...], ...] = ((1, 1), (0, 0, 0, 0), (1, 1))
        groups = 1
    else:
        window = (node.ints("stride"), node.ints("padding"), node.ints("dilation"))
        groups = node.integer("groups")
    rows = weight.shape[0] // groups
    bias = node.params.get("bias", np.zeros(weight.shape[0], dtype=np.int64))
    return Product(
        weight.reshape(groups, rows, *weight.shape[1:]),
        bias.reshape(groups, rows),
        source,
        result,
        *window,
    )


_PATCH_BYTES = 32  # kernel rows shorter than this are gathered beforehand


def gathers_patches(product: Product) -> bool:
    """Whether windows are gathered into one piece each: kernel rows of few bytes (first layers)."""
    kernel_h, kernel_w = product.weight.shape[2:4]
    return (
        storage(product.source)[0] is Kind.U8
        and product.groups == 1
        and kernel_h > 1
        and product.dilation[1] == 1
        and kernel_w * product.columns < _PATCH_BYTES
    )


def as_patches(product: Product) -> Product:
    """The same layer as a 1x1 convolution of gathered windows."""
    source = product.source
    length = int(np.prod(product.weight.shape[2:]))
    shape = (*product.result.shape[:-1], length)
    gathered = TensorType(shape, source.format, (), min(source.lo, 0), max(source.hi, 0))
    return replace(
        product,
        weight=product.weight.reshape(1, product.rows, 1, 1, length),
        source=gathered if any(product.padding) else replace(source, shape=shape, scale=()),
        stride=(1, 1),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
    )


def segment_taps(product: Product) -> tuple[int, int]:
    """(segments per window, taps per segment): a kernel row is one, unless dilated or grouped."""
    kernel_h, kernel_w = product.weight.shape[2:4]
    if product.dilation[1] == 1 and product.groups == 1:
        return kernel_h, kernel_w
    return kernel_h * kernel_w, 1
