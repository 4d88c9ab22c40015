# SPDX-License-Identifier: Apache-2.0
"""A kernel of FPGPT cycle by cycle: its units, the FIFOs and double buffers between them.

The model of `cycles` takes the slowest unit alone. Here each step of each unit begins when what it
needs is there and where it writes is free (specification 004, 2.4.4 to 2.4.7 and 2.4.12):

- a burst brings a channel of one group of positions, when one of two places for bursts is free;
- the construct unit fills one half of the line buffer while windows are sent from the other;
- the array takes a word of windows a cycle, waits for its filters, drains behind Y results;
- OUT takes a row of X results a cycle and holds two sets of Y results (FGI) or all (GW).

Bursts take what A.1 says, so the formulas and the simulator differ by waiting and by filling alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from bitwright.papers.fpga_training.fpgpt.cycles import Cycles, burst_cycles, cycles
from bitwright.papers.fpga_training.fpgpt.kernel import Kernel, line_buffer
from bitwright.papers.fpga_training.jobs import ConvolutionJob

#: Cycles from a request to the card's memory to its first beat (2.4.3), and bursts on their way.
_MEMORY, _BURSTS = 35, 2


@dataclass(frozen=True)
class Simulated:
    """What the simulator counted.

    Attributes:
        total: cycles until the last word of OUT is in the card's memory.
        array: cycles in which the array multiplied or drained.
        waited: cycles in which it waited, by what it waited for: ``inp`` or ``kern`` or ``out``.
    """

    total: int
    array: int
    waited: dict[str, int]


@dataclass
class _Clocks:
    """When each unit is free again."""

    ddr: int = 0
    construct: int = 0
    array: int = 0
    kern: int = 0
    out: int = 0


class _Engine:
    def __init__(self, job: ConvolutionJob, kernel: Kernel) -> None:
        self.job, self.kernel = job, kernel
        self.blocks = ceil(job.positions / kernel.columns)
        self.passes = ceil(job.kernels / kernel.rows)
        own = line_buffer(job, min(kernel.columns, job.positions)).channel
        self.burst = burst_cycles(kernel.channel, kernel.band)
        whole = ceil(own / kernel.band) * kernel.band
        self.group = ceil(whole / min(kernel.span, kernel.band))
        if kernel.span >= kernel.band:
            self.group = ceil(ceil(own / kernel.span) * kernel.span / kernel.band)
        self.taps = prod(job.dilated_kern)
        self.drain = kernel.rows + kernel.numbers.reduction
        self.clock = _Clocks()
        #: Ends of the last steps: bursts taken up, halves of the line buffer sent.
        self.taken: deque[int] = deque([0] * _BURSTS, maxlen=_BURSTS)
        self.sent: deque[int] = deque([0, 0], maxlen=2)
        self.filters: deque[int] = deque([0, 0], maxlen=2)
        self.results: deque[int] = deque([0, 0], maxlen=2)
        self.busy = 0
        self.waited = dict.fromkeys(("inp", "kern", "out"), 0)

    def start(self) -> None:
        """FGI: all filters are written before the first window (A.18)."""
        if not self.job.is_weight_gradient:
            words = self.job.kernels * self.job.channels * prod(self.job.kern)
            self.clock.kern = _MEMORY + words

    def fetch_filters(self) -> int:
        """GW: the next Y filters into the half that is free; when they are there."""
        words = self.kernel.rows * self.job.channels * prod(self.job.kern)
        beats = ceil(words / min(self.kernel.rows, self.kernel.band))
        share = burst_cycles(self.kernel.kern_burst, self.kernel.band) // self.passes
        begin = max(self.clock.kern, self.filters[0])
        self.clock.kern = begin + max(beats, share)
        return self.clock.kern

    def channel(self) -> int:
        """One channel of one group through burst and construct unit; when it can be sent."""
        clock = self.clock
        begin = max(clock.ddr, self.taken[0])
        clock.ddr = begin + self.burst
        first = max(clock.construct, begin + _MEMORY, self.sent[0])
        clock.construct = max(first + self.group, clock.ddr + 1)
        self.taken.append(clock.construct)
        return clock.construct

    def wait(self, until: int, why: str) -> None:
        if until > self.clock.array:
            self.waited[why] += until - self.clock.array
            self.clock.array = until

    def filters_pass(self) -> None:
        """Y filters over all positions of one image."""
        gradient = self.job.is_weight_gradient
        self.wait(self.fetch_filters() if gradient else self.clock.kern, "kern")
        self.wait(self.results[0], "out")
        for _ in range(self.blocks):
            for _ in range(self.job.channels):
                self.wait(self.channel(), "inp")
                self.clock.array += self.taps
                self.busy += self.taps
                self.sent.append(self.clock.array)
        self.clock.array += self.drain
        self.busy += self.drain
        self.filters.append(self.clock.array)
        rows = self.kernel.rows * self.blocks
        values = min(self.kernel.rows, self.job.kernels) * self.job.positions
        written = 0 if gradient else ceil(values / min(self.kernel.columns, self.kernel.band))
        self.clock.out = max(self.clock.out, self.clock.array) + max(rows, written)
        self.results.append(self.clock.out)


def simulate(job: ConvolutionJob, kernel: Kernel, images: int = 3) -> Simulated:
    """Count the cycles of one group of channels of a convolution.

    Args:
        images: of the batch (or, for a weight gradient, of those added up) stepped through: what
            the last of them adds, each further one adds as well.
    """
    engine = _Engine(job, kernel)
    engine.start()
    gradient = job.is_weight_gradient
    count = job.accumulated if gradient else job.images
    stepped = min(count, max(2, images))
    ends = []
    for _ in range(stepped):
        inner = job.images if gradient else 1
        for _ in product(range(inner), range(engine.passes)):
            engine.filters_pass()
        ends.append((engine.clock.out, engine.busy, dict(engine.waited)))
    rest = count - stepped
    total, busy, waited = ends[-1]
    if rest:
        before, less, earlier = ends[-2]
        total += rest * (total - before)
        busy += rest * (busy - less)
        waited = {why: n + rest * (n - earlier[why]) for why, n in waited.items()}
    if gradient:
        values = job.kernels * job.images * job.positions
        total += ceil(values / min(kernel.columns, kernel.band)) + engine.blocks
    return Simulated(total + _MEMORY, busy, waited)


def compared(job: ConvolutionJob, kernel: Kernel) -> tuple[Cycles, Simulated, float]:
    """Model, simulator, and how far the model's total lies above the simulated one (relative)."""
    model, counted = cycles(job, kernel), simulate(job, kernel)
    return model, counted, (model.total - counted.total) / counted.total
