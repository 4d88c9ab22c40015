# SPDX-License-Identifier: Apache-2.0
"""Step `simulate`: the RTL gives the integers of the graph, in the cycles predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.arrays import read_npz
from bitwright.base.errors import MismatchError
from bitwright.base.figures import Source
from bitwright.base.files import atomic_write, json_text
from bitwright.base.progress import Progress, no_progress
from bitwright.ir import Graph, IntArray
from bitwright.pipeline.context import StepContext
from bitwright.pipeline.recipe_schema import SimulateSection
from bitwright.pipeline.steps.levels import INPUTS, read_levels
from bitwright.pipeline.steps.lower import figures_of, read_graph
from bitwright.pipeline.steps.map import RTL
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import (
    ENGINE_IMAGE,
    EngineResult,
    MapResult,
    SimulateResult,
)
from bitwright.pipeline.steps.simulate_engine import prove_engine
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.quantize.integers.affine import SCORES
from bitwright.sim import SimResult, Simulator, StallPattern, burst_stalls, compare, random_stalls
from bitwright.sim.beats import Beats

OUTPUTS = "outputs.npz"
_CHUNK = 100
_CHUNK_CYCLES = 2_000_000
_LEAST_FRAMES = 3
_RATE_FRAMES = 12
#: Of levels that are looked at together, and of the beats of a run with the cycles they came in.
_PART_BYTES, _RUN_BYTES = 1 << 28, 1 << 29
_LEVEL_BYTES = _CYCLE_BYTES = 8
_BUG = "this is a bug in Bitwright"


@dataclass(frozen=True)
class _Proof:
    """A design and what it must give.

    Attributes:
        inputs: of each port, levels of the frames.
        outputs: of each port, what must come out.
        interval: predicted cycles an image.
    """

    simulator: Simulator
    inputs: Mapping[str, IntArray]
    outputs: Mapping[str, IntArray]
    interval: int

    @property
    def frames(self) -> int:
        """How many there are."""
        return len(next(iter(self.inputs.values())))

    @property
    def most_frames(self) -> int:
        """Of one run: beats and their cycles take 512 MiB; never fewer than show the rate."""
        ports = (*self.simulator.design.inputs, *self.simulator.design.outputs)
        each = sum(port.spec.beats * (port.spec.beat_bytes + _CYCLE_BYTES) for port in ports)
        return max(_LEAST_FRAMES, _RUN_BYTES // each)

    def _parts(self, count: int) -> list[slice]:
        """Frames of which levels are looked at together."""
        ports = (*self.simulator.design.inputs, *self.simulator.design.outputs)
        each = _LEVEL_BYTES * sum(port.spec.frame_elements for port in ports)
        size = max(1, _PART_BYTES // each)
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]

    def _beats(self, chosen: IntArray) -> dict[str, Beats]:
        """These images as they are sent."""
        packed = [
            self.simulator.pack({port: levels[chosen[p]] for port, levels in self.inputs.items()})
            for p in self._parts(len(chosen))
        ]
        return {port: np.concatenate([beats[port] for beats in packed]) for port in packed[0]}

    def run(
        self, chosen: IntArray, stalls: StallPattern | None = None, reset_at: int | None = None
    ) -> SimResult:
        """Simulate these images and compare every output with ``==``.

        Raises:
            MismatchError: a value differs; names image, output and element.
        """
        design = self.simulator.design
        beats = self._beats(chosen)
        result = self.simulator.run(beats, len(chosen), stalls, reset_at=reset_at)
        lanes = {port.name: port.spec.lanes for port in design.outputs}
        for part in self._parts(len(chosen)):
            got = result.levels_of(part.start, part.stop)
            difference = compare(self.expected(chosen[part]), got, lanes)
            if difference is not None:
                frame = part.start + difference.frame
                told = replace(difference, frame=frame)
                raise MismatchError(
                    f"RTL differs from the integer graph on test image {chosen[frame]}: {told}",
                    where=f"simulation of {design.top}, stalls: {result.stalls}",
                    hint=f"{_BUG}; please report it with its folder",
                )
        return result

    def expected(self, chosen: IntArray) -> dict[str, IntArray]:
        """Levels of each port for some of the images."""
        return {port: levels[chosen] for port, levels in self.outputs.items()}


def simulate(work: Workspace, context: StepContext) -> None:
    """Prove the RTL of a run on its test images."""
    recipe, graph = work.recipe, read_graph(context.inputs["lower"])
    levels = read_levels(context.inputs["lower"])
    result, found, clock_mhz = prove_mapped(
        context.inputs["map"],
        graph,
        {graph.inputs[0]: levels[INPUTS]},
        {edge: levels[edge] for edge in graph.outputs},
        recipe.simulate,
        recipe.seed,
        context.progress,
    )
    metrics = figures_of(work, graph, found[SCORES], Source.SIMULATION)
    result = result.model_copy(update={"metrics": metrics})
    result.save(context.folder)
    write_performance(result, clock_mhz, context.folder)
    kept: dict[str, Any] = {SCORES: found[SCORES]}
    np.savez_compressed(context.folder / OUTPUTS, **kept)


def simulated_scores(folder: Path) -> IntArray | None:
    """Levels of the scores that the RTL gave for the first test images; None of a step that was
    done before they were kept.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / OUTPUTS
    return read_npz(path)[SCORES] if path.is_file() else None


