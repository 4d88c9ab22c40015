# SPDX-License-Identifier: Apache-2.0
"""The memory behind a design's AXI4 port, as the simulator plays it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field

from bitwright.base.described import Described
from bitwright.base.errors import GraphError

NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
"""Names that may stand in sources and scripts."""
_PAGE = 4096


class MemoryPort(Described):
    """One AXI4 port of the top module.

    Attributes:
        name: prefix of its signals (``m_axi_gmem0``).
        base: name of the input that takes the address at which the memory image starts.
        width: bits of a beat.
        access: whether it has the channels of writes, too.
        image: file with the contents, relative to the design folder; empty: they come with a run.
        beats: read for one frame.
        beats_per_cycle: what the design has been told that the memory gives; no model gives more.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(pattern=NAME)
    base: str = Field(pattern=NAME)
    width: int = Field(gt=0, alias="data_bits")
    access: Literal["read", "read_write"] = "read"
    image: str = ""
    beats: int = Field(default=0, ge=0, alias="beats_per_frame")
    beats_per_cycle: float = 1.0


@dataclass(frozen=True)
class MemoryModel:
    """How a memory behaves; random choices come from the seed of the stall pattern.

    Attributes:
        latency: cycles from a request to its first data, or from the last word that is written to
            the answer, at least.
        jitter: up to so many cycles more, drawn for every request.
        beats_per_cycle: bandwidth limit of reads and of writes; 1 is the port's own.
        stop, go: how requests and words to write are held back, as in `StallPattern`.
        mixed: answers to different readers may overtake and interleave.
        base: byte address of the image.
        forgets: a reset of the design is one of the memory, too; else it still answers what was
            asked before. A burst of which words to write are missing is dropped anyway.
    """

    latency: int = 20
    jitter: int = 0
    beats_per_cycle: float = 1.0
    stop: float = 0.0
    go: float = 1.0
    mixed: bool = False
    base: int = 0x1000_0000
    forgets: bool = False
    #: It is no SDRAM with our controller, as `bitwright.engine.sdram.SdramMemory` is.
    sdram: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not (0 < self.beats_per_cycle <= 1 and self.latency >= 0 and self.jitter >= 0):
            raise GraphError(
                f"a memory gives more than 0 and at most 1 beat a cycle, after 0 or more: {self}"
            )
        if not (0 <= self.stop <= 1 and 0 < self.go <= 1):
            raise GraphError(f"stall probabilities lie in [0, 1], go above 0: {self}")
        if self.base < 0 or self.base % _PAGE:
            raise GraphError(f"the image starts at a multiple of {_PAGE}, not at {self.base:#x}")

    def job(self, number: int, port: MemoryPort, image: str | None = None, size: int = 0) -> str:
        """The line that tells the harness.

        Args:
            image: file with the contents; None: the port's.
            size: bytes of the memory, undefined behind the image; 0: those of the image.
        """
        stalls = f"{self.stop} {self.go}"
        share = min(self.beats_per_cycle, port.beats_per_cycle)
        rate = f"{self.latency} {self.jitter} {share} {int(self.mixed)} {int(self.forgets)}"
        return f"memory {number} {self.base} {rate} {size} {stalls} {image or port.image}"
