# SPDX-License-Identifier: Apache-2.0
"""Step `simulate` of an engine: its RTL runs the program and gives the integers of the graph, every
instruction in the predicted cycles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bitwright.base.errors import MismatchError
from bitwright.base.files import regular_bytes
from bitwright.base.progress import Progress, no_progress
from bitwright.engine.image import EngineImage
from bitwright.engine.timing import simulate as predict
from bitwright.ir import Graph, IntArray
from bitwright.pipeline.recipe_schema import SimulateSection
from bitwright.pipeline.steps.map_engine import RTL, memory_of
from bitwright.pipeline.steps.results_hardware import (
    ENGINE_IMAGE,
    EngineResult,
    SimulateResult,
)
from bitwright.sim import (
    ProgramJob,
    ProgramRun,
    Simulator,
    StallPattern,
    burst_stalls,
    random_stalls,
    run_program,
)
from bitwright.sim.engines import check_cycles

_CHUNK_BYTES = 32 << 20  # of memory contents that one run of the simulator leaves behind
_CHUNK_CYCLES = 4_000_000
_BUG = "this is a bug in Bitwright; please report it with its folder"


@dataclass
class _Proof:
    """A program on the simulated engine, and what it must give.

    Attributes:
        feeds, expected: of each input and output of the graph, levels of the frames.
        runs: what was simulated; compared: values; instructions: found in the predicted cycles.
    """

    simulator: Simulator
    image: EngineImage
    feeds: Mapping[str, IntArray]
    expected: Mapping[str, IntArray]
    cycles: int = 0
    compared: int = 0
    instructions: int = 0
    found: dict[str, list[IntArray]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of the memory."""
        return self.image.words * self.image.config.word_bytes

    def run(
        self,
        chosen: IntArray,
        stalls: StallPattern,
        reset_at: int | None = None,
        faults: Mapping[int, tuple[int, int]] | None = None,
    ) -> list[ProgramRun]:
        """Run the program for these frames, one behind the other, and compare every output, and
        where nothing disturbs it begin and end of every instruction.

        Raises:
            MismatchError: a value, a cycle or the status differs.
        """
        bad = faults or {}
        frames = [{e: levels[int(n)] for e, levels in self.feeds.items()} for n in chosen]
        job = ProgramJob(
            self.image.data.tobytes(),
            size=self.size,
            writes=[self.image.writes(frame) for frame in frames],
            reset_at=reset_at,
            faults=bad,
        )
        runs = list(run_program(self.simulator, job, stalls))
        self.cycles += sum(run.cycles for run in runs)
        for run, number in enumerate(chosen):
            if run not in bad:
                self._compare(runs[run], int(number), stalls)
        if reset_at is None and not bad:
            self._check_cycles(runs, stalls)
        return runs

    def _compare(self, run: ProgramRun, number: int, stalls: StallPattern) -> None:
        where = f"simulation of the engine, stalls: {stalls.name}"
        if run.error:
            raise MismatchError(f"image {number} ends with error {run.error}", where=where)
        found = self.image.read(run.memory)
        for edge, levels in self.expected.items():
            wrong = np.argwhere(found[edge] != levels[number])
            if len(wrong):
                at = tuple(int(i) for i in wrong[0])
                raise MismatchError(
                    f"the engine's RTL differs from the integer graph on image {number}: "
                    f"{edge}{at} is {found[edge][at]}, not {levels[number][at]}",
                    where=where,
                    hint=_BUG,
                )
            self.compared += levels[number].size
        self.found = {edge: [*self.found.get(edge, []), found[edge]] for edge in self.expected}

    def _check_cycles(self, runs: list[ProgramRun], stalls: StallPattern) -> None:
        image = self.image
        timing = predict(
            image.program, image.config, stalls.memory, self.size, seed=stalls.seed, runs=len(runs)
        )
        for number, run in enumerate(runs):
            self.instructions += check_cycles(image.program, run, timing, number)


