# SPDX-License-Identifier: Apache-2.0
"""A card that runs FPGPT kernels, simulated: which kernel is programmed, what runs cost (2.4.10).

Convolutions come as in training: one after the other, each on its kernel. The card is programmed
anew only where the next one needs another kernel than the last.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bitwright.base.errors import ModelError
from bitwright.papers.fpga_training.devices import Board
from bitwright.papers.fpga_training.fpgpt import engine
from bitwright.papers.fpga_training.fpgpt.cycles import cycles
from bitwright.papers.fpga_training.fpgpt.explore import best_kernel
from bitwright.papers.fpga_training.fpgpt.kernel import Kernel, Numbers
from bitwright.papers.fpga_training.fpgpt.kernel_files import Library
from bitwright.papers.fpga_training.jobs import ConvolutionJob


@dataclass
class Ran:
    """What one convolution has taken so far: how often it ran, cycles of all its runs."""

    runs: int = 0
    cycles: int = 0


@dataclass
class Card:
    """A card under simulation.

    Attributes:
        board: it, with the memory that holds a batch.
        numbers: that its kernels multiply.
        kernels: a library of those that have been built, of which those of its numbers count; None:
            the best one of each convolution is built.
        programmed: the kernel on the card; None before the first.
        reconfigurations: how often it was programmed.
        ran: by convolution, layers by their names.
    """

    board: Board
    numbers: Numbers
    kernels: Library | None = None
    programmed: Kernel | None = None
    reconfigurations: int = 0
    ran: dict[ConvolutionJob, Ran] = field(default_factory=dict)
    _chosen: dict[ConvolutionJob, Kernel] = field(default_factory=dict)

    def kernel_of(self, job: ConvolutionJob) -> Kernel:
        """The kernel that runs a convolution; looked for once, when a network is set up.

        Raises:
            ModelError: no kernel of the library fits; the batch is larger than the card's memory.
            TargetError: no kernel at all fits the board.
        """
        if job.shape not in self._chosen:
            self._check_memory(job)
            found = self.kernels.find(job, self.numbers) if self.kernels else None
            self._chosen[job.shape] = found or best_kernel(job, self.board, self.numbers).kernel
        return self._chosen[job.shape]

    def run(self, job: ConvolutionJob, inp: engine.Array, kern: engine.Array) -> engine.Array:
        """One group of channels of a convolution; tensors as `engine.run` has them.

        Raises:
            ModelError: as for `kernel_of`.
            TargetError: as for `kernel_of`.
        """
        kernel = self.kernel_of(job)
        if kernel != self.programmed:
            self.programmed, self.reconfigurations = kernel, self.reconfigurations + 1
        count = self.ran.setdefault(job, Ran())
        count.runs += 1
        count.cycles += int(cycles(job, kernel).total)
        return engine.run(job, kernel, inp, kern)

    @property
    def seconds(self) -> float:
        """Of all runs so far at the board's clock, without transfers and reconfigurations."""
        return sum(one.cycles for one in self.ran.values()) / self.board.clock_hz

    def _check_memory(self, job: ConvolutionJob) -> None:
        images = job.images * job.accumulated
        words = images * job.channels * job.inp[0] * job.inp[1]
        gradient = job.is_weight_gradient
        kernels = job.kernels * job.channels * job.kern[0] * job.kern[1]
        words += kernels * job.accumulated
        words += job.kernels * job.positions * job.images
        taken = words * self.numbers.bits // 8
        if taken > self.board.card_bytes:
            raise ModelError(
                f"the {job.product.value} of {job.layer!r} takes {taken} bytes of the card's "
                f"memory of {self.board.card_bytes}",
                where=self.board.name,
                hint=f"a batch of {job.accumulated if gradient else job.images} images is too "
                "large: take fewer",
            )
