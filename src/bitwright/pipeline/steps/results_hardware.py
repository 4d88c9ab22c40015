# SPDX-License-Identifier: Apache-2.0
"""What the steps `map` and `simulate` have found; see `bitwright.pipeline.steps.results`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from bitwright.base.figures import Resources
from bitwright.base.records import (
    Baud,
    BlockRow,
    Cycles,
    EdgeRow,
    EngineLayerRow,
    EngineMappingRow,
    EngineWaitRow,
    FifoRow,
    Mhz,
    Record,
)
from bitwright.pipeline.steps.results import Metered, Result


class LinkRow(Result):
    """The serial link of a board, see `bitwright.build.rates.LinkRate`."""

    board: str
    baud: Baud
    bytes_in: int
    bytes_out: int
    images_per_s: float


class MapResult(Result):
    """The hardware graph; every figure is a model's.

    Attributes:
        clock_mhz: asked for.
        rated_mhz: at which rates are said until the design is placed: not more than the best that
            was measured in the family; 0 in records of earlier versions, that is `clock_mhz`.
        clock_note: where `rated_mhz` comes from, in words.
        wanted_fps: images a second that were asked for; None: another goal.
        link: the serial link of the target's board; None without one.
        lut_kind: what the LUTs count: "packed", as the device fills, or cells of "synthesis".
        interval, latency: predicted cycles an image in the steady state; of a lone image.
        bottleneck: the block that sets the interval.
        weight_memory: bytes and bandwidth of external weights, of each unit and together
            (`hw.weight_image.MemoryPlan.bandwidth`); None if there are none.
        checked_cycles: that the design was simulated beat by beat, without data: it does not
            deadlock, and keeps the interval. 0: not done, `unchecked` says why.
        partition: parts, their resources and the links between them where the network is spread
            over several devices (`rtl.emit_parts`); None on one.
        own_blocks: functions that give the blocks of the user's own, ``package.module:name``.
    """

    target: str
    clock_mhz: Mhz
    rated_mhz: Annotated[float, Field(ge=0, le=1e15)] = 0
    clock_note: str = ""
    wanted_fps: float | None = None
    link: LinkRow | None = None
    lut_kind: str = ""
    interval: Cycles
    latency: Cycles
    bottleneck: str
    resources: Resources
    capacity: Resources
    blocks: tuple[BlockRow, ...]
    fifos: tuple[FifoRow, ...]
    edges: tuple[EdgeRow, ...] = ()
    weight_memory: dict[str, Any] | None = None
    checked_cycles: int = 0
    unchecked: str = ""
    partition: dict[str, Any] | None = None
    own_blocks: tuple[str, ...] = ()

    @property
    def rate_clock_mhz(self) -> float:
        """The clock at which rates are said until the design is placed."""
        return self.rated_mhz or self.clock_mhz


#: The file that the step `map` leaves for an engine, and only then.
ENGINE_IMAGE = "program.bwe"


class EngineResult(Result):
    """A program for the programmed engine; cycles are a model's.

    Attributes:
        engine: ``PxIxO``; digest: of the image file.
        cycles: of one image, the memory as the configuration says.
        exact: whether cycles are those of the RTL's timing model, to the cycle, or (where there is
            no C++ compiler for it) the compiler's estimate.
        waits: for what the array stands still, the longest first.
        macs, utilisation: of the whole network.
        images, compared_values: on which the emulated program gave the integer graph's values.
        wanted_fps: images a second that were asked for.
        host: what is left to the host.
        resources: of the engine without what its board adds, by the model; None: of its family
            there is none.
    """

    engine: str
    digest: str
    clock_mhz: Mhz
    instructions: int
    memory_bytes: int
    cycles: int
    macs: int
    utilisation: float
    layers: tuple[EngineLayerRow, ...]
    waits: tuple[EngineWaitRow, ...] = ()
    exact: bool = False
    images: int
    compared_values: int
    wanted_fps: float | None = None
    host: tuple[str, ...] = ()
    resources: Resources | None = None


class EngineExplanation(Record):
    """How a network is mapped to a programmed engine, or why not.

    Attributes:
        engine: its name or file, as the recipe gives it; sizes: its configuration.
        products: of 8 bits, that it makes a cycle.
        layers: how each is done; empty where there is no program.
        program: what it takes, by the models; None: there is none.
        refused: nodes without a mapping, or the network as a whole, each with the reason.
    """

    engine: str
    sizes: dict[str, Any]
    products: int
    layers: tuple[EngineMappingRow, ...] = ()
    program: EngineResult | None = None
    refused: dict[str, str] = Field(default_factory=dict)


class SimulateResult(Metered):
    """The proof, cycle by cycle.

    Attributes:
        images: held-out images whose every score and label equalled the integer graph's.
        stall_images: how many of them again, with each of ``stall_patterns`` on both sides.
        compared_values: number of values compared, over all runs.
        differences: how many differed: 0, or the step fails.
        interval: steady-state cycles an image, frames back to back.
        latency: cycles of a lone image.
        high_water: FIFO instance -> most beats it ever held.
        cycles: simulated altogether.
        instructions: of an engine: how many were found to begin and end in the predicted cycle.
    """

    images: int
    stall_images: int
    stall_patterns: tuple[str, ...]
    compared_values: int
    differences: int
    interval: Cycles
    predicted_interval: Cycles
    latency: Cycles
    predicted_latency: Cycles
    high_water: dict[str, int]
    cycles: int
    instructions: int = 0

    def words(self, frames: str = "images") -> str:
        """What was compared, in a sentence."""
        patterns = " and ".join(self.stall_patterns)
        if self.instructions:
            return (
                f"engine's RTL = integer graph: {self.compared_values:,} values, "
                f"{self.differences} differences; {self.images:,} {frames} one behind the other, "
                f"{self.stall_images} again on memories that stall ({patterns}), after a reset in "
                "mid-run and behind a run whose memory answered with errors; "
                f"{self.instructions:,} instructions began and ended in the predicted cycle"
            )
        return (
            f"RTL = integer graph: {self.compared_values:,} values, {self.differences} "
            f"differences; {self.images:,} {frames} back to back, {self.stall_images} again with "
            f"stalls ({patterns}), after a reset in mid-frame, and behind frames with lost and "
            "surplus beats"
        )
