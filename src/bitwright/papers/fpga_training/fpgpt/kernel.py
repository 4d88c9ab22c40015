# SPDX-License-Identifier: Apache-2.0
"""What an FPGPT kernel is built for (alpha) and what a convolution asks of it (beta).

Vink 2023, 5.3 (specification 004, 2.4.1). The document gives no formula for the line buffer: here
it is what the order of reading needs, counted over all groups of positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.papers.fpga_training.jobs import ConvolutionJob


@dataclass(frozen=True)
class Numbers:
    """Numbers of the engine: their length and what a processing element of them takes.

    Attributes:
        bits: WRD, word length.
        dsp: multiplier blocks of an element: 9 in float32, 3 in fixed point.
        reduction: cycles until the interleaved sums are one: 8 in float32, none in fixed point.
    """

    bits: int = 32
    dsp: int = 9
    reduction: int = 8

    def band(self, port_bits: int) -> int:
        """BAND, words an access of the memory port (equation of 2.5.1: whole words only)."""
        return port_bits // self.bits


FLOAT32 = Numbers()


def fixed_point(bits: int) -> Numbers:
    """Fixed point of 2 to 16 bits: an adder of one cycle, so nothing is interleaved."""
    if not 2 <= bits <= 16:
        raise ModelError(
            f"fixed point of {bits} bits: an element multiplies 2 to 16",
            hint="give 8, 12, 14 or 16 bits, or float32",
        )
    return Numbers(bits, 3, 0)


@dataclass(frozen=True)
class Kernel:
    """Parameters of a kernel when it is compiled: alpha.

    Attributes:
        columns: X, output positions side by side.
        rows: Y, filters side by side.
        span: Z, words a cycle into the line buffer.
        channel: Z_channel, words of a channel that the line buffer holds, and that a burst brings.
        kern_burst: KRange, words of a burst of KERN; 0 where KERN stays on the chip.
        weight_gradient: whether it is the variant for weight gradients (GW), else FGI.
        band: words an access of the memory port.
        numbers: that it multiplies.
        kern_words: words of one filter that its buffer of KERN holds.
        kern_groups: groups of Y filters that it holds (FGI keeps all on the chip).
        out_blocks: blocks of X positions in its buffer of OUT, for GW of all filters and channels.
    """

    columns: int
    rows: int
    span: int
    channel: int
    kern_burst: int
    weight_gradient: bool
    band: int
    numbers: Numbers
    kern_words: int
    kern_groups: int
    out_blocks: int

    def merged(self, other: Kernel) -> Kernel:
        """The smallest kernel that is at least as large as both in every parameter."""
        if self.weight_gradient != other.weight_gradient or self.numbers != other.numbers:
            raise ModelError(
                "kernels of different variants or numbers have no kernel in common",
                hint="group forward and input gradients apart from weight gradients",
            )
        names = ("columns", "rows", "span", "channel", "kern_burst")
        names += ("kern_words", "kern_groups", "out_blocks")
        return replace(self, **{n: max(getattr(self, n), getattr(other, n)) for n in names})

    @property
    def elements(self) -> int:
        """Processing elements."""
        return self.columns * self.rows

    @property
    def dsp(self) -> int:
        """Multiplier blocks (rsc_PE of 2.4.8)."""
        return self.numbers.dsp * self.elements


@dataclass(frozen=True)
class LineBuffer:
    """What groups of X positions read of a channel.

    Attributes:
        span: Z, from the first to the last window origin of a group, in stored words.
        channel: Z_channel, words from the first that a group reads to its last.
    """

    span: int
    channel: int


@lru_cache(maxsize=1 << 16)
def line_buffer(job: ConvolutionJob, columns: int) -> LineBuffer:
    """Z and Z_channel of a convolution for X positions at a time."""
    width, words = job.inp[1], job.inp[0] * job.inp[1]
    dilation = job.inp_dilation
    first = np.arange(0, job.positions, columns)
    last = np.minimum(first + columns, job.positions) - 1

    def origin(position: np.ndarray) -> np.ndarray:
        row, column = np.divmod(position, job.out[1])
        down = row * job.stride[0] // dilation[0] * width
        return np.asarray(down + column * job.stride[1] // dilation[1])

    span = int((origin(last) - origin(first)).max()) + 1
    reach = [(size - 1) // zeros for size, zeros in zip(job.dilated_kern, dilation, strict=True)]
    begin, end = reads(job, columns)
    needed = int((end - begin).max()) + 1
    return LineBuffer(span, min(max(span + reach[0] * width + reach[1], needed), words))


@lru_cache(maxsize=1 << 10)
def reads(job: ConvolutionJob, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last stored word of a channel that each group of X positions reads."""
    row, column = np.divmod(np.arange(job.positions), job.out[1])
    first, last = np.zeros_like(row), np.zeros_like(row)
    for axis, at in enumerate((row, column)):
        origin = at * job.stride[axis] - job.padding[axis]
        far = origin + job.dilated_kern[axis] - 1
        size, zeros = job.inp[axis], job.inp_dilation[axis]
        first = first * size + np.clip(-(-origin // zeros), 0, size - 1)
        last = last * size + np.clip(far // zeros, 0, size - 1)
    groups = np.arange(0, job.positions, columns)
    return np.minimum.reduceat(first, groups), np.maximum.reduceat(last, groups)


def kernel_for(
    job: ConvolutionJob, columns: int, rows: int, numbers: Numbers, port_bits: int
) -> Kernel:
    """The kernel of X columns and Y rows that just does one convolution.

    Raises:
        ModelError: more columns than positions or more rows than filters is no error, only waste;
            none or fewer is.
    """
    if columns < 1 or rows < 1:
        raise ModelError(f"a kernel of {columns} x {rows} elements; both must be at least 1")
    buffer = line_buffer(job, min(columns, job.positions))
    words = job.channels * job.kern[0] * job.kern[1]
    blocks = ceil(job.positions / columns)
    gradient = job.is_weight_gradient
    return Kernel(
        columns,
        rows,
        buffer.span,
        buffer.channel,
        job.kernels * words if gradient else 0,
        gradient,
        numbers.band(port_bits),
        numbers,
        words,
        1 if gradient else ceil(job.kernels / rows),
        job.kernels * job.images * blocks if gradient else blocks,
    )


def fits(kernel: Kernel, job: ConvolutionJob) -> bool:
    """Whether a kernel can run a convolution: its buffers are large enough (2.4.1)."""
    if kernel.weight_gradient != job.is_weight_gradient:
        return False
    own = kernel_for(
        job, kernel.columns, kernel.rows, kernel.numbers, kernel.band * kernel.numbers.bits
    )
    names = ("span", "channel", "kern_burst", "kern_words", "kern_groups", "out_blocks")
    return all(getattr(kernel, name) >= getattr(own, name) for name in names)
