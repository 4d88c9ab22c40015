# SPDX-License-Identifier: Apache-2.0
"""What one training step of a network multiplies and moves: plain numbers, no torch.

A layer has three products. As matrix products, for N images, kernels of KH x KW, I and O channels
in and out of each of G groups, and P output pixels an image::

    product       M          N            K
    forward       N P        O            I KH KW
    grad_input    N P        I KH KW      O
    grad_weight   O          I KH KW      N P

Each is M N K multiply-accumulates a group: zeros that a stride or padding puts in are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from bitwright.low_precision.policy import PRODUCTS


@dataclass(frozen=True)
class TrainingProduct:
    """One product of a training step.

    Attributes:
        layer: path of the layer.
        product: ``forward``, ``grad_input`` or ``grad_weight``.
        m, n, k: rows, columns and summed length of the matrix product of one group.
        groups: how many of them.
        left, right, result: values in the two operands and in what comes out, each tensor once.
    """

    layer: str
    product: str
    m: int
    n: int
    k: int
    groups: int
    left: int
    right: int
    result: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.groups * self.m * self.n * self.k


@dataclass(frozen=True)
class LayerWork:
    """One run of a convolution or linear layer within a training step.

    A linear layer is a 1 x 1 convolution on images of one pixel.

    Attributes:
        layer: its path.
        kind: ``conv`` or ``linear``.
        input, weight, output: shapes (N, C, H, W), (O, C / groups, KH, KW), (N, O, H', W').
        stride, padding, dilation: (vertical, horizontal).
        groups: of channels.
        products: which of the three a step needs: the first layer has no gradient of its input, a
            frozen weight none of its own.
    """

    layer: str
    kind: str
    input: tuple[int, ...]
    weight: tuple[int, ...]
    output: tuple[int, ...]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    products: tuple[str, ...] = PRODUCTS

    @property
    def shape(self) -> tuple[object, ...]:
        """All that the time of its products depends on."""
        moves = (self.stride, self.padding, self.dilation)
        return (self.kind, self.input, self.weight, *moves, self.groups)

    def quantized(self) -> dict[str, tuple[int, ...]]:
        """Sizes of the tensors that a step in few bits quantizes: the weight, the input, the
        gradient of the output where a product takes it, and that of the weight, as MuPPET does.
        """
        gradients = []
        if len(self.products) > 1:
            gradients.append(prod(self.output))
        if "grad_weight" in self.products:
            gradients.append(prod(self.weight))
        return {
            "weights": (prod(self.weight),),
            "activations": (prod(self.input),),
            "gradients": tuple(gradients),
        }

    def product(self, name: str) -> TrainingProduct:
        """Sizes of one of its products."""
        rows = self.output[0] * prod(self.output[2:])
        kernels, length = self.weight[0] // self.groups, prod(self.weight[1:])
        x, w, g = prod(self.input), prod(self.weight), prod(self.output)
        sizes, tensors = {
            "forward": ((rows, kernels, length), (x, w, g)),
            "grad_input": ((rows, length, kernels), (g, w, x)),
            "grad_weight": ((kernels, length, rows), (x, g, w)),
        }[name]
        return TrainingProduct(self.layer, name, *sizes, self.groups, *tensors)


@dataclass(frozen=True)
class Network:
    """One training step of a network at a batch size.

    Attributes:
        name: of the network.
        batch: images a step.
        layers: runs of layers, in order; a layer that runs twice is there twice.
        parameters: numbers that the optimizer moves.
        rest_bytes: read and written by all other operations of forward and backward pass, every
            tensor once an operation.
        rest_operations: how many of these there are.
        paths: of its layers, in the order of registration, which says what is first and last.
    """

    name: str
    batch: int
    layers: tuple[LayerWork, ...]
    parameters: int
    rest_bytes: int = 0
    rest_operations: int = 0
    paths: tuple[str, ...] = ()

    @property
    def products(self) -> tuple[TrainingProduct, ...]:
        """All products of a step, layer by layer."""
        return tuple(layer.product(name) for layer in self.layers for name in layer.products)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of a step."""
        return sum(product.macs for product in self.products)
