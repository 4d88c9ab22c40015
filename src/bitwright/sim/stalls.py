# SPDX-License-Identifier: Apache-2.0
"""Stall patterns: how often the test bench holds back valid on inputs and ready on outputs, and
how the memory behind a design's memory ports behaves."""

from __future__ import annotations

from dataclasses import dataclass, field

from bitwright.base.errors import GraphError
from bitwright.sim.memory import MemoryModel


@dataclass(frozen=True)
class StallPattern:
    """A random pattern for every input and output of a run, with a fixed seed.

    Each port is a two-state chain: moving ports stop with probability ``*_stop`` a cycle, stopped
    ones go on with probability ``*_go``. The share of stalled cycles is stop / (stop + go). A valid
    that has been raised stays up until its transfer, whatever the pattern. `memory` is what every
    memory port of the design reads from.
    """

    name: str
    input_stop: float = 0.0
    input_go: float = 1.0
    output_stop: float = 0.0
    output_go: float = 1.0
    seed: int = 1
    memory: MemoryModel = field(default_factory=MemoryModel)

    def __post_init__(self) -> None:
        stops, goes = (self.input_stop, self.output_stop), (self.input_go, self.output_go)
        if not all(0.0 <= p <= 1.0 for p in (*stops, *goes)) or min(goes) == 0.0:
            raise GraphError(
                f"stall probabilities lie in [0, 1] and a stalled port must go on: {self}"
            )


def no_stalls(seed: int = 1) -> StallPattern:
    """Always valid, always ready."""
    return StallPattern("none", seed=seed)


def random_stalls(share: float, seed: int = 1) -> StallPattern:
    """Every port stalls in a ``share`` of its cycles, independently from cycle to cycle.

    So do requests of a memory, whose answers take their time and overtake each other.
    """
    memory = MemoryModel(jitter=60, stop=share, go=1 - share, mixed=True)
    return StallPattern(f"random {share:.0%}", share, 1 - share, share, 1 - share, seed, memory)


def burst_stalls(mean_run: float = 12.0, mean_stall: float = 24.0, seed: int = 1) -> StallPattern:
    """Runs and stalls of geometric length with these means, in cycles."""
    stop, go = 1.0 / mean_run, 1.0 / mean_stall
    memory = MemoryModel(latency=2, beats_per_cycle=0.4, stop=stop, go=go)
    return StallPattern(f"bursts {mean_run:g}/{mean_stall:g}", stop, go, stop, go, seed, memory)


def output_stalls(share: float, seed: int = 1) -> StallPattern:
    """A source that never waits and a sink that stalls in a ``share`` of its cycles."""
    return StallPattern(f"output {share:.0%}", 0.0, 1.0, share, 1 - share, seed)


def standard_stalls(seed: int = 1) -> tuple[StallPattern, ...]:
    """The patterns every design must survive: none, 50 %, 95 %, bursts."""
    return (
        no_stalls(seed),
        random_stalls(0.5, seed),
        random_stalls(0.95, seed),
        burst_stalls(seed=seed),
    )
