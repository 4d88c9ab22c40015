# SPDX-License-Identifier: Apache-2.0
"""Cycles of every unit of an FPGPT kernel for a convolution: equations 5.6 to 5.13, A.1 to A.44.

Vink 2023, 5.4 and appendix A (specification 004, 2.4.2 to 2.4.7; its corrections are used: the
uncapped number of beats of a burst, aligned groups, A.33, A.35 and A.36).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from bitwright.papers.fpga_training.fpgpt.counts import Count, align, choose, largest, least, up
from bitwright.papers.fpga_training.fpgpt.kernel import Kernel, line_buffers
from bitwright.papers.fpga_training.jobs import ConvolutionJob

#: Beats of the inner loop of a burst at most, and what bursts cost in multiples of; loops outside.
_INNER, _BEATS, _OUTER = 256, 16, 3


def burst_cycles(words: Count, band: int) -> Count:
    """Of one burst of so many words (A.1 to A.3): at least three times sixteen beats."""
    beats = up(words, band)
    return align(least(beats, _INNER), _BEATS) * largest(up(beats, _INNER), _OUTER)


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

    inp_ddr: Count
    inp_decode: Count
    inp_construct: Count
    inp_im2col: Count
    array: Count
    kern_ddr: Count
    kern_decode: Count
    kern_feed: Count
    out_construct: Count
    out_encode: Count
    out_ddr: Count

    @property
    def inp(self) -> Count:
        """Gamma_INP (5.9)."""
        return largest(self.inp_ddr, self.inp_construct, self.inp_im2col)

    @property
    def kern(self) -> Count:
        """Gamma_KERN (5.10, 5.11)."""
        return largest(self.kern_ddr, self.kern_decode, self.kern_feed)

    @property
    def out(self) -> Count:
        """Gamma_OUT (5.12)."""
        return largest(self.out_ddr, self.out_encode, self.out_construct)

    @property
    def total(self) -> Count:
        """Gamma_Total (5.13)."""
        return largest(self.inp, self.kern, self.array, self.out)

    @property
    def bottleneck(self) -> str:
        """The unit that takes ``total`` cycles, the first of equals."""
        units = {field.name: getattr(self, field.name) for field in fields(self)}
        return max(units, key=lambda name: units[name])


def cycles(job: ConvolutionJob, kernel: Kernel) -> Cycles:
    """Cycles of one group of channels of a convolution on a kernel that it fits, or on many."""
    x, y, band = kernel.columns, kernel.rows, kernel.band
    blocks, passes = up(job.positions, x), up(job.kernels, y)
    repeats = blocks * passes * job.images * job.accumulated
    reads = job.channels * repeats
    _, own = line_buffers(job, least(x, job.positions))
    narrow, wide = up(align(own, band), kernel.span), up(align(own, kernel.span), band)
    group = choose(kernel.span < band, narrow, wide)
    drain = y + kernel.numbers.reduction
    array = (job.window * blocks + drain) * passes * job.images * job.accumulated
    kern = _kern_gradient if job.is_weight_gradient else _kern_held
    ddr, decode, feed = kern(job, kernel, blocks, passes, array)
    return Cycles(
        burst_cycles(kernel.channel, band) * reads,
        up(own, band) * reads,
        group * reads,
        job.window * repeats,
        array,
        ddr,
        decode,
        feed,
        *_out(job, kernel, blocks, passes),
    )


def _kern_held(
    job: ConvolutionJob, kernel: Kernel, blocks: Count, passes: Count, array: Count
) -> tuple[Count, Count, Count]:
    """All of KERN is read once and kept: A.14, A.15, A.21."""
    words = job.kernels * job.channels * job.kern[0] * job.kern[1]
    return up(words, kernel.band), words, words + array


def _kern_gradient(
    job: ConvolutionJob, kernel: Kernel, blocks: Count, passes: Count, array: Count
) -> tuple[Count, Count, Count]:
    """KERN is read again for every image and channel: A.25, A.26 or A.27, A.33."""
    y, band, repeats = kernel.rows, kernel.band, job.images * job.accumulated
    small = job.channels * job.kern[0] * job.kern[1]
    own = job.kernels * small
    ddr = burst_cycles(kernel.kern_burst, band) * repeats
    decode = up(own, least(y, band)) * repeats
    dilated = y * up(job.window, y)
    once = dilated * blocks + y + kernel.numbers.reduction
    return ddr, decode, y * up(small, y) + once * passes * repeats


def _out(
    job: ConvolutionJob, kernel: Kernel, blocks: Count, passes: Count
) -> tuple[Count, Count, Count]:
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
    return construct, up(values, least(x, band)) * images, up(images * values, band)