def prove_mapped(
    mapped: Path,
    graph: Graph,
    feeds: Mapping[str, IntArray],
    expected: Mapping[str, IntArray],
    wanted: SimulateSection,
    seed: int,
    progress: Progress = no_progress,
) -> tuple[SimulateResult, dict[str, IntArray], float]:
    """Prove what the step `map` has left, whatever its kind: `prove_rtl` or `prove_engine`.

    Args:
        mapped: its folder.

    Returns:
        as those two, and the clock in MHz at which rates are said.
    """
    given = graph, feeds, expected
    if (mapped / ENGINE_IMAGE).is_file():
        made = load_result(EngineResult, mapped)
        proof, found = prove_engine(mapped, *given, made, wanted, seed, progress)
        return proof, found, made.clock_mhz
    result = load_result(MapResult, mapped)
    proof, found = prove_rtl(mapped / RTL, *given, result, wanted, seed, progress)
    return proof, found, result.rate_clock_mhz


def prove_rtl(
    rtl: Path,
    graph: Graph,
    feeds: Mapping[str, IntArray],
    expected: Mapping[str, IntArray],
    mapped: MapResult,
    wanted: SimulateSection,
    seed: int,
    progress: Progress = no_progress,
) -> tuple[SimulateResult, dict[str, IntArray]]:
    """Prove RTL: all images back to back, with stalls, after a reset, behind a damaged frame, at
    the predicted rate.

    Args:
        rtl: the design folder of the RTL.
        feeds, expected: of each input and each output of the graph, levels (N, ...).
        mapped: what is predicted.
        seed: of the stalls.

    Returns:
        The result, without metrics; and by output what the RTL gave, which is what was expected.

    Raises:
        MismatchError: a value, the rate or a FIFO is not as predicted: a bug.
        ToolError: no simulation is possible here.
    """
    progress("compiling the simulation", 0, 0)
    total = len(next(iter(feeds.values())))
    count = total if wanted.images == "all" else min(wanted.images, total)
    simulator = Simulator.build(rtl, frames=count)
    design = simulator.design
    inputs = {p.name: feeds[e] for p, e in zip(design.inputs, graph.inputs, strict=True)}
    ports = dict(zip(graph.outputs, (port.name for port in design.outputs), strict=True))
    outputs = {port: expected[edge] for edge, port in ports.items()}
    proof = _Proof(simulator, inputs, outputs, mapped.interval)
    stalled_count = min(wanted.stall_images, count, proof.most_frames)
    plain = _back_to_back(proof, np.arange(count), progress)
    rate, latency = _check_rate(proof, progress)
    stalled = _with_stalls(proof, wanted, seed, stalled_count, progress)
    after_reset = _with_reset(proof, progress)
    _with_damaged_frames(proof, progress)
    every = [*plain, rate, *stalled, after_reset]
    result = SimulateResult(
        metrics={},
        images=count,
        stall_images=stalled_count,
        stall_patterns=tuple(result.stalls for result in stalled),
        compared_values=sum(
            r.frames * port.spec.frame_elements for r in every for port in r.outputs
        ),
        differences=0,
        interval=int(rate.interval or 0),
        predicted_interval=mapped.interval,
        latency=latency,
        predicted_latency=mapped.latency,
        high_water=_check_fifos(every),
        cycles=sum(r.cycles for r in every),
    )
    came = [r.levels for r in plain]
    found = {
        edge: np.concatenate([levels[port] for levels in came]).reshape(
            count, *graph.types[edge].shape
        )
        for edge, port in ports.items()
    }
    return result, found


