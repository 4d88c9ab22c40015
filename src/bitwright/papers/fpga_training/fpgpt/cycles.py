# SPDX-License-Identifier: Apache-2.0
"""Cycles of every unit of an FPGPT kernel for a convolution: equations 5.6 to 5.13, A.1 to A.44.

Vink 2023, 5.4 and appendix A (specification 004, 2.4.2 to 2.4.7; its corrections are used: the
uncapped number of beats of a burst, aligned groups, A.33, A.35 and A.36).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import ceil

from bitwright.papers.fpga_training.fpgpt.kernel import Kernel, line_buffer
from bitwright.papers.fpga_training.jobs import ConvolutionJob

#: Beats of the inner loop of a burst at most, and what bursts cost in multiples of; loops outside.
_INNER, _BEATS, _OUTER = 256, 16, 3


def _align(value: int, step: int) -> int:
    return ceil(value / step) * step


def burst_cycles(words: int, band: int) -> int:
    """Of one burst of so many words (A.1 to A.3): at least three times sixteen beats."""
    beats = ceil(words / band)
    inner = min(beats, _INNER)
    return _align(inner, _BEATS) * max(ceil(beats / _INNER), _OUTER)


@dataclass(frozen=True)
class Cycles:
    """Cycles of the units, which all work at once; the slowest sets the time.

    Attributes:
        inp_ddr, inp_construct, inp_im2col: reading of INP (A.6), groups of Z words (A.12), windows
            (A.13).
        inp_decode: beats of the port taken apart (A.7, in beats); never the slowest.
        array: Gamma_SA (5.8).
        kern_ddr, kern_decode, kern_feed: reading of KERN, words of it, feeding of the array (A.14
            to A.21, or for GW A.25 to A.33).
        out_construct, out_encode, out_ddr: A.38 or A.41, A.42, A.44.
    """

    inp_ddr: int
    inp_decode: int
    inp_construct: int
    inp_im2col: int
    array: int
    kern_ddr: int
    kern_decode: int
    kern_feed: int
    out_construct: int
    out_encode: int
    out_ddr: int

    @property
    def inp(self) -> int:
        """Gamma_INP (5.9)."""
        return max(self.inp_ddr, self.inp_construct, self.inp_im2col)

    @property
    def kern(self) -> int:
        """Gamma_KERN (5.10, 5.11)."""
        return max(self.kern_ddr, self.kern_decode, self.kern_feed)

    @property
    def out(self) -> int:
        """Gamma_OUT (5.12)."""
        return max(self.out_ddr, self.out_encode, self.out_construct)

    @property
    def total(self) -> int:
        """Gamma_Total (5.13)."""
        return max(self.inp, self.kern, self.array, self.out)

    @property
    def bottleneck(self) -> str:
        """The unit that takes ``total`` cycles, the first of equals."""
        units = {field.name: getattr(self, field.name) for field in fields(self)}
        return max(units, key=lambda name: units[name])


def cycles(job: ConvolutionJob, kernel: Kernel) -> Cycles:
    """Cycles of one group of channels of a convolution on a kernel that it fits."""
    x, y, band = kernel.columns, kernel.rows, kernel.band
    blocks, passes = ceil(job.positions / x), ceil(job.kernels / y)
    repeats = blocks * passes * job.images * job.accumulated
    reads = job.channels * repeats
    own = line_buffer(job, min(x, job.positions)).channel
    if kernel.span < band:
        group = ceil(_align(own, band) / kernel.span)
    else:
        group = ceil(_align(own, kernel.span) / band)
    drain = y + kernel.numbers.reduction
    array = (job.window * blocks + drain) * passes * job.images * job.accumulated
    kern = _kern_gradient if job.is_weight_gradient else _kern_held
    ddr, decode, feed = kern(job, kernel, blocks, passes, array)
    return Cycles(
        burst_cycles(kernel.channel, band) * reads,
        ceil(own / band) * reads,
        group * reads,
        job.window * repeats,
        array,
        ddr,
        decode,
        feed,
        *_out(job, kernel, blocks, passes),
    )


def _kern_held(
    job: ConvolutionJob, kernel: Kernel, blocks: int, passes: int, array: int
) -> tuple[int, int, int]:
    """All of KERN is read once and kept: A.14, A.15, A.21."""
    words = job.kernels * job.channels * job.kern[0] * job.kern[1]
    return ceil(words / kernel.band), words, words + array


def _kern_gradient(
    job: ConvolutionJob, kernel: Kernel, blocks: int, passes: int, array: int
) -> tuple[int, int, int]:
    """KERN is read again for every image and channel: A.25, A.26 or A.27, A.33."""
    y, band, repeats = kernel.rows, kernel.band, job.images * job.accumulated
    small = job.channels * job.kern[0] * job.kern[1]
    own = job.kernels * small
    ddr = burst_cycles(kernel.kern_burst, band) * repeats
    decode = ceil(own / min(y, band)) * repeats
    dilated = y * ceil(job.window / y)
    once = dilated * blocks + y + kernel.numbers.reduction
    return ddr, decode, y * ceil(small / y) + once * passes * repeats


def _out(job: ConvolutionJob, kernel: Kernel, blocks: int, passes: int) -> tuple[int, int, int]:
    """A.38 or A.41; A.42 or A.43; A.44."""
    x, y, band = kernel.columns, kernel.rows, kernel.band
    if job.is_weight_gradient:
        # OUT is N_KERN x N_INP; every image is added to what is held, and written at the end.
        images, channels = job.kernels, job.images
        collect = y * blocks * passes * channels * job.accumulated
        construct = collect + blocks * channels * images
    else:
        images, channels = job.images, job.kernels
        construct = y * blocks + y * blocks * passes * images
    values = channels * job.positions
    return construct, ceil(values / min(x, band)) * images, ceil(images * values / band)
