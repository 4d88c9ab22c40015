# SPDX-License-Identifier: Apache-2.0
"""The FPGPT engine on numbers: what each of its units does to the words, in the hardware's order.

Windows are made from a line buffer that holds no zeros of padding or dilation; a kernel is turned
by the order in which it is written; the weight gradient is added up image by image, so nothing is
transposed; what the array computes beyond the last position or filter is dropped (specification
004, 2.4.4 to 2.4.7 and 2.4.12). Integers are exact; float32 is added in four interleaved sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import ModelError
from bitwright.papers.fpga_training.fpgpt.kernel import Kernel, fits, reads
from bitwright.papers.fpga_training.jobs import ConvolutionJob
from bitwright.quantize.spec import Product

Array = NDArray[Any]
#: Partial sums of a float32 element, for the four cycles of its adder.
INTERLEAVED = 4


@dataclass(frozen=True)
class Windows:
    """Where the words of one group of X positions come from, in its line buffer.

    Attributes:
        start: first word of the channel that the group's burst brings.
        place: (KH, KW, X) places in the line buffer, whatever where ``zero``.
        zero: (KH, KW, X): padding, or a gap between dilated values, or beyond the last position.
    """

    start: int
    place: NDArray[np.int64]
    zero: NDArray[np.bool_]


@lru_cache(maxsize=1 << 12)
def windows(job: ConvolutionJob, kernel: Kernel, group: int) -> Windows:
    """The im2col unit's addresses for one group of positions (kernel taps of the dilated KERN)."""
    position = group * kernel.columns + np.arange(kernel.columns)
    beyond = position >= job.positions
    position = np.minimum(position, job.positions - 1)
    height, width = job.dilated_kern
    start = int(reads(job, kernel.columns)[0][group])
    axes = []
    for axis, (at, taps) in enumerate(
        ((position // job.out[1], height), (position % job.out[1], width))
    ):
        origin = at * job.stride[axis] - job.padding[axis]
        value = np.arange(taps)[:, None] + origin[None]
        stored, rest = np.divmod(value, job.inp_dilation[axis])
        axes.append((stored, (rest != 0) | (stored < 0) | (stored >= job.inp[axis])))
    (rows, no_row), (columns, no_column) = axes
    zero = no_row[:, None] | no_column[None] | beyond[None, None]
    place = rows[:, None] * job.inp[1] + columns[None] - start
    return Windows(start, place, zero)


def gather(channel: Array, kernel: Kernel, read: Windows) -> Array:
    """(KH, KW, X) words that the im2col unit sends for one channel (H*W words) of INP.

    Raises:
        ModelError: a word lies outside of the line buffer, which a kernel that fits rules out.
    """
    burst = channel[read.start : read.start + kernel.channel]
    used = read.place[~read.zero]
    if used.size and (used.min() < 0 or used.max() >= len(burst)):
        wrong = int(used.min() if used.min() < 0 else used.max())
        raise ModelError(
            f"a window needs word {wrong} of a line buffer of {len(burst)} words",
            hint="take a kernel that fits the convolution (`kernel.fits`)",
        )
    place = np.where(read.zero, 0, read.place)
    return np.where(read.zero, burst.dtype.type(0), burst[place])


def stored_filters(job: ConvolutionJob, kern: Array) -> Array:
    """KERN (N, C, KH, KW) of the layer's tensor as the feeder keeps it: turned while it is written.

    A forward pass keeps the weights (O, C, KH, KW) as they come. For the gradient of the input word
    (d, ch, h, w) goes to filter ch, channel d, place (KH-1-h, KW-1-w).
    """
    if job.product is not Product.GRAD_INPUT:
        return kern
    stored = np.empty((kern.shape[1], kern.shape[0], *kern.shape[2:]), kern.dtype)
    height, width = kern.shape[2:]
    for h in range(height):
        for w in range(width):
            stored[:, :, height - 1 - h, width - 1 - w] = kern[:, :, h, w].T
    return stored


def fed(filters: Array, dilation: tuple[int, int]) -> Array:
    """Filters (Y, C, KH, KW) as they reach the array: zeros between dilated values."""
    if dilation == (1, 1):
        return filters
    rows, channels, height, width = filters.shape
    size = [d * (k - 1) + 1 for d, k in zip(dilation, (height, width), strict=True)]
    wide = np.zeros((rows, channels, *size), filters.dtype)
    wide[:, :, :: dilation[0], :: dilation[1]] = filters
    return wide


def array_sums(inp: Array, kern: Array, interleaved: int) -> Array:
    """What X x Y elements hold: INP (M, X) by KERN (Y, M) -> (Y, X).

    Product k goes to sum k mod ``interleaved``; one adder adds these up, two by two.
    """
    if interleaved == 1 or np.issubdtype(inp.dtype, np.integer):
        return np.asarray(kern @ inp)
    sums = np.zeros((interleaved, kern.shape[0], inp.shape[1]), inp.dtype)
    for k in range(inp.shape[0]):
        sums[k % interleaved] += kern[:, k, None] * inp[None, k]
    while len(sums) > 1:
        sums = sums[0::2] + sums[1::2]
    return np.asarray(sums[0])


def run(job: ConvolutionJob, kernel: Kernel, inp: Array, kern: Array) -> Array:
    """One group of channels of a convolution on the engine.

    Args:
        inp: the tensor that slides under KERN, (N, C, H, W) of the layer: the input, or for the
            gradient of the input that of the output.
        kern: (O, C, KH, KW) weights; for the gradient of the weights that of the output, (N, O,
            H, W).

    Returns:
        OUT in the layer's order: (N, O, H, W), (N, C, H, W), or (O, C, KH, KW).

    Raises:
        ModelError: the kernel is too small for the convolution.
    """
    if not fits(kernel, job):
        raise ModelError(
            f"the kernel of {kernel.columns} x {kernel.rows} elements was built for other sizes "
            f"than the {job.product.value} of {job.layer!r}",
            hint="build a kernel for this convolution, or look for one in the library that fits",
        )
    if np.issubdtype(inp.dtype, np.integer):
        inp, kern = inp.astype(np.int64), kern.astype(np.int64)
    # What lies beyond the last position or filter is dropped, so it is not computed: the file of a
    # kernel may say any size.
    kernel = replace(
        kernel, columns=min(kernel.columns, job.positions), rows=min(kernel.rows, job.kernels)
    )
    blocks = -(-job.positions // kernel.columns)
    read = [windows(job, kernel, group) for group in range(blocks)]
    flat = inp.reshape(*inp.shape[:2], -1)
    if job.is_weight_gradient:
        return _weight_gradient(job, kernel, flat, kern, read)
    filters = stored_filters(job, kern)
    out = np.zeros((job.images, job.kernels, job.positions), inp.dtype)
    for image in range(job.images):
        held = [_window_matrix(flat[image], kernel, one) for one in read]
        for first in range(0, job.kernels, kernel.rows):
            _pass(job, kernel, held, filters, first, out[image])
    return out.reshape(job.images, job.kernels, *job.out)


def _window_matrix(channels: Array, kernel: Kernel, read: Windows) -> Array:
    """Matrix_INP of one group, (M, X): channel after channel."""
    return np.concatenate(
        [gather(channel, kernel, read).reshape(-1, kernel.columns) for channel in channels]
    )


def _pass(
    job: ConvolutionJob, kernel: Kernel, held: list[Array], filters: Array, first: int, out: Array
) -> None:
    """Y filters over all positions of an image; rows and columns too many are dropped."""
    rows = filters[first : first + kernel.rows]
    missing = kernel.rows - len(rows)
    rows = np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    words = fed(rows, job.kern_dilation).reshape(kernel.rows, -1)
    for group, inp in enumerate(held):
        at = group * kernel.columns
        keep = min(kernel.columns, job.positions - at)
        sums = array_sums(inp, words, INTERLEAVED if kernel.numbers.reduction else 1)
        out[first : first + kernel.rows, at : at + keep] += sums[: kernel.rows - missing, :keep]


def _weight_gradient(
    job: ConvolutionJob, kernel: Kernel, flat: Array, kern: Array, read: list[Windows]
) -> Array:
    """OUT[o, c] += INP[a, c] * KERN[a, o], held on the chip until the last image (5.4)."""
    out = np.zeros((job.kernels, job.images, job.positions), flat.dtype)
    for a in range(job.accumulated):
        filters = kern[a][:, None]
        for channel in range(job.images):
            held = [_window_matrix(flat[a, channel][None], kernel, one) for one in read]
            for first in range(0, job.kernels, kernel.rows):
                _pass(job, kernel, held, filters, first, out[:, channel])
    return out.reshape(job.kernels, job.images, *job.out)
