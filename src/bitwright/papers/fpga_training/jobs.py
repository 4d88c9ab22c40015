# SPDX-License-Identifier: Apache-2.0
"""The three products of training a layer as the jobs that training accelerators run.

One description of each product, made of what counting a network gives (`LayerWork`): as a
convolution of INP by KERN into OUT, or as a matrix product. Vink 2023, equations 5.1 to 5.4 and
tables 5.2 and 5.3 (specification 004, 2.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from bitwright.low_precision.costs.network import LayerWork, Network
from bitwright.quantize.spec import Product

Pair = tuple[int, int]


@dataclass(frozen=True)
class ConvolutionJob:
    """A convolution INP * KERN -> OUT in the order of a training accelerator.

    Each of ``batch`` kernels sets A is convolved with its images, and what they give is added up::

        OUT[n, o, y, x] = sum over a, c, kh, kw of
            INP[a, n, c, y * stride + kh * kern_dilation - padding, ..] * KERN[a, o, c, kh, kw]

    where INP is read with ``inp_dilation - 1`` zeros between its values and zeros around them.

    Attributes:
        layer: path of the layer.
        product: which of its products this is.
        groups: how many such jobs the layer has, side by side (groups of channels).
        accumulated: A, the images over which a weight gradient is summed; 1 for the others.
        images: N of INP.
        channels: C of INP and of KERN.
        inp: (H, W) of INP as it is stored.
        kernels: N of KERN.
        kern: (KH, KW) of KERN as it is stored.
        out: (H, W) of OUT.
        stride: steps of the window over the dilated INP.
        inp_dilation, kern_dilation: distance of stored neighbours.
        padding: zeros above and left of the dilated INP; below zero, rows and columns left out.
    """

    layer: str
    product: Product
    groups: int
    accumulated: int
    images: int
    channels: int
    inp: Pair
    kernels: int
    kern: Pair
    out: Pair
    stride: Pair = (1, 1)
    inp_dilation: Pair = (1, 1)
    kern_dilation: Pair = (1, 1)
    padding: Pair = (0, 0)

    @property
    def shape(self) -> ConvolutionJob:
        """Without the layer's name: all that its kernels and cycles depend on."""
        return replace(self, layer="")

    @property
    def is_weight_gradient(self) -> bool:
        """Whether KERN changes with the image and OUT is summed over images (GW, else FGI)."""
        return self.product is Product.GRAD_WEIGHT

    @property
    def dilated_kern(self) -> Pair:
        """(H, W) of KERN with the zeros between its values."""
        height, width = (
            d * (k - 1) + 1 for d, k in zip(self.kern_dilation, self.kern, strict=True)
        )
        return height, width

    @property
    def positions(self) -> int:
        """O, output positions of one image."""
        return prod(self.out)

    @property
    def window(self) -> int:
        """M, multiply-accumulates of one output on an array that multiplies KERN's zeros too."""
        return self.channels * prod(self.dilated_kern)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all groups, without the zeros inside a dilated KERN."""
        each = self.channels * prod(self.kern) * self.positions
        return self.groups * self.accumulated * self.images * self.kernels * each


@dataclass(frozen=True)
class MatrixJob:
    """A product C (rows x columns) = A (rows x inner) B (inner x columns), done ``repeats`` times.

    As Caffe does it: an image at a time, its windows laid out as a matrix (im2col), so ``repeats``
    is images times groups; a weight gradient adds its products up.
    """

    layer: str
    product: Product
    rows: int
    inner: int
    columns: int
    repeats: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all repeats."""
        return self.repeats * self.rows * self.inner * self.columns


def convolution_job(work: LayerWork, product: Product) -> ConvolutionJob:
    """A product of a layer as a convolution (table 5.3).

    The gradient of the input slides over the gradient of the output, with ``stride - 1`` zeros
    between its values, by the turned kernel; padding is ``dilation * (kernel - 1) - padding``. The
    gradient of the weight slides the gradient of the output, dilated by the stride, over the input.
    """
    batch, _, *inp = work.input
    outputs, channels, *kernel = work.weight
    out = work.output[2:]
    here, there, small = _pair(inp), _pair(out), _pair(kernel)
    common = work.layer, product, work.groups
    kernels = outputs // work.groups
    if product is Product.FORWARD:
        return ConvolutionJob(
            *common, 1, batch, channels, here, kernels, small, there,
            work.stride, (1, 1), work.dilation, work.padding,
        )  # fmt: skip
    if product is Product.GRAD_INPUT:
        reach = [
            d * (k - 1) - p for d, k, p in zip(work.dilation, small, work.padding, strict=True)
        ]
        return ConvolutionJob(
            *common, 1, batch, kernels, there, channels, small, here,
            (1, 1), work.stride, work.dilation, _pair(reach),
        )  # fmt: skip
    return ConvolutionJob(
        *common, batch, channels, 1, here, kernels, there, small,
        work.dilation, (1, 1), work.stride, work.padding,
    )  # fmt: skip


def matrix_job(work: LayerWork, product: Product) -> MatrixJob:
    """A product of a layer as matrix products, image by image and group by group (2.1, im2col).

    A linear layer is one product with the batch as its rows.
    """
    kernels, length = work.weight[0] // work.groups, prod(work.weight[1:])
    linear = work.kind == "linear"
    rows = work.output[0] if linear else prod(work.output[2:])
    repeats = work.groups * (1 if linear else work.output[0])
    sizes = {
        Product.FORWARD: (kernels, length, rows),
        Product.GRAD_INPUT: (length, kernels, rows),
        Product.GRAD_WEIGHT: (kernels, rows, length),
    }[product]
    return MatrixJob(work.layer, product, *sizes, repeats)


def convolution_jobs(network: Network, linear: bool = False) -> Iterator[ConvolutionJob]:
    """Those of all convolutions of a training step, of linear layers too if ``linear``."""
    for work in network.layers:
        if linear or work.kind == "conv":
            for name in work.products:
                yield convolution_job(work, Product(name))


def matrix_jobs(network: Network, linear: bool = False) -> Iterator[MatrixJob]:
    """Those of all convolutions of a training step, of linear layers too if ``linear``."""
    for work in network.layers:
        if linear or work.kind == "conv":
            for name in work.products:
                yield matrix_job(work, Product(name))


def _pair(values: object) -> Pair:
    height, width = values  # type: ignore[misc]
    return int(height), int(width)