def prove_engine(
    mapped: Path,
    graph: Graph,
    feeds: Mapping[str, IntArray],
    expected: Mapping[str, IntArray],
    made: EngineResult,
    wanted: SimulateSection,
    seed: int,
    progress: Progress = no_progress,
) -> tuple[SimulateResult, dict[str, IntArray]]:
    """Prove a program on the RTL of its engine: all images, some with stalls, after a reset, behind
    a run whose memory answered with errors.

    Args:
        mapped: folder of the step `map`.
        feeds, expected: of each input and each output of the graph, levels (N, ...).
        made: what `map` has found.

    Returns:
        The result, without metrics; and by output what the RTL gave, which is what was expected.

    Raises:
        MismatchError: a value, a cycle or a status is not as predicted: a bug.
        ToolError: no simulation is possible here.
    """
    image = EngineImage.from_bytes(regular_bytes(mapped / ENGINE_IMAGE), str(mapped / ENGINE_IMAGE))
    total = len(next(iter(feeds.values())))
    count = total if wanted.images == "all" else min(wanted.images, total)
    progress("compiling the simulation", 0, 0)
    predicted = made.cycles
    simulator = Simulator.build(mapped / RTL, cycles=count * predicted)
    proof = _Proof(simulator, image, feeds, expected)
    plain = StallPattern("none", seed=seed + 1, memory=memory_of(image.config))
    size = max(1, min(_CHUNK_BYTES // proof.size, _CHUNK_CYCLES // predicted))
    first: ProgramRun | None = None
    for start in range(0, count, size):
        progress("simulating", start, count)
        runs = proof.run(np.arange(start, min(start + size, count)), plain)
        first = first or runs[0]
    progress("simulating", count, count)
    found = {edge: np.stack(levels) for edge, levels in proof.found.items()}
    assert first is not None
    stalled = min(wanted.stall_images, count)
    patterns = random_stalls(wanted.stall_probability, seed + 1), burst_stalls(seed=seed + 1)
    for position, pattern in enumerate(patterns):
        progress("simulating with random stalls", position, len(patterns))
        for start in range(0, stalled, size):
            proof.run(np.arange(start, min(start + size, stalled)), pattern)
    _disturbed(proof, plain, first.cycles, progress)
    result = SimulateResult(
        metrics={},
        images=count,
        stall_images=stalled,
        stall_patterns=tuple(pattern.name for pattern in patterns),
        compared_values=proof.compared,
        differences=0,
        interval=first.cycles,
        predicted_interval=predicted,
        latency=first.cycles,
        predicted_latency=predicted,
        high_water={},
        cycles=proof.cycles,
        instructions=proof.instructions,
    )
    if made.exact and first.cycles != predicted:
        raise MismatchError(
            f"{first.cycles} cycles an image, {predicted} predicted", where="the engine", hint=_BUG
        )
    return result, found


def _disturbed(proof: _Proof, plain: StallPattern, cycles: int, progress: Progress) -> None:
    """A reset in mid-run, and a memory that answers with errors: where the program lies, its
    constants, or its input. The run says so, and the next one is right.

    Raises:
        MismatchError: it is not, or no error is noted.
    """
    progress("simulating a reset in mid-run", 0, 0)
    proof.run(np.zeros(1, np.int64), plain, reset_at=cycles // 2)
    image, word = proof.image, proof.image.config.word_bytes
    places = {
        "program": (64, 96),
        "constants": (image.data.size - word, image.data.size),
        "input": (image.inputs[0].word * word, (image.inputs[0].word + 1) * word),
    }
    for number, (name, faults) in enumerate(places.items()):
        progress("simulating a memory that answers with errors", number, len(places))
        bad, _ = proof.run(np.zeros(2, np.int64), plain, faults={0: faults})
        if not bad.error & 2:
            raise MismatchError(
                f"an error of the memory, in the {name}, is not noted",
                where="the engine",
                hint=_BUG,
            )
