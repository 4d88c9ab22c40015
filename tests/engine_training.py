# SPDX-License-Identifier: Apache-2.0
"""Layers with integer values, and torch's three products of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import torch
from torch.nn import functional

from bitwright.low_precision.costs.network import LayerWork
from bitwright.quantize.spec import Product

Operands = dict[Product, tuple[np.ndarray, np.ndarray, np.ndarray]]


def operands(work: LayerWork, rng: np.random.Generator, bits: tuple[int, int]) -> Operands:
    """Both operands of each product, and what torch makes of them in float64: exact."""
    x, w, g = (
        rng.integers(-(1 << (b - 1)), 1 << (b - 1), shape)
        for b, shape in ((bits[0], work.input), (bits[1], work.weight), (bits[0], work.output))
    )
    image, weight = (torch.tensor(a).double().requires_grad_() for a in (x, w))
    moves = (work.stride, work.padding, work.dilation, work.groups)
    y = functional.conv2d(image, weight, None, *moves)
    y.backward(torch.tensor(g).double())
    assert image.grad is not None and weight.grad is not None
    found = [t.detach().numpy().astype(np.int64) for t in (y, image.grad, weight.grad)]
    return {
        Product.FORWARD: (x, w, found[0]),
        Product.GRAD_INPUT: (g, w, found[1]),
        Product.GRAD_WEIGHT: (x, g, found[2]),
    }


def drawn_layers(count: int, seed: int) -> Iterator[LayerWork]:
    draw = random.Random(seed)
    for _ in range(count):
        groups = draw.choice([1, 1, 1, 2])
        kernel, stride, dilation, padding = (
            (draw.randint(low, high), draw.randint(low, high))
            for low, high in ((1, 3), (1, 3), (1, 2), (0, 2))
        )
        size = [
            max(1, dilation[a] * (kernel[a] - 1) + 1 - 2 * padding[a]) + draw.randint(0, 7)
            for a in (0, 1)
        ]
        if draw.random() < 0.15:  # a linear layer
            kernel, stride, dilation, padding, size = (1, 1), (1, 1), (1, 1), (0, 0), [1, 1]
        out = [
            (size[a] + 2 * padding[a] - dilation[a] * (kernel[a] - 1) - 1) // stride[a] + 1
            for a in (0, 1)
        ]
        images, channels, kernels = draw.randint(1, 10), draw.randint(1, 10), draw.randint(1, 12)
        yield LayerWork(
            "layer", "conv", (images, groups * channels, *size),
            (groups * kernels, channels, *kernel), (images, groups * kernels, *out),
            stride, padding, dilation, groups,
        )  # fmt: skip
