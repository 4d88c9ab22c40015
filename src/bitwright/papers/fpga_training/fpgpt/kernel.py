# SPDX-License-Identifier: Apache-2.0
"""What an FPGPT kernel is built for (alpha) and what a convolution asks of it (beta).

Vink 2023, 5.3 (specification 004, 2.4.1). The document gives no formula for the line buffer: here
it is what the order of reading needs, counted over all groups of positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import and_
from typing import Any

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.papers.fpga_training.fpgpt.counts import Count, largest, least, up
from bitwright.papers.fpga_training.jobs import ConvolutionJob
from bitwright.quantize.spec import Product


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

    def __str__(self) -> str:
        return "float32" if self == FLOAT32 else f"{self.bits} bits"

    def band(self, port_bits: int) -> int:
        """BAND, words an access of the memory port (equation of 2.5.1: whole words only).

        Raises:
            ModelError: the port is narrower than a word.
        """
        if port_bits < self.bits:
            raise ModelError(
                f"words of {self.bits} bits through a memory port of {port_bits} bits",
                hint="take narrower numbers, or a board with a wider port",
            )
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


#: The parameters of a kernel that are sizes.
SIZES = (
    "columns", "rows", "span", "channel", "kern_burst", "kern_words", "kern_groups", "out_blocks",
)  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """Parameters of a kernel when it is compiled: alpha.

    Its sizes are numbers, or arrays of numbers: as many kernels side by side, counted at once.

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

    columns: Count
    rows: Count
    span: int
    channel: int
    kern_burst: Count
    weight_gradient: bool
    band: int
    numbers: Numbers
    kern_words: Count
    kern_groups: Count
    out_blocks: int

    def merged(self, other: Kernel) -> Kernel:
        """The smallest kernel that is at least as large as both in every parameter."""
        if self.weight_gradient != other.weight_gradient or self.numbers != other.numbers:
            raise ModelError(
                "kernels of different variants or numbers have no kernel in common",
                hint="group forward and input gradients apart from weight gradients",
            )
        return replace(self, **{n: largest(getattr(self, n), getattr(other, n)) for n in SIZES})

    def at(self, which: Any) -> Kernel:
        """One of the kernels side by side by its number, or several."""
        shape = np.shape(self.columns)
        values = {name: np.broadcast_to(getattr(self, name), shape)[which] for name in SIZES}
        if np.ndim(which) == 0:
            values = {name: int(value) for name, value in values.items()}
        return replace(self, **values)

    @classmethod
    def together(cls, kernels: Sequence[Kernel]) -> Kernel:
        """Kernels of one variant, one or many each, side by side."""
        shapes = [np.shape(one.columns) or (1,) for one in kernels]
        sizes = {
            name: np.concatenate(
                [np.broadcast_to(getattr(k, name), s) for k, s in zip(kernels, shapes, strict=True)]
            )
            for name in SIZES
        }
        return replace(kernels[0], **sizes)

    @property
    def elements(self) -> Count:
        """Processing elements."""
        return self.columns * self.rows

    @property
    def dsp(self) -> Count:
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


@lru_cache(maxsize=1 << 17)
def line_buffer(job: ConvolutionJob, columns: int) -> LineBuffer:
    """Z and Z_channel of a convolution for X positions at a time."""
    width, words = job.inp[1], job.inp[0] * job.inp[1]
    first = np.arange(0, job.positions, columns)
    last = np.minimum(first + columns, job.positions) - 1
    origin = _origins(_windows_of(job))
    span = int((origin[last] - origin[first]).max()) + 1
    reach = [
        (size - 1) // zeros for size, zeros in zip(job.dilated_kern, job.inp_dilation, strict=True)
    ]
    begin, end = reads(job, columns)
    needed = int((end - begin).max()) + 1
    return LineBuffer(span, min(max(span + reach[0] * width + reach[1], needed), words))


def reads(job: ConvolutionJob, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last stored word of a channel that each group of X positions reads."""
    first, last = _reach(_windows_of(job))
    groups = np.arange(0, job.positions, columns)
    return np.minimum.reduceat(first, groups), np.maximum.reduceat(last, groups)


def _windows_of(job: ConvolutionJob) -> ConvolutionJob:
    """A job without what its windows do not depend on."""
    return replace(
        job, layer="", product=Product.FORWARD, groups=1, accumulated=1, images=1, channels=1,
        kernels=1,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _origins(job: ConvolutionJob) -> np.ndarray:
    """The stored word at the origin of the window of every position."""
    row, column = np.divmod(np.arange(job.positions), job.out[1])
    down = row * job.stride[0] // job.inp_dilation[0] * job.inp[1]
    return np.asarray(down + column * job.stride[1] // job.inp_dilation[1])


@lru_cache(maxsize=64)
def _reach(job: ConvolutionJob) -> tuple[np.ndarray, np.ndarray]:
    """First and last stored word of a channel in the window of every position."""
    row, column = np.divmod(np.arange(job.positions), job.out[1])
    first, last = np.zeros_like(row), np.zeros_like(row)
    for axis, at in enumerate((row, column)):
        origin = at * job.stride[axis] - job.padding[axis]
        far = origin + job.dilated_kern[axis] - 1
        size, zeros = job.inp[axis], job.inp_dilation[axis]
        first = first * size + np.clip(-(-origin // zeros), 0, size - 1)
        last = last * size + np.clip(far // zeros, 0, size - 1)
    return first, last


def kernel_for(
    job: ConvolutionJob, columns: Count, rows: Count, numbers: Numbers, port_bits: int
) -> Kernel:
    """The kernel of X columns and Y rows that just does one convolution; of arrays, all of them.

    Raises:
        ModelError: more columns than positions or more rows than filters is no error, only waste;
            none or fewer is.
    """
    if np.min(columns) < 1 or np.min(rows) < 1:
        raise ModelError(f"a kernel of {columns} x {rows} elements; both must be at least 1")
    words = job.channels * job.kern[0] * job.kern[1]
    blocks = up(job.positions, columns)
    gradient = job.is_weight_gradient
    return Kernel(
        columns,
        rows,
        *line_buffers(job, least(columns, job.positions)),
        job.kernels * words if gradient else 0,
        gradient,
        numbers.band(port_bits),
        numbers,
        words,
        1 if gradient else up(job.kernels, rows),
        job.kernels * job.images * blocks if gradient else blocks,
    )


def line_buffers(job: ConvolutionJob, columns: Count) -> tuple[Count, Count]:
    """Z and Z_channel for one X or many."""
    if not isinstance(columns, np.ndarray):
        one = line_buffer(job, columns)
        return one.span, one.channel
    sizes, where = np.unique(columns, return_inverse=True)
    found = [line_buffer(job, int(size)) for size in sizes]
    span, channel = (
        np.array([getattr(one, name) for one in found])[where] for name in ("span", "channel")
    )
    return span, channel


def fits(kernel: Kernel, job: ConvolutionJob) -> Any:
    """Whether a kernel can run a convolution: its buffers are large enough (2.4.1). Of kernels side
    by side an array of answers."""
    if kernel.weight_gradient != job.is_weight_gradient:
        return False
    own = kernel_for(
        job, kernel.columns, kernel.rows, kernel.numbers, kernel.band * kernel.numbers.bits
    )
    enough = [getattr(kernel, name) >= getattr(own, name) for name in SIZES]
    return all(enough) if all(isinstance(one, bool) for one in enough) else reduce(and_, enough)