def _back_to_back(proof: _Proof, chosen: IntArray, progress: Progress) -> list[SimResult]:
    """Every image once, frames without a gap, in chunks that keep the progress bar moving."""
    size = max(_LEAST_FRAMES, min(_CHUNK, _CHUNK_CYCLES // proof.interval, proof.most_frames))
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
    result = proof.run(np.arange(min(_RATE_FRAMES, proof.most_frames)) % proof.frames)
    if result.interval != proof.interval:
        raise MismatchError(
            f"{result.interval} cycles a frame in the steady state, {proof.interval} predicted",
            where=f"simulation of {proof.simulator.design.top}",
            hint=f"{_BUG}, in the timing model; please report it",
        )
    return result, proof.run(np.arange(1)).latency


def _with_stalls(
    proof: _Proof, wanted: SimulateSection, seed: int, count: int, progress: Progress
) -> list[SimResult]:
    """Some images again, both sides stalling at random: single cycles and bursts."""
    patterns = (random_stalls(wanted.stall_probability, seed + 1), burst_stalls(seed=seed + 1))
    results = []
    for position, pattern in enumerate(patterns):
        progress("simulating with random stalls", position, len(patterns))
        results.append(proof.run(np.arange(count), pattern))
    progress("simulating with random stalls", len(patterns), len(patterns))
    return results


def _with_reset(proof: _Proof, progress: Progress) -> SimResult:
    """A reset in the middle of a frame; the frames sent after it come out right."""
    progress("simulating a reset in mid-frame", 0, 0)
    frames = np.arange(min(_LEAST_FRAMES, proof.frames))
    return proof.run(frames, reset_at=proof.interval + proof.interval // 2)


def _with_damaged_frames(proof: _Proof, progress: Progress) -> None:
    """A frame that lacks a beat and one with a beat too many: the design says so, and the frame
    behind them comes out right.

    Raises:
        MismatchError: it does not.
    """
    progress("simulating lost and surplus beats", 0, 0)
    whole = proof.simulator.pack({port: levels[:1] for port, levels in proof.inputs.items()})
    surplus = [0, -1, 1, 0] if min(map(len, whole.values())) > 1 else [0, 1, 0]
    beats, lasts = {}, {}
    for port, frame in whole.items():
        lengths = [len(frame) + more for more in surplus]
        beats[port] = np.concatenate([np.resize(frame, (n, frame.shape[1])) for n in lengths])
        lasts[port] = np.zeros(len(beats[port]), dtype=bool)
        lasts[port][np.cumsum(lengths) - 1] = True
    result = proof.simulator.run(beats, len(surplus), lasts=lasts)
    whole_frame, last = proof.expected(np.arange(1)), len(surplus) - 1
    difference = None
    for at in (0, last):
        difference = difference or compare(whole_frame, result.levels_of(at, at + 1))
    if difference is not None or result.frame_error != 1:
        raise MismatchError(
            f"behind frames with a lost and a surplus beat: {difference or 'no flag is raised'}",
            where=f"simulation of {proof.simulator.design.top}",
            hint=f"{_BUG}; please report it with its folder",
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


def write_performance(result: SimulateResult, clock_mhz: float, folder: Path) -> None:
    """``rtlsim_performance.json``, as FINN calls it and its keys."""
    table: dict[str, Any] = {
        "N": result.images,
        "cycles": result.cycles,
        "interval_cycles": result.interval,
        "latency_cycles": result.latency,
        "throughput[images/s]": clock_mhz * 1e6 / result.interval,
        "fclk[mhz]": clock_mhz,
        "source": "simulation",
    }
    atomic_write(folder / "rtlsim_performance.json", json_text(table, indent=2) + "\n")
