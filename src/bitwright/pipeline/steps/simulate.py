# SPDX-License-Identifier: Apache-2.0
"""Step `simulate`: the RTL gives the integers of the graph, in the cycles predicted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bitwright.base.errors import MismatchError
from bitwright.base.figures import Source
from bitwright.base.files import atomic_write
from bitwright.base.progress import Progress
from bitwright.ir import IntArray
from bitwright.pipeline.context import StepContext
from bitwright.pipeline.steps.lower import figures_of, read_graph, read_levels
from bitwright.pipeline.steps.map import RTL
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import MapResult, SimulateResult
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.quantize.integers.affine import SCORES
from bitwright.sim import SimResult, Simulator, StallPattern, burst_stalls, compare, random_stalls

_CHUNK = 100
_CHUNK_CYCLES = 2_000_000
_LEAST_FRAMES = 3
_RATE_FRAMES = 12
_SCORES = "m_axis_0"


@dataclass(frozen=True)
class _Proof:
    """A design and what it must give.

    Attributes:
        inputs: levels of the held-out images, in test order.
        outputs: of each port, what must come out.
        interval: predicted cycles an image.
    """

    simulator: Simulator
    inputs: IntArray
    outputs: Mapping[str, IntArray]
    interval: int

    def run(
        self, chosen: IntArray, stalls: StallPattern | None = None, reset_at: int | None = None
    ) -> SimResult:
        """Simulate these images and compare every output with ``==``.

        Raises:
            MismatchError: a value differs; names image, output and element.
        """
        (port,) = self.simulator.design.inputs
        beats = self.simulator.pack({port.name: self.inputs[chosen]})
        result = self.simulator.run(beats, len(chosen), stalls, reset_at=reset_at)
        difference = compare(self.expected(chosen), result.levels)
        if difference is not None:
            image = int(chosen[difference.frame])
            raise MismatchError(
                f"RTL differs from the integer graph on test image {image}: {difference}",
                where=f"simulation of {self.simulator.design.top}, stalls: {result.stalls}",
                hint="this is a bug in Bitwright; please report it with the run directory",
            )
        return result

    def expected(self, chosen: IntArray) -> dict[str, IntArray]:
        """Levels of each port for some of the images."""
        return {port: levels[chosen] for port, levels in self.outputs.items()}


def simulate(work: Workspace, context: StepContext) -> None:
    """Prove the RTL: all images back to back, with stalls, after a reset, behind a damaged frame,
    at the predicted rate.
    """
    mapped = load_result(MapResult, context.inputs["map"])
    context.progress("compiling the simulation", 0, 0)
    levels, wanted = read_levels(context.inputs["lower"]), work.recipe.simulate
    total = len(levels["inputs"])
    count = total if wanted.images == "all" else min(wanted.images, total)
    simulator = Simulator.build(context.inputs["map"] / RTL, frames=count)
    graph = read_graph(context.inputs["lower"])
    ports = zip((port.name for port in simulator.design.outputs), graph.outputs, strict=True)
    outputs = {port: levels[edge] for port, edge in ports}
    proof = _Proof(simulator, levels["inputs"], outputs, mapped.interval)
    stalled_count = min(wanted.stall_images, count)
    plain = _back_to_back(proof, np.arange(count), context.progress)
    rate, latency = _check_rate(proof, context.progress)
    stalled = _with_stalls(proof, work, stalled_count, context.progress)
    after_reset = _with_reset(proof, context.progress)
    _with_damaged_frames(proof, context.progress)
    every = [*plain, rate, *stalled, after_reset]
    scores = np.concatenate([result.levels[_SCORES] for result in plain])
    scores = scores.reshape(count, *levels[SCORES].shape[1:])
    result = SimulateResult(
        images=count,
        stall_images=stalled_count,
        stall_patterns=tuple(result.stalls for result in stalled),
        compared_values=sum(values.size for r in every for values in r.levels.values()),
        differences=0,
        metrics=figures_of(work, graph, scores, Source.SIMULATION),
        interval=int(rate.interval or 0),
        predicted_interval=mapped.interval,
        latency=latency,
        predicted_latency=mapped.latency,
        high_water=_check_fifos(every),
        cycles=sum(r.cycles for r in every),
    )
    result.save(context.folder)
    _finn_file(context, result, mapped.rate_clock_mhz)


def _back_to_back(proof: _Proof, chosen: IntArray, progress: Progress) -> list[SimResult]:
    """Every image once, frames without a gap, in chunks that keep the progress bar moving."""
    size = max(_LEAST_FRAMES, min(_CHUNK, _CHUNK_CYCLES // proof.interval))
    results = []
    for start in range(0, len(chosen), size):
        progress("simulating", start, len(chosen))
        results.append(proof.run(chosen[start : start + size]))
    progress("simulating", len(chosen), len(chosen))
    return results


def _check_rate(proof: _Proof, progress: Progress) -> tuple[SimResult, int]:
    """The steady-state interval; it must be the predicted one.

    Raises:
        MismatchError: it is not.
    """
    progress("measuring the rate", 0, 0)
    result = proof.run(np.arange(_RATE_FRAMES) % len(proof.inputs))
    if result.interval != proof.interval:
        raise MismatchError(
            f"{result.interval} cycles an image in the steady state, {proof.interval} predicted",
            where=f"simulation of {proof.simulator.design.top}",
            hint="this is a bug in Bitwright's timing model; please report it",
        )
    return result, proof.run(np.arange(1)).latency


def _with_stalls(proof: _Proof, work: Workspace, count: int, progress: Progress) -> list[SimResult]:
    """Some images again, both sides stalling at random: single cycles and bursts."""
    wanted, seed = work.recipe.simulate, work.recipe.seed + 1
    patterns = (random_stalls(wanted.stall_probability, seed), burst_stalls(seed=seed))
    results = []
    for position, pattern in enumerate(patterns):
        progress("simulating with random stalls", position, len(patterns))
        results.append(proof.run(np.arange(count), pattern))
    progress("simulating with random stalls", len(patterns), len(patterns))
    return results


def _with_reset(proof: _Proof, progress: Progress) -> SimResult:
    """A reset in the middle of a frame; the frames sent after it come out right."""
    progress("simulating a reset in mid-frame", 0, 0)
    frames = np.arange(min(_LEAST_FRAMES, len(proof.inputs)))
    return proof.run(frames, reset_at=proof.interval + proof.interval // 2)


def _with_damaged_frames(proof: _Proof, progress: Progress) -> None:
    """A frame that lacks a beat and one with a beat too many: the design says so, and the frame
    behind them comes out right.

    Raises:
        MismatchError: it does not.
    """
    progress("simulating lost and surplus beats", 0, 0)
    (port,) = proof.simulator.design.inputs
    count = port.spec.beats
    whole = proof.simulator.pack({port.name: proof.inputs[:1]})[port.name]
    lengths = [length for length in (count, count - 1, count + 1, count) if length]
    beats = np.concatenate([np.resize(whole, (length, whole.shape[1])) for length in lengths])
    lasts = np.zeros(len(beats), dtype=bool)
    lasts[np.cumsum(lengths) - 1] = True
    result = proof.simulator.run({port.name: beats}, len(lengths), lasts={port.name: lasts})
    frames = np.array([0, len(lengths) - 1])
    got = {name: levels[frames] for name, levels in result.levels.items()}
    difference = compare(proof.expected(np.array([0, 0])), got)
    if difference is not None or result.frame_error != 1:
        raise MismatchError(
            f"behind frames with a lost and a surplus beat: {difference or 'no flag is raised'}",
            where=f"simulation of {proof.simulator.design.top}",
            hint="this is a bug in Bitwright; please report it with the run directory",
        )


def _check_fifos(results: list[SimResult]) -> dict[str, int]:
    """The most beats every FIFO ever held, over all runs.

    Raises:
        MismatchError: more than it was made for.
    """
    marks: dict[str, int] = {}
    for result in results:
        for name, mark in result.fifo_high_water.items():
            if mark > result.fifo_depths[name]:
                raise MismatchError(
                    f"held {mark} beats, its depth is {result.fifo_depths[name]}", where=name
                )
            marks[name] = max(marks.get(name, 0), mark)
    return marks


def _finn_file(context: StepContext, result: SimulateResult, clock_mhz: float) -> None:
    table: dict[str, Any] = {
        "N": result.images,
        "cycles": result.cycles,
        "interval_cycles": result.interval,
        "latency_cycles": result.latency,
        "throughput[images/s]": clock_mhz * 1e6 / result.interval,
        "fclk[mhz]": clock_mhz,
        "source": "simulation",
    }
    atomic_write(context.folder / "rtlsim_performance.json", json.dumps(table, indent=2) + "\n")
