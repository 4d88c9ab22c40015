# SPDX-License-Identifier: Apache-2.0
"""Training on FPGPT as a device of cost tables: every convolution on its own best kernel, at every
word length (Vink 2023, 6.1 and 6.4; specification 004, 2.5.1).
"""

from __future__ import annotations

from collections.abc import Iterable

from bitwright.low_precision.costs.model import (
    Accelerator,
    Cost,
    LevelCosts,
    PartCost,
)
from bitwright.low_precision.costs.network import Network
from bitwright.low_precision.ladder import FLOAT32, parse_level
from bitwright.papers.fpga_training.devices import Board, load_board
from bitwright.papers.fpga_training.fpgpt import kernel
from bitwright.papers.fpga_training.fpgpt.explore import best_kernel
from bitwright.papers.fpga_training.jobs import ConvolutionJob, convolution_jobs


class FpgptCosts(Accelerator):
    """FPGPT on one die of a board (default: the U250)."""

    formats = "float32 and integers of 2 to 16 bits"
    notes = (
        "cycles of each convolution on its own best kernel (equation 5.13), one after the other; "
        "layers that are no convolutions, transfers and reconfigurations are not counted",
    )

    def __init__(self, board: Board | None = None) -> None:
        self.board = board or load_board("u250")
        self.name = f"fpgpt-{self.board.name}"

    def computes(self, level: str) -> bool:
        found = parse_level(level).format
        return found is None or (found.is_integer and found.bits <= 16)

    def products(self, network: Network, level: str) -> LevelCosts:
        bits = parse_level(level).bits
        numbers = kernel.FLOAT32 if level == FLOAT32 else kernel.fixed_point(bits)
        return LevelCosts(level, tuple(self._parts(convolution_jobs(network), numbers)))

    def _parts(self, jobs: Iterable[ConvolutionJob], numbers: kernel.Numbers) -> list[PartCost]:
        found: dict[ConvolutionJob, float] = {}
        parts = []
        for job in jobs:
            if job.shape not in found:
                taken = best_kernel(job, self.board, numbers).cycles
                found[job.shape] = taken / self.board.clock_hz
            seconds = found[job.shape]
            cost = Cost(seconds, seconds * self.board.watts)
            parts.append(PartCost(job.layer, job.product.value, cost, f"{numbers.bits} bits"))
        return parts
